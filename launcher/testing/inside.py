"""``inside.py NUMBER PID all|main``: signals a task in a container, by a Python of that container.

The answer is one line of JSON: a letter for each of its processes, how it is then; ``null``: there is no
such task. This file comes in as the argument of ``python3 -c``, so it stands alone: the standard library of
Python 3.8.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def read(path: str) -> bytes:
    """What the kernel says; nothing if the process is gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def look_at(pid: int) -> tuple[str, int] | None:
    """Its state and its session; ``None``: it is over."""
    words = read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    if not words or (words[0] in b"ZX" and int(words[17]) <= 1):
        return None
    stuck = words[0] == b"D" and has_stop_pending(pid)
    return "T" if stuck else words[0].decode(), int(words[3])


def has_stop_pending(pid: int) -> bool:
    """Whether a SIGSTOP waits for it: see `launcher.testing.processes.is_suspended`."""
    mask = read(f"/proc/{pid}/status").partition(b"ShdPnd:")[2].split(None, 1)
    return bool(mask) and bool(int(mask[0], 16) >> (signal.SIGSTOP - 1) & 1)


def mark_of(pid: int) -> list[bytes]:
    """The watermark of a process, as the kernel prints it."""
    return read(f"/proc/{pid}/limits").partition(b"Max realtime timeout ")[2].split(None, 1)[:1]


def whole_task(main: int) -> list[int]:
    """The pids of a task, its main process first: of its session, or with its watermark."""
    mark = mark_of(main)
    found = [main]
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        seen = look_at(pid) if pid != main else None
        if seen and (seen[1] == main or (mark not in ([], [b"unlimited"]) and mark_of(pid) == mark)):
            found.append(pid)
    return found


def signal_task(number: int, main: int, whom: str) -> str | None:
    """Signal a task; how its processes are then."""
    seen = look_at(main)
    if seen is None or seen[1] != main:
        return None
    for pid in whole_task(main) if whom == "all" else [main]:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it has just ended
            continue
    after = map(look_at, whole_task(main))
    return "".join(seen[0] for seen in after if seen)


if __name__ == "__main__":
    print(json.dumps(signal_task(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
