"""Processes of this machine: what ``/proc`` shows, signals to exactly the intended process, process tags.

The agent and its watchdog use this module, and so do the launcher's own commands. It must never send a signal
to a process that merely got the pid of the intended one.

A process tag is a number that every process of a task carries. It is the soft limit RLIMIT_RTTIME (realtime
scheduling without a pause, in microseconds), set to numbers beyond 100,000 years that limit nothing in
practice. Resource limits are inherited through fork, exec and setsid, a cleared environment does not remove
them, and ``/proc/PID/limits`` shows them.
"""

import errno
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Callable, Dict, Iterable, List, NoReturn, Optional, Sequence

from launcher.common.record import Record
from launcher.common.text import why_not_started

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NAME = 15
_PR_SET_PTRACER = 0x59616D61
#: In the main process of a pod, the descriptor of the stdin that another process has passed to it. Its own
#: stdin is the socket to that process.
PASSED_STDIN = 3
#: The pid namespace of the machine itself, outside of all containers (``PROC_PID_INIT_INO`` of the kernel).
FIRST_PID_NAMESPACE = "pid:[4026531836]"
_SMALL_FILE_BYTES = 8192
_POLL_SECONDS = 0.002
# Killing stops after this many listings in a row have found only dead processes. One listing is not enough,
# because a process may fork while processes are listed.
_MIN_QUIET_POLLS = 100


def become_subreaper(name: str) -> None:
    """Make the kernel let this process inherit every orphan among its descendants.

    Args:
        name: The name of this process in process lists, cut to 15 bytes.

    Raises:
        OSError: The kernel refuses because it is older than Linux 3.4.
    """
    import ctypes  # noqa: PLC0415 - 2 ms, for agents only

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def ptrace_scope() -> str:
    """Return which processes may trace others of their user (``kernel.yama.ptrace_scope``).

    Returns:
        ``0`` if all may, ``1`` if only the ancestors of a process may, and those that it admits, ``2`` if
        only root may, and ``3`` if nobody may. Empty if the kernel has no Yama, and all may.
    """
    return "".join(lines_of("/proc/sys/kernel/yama/ptrace_scope"))


def admit_tracer(pid: int) -> None:
    """Let a process and its descendants trace this process, even when it runs another program (exec).

    Only a kernel with Yama requires such a permission. Others ignore this.
    """
    import ctypes  # noqa: PLC0415 - few agents need it

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def show_as(command: str) -> None:
    """Change the command line of this process in process lists, where that is allowed.

    A fork of the launcher shows the launcher's command line, and ``pkill -f launch`` must not signal an
    agent.

    Args:
        command: What to show. It is cut to the length of the original command line.
    """
    with suppress(OSError, ValueError):
        # arg_start and arg_end of proc_pid_stat(5): where the kernel reads the command line in our memory.
        fields = _read("/proc/self/stat").rpartition(b") ")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(command.encode()[: end - start - 1].ljust(end - start, b"\0"))


def leave_to_launcher() -> None:
    """Ignore the signals that ask a launch to stop, except SIGTERM.

    A terminal, a batch system or a service manager may send them to every process of a launch. The launcher
    alone reacts to them, and stops the tasks. Processes that this one starts with ``setsigdef`` do
    not ignore them.
    """
    for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "XCPU", "PWR"):
        signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)


def wake_on(*numbers: int) -> int:
    """Let these signals wake a selector instead of interrupting this process, and unblock them.

    Returns:
        A non-blocking descriptor from which the number of each signal can be read as one byte.
    """
    reading, writing = os.pipe()
    for fd in (reading, writing):
        os.set_blocking(fd, False)
    # A full pipe is no problem, because its reader is woken anyway.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in numbers:
        # Python writes to the descriptor only for signals that have a handler.
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    return reading


def fork() -> int:
    """Fork as `os.fork` does. If that is not possible, print the reason to stderr and exit."""
    try:
        return os.fork()
    except OSError as error:
        sys.stderr.write(f"{why_not_started(error)}\n")
        sys.exit(1)


def ended_child() -> Optional[int]:
    """Return the pid of a child that has ended, and leave the child for a later wait.

    The kernel does not reuse the pid until the child is reaped, so the answer stays right.

    Returns:
        The pid. 0 if no child has ended. None if this process has no child at all.
    """
    try:
        child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return child.si_pid if child is not None else 0


def _of_process(read: Callable[[str], Any], path: str) -> Any:
    """Read something about a process that may end at any moment.

    Args:
        read: Called with the path.
        path: A path below ``/proc/PID``.

    Returns:
        The result of ``read``, or None if the process is gone or hidden.

    Raises:
        OSError: This process has no file descriptor left, which says nothing about the other process.
    """
    try:
        return read(path)
    except OSError as error:
        # The two mean too many open files, of this process or of the whole machine.
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None


def _read(path: str) -> bytes:
    """Return the content of a small file. This makes fewer system calls than Python's file objects do."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while piece := os.read(fd, _SMALL_FILE_BYTES):
            content += piece
        return content
    finally:
        os.close(fd)


def lines_of(path: str) -> List[str]:
    """Return the lines of a file in ``/proc`` or ``/sys``, or no lines if it cannot be read."""
    try:
        # Only a newline ends a line. Paths of mounts and control groups may contain a carriage return.
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return [line.rstrip("\n") for line in file]
    except OSError:
        return []


class Process(Record):
    """A process as ``/proc/PID/stat`` shows it at one moment."""

    pid: int
    #: One letter, such as R for running, T for stopped and Z for a zombie.
    state: str
    parent: int
    group: int
    session: int
    #: Clock ticks from boot to the start of the process. It distinguishes processes that have the same pid.
    start: int
    threads: int = 1
    #: Clock ticks of CPU time, with those of children for which the process has waited.
    cpu: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether the process is a zombie (Z) or dead (X), which has ended and waits to be reaped.

        A process of which only the main thread has exited has the state Z, too, but it still runs.
        """
        return self.state in "ZX" and self.threads <= 1


def read_process(pid: int) -> Optional[Process]:
    """Return what ``/proc`` shows of the process with this pid, or None if there is no such process."""
    text = _of_process(_read, f"/proc/{pid}/stat")
    if text is None:
        return None
    # See proc_pid_stat(5). The second field is the name of the program in parentheses, which may itself
    # contain parentheses and spaces. The numbers below count from the third field.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(
        pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start=int(fields[19]),
        threads=int(fields[17]),
        cpu=sum(map(int, fields[11:15])),
    )


#: Whether the kernel was built with ``/proc/PID/task/TID/children``.
_KERNEL_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")


def children_of(pid: int) -> List[int]:
    """Return the pids of the children of all threads of a process, or no pids if the process is gone."""
    # Some kernels are built without the lists of children. There all processes are read.
    if not _KERNEL_LISTS_CHILDREN:
        everyone = map(read_process, all_pids())
        return [process.pid for process in everyone if process is not None and process.parent == pid]
    threads = _of_process(os.listdir, f"/proc/{pid}/task") or ()
    listed = [_of_process(_read, f"/proc/{pid}/task/{thread}/children") or b"" for thread in threads]
    return [int(child) for child in b" ".join(listed).split()]


def all_pids() -> List[int]:
    """Return the pids of all processes that this process can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants_of(pid: int) -> List[Process]:
    """Return the children of a process, their children and so on, each after its parent."""
    descendants: Dict[int, Process] = {}
    waiting = children_of(pid)
    while waiting:
        child = waiting.pop(0)
        # A process may change its parent while this runs, and be listed twice.
        process = None if child in descendants else read_process(child)
        if process is not None:
            descendants[child] = process
            waiting.extend(children_of(child))
    return list(descendants.values())


def resident(pid: int) -> int:
    """Return how many bytes of a process are in physical memory, or 0 if the process is gone."""
    # The second field is the number of resident pages, see proc_pid_statm(5).
    fields = (_of_process(_read, f"/proc/{pid}/statm") or b"").split()
    return int(fields[1]) * resource.getpagesize() if fields else 0


def peak_resident(pid: int) -> int:
    """Return how many bytes of a process were in physical memory at most, or 0 if the process is gone."""
    # The kernel states it in KiB.
    words = _status_of(pid, b"VmHWM")
    return int(words[0]) * 1024 if words else 0


def send(process: Process, number: int) -> bool:
    """Send a signal to exactly this process, never to a later one with the same pid.

    Args:
        process: The process, as it was read some time ago.
        number: The signal.

    Returns:
        Whether the process still existed, so the signal was sent.
    """
    with suppress(OSError):
        # Python 3.8 has no pidfds. There the pid could be reused between the check and the signal.
        pidfd = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1
        try:
            # The pidfd is opened before the check, so that both are about the same process.
            if _is_still(process):
                if pidfd < 0:
                    os.kill(process.pid, number)
                else:
                    signal.pidfd_send_signal(pidfd, number)
                return True
        finally:
            if pidfd >= 0:
                os.close(pidfd)
    return False


def _is_still(process: Process, group: Optional[int] = None) -> bool:
    """Return whether a process that was read some time ago still exists.

    Args:
        process: The process, as it was read. Another process may have its pid by now.
        group: The process group to which it must belong, or None if that does not matter.
    """
    current = read_process(process.pid)
    return current is not None and current.start == process.start and group in (None, current.group)


def kill_groups(processes: Iterable[Process]) -> None:
    """Send SIGKILL to the whole process groups of these processes.

    A process that forks and exits in a loop is faster than kill(pid), but it cannot escape killpg.

    Args:
        processes: Processes whose sessions were started by tasks, so no other process can be in their
            groups. A process of our own session is left out, and so is one whose session was started
            outside of our pid namespace, which shows as 0.
    """
    # Their groups may contain processes that belong to no task.
    foreign_sessions = (0, os.getsid(0))
    groups: Dict[int, List[Process]] = {}
    for process in processes:
        # To killpg, 0 means our own group, and 1 is the group of the first process.
        if process.group > 1 and process.session not in foreign_sessions:
            groups.setdefault(process.group, []).append(process)
    for group, members in groups.items():
        # A group without any of its members has ended, and another group may have its number.
        if any(_is_still(member, group) for member in members):
            # It may have ended in this moment, or run as another user.
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)


def kill_descendants(seconds: float, reap: Callable[[], object]) -> bool:
    """Kill all descendants of this process, again and again, until none of them is alive.

    Dead descendants that a debugger keeps from being reaped are not waited for.

    Args:
        seconds: How long to try. Some processes cannot be killed.
        reap: Called to reap the children that have ended.

    Returns:
        Whether any child is left.
    """
    # How many polls in a row have found nobody alive.
    until, quiet_polls, is_late = time.monotonic() + seconds, 0, False
    reap()
    # `ended_child` returns None only if this process has no child at all. A single poll that finds nobody
    # alive proves nothing, because a process may fork meanwhile.
    while ended_child() is not None and quiet_polls < _MIN_QUIET_POLLS and not is_late:
        # Even when the time is up this kills once more, because this process may have been suspended.
        is_late = time.monotonic() >= until
        alive = [process for process in descendants_of(os.getpid()) if not process.has_ended]
        # A process that forks again and again can be killed only with its group. A process that has left the
        # group of its task, or is in the group of this process, can be killed only alone.
        kill_groups(alive)
        for process in alive:
            send(process, signal.SIGKILL)
        quiet_polls = 0 if alive else quiet_polls + 1
        time.sleep(_POLL_SECONDS)
        reap()
    return ended_child() is not None


def user_of(pid: int) -> Optional[int]:
    """Return the real user id of a process, or None if the process has ended."""
    uids = _status_of(pid, b"Uid")
    return int(uids[0]) if uids else None


def is_nested(pid: int) -> bool:
    """Return whether a process may be in another pid namespace than this one.

    Returns:
        True also if the process is hidden from us, and False if it has ended.
    """
    # The kernel lists the pid of a process in each namespace from ours down to its own.
    pids = _status_of(pid, b"NSpid")
    if pids is None:
        # A process that is hidden cannot be read, but it still has a folder. One that has ended has none.
        return os.path.exists(f"/proc/{pid}")
    # A process of our own namespace has a single pid. Without any, the kernel does not tell.
    return len(pids) != 1


def _status_of(pid: int, name: bytes) -> Optional[List[bytes]]:
    """Return the words of one line of ``/proc/PID/status``.

    Args:
        pid: The process.
        name: The name at the beginning of the line.

    Returns:
        An empty list if there is no such line. None if the process is gone or hidden.
    """
    status: Optional[bytes] = _of_process(_read, f"/proc/{pid}/status")
    if status is None:
        return None
    return status.partition(b"\n" + name + b":")[2].partition(b"\n")[0].split()


class Exits:
    """Tells in which order child processes ended, so that an agent reports the first failure first.

    ``wait4(-1)`` returns ended children in the order of their birth. A pidfd becomes readable when its
    process ends, and epoll lists ready descriptors in the order in which they became ready. Without pidfds
    (an old kernel, or Python 3.8) the order is unknown.
    """

    def __init__(self) -> None:
        """Prepare to watch child processes, of which none is watched at first."""
        #: Watches the pidfds, which are descriptors that each stand for a process.
        self._epoll = select.epoll()
        #: The pidfds of the watched processes by their pids, and the other way round.
        self._pidfds: Dict[int, int] = {}
        self._pids: Dict[int, int] = {}
        #: Whether `watch` has an effect. The agent sets it to false if file descriptors are scarce.
        self.is_enabled = hasattr(os, "pidfd_open")

    def fileno(self) -> int:
        """Return a descriptor that is readable while a watched process has ended and was not forgotten."""
        return self._epoll.fileno()

    def watch(self, pid: int) -> None:
        """Watch for the end of a child of this process that was not reaped yet."""
        if not self.is_enabled:
            return
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            # The kernel is old, or no descriptor is left.
            return
        self._epoll.register(pidfd, select.EPOLLIN)
        self._pidfds[pid], self._pids[pidfd] = pidfd, pid

    def in_order(self) -> List[int]:
        """Return the pids of the watched processes that have ended, the first to end first."""
        # epoll refuses to return at most 0 descriptors.
        if not self._pids:
            return []
        return [self._pids[pidfd] for pidfd, _ in self._epoll.poll(0, len(self._pids))]

    def forget(self, pid: int) -> None:
        """Stop watching a process, because it was reaped or a debugger keeps it from us."""
        # Not every child is watched.
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None:
            del self._pids[pidfd]
            self._epoll.unregister(pidfd)
            os.close(pidfd)


# A tag is _TAG_BASE plus the agent's number plus the ordinal of the process. The base is above all limits
# that a user would set, and the sum is below 2**63, the largest limit that Python can set.
_TAG_BASE = 5 << 60
_TASK_BITS = 24
_AGENT_BITS = 36


def new_agent_id() -> int:
    """Return a random number for a new agent. The process tags of all its processes contain it."""
    return int.from_bytes(os.urandom(8), "little") % (1 << _AGENT_BITS)


def tag(agent: int, ordinal: int) -> int:
    """Return the process tag for a process that an agent starts, a number that identifies both.

    Args:
        agent: The number of the agent.
        ordinal: 1 for the first process that the agent starts, 2 for the next one and so on. The agent
            itself and its watchdog have 0.
    """
    # After 16 million processes the ordinals start again.
    return _TAG_BASE + (agent << _TASK_BITS) + ordinal % (1 << _TASK_BITS)


def agent_of(number: int) -> Optional[int]:
    """Return the number of the agent in a process tag.

    Args:
        number: The soft limit RLIMIT_RTTIME of a process, which is its tag if an agent has started it.

    Returns:
        None if the number is not a tag but a usual limit.
    """
    agent = (number >> _TASK_BITS) - (_TAG_BASE >> _TASK_BITS)
    return agent if 0 <= agent < 1 << _AGENT_BITS else None


def ordinal_of(number: int) -> int:
    """Return the ordinal in a process tag.

    It is 0 for an agent and its parent, the watchdog, 1 for the first process that the agent has started, and
    so on.
    """
    return number % (1 << _TASK_BITS)


def tag_of(pid: int) -> int:
    """Return the number by which `agent_of` tells which agent has started a process.

    The tag is the soft limit RLIMIT_RTTIME, which ``/proc/PID/limits`` shows in the line
    ``Max realtime timeout      5764607523034234881    unlimited    us``.

    Returns:
        0 if the process has no such limit or is gone.
    """
    # The soft limit is the first number in the line. It may be the word "unlimited".
    limits: bytes = _of_process(_read, f"/proc/{pid}/limits") or b""
    fields = limits.partition(b"Max realtime timeout ")[2].split(None, 1)
    return int(fields[0]) if fields and fields[0].isdigit() else 0


def carry_tag(agent: int) -> None:
    """Set the process tag of this process and of its future forks to that of an agent and its watchdog.

    A process tag is a number in one of the limits of a process, which its children inherit.

    Args:
        agent: The number of the agent.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    # With a lower hard limit neither the agent nor its tasks can carry a tag.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_RTTIME, (tag(agent, 0), hard))


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes of ``data`` to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def nothing_on(*fds: int) -> None:
    """Replace these descriptors by ``/dev/null``."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def close_inherited(*kept: int) -> None:
    """Close all descriptors of this process except the standard streams.

    Args:
        kept: Other descriptors that stay open.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            # The descriptor that listed the folder is closed already.
            with suppress(OSError):
                os.close(int(name))


def become_function(function: Callable[[], Any], streams: Sequence[int]) -> NoReturn:
    """Run a function in this fork, then exit, so that no code of the parent runs here afterwards.

    Args:
        function: Called in a session of its own. Its result is the exit status.
        streams: The descriptors that become stdin, stdout and stderr. All others are closed.
    """
    # If anything below fails, the process exits with this.
    status: Any = 1
    try:
        os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
        # The parent's signal handlers write to descriptors that are other files here.
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        # The parent may block signals that the function must receive.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        close_inherited()
        status = function()
    except SystemExit as error:
        status = error.code
    finally:
        # An exception is being raised, and must be shown here, because nothing may run after `_exit`.
        if sys.exc_info()[0] is not None:
            sys.excepthook(*sys.exc_info())
        # The reader may be gone.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        # As at the end of any program, None means success, and a text means that something failed.
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)
