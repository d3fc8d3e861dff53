"""Runs measured processes: with a time limit, watching what they start, and leaving none of them behind.

All measurements use it. The bench is a child subreaper: what a contender leaves behind becomes a child of the
bench. So every process below the bench is its own, and it never touches another one.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

_PR_SET_CHILD_SUBREAPER = 36
#: The time limit for killing the processes that a contender has left.
_TIME_LIMIT = 5.0


class Run(NamedTuple):
    """One run of a command."""

    #: How long it took.
    seconds: float
    #: CPU seconds of all its processes, including those of its tasks.
    cpu: float
    #: Its exit code, or None if it did not exit in time.
    code: int | None


def become_subreaper() -> None:
    """Make this process the new parent of all orphans of what it starts from now on (prctl(2))."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def start(argv: Sequence[str], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start a contender in a session of its own.

    Args:
        argv: Its command line.
        output: The file that receives its stdout. By default what it prints is dropped.
    """
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output or subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",  # this folder has a pyproject.toml, in which launch looks for defaults
    )


def run(argv: Sequence[str], limit: float, output: IO[bytes] | None = None) -> Run:
    """Run a contender until it exits, and kill what it leaves.

    Args:
        argv: Its command line.
        limit: The time limit in seconds, after which it is killed.
        output: The file that receives its stdout. By default what it prints is dropped.
    """
    before, began = spent(), time.perf_counter()
    process = start(argv, output)
    in_time = ended(process, limit)  # Popen.wait with a limit polls: up to 50 ms late
    seconds = time.perf_counter() - began
    code = finish(process)
    sweep()
    return Run(seconds, spent() - before, code if in_time else None)


def spent() -> float:
    """Return the CPU seconds of all ended children of the bench, and of their children, so far.

    A process that a contender leaves behind becomes a child. It counts after `sweep` has killed it.
    """
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ended(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait for the end of a process, and return whether it has ended.

    Args:
        process: The process. Its exit status is not read.
        limit: The time limit in seconds.
    """
    handle = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(limit * 1000))
    finally:
        os.close(handle)


def finish(process: subprocess.Popen[bytes]) -> int:
    """Kill a child of the bench if it still runs, and return its exit code."""
    process.kill()
    return process.wait()


def sweep() -> int:
    """Kill all descendants of the bench, and return how many processes that were."""
    killed: set[int] = set()
    end = time.monotonic() + _TIME_LIMIT
    while time.monotonic() < end:
        _reap()
        left = family(os.getpid())
        if not left:
            break
        for pid in left:
            _kill(pid)
        killed.update(left)
        time.sleep(0.01)
    return len(killed)


def _reap() -> None:
    """Read the exit status of each child that has ended, so that none remains as a zombie."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _kill(pid: int) -> None:
    """Send SIGKILL to a process, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def family(pid: int) -> list[int]:
    """Return the descendants of a process, without zombies."""
    found: list[int] = []
    ahead = _children(pid)
    while ahead:
        child = ahead.pop()
        if alive(child):
            found.append(child)
        ahead += _children(child)
    return found


def _children(pid: int) -> list[int]:
    """Return the children that all threads of a process have started."""
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, file.read_text().split())
        except OSError:
            continue
    return children


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def command(pid: int) -> list[str]:
    """Return the command line of a process. It is empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process, as the scheduler counts them.

    They are exact, unlike those in ticks. The result is 0 if the process has ended.
    """
    spent = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            spent += int(file.read_text().split()[0])
        except OSError:
            continue
    return spent / 1e9


def memory(pid: int) -> tuple[int, int]:
    """Return the proportional and the resident memory of a process, in bytes.

    In the former, what several processes share counts only in part. Both are 0 if the process has ended.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
    return sizes.get("Pss:", 0), sizes.get("Rss:", 0)


class Ends:
    """A clock that notes when each of some processes ends.

    A pidfd becomes readable at that moment, also that of a process with another parent.

    Args:
        pids: The processes.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        #: When each process ended, in nanoseconds of the monotonic clock.
        self.at: dict[int, int] = {}
        self._poll = select.poll()
        self._handles: dict[int, int] = {}
        for pid in pids:
            self._add(pid)

    def _add(self, pid: int) -> None:
        """Watch a process, or note that it has ended already."""
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self.at[pid] = time.monotonic_ns()
            return
        self._handles[handle] = pid
        self._poll.register(handle, select.POLLIN)

    @property
    def left(self) -> list[int]:
        """The processes that have not ended."""
        return list(self._handles.values())

    def wait(self, limit: float) -> None:
        """Wait until all processes have ended, but at most this number of seconds."""
        end = time.monotonic() + limit
        while self._handles:
            ready = self._poll.poll(max(0.0, end - time.monotonic()) * 1000)
            now = time.monotonic_ns()
            for handle, _ in ready:
                self.at[self._close(handle)] = now
            if not ready:
                return

    def _close(self, handle: int) -> int:
        """Stop watching a pidfd, and return the process that it stands for."""
        self._poll.unregister(handle)
        os.close(handle)
        return self._handles.pop(handle)

    def close(self) -> None:
        """Close the pidfds of the processes that have not ended."""
        for handle in list(self._handles):
            self._close(handle)
