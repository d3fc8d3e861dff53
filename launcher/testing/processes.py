"""The processes of a task, and signals that reach them and nobody else.

Linux only, like the launcher. A process is named by its pid and the moment it started; signals go through a
pidfd, so that a later process with the same pid never gets one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

from launcher.model.watermark import agent_of, read_watermark


class Process(NamedTuple):
    """One process, as ``/proc/PID/stat`` shows it."""

    pid: int
    state: str
    parent: int
    session: int
    #: In clock ticks since boot: tells reused pids apart.
    start: int
    threads: int

    @property
    def ended(self) -> bool:
        """Whether it is over. (One whose main thread has left shows as a zombie while other threads run.)"""
        return self.state in "ZX" and self.threads <= 1

    @property
    def stopped(self) -> bool:
        """Whether it is suspended."""
        return self.state in "Tt"


def look_at(pid: int) -> Process | None:
    """The process; ``None``: there is none of this pid."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    if not fields:
        return None
    numbers = [int(fields[at]) for at in (1, 3, 19, 17)]
    return Process(pid, fields[0].decode(), *numbers)


def all_processes() -> Iterator[Process]:
    """Every process of the machine that can be seen."""
    for name in os.listdir("/proc"):
        process = look_at(int(name)) if name.isdigit() else None
        if process is not None:
            yield process


def is_suspended(process: Process) -> bool:
    """Whether it runs no more of its program until somebody lets it.

    Whoever has just made a child by ``vfork`` (shells do, and `subprocess`) waits in the kernel for that
    child to begin its own program. If that is suspended before, its parent is too, but does not show so.
    """
    return process.stopped or (process.state == "D" and _has_stop_pending(process.pid))


def _has_stop_pending(pid: int) -> bool:
    """Whether a SIGSTOP waits for it."""
    mask = _read(f"/proc/{pid}/status").partition(b"ShdPnd:")[2].split(None, 1)
    return bool(mask) and bool(int(mask[0], 16) >> (signal.SIGSTOP - 1) & 1)


def has_in_environment(pid: int, name: str, value: str) -> bool:
    """Whether it was started with this variable."""
    return f"{name}={value}".encode() in _read(f"/proc/{pid}/environ").split(b"\0")


def descends_from(process: Process, ancestor: int) -> bool:
    """Whether ``ancestor`` is its parent, or its parent's, and so on."""
    above: Process | None = process
    for _ in range(64):  # no family is so old: should parents change while we look, we end all the same
        if above is None or above.parent <= 1:
            return False
        if above.parent == ancestor:
            return True
        above = look_at(above.parent)
    return False


def watermark_of(pid: int) -> int:
    """The number that says which task it is of; 0: it carries none."""
    number = read_watermark(_read(f"/proc/{pid}/limits"))
    return 0 if agent_of(number) is None else number


def whole_task(main: Process) -> list[Process]:
    """All processes of the task with this main process, that one first.

    Those of its session, and wherever they went, those that carry its watermark. Both mean something as
    long as the main process is there to hold its pid: once it has gone, nobody but that is named.
    """
    mark = watermark_of(main.pid)
    below = [
        process
        for process in all_processes()
        if process.pid != main.pid
        and not process.ended
        and (process.session == main.pid or (mark and watermark_of(process.pid) == mark))
    ]
    return [main, *below] if is_still(main) else [main]


def is_still(process: Process) -> bool:
    """Whether its pid is its own yet; a zombie's is."""
    now = look_at(process.pid)
    return now is not None and now.start == process.start


def send(process: Process, number: int) -> bool:
    """Signal exactly this process.

    Returns:
        Whether it was there to get it.

    Raises:
        PermissionError: it is another user's.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        now = look_at(process.pid)
        if now is None or now.start != process.start or now.ended:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def name_of(pid: int) -> str:
    """What process lists call it; empty: it is gone."""
    return _read(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()


def command_of(pid: int) -> str:
    """Its command line; empty: it is gone, or has none any more."""
    return _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()


def _read(path: str) -> bytes:
    """What the kernel says; nothing if the process is gone, or not ours to look at."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
