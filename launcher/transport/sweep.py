"""Ending what an agent of this machine started when neither it nor its guardian is left to do it.

Both must have been killed for that, at once. The watermark (`launcher.model.watermark`) says whose a
process is, and no process of anybody else can carry it by chance.
"""

from __future__ import annotations

import os
import signal
import time

from launcher.model.watermark import is_of_agent, read_watermark

#: Seconds between two looks at what was killed.
_LOOK = 0.005


def sweep(agent: int, deadline: float) -> list[int]:
    """Kill all processes that this agent started, and those they started, until there are none.

    Args:
        agent: the number in its watermarks.
        deadline: when to give up, monotonic seconds.

    Returns:
        Pids that are still there.
    """
    while left := _alive(agent):
        for pid in left:
            _kill(pid, agent)
        if time.monotonic() > deadline:
            break
        time.sleep(_LOOK)
    return left


def _alive(agent: int) -> list[int]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if _carries(pid, agent) and not _ended(pid)]


def _carries(pid: int, agent: int) -> bool:
    return is_of_agent(read_watermark(_read(f"/proc/{pid}/limits")), agent)


def _ended(pid: int) -> bool:
    """Gone, or a zombie without other threads (field 20 of proc(5)'s stat; the state is field 3)."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    return not fields or (fields[0] in (b"Z", b"X") and int(fields[17]) <= 1)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _kill(pid: int, agent: int) -> None:
    """SIGKILL to exactly this process: what has its number by now is looked at again."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _carries(pid, agent):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return
    finally:
        os.close(handle)
