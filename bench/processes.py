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
#: Seconds that killing what is left may take.
_TIME_LIMIT = 5.0


class Run(NamedTuple):
    """One run of a command: how long it took, and its exit code (``None``: no answer in time)."""

    seconds: float
    #: CPU seconds of all its processes, those of the tasks too.
    cpu: float
    code: int | None


def become_subreaper() -> None:
    """Inherit the orphans of everything that is started from now on."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def start(argv: Sequence[str], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start a contender in a session of its own; what it prints goes to ``output`` or nowhere."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output or subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",  # this folder has a pyproject.toml, in which launch looks for defaults
    )


def run(argv: Sequence[str], limit: float, output: IO[bytes] | None = None) -> Run:
    """Run a contender to its end, and nothing of it is left; ``limit`` in seconds."""
    before, began = spent(), time.perf_counter()
    process = start(argv, output)
    in_time = ended(process, limit)  # Popen.wait with a limit polls: up to 50 ms late
    seconds = time.perf_counter() - began
    code = finish(process)
    sweep()
    return Run(seconds, spent() - before, code if in_time else None)


def spent() -> float:
    """CPU seconds of all children of the bench that have ended, and of their children, so far.

    What a contender leaves behind becomes a child: `sweep` ends it.
    """
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ended(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait for the end of ``process``, at most ``limit`` seconds; whether it came."""
    handle = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(limit * 1000))
    finally:
        os.close(handle)


def finish(process: subprocess.Popen[bytes]) -> int:
    """Kill a process of ours if it still runs; its exit code."""
    process.kill()
    return process.wait()


def sweep() -> int:
    """Kill what contenders left behind; how many processes that were."""
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
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def family(pid: int) -> list[int]:
    """The children of ``pid``, their children and so on; without zombies."""
    found: list[int] = []
    ahead = _children(pid)
    while ahead:
        child = ahead.pop()
        if alive(child):
            found.append(child)
        ahead += _children(child)
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, file.read_text().split())
        except OSError:
            continue
    return children


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"


def command(pid: int) -> list[str]:
    """Its arguments; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """CPU time of all its threads, exact (the scheduler's count); 0 if it is gone."""
    spent = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            spent += int(file.read_text().split()[0])
        except OSError:
            continue
    return spent / 1e9


def memory(pid: int) -> tuple[int, int]:
    """Proportional (what is shared counts in parts) and resident memory, in bytes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
    return sizes.get("Pss:", 0), sizes.get("Rss:", 0)


class Ends:
    """When each of some processes ends, by monotonic nanoseconds.

    A pidfd becomes readable at that moment, also of a process with another parent, reaped or not.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self.at: dict[int, int] = {}
        self._poll = select.poll()
        self._handles: dict[int, int] = {}
        for pid in pids:
            self._add(pid)

    def _add(self, pid: int) -> None:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            self.at[pid] = time.monotonic_ns()
            return
        self._handles[handle] = pid
        self._poll.register(handle, select.POLLIN)

    @property
    def left(self) -> list[int]:
        """Those that have not ended."""
        return list(self._handles.values())

    def wait(self, limit: float) -> None:
        """Until all have ended, at most ``limit`` seconds."""
        end = time.monotonic() + limit
        while self._handles:
            ready = self._poll.poll(max(0.0, end - time.monotonic()) * 1000)
            now = time.monotonic_ns()
            for handle, _ in ready:
                self.at[self._close(handle)] = now
            if not ready:
                return

    def _close(self, handle: int) -> int:
        self._poll.unregister(handle)
        os.close(handle)
        return self._handles.pop(handle)

    def close(self) -> None:
        """Let go of those that are left."""
        for handle in list(self._handles):
            self._close(handle)
