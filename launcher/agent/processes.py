"""Processes of this machine: what ``/proc`` shows, signals to exactly the process meant, process tags.

A process tag is a number that every process of a task carries. Resource limits are inherited through fork,
exec and setsid, and no cleared environment removes them. So an agent starts each task with a soft limit on
something that limits nothing in practice (realtime scheduling without a pause, in microseconds: the numbers
used are beyond 100,000 years). ``/proc/PID/limits`` shows it. The launcher's own commands use this module
too.
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
#: In the main process of a pod, the descriptor of the stdin that another process has passed to it. Its own
#: stdin is the socket to that process.
PASSED_STDIN = 3
#: The machine's own pid namespace, that of its first process (``PROC_PID_INIT_INO`` of the kernel).
FIRST_PID_NAMESPACE = "pid:[4026531836]"
#: Bytes of a read of a small file.
_SMALL_FILE_BYTES = 8192
#: Seconds between two looks at killed processes, and how many looks in a row must find only dead ones.
_POLL_SECONDS = 0.002
_MIN_QUIET_POLLS = 100


def become_subreaper(name: str) -> None:
    """Adopt every orphan among our descendants, and set the name (15 bytes) that process lists show.

    Raises:
        OSError: The kernel refused (older than Linux 3.4).
    """
    import ctypes  # noqa: PLC0415 - 2 ms, for agents only

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def show_as(command: str) -> None:
    """Show this command line in process lists. A fork has the launcher's, and ``pkill -f launch`` must not
    signal it. Where that is not allowed nothing changes.
    """
    with suppress(OSError, ValueError):
        fields = _read("/proc/self/stat").rpartition(b") ")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(command.encode()[: end - start - 1].ljust(end - start, b"\0"))


def leave_to_launcher() -> None:
    """Ignore the signals that ask a launch to end, other than SIGTERM: the launcher stops the tasks in order.

    A terminal, a batch system or a service manager may send them to every process of a launch. Processes that
    this one starts with ``setsigdef`` do not ignore them.
    """
    for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "XCPU", "PWR"):
        signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)


def wake_on(*numbers: int) -> int:
    """Return a non-blocking descriptor from which the numbers of these signals can be read, a byte each.

    It also unblocks the signals.
    """
    reading, writing = os.pipe()
    for fd in (reading, writing):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    return reading


def fork() -> int:
    """Fork as `os.fork` does; where that is not possible, say why on stderr and exit."""
    try:
        return os.fork()
    except OSError as error:
        sys.stderr.write(f"{why_not_started(error)}\n")
        sys.exit(1)


def ended_child() -> Optional[int]:
    """Return the pid of a child that has ended and was not reaped. No race can make this answer wrong.

    Returns:
        0 if no child has ended; None if there is no child.
    """
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found is not None else 0


def _of_process(read: Callable[[str], Any], path: str) -> Any:
    """Return the result of ``read`` for a path below ``/proc``; ``None`` if its process is gone or hidden.

    Raises:
        OSError: No descriptor is left: this does not mean that the process is gone.
    """
    try:
        return read(path)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None


def _read(path: str) -> bytes:
    """Return the content of a small file, by fewer system calls than `open` makes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while piece := os.read(fd, _SMALL_FILE_BYTES):
            content += piece
        return content
    finally:
        os.close(fd)


def lines_of(path: str) -> List[str]:
    """Return the lines of a file in ``/proc`` or ``/sys``, or none if it cannot be read."""
    try:
        # Paths of mounts and control groups may have any other character that ends a line elsewhere.
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return [line.rstrip("\n") for line in file]
    except OSError:
        return []


class Process(Record):
    """One process, as ``/proc/PID/stat`` shows it; ``start`` (ticks since boot) distinguishes reused pids."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int
    threads: int = 1

    @property
    def has_ended(self) -> bool:
        """Whether it is a zombie: it has ended, and its parent has not reaped it.

        One whose main thread has left shows as a zombie too, while its other threads run.
        """
        return self.state in "ZX" and self.threads <= 1


def read_process(pid: int) -> Optional[Process]:
    """Return the process with this pid, or None if there is none."""
    text = _of_process(_read, f"/proc/{pid}/stat")
    if text is None:
        return None
    # The name in parentheses may hold anything, also parentheses and spaces.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(
        pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start=int(fields[19]),
        threads=int(fields[17]),
    )


#: The kernel has ``/proc/PID/task/TID/children`` (an option of its build).
_KERNEL_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")


def children_of(pid: int) -> List[int]:
    """Return the pids of the children of all threads of a process, or none if it is gone."""
    if not _KERNEL_LISTS_CHILDREN:
        found = map(read_process, all_pids())
        return [process.pid for process in found if process is not None and process.parent == pid]
    threads = _of_process(os.listdir, f"/proc/{pid}/task") or ()
    listed = [_of_process(_read, f"/proc/{pid}/task/{thread}/children") or b"" for thread in threads]
    return [int(child) for child in b" ".join(listed).split()]


def all_pids() -> List[int]:
    """Return the pids that ``/proc`` shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants_of(pid: int) -> List[Process]:
    """Return the children of a process, their children and so on, parents first."""
    found: Dict[int, Process] = {}
    ahead = children_of(pid)
    while ahead:
        child = ahead.pop(0)
        process = None if child in found else read_process(child)
        if process is not None:
            found[child] = process
            ahead.extend(children_of(child))
    return list(found.values())


def resident(pid: int) -> int:
    """Return the number of resident bytes of a process, or 0 if it is gone."""
    fields = (_of_process(_read, f"/proc/{pid}/statm") or b"").split()
    return int(fields[1]) * resource.getpagesize() if fields else 0


def peak_resident(pid: int) -> int:
    """Return the largest number of resident bytes that a process has had; 0 if it is gone."""
    words = _status_of(pid, b"VmHWM")
    return int(words[0]) * 1024 if words else 0


def send(process: Process, number: int) -> bool:
    """Send a signal to exactly this process, never to a later one with its pid.

    Returns:
        Whether it was there to get it.
    """
    with suppress(OSError):
        handle = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1  # -1: Python 3.8
        try:
            if _is_still(process):
                if handle < 0:
                    os.kill(process.pid, number)
                else:
                    signal.pidfd_send_signal(handle, number)
                return True
        finally:
            if handle >= 0:
                os.close(handle)
    return False


def _is_still(process: Process, group: Optional[int] = None) -> bool:
    """Return whether the process exists, and belongs to this group if one is given."""
    now = read_process(process.pid)
    return now is not None and now.start == process.start and group in (None, now.group)


def kill_groups(processes: Iterable[Process]) -> None:
    """Kill the process groups of these processes.

    A process that forks and exits in a loop outruns kill(pid); it cannot outrun killpg.

    Args:
        processes: Their sessions were begun by tasks, so that no other process can be in their groups. Those
            of our own session, and of a session from outside our pid namespace, are left out.
    """
    not_theirs = (0, os.getsid(0))
    groups: Dict[int, List[Process]] = {}
    for process in processes:
        if process.group > 1 and process.session not in not_theirs:
            groups.setdefault(process.group, []).append(process)
    for group, members in groups.items():
        if any(_is_still(member, group) for member in members):  # else another group may have the number
            with suppress(OSError):  # it has ended, or runs as another user
                os.killpg(group, signal.SIGKILL)


def kill_descendants(seconds: float, reap: Callable[[], object]) -> bool:
    """Kill all our descendants until none is left; does not wait for dead ones that a debugger holds.

    Args:
        seconds: When to give up on what cannot be killed.
        reap: Takes the status of ended children.

    Returns:
        Whether some are left.
    """
    until, quiet, late = time.monotonic() + seconds, 0, False
    reap()
    while ended_child() is not None and quiet < _MIN_QUIET_POLLS and not late:
        late = time.monotonic() >= until  # a last look: this process may have been suspended
        alive = [process for process in descendants_of(os.getpid()) if not process.has_ended]
        kill_groups(alive)
        for process in alive:
            send(process, signal.SIGKILL)
        quiet = 0 if alive else quiet + 1
        time.sleep(_POLL_SECONDS)
        reap()
    return ended_child() is not None


def user_of(pid: int) -> Optional[int]:
    """Return the real user id of a process, or None if it has ended."""
    uids = _status_of(pid, b"Uid")
    return int(uids[0]) if uids else None


def is_nested(pid: int) -> bool:
    """Tell whether a process may be in another pid namespace than this one; not if it has ended."""
    pids = _status_of(pid, b"NSpid")
    if pids is None:  # or it is hidden
        return os.path.exists(f"/proc/{pid}")
    return len(pids) != 1


def _status_of(pid: int, name: bytes) -> Optional[List[bytes]]:
    """Return the words of a line of ``/proc/PID/status``.

    Returns:
        No words if there is no such line; None if the process is gone or hidden.
    """
    status: Optional[bytes] = _of_process(_read, f"/proc/{pid}/status")
    if status is None:
        return None
    return status.partition(b"\n" + name + b":")[2].partition(b"\n")[0].split()


class Exits:
    """The order in which processes ended. Without pidfds (old kernel, Python 3.8) it is always empty.

    ``wait4(-1)`` gives ended children in the order of their birth. A pidfd becomes readable when its process
    ends, and epoll's list of what is ready is a queue: it gives them in the order in which they ended.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._pidfds: Dict[int, int] = {}
        self._pids: Dict[int, int] = {}
        #: Whether there are pidfds, and enough file descriptors for them.
        self.is_enabled = hasattr(os, "pidfd_open")

    def fileno(self) -> int:
        """Readable while a watched process has ended and was not reaped."""
        return self._epoll.fileno()

    def watch(self, pid: int) -> None:
        """Watch for the end of ``pid``, a child of ours that was not reaped."""
        if not self.is_enabled:
            return
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # an old kernel, or no descriptor left for it
            return
        self._epoll.register(pidfd, select.EPOLLIN)
        self._pidfds[pid], self._pids[pidfd] = pidfd, pid

    def in_order(self) -> List[int]:
        """Return the processes that have ended, in this order."""
        if not self._pids:
            return []
        return [self._pids[pidfd] for pidfd, _ in self._epoll.poll(0, len(self._pids))]

    def forget(self, pid: int) -> None:
        """Stop watching ``pid``: it was reaped, or a debugger holds it."""
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None:
            del self._pids[pidfd]
            self._epoll.unregister(pidfd)
            os.close(pidfd)


#: Above limits that have a meaning; the sum stays below 2**63, the most that Python can set.
_TAG_BASE = 5 << 60
#: Tasks that one agent can start, as a power of two, and agents that have different tags.
_TASK_BITS = 24
_AGENT_BITS = 36


def new_agent_id() -> int:
    """Return a random number for an agent, for the tags of what it starts."""
    return int.from_bytes(os.urandom(8), "little") % (1 << _AGENT_BITS)


def tag(agent: int, ordinal: int) -> int:
    """Return the tag of a process of an agent.

    Args:
        agent: The number of the agent.
        ordinal: The place of the process among those that the agent starts, from 1. The agent itself and its
            watchdog have 0.
    """
    return _TAG_BASE + (agent << _TASK_BITS) + ordinal % (1 << _TASK_BITS)


def agent_of(number: int) -> Optional[int]:
    """Return the number of the agent that set this tag, or None if it is not a tag."""
    agent = (number >> _TASK_BITS) - (_TAG_BASE >> _TASK_BITS)
    return agent if 0 <= agent < 1 << _AGENT_BITS else None


def ordinal_of(number: int) -> int:
    """Return the ordinal of the process with this tag among those of its agent."""
    return number % (1 << _TASK_BITS)


def tag_of(pid: int) -> int:
    """Return the tag of a process, or 0 if it has none or is gone.

    The line is ``Max realtime timeout      5764607523034234881    unlimited    us``.
    """
    limits: bytes = _of_process(_read, f"/proc/{pid}/limits") or b""
    fields = limits.partition(b"Max realtime timeout ")[2].split(None, 1)
    return int(fields[0]) if fields and fields[0].isdigit() else 0


def carry_tag(agent: int) -> None:
    """Tag this process and its forks as agent or watchdog of this number."""
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    with suppress(OSError, ValueError):  # the hard limit is lower: then tasks have no tag either
        resource.setrlimit(resource.RLIMIT_RTTIME, (tag(agent, 0), hard))


def write_all(fd: int, data: bytes) -> None:
    """Write all of it to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def nothing_on(*fds: int) -> None:
    """Replace these descriptors by ``/dev/null``."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(nothing, fd)
    os.close(nothing)


def close_inherited(*kept: int) -> None:
    """Close inherited descriptors, except the standard streams.

    Args:
        kept: Other descriptors that stay open.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with suppress(OSError):  # the descriptor that listed the folder
                os.close(int(name))


def become_function(function: Callable[[], Any], streams: Sequence[int]) -> NoReturn:
    """Run a function in a fork and exit: no code of the parent runs here afterwards.

    Args:
        function: Called in a session of its own; its result is the exit status.
        streams: The descriptors that become stdin, stdout and stderr; all others are closed.
    """
    status: Any = 1
    try:
        os.setsid()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
        # The parent's signal handlers write to descriptors that are other files here.
        signal.set_wakeup_fd(-1)
        for handled in signal.valid_signals():
            if callable(signal.getsignal(handled)):
                signal.signal(handled, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        close_inherited()
        status = function()
    except SystemExit as error:
        status = error.code
    finally:
        if sys.exc_info()[0] is not None:
            sys.excepthook(*sys.exc_info())
        with suppress(OSError):  # nothing reads it
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)
