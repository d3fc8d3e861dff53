"""What we ask of the kernel that Python has no word for: prctl and ``/proc``."""

from __future__ import annotations

import ctypes
import os
import signal

from launcher.model.records import TYPE_CHECKING, NamedTuple
from launcher.model.watermark import read_watermark

if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NAME = 15


def become_subreaper(name: str) -> None:
    """Adopt every orphan among our descendants, and be called ``name`` (15 bytes) in process lists.

    Raises:
        OSError: the kernel refused (older than Linux 3.4).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def child_has_ended() -> bool:
    """Whether a child of ours is over and was not reaped yet."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def has_children() -> bool:
    """Whether we have any child, alive or not reaped: the one answer that no race can make wrong."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


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
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may hold anything, also parentheses and spaces.
    fields = text[text.rindex(b")") + 2 :].split()
    numbers = [int(fields[index]) for index in (1, 2, 3, 19, 17)]
    return Process(pid, fields[0].decode(), *numbers)


def children_of(pid: int) -> List[int]:
    """Pids of the children of all threads of ``pid``; empty if it is gone."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    pids: List[int] = []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                pids.extend(map(int, file.read().split()))
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
    for name in os.listdir("/proc"):
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
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not _is_still(process):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
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


def watermark_of(pid: int) -> int:
    """The number that says which task it belongs to; 0 if there is none, or the process is gone."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            return read_watermark(file.read())
    except OSError:
        return 0
