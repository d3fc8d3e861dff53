"""What we ask of the kernel that Python has no word for: prctl and ``/proc``."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from launcher.model.watermark import read_watermark

if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, Iterator, List, Optional, TypeVar

    _Got = TypeVar("_Got")

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NAME = 15
#: Seconds between two looks at what was killed, and how many in a row that show only dead ones are enough.
_LOOK = 0.002
_QUIET_LOOKS = 100


def become_subreaper(name: str) -> None:
    """Adopt every orphan among our descendants, and be called ``name`` (15 bytes) in process lists.

    Raises:
        OSError: the kernel refused (older than Linux 3.4).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def show_as(command: str) -> None:
    """Stand in process lists with this command line: a fork has that of the launcher, and whoever looks for
    that to signal it (``pkill -f launch``) does not mean us. Where that may not be, nothing changes.
    """
    try:
        fields = _read("/proc/self/stat").rpartition(b") ")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(command.encode()[: end - start - 1].ljust(end - start, b"\0"))
    except (OSError, ValueError):
        return


def ended_child() -> int:
    """The pid of a child of ours that is over and was not reaped yet; 0: there is none."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return found.si_pid if found is not None else 0


def has_children() -> bool:
    """Whether we have any child, alive or not reaped: the one answer that no race can make wrong."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


#: Descriptors to be closed when there is no other left: who can't look can't end anything.
_reserve: List[int] = []
_RESERVED = 3


def keep_reserve() -> None:
    """Keep a few descriptors back, so that processes can be looked at and signalled when all are in use."""
    while len(_reserve) < _RESERVED:
        _reserve.append(os.open(os.devnull, os.O_RDONLY))


def _with_reserve(what: Callable[..., _Got], *arguments: object) -> _Got:
    """Call it; if there was no descriptor left for it, again with those kept back."""
    try:
        return what(*arguments)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not _reserve:
            raise
    while _reserve:
        os.close(_reserve.pop())
    try:
        return what(*arguments)
    finally:
        keep_reserve()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


class Process(NamedTuple):
    """One process, as ``/proc/PID/stat`` shows it; ``start`` (ticks since boot) tells reused pids apart."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int
    threads: int = 1

    @property
    def ended(self) -> bool:
        """Whether it is a zombie: over, but its parent has not asked how.

        One whose main thread has left shows as a zombie too, while its other threads run.
        """
        return self.state in "ZX" and self.threads <= 1


def look_at(pid: int) -> Optional[Process]:
    """The process, or ``None`` if there is none of this pid."""
    try:
        text = _with_reserve(_read, f"/proc/{pid}/stat")
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # not to know is not to have seen that it is gone
            raise
        return None
    # The name in parentheses may hold anything, also parentheses and spaces.
    fields = text[text.rindex(b")") + 2 :].split()
    numbers = [int(fields[index]) for index in (1, 2, 3, 19, 17)]
    return Process(pid, fields[0].decode(), *numbers)


def children_of(pid: int) -> List[int]:
    """Pids of the children of all threads of ``pid``; empty if it is gone."""
    try:
        threads = _with_reserve(os.listdir, f"/proc/{pid}/task")
    except OSError:
        return []
    pids: List[int] = []
    for thread in threads:
        try:
            pids.extend(map(int, _with_reserve(_read, f"/proc/{pid}/task/{thread}/children").split()))
        except FileNotFoundError:
            if not _kernel_lists_children():
                return _children_by_scan(pid)
        except OSError:
            continue  # the thread ended meanwhile
    return pids


_lists_children: Optional[bool] = None


def _kernel_lists_children() -> bool:
    """Whether ``/proc/PID/task/TID/children`` exists here (a kernel option)."""
    global _lists_children
    if _lists_children is None:
        me = os.getpid()
        _lists_children = os.path.exists(f"/proc/{me}/task/{me}/children")
    return _lists_children


def _children_by_scan(parent: int) -> List[int]:
    return [process.pid for process in all_processes() if process.parent == parent]


def all_processes() -> Iterator[Process]:
    """Every process of the machine that can be seen."""
    for name in _with_reserve(os.listdir, "/proc"):
        if name.isdigit():
            process = look_at(int(name))
            if process is not None:
                yield process


def descendants_of(pid: int) -> List[Process]:
    """Children, their children and so on, parents first; not ``pid`` itself."""
    found: Dict[int, Process] = {}
    ahead = children_of(pid)
    while ahead:
        child = ahead.pop(0)
        process = None if child in found else look_at(child)
        if process is not None:
            found[child] = process
            ahead.extend(children_of(child))
    return list(found.values())


def send(process: Process, number: int) -> bool:
    """Send a signal to exactly this process, never to a later one with its pid.

    Returns:
        Whether it was there to get it.
    """
    if not hasattr(os, "pidfd_open"):  # Python 3.8
        return _is_still(process) and _kill(process.pid, number)
    try:
        return _with_reserve(_send, process, number)
    except OSError:
        return False


def _send(process: Process, number: int) -> bool:
    handle = os.pidfd_open(process.pid)
    try:
        if not _is_still(process):
            return False
        signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)
    return True


def _is_still(process: Process) -> bool:
    now = look_at(process.pid)
    return now is not None and now.start == process.start


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def kill_groups(processes: Iterable[Process]) -> None:
    """Kill the process groups of these as a whole: what is forked meanwhile is in them, and killed too.

    Who forks and ends without pause is gone, and goes on as another, before a signal to him alone is sent.

    Args:
        processes: of sessions that they, or who started them, began: nobody else can be in such a group.
            Left out are those of our own session, and of one that began outside our namespace of pids.
    """
    not_theirs = (0, os.getsid(0))
    groups: Dict[int, List[Process]] = {}
    for process in processes:
        if process.group > 1 and process.session not in not_theirs:
            groups.setdefault(process.group, []).append(process)
    for group, members in groups.items():
        if any(_is_in_group(member) for member in members):  # or the number may be another group's by now
            _killpg(group)


def _is_in_group(process: Process) -> bool:
    now = look_at(process.pid)
    return now is not None and (now.start, now.group) == (process.start, process.group)


def _killpg(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:  # it has ended, or runs as somebody else
        return


def kill_descendants(seconds: float, reap: Callable[[], object]) -> bool:
    """Kill all our descendants until there are none; those that only a debugger keeps are not waited for.

    Args:
        seconds: when to give up on what can't be killed.
        reap: takes the status of those who have ended.

    Returns:
        Whether some are left.
    """
    until, quiet, late = time.monotonic() + seconds, 0, False
    reap()
    while has_children() and quiet < _QUIET_LOOKS and not late:
        late = time.monotonic() >= until  # then for the last time: it may be us who did nothing for so long
        alive = [process for process in descendants_of(os.getpid()) if not process.ended]
        kill_groups(alive)
        for process in alive:
            send(process, signal.SIGKILL)
        quiet = 0 if alive else quiet + 1
        time.sleep(_LOOK)
        reap()
    return has_children()


def watermark_of(pid: int) -> int:
    """The number that says which task it belongs to; 0 if there is none, or the process is gone."""
    try:
        return read_watermark(_with_reserve(_read, f"/proc/{pid}/limits"))
    except OSError:
        return 0
