"""Signals a task, on this machine or in a container: ``signals.py NUMBER PID all|main MARK ANCESTOR``.

The plug-in imports it for tasks of this machine, and runs its text by a Python in the container for others;
so it stands alone: the standard library of Python 3.8. Its output is one line of JSON: a letter for each
process of the task (its state after the signal), or ``null``: there is no such task.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def read(path: str) -> bytes:
    """A file of ``/proc``; empty: the process has ended, or is another user's."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def look_at(pid: int) -> tuple[str, int, int, str] | None:
    """State, parent, session and time of start of a process; ``None``: it has ended."""
    fields = read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    if not fields or (fields[0] in b"ZX" and int(fields[17]) <= 1):  # other threads may outlive the first
        return None
    # The parent of a vfork waits in state D until its child runs its own program; a SIGSTOP is pending then.
    pending = read(f"/proc/{pid}/status").partition(b"ShdPnd:")[2].split(None, 1)
    stopped = fields[0] == b"D" and pending and int(pending[0], 16) >> (signal.SIGSTOP - 1) & 1
    return "T" if stopped else fields[0].decode(), int(fields[1]), int(fields[3]), fields[19].decode()


def is_task(main: int, mark: str, ancestor: int) -> bool:
    """Whether this is provably the main process of the task.

    It leads its session, and was started with the environment variable of the task (``NAME=VALUE``) or
    descends from ``ancestor``.
    """
    found = look_at(main)
    if found is None or found[2] != main:
        return False
    if mark.encode() in read(f"/proc/{main}/environ").split(b"\0"):
        return True
    for _ in range(64):
        if found is None or found[1] in (0, ancestor):
            return found is not None and found[1] == ancestor
        found = look_at(found[1])
    return False


def watermark(pid: int) -> bytes:
    """The number that all processes of a task carry as a limit; ``unlimited`` or empty: none."""
    return b"".join(read(f"/proc/{pid}/limits").partition(b"Max realtime timeout ")[2].split(None, 1)[:1])


def whole_task(main: int) -> list[int]:
    """The pids of a task, the main process first: those of its session, and those with its watermark."""
    mark, found = watermark(main), [main]
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        seen = look_at(pid) if pid != main else None
        if seen and (seen[2] == main or (mark not in (b"", b"unlimited") and watermark(pid) == mark)):
            found.append(pid)
    return found


def send(pid: int, number: int) -> None:
    """Send a signal to the process that has this pid now; one that has ended is left out."""
    before = look_at(pid)
    try:
        if not hasattr(os, "pidfd_open"):  # Python 3.8
            os.kill(pid, number)
            return
        handle = os.pidfd_open(pid)
        try:
            now = look_at(pid)
            if before and now and before[3] == now[3]:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
    except ProcessLookupError:
        return


def signal_task(number: int, main: int, whom: str, mark: str, ancestor: int) -> str | None:
    """Signal a task.

    Args:
        number: 0 only looks.
        main: the pid of its main process.
        whom: ``all`` its processes, or only the ``main`` one.
        mark, ancestor: see `is_task`.

    Returns:
        A letter for each of its processes, its state after that; ``None``: it has ended, or is not there.
    """
    if not is_task(main, mark, ancestor):
        return None
    for pid in whole_task(main) if whom == "all" else [main]:
        send(pid, number)
    after = [look_at(pid) for pid in whole_task(main)]
    return "".join(seen[0] for seen in after if seen)


if __name__ == "__main__":
    NUMBER, PID, WHOM, SIGN, ANCESTOR = sys.argv[1:]
    print(json.dumps(signal_task(int(NUMBER), int(PID), WHOM, SIGN, int(ANCESTOR))))
