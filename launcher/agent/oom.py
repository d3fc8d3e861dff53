"""What the kernel says of processes it killed for want of memory."""

from __future__ import annotations

import os
import re
from typing import List, Optional

_KMSG_LIMIT = 20_000  # records


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _counter(text: str, name: str) -> Optional[int]:
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def _cgroup_counters() -> List[str]:
    """Files with an ``oom_kill`` line for the control group we, and so our tasks, are in."""
    files = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            files.append(f"/sys/fs/cgroup{path}/memory.events")
        elif "memory" in controllers.split(","):
            files.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    return files


class OomWatch:
    """Remembers the kernel's counters at the start, to tell later what was added."""

    def __init__(self) -> None:
        self._counters = {path: _counter(_read(path), "oom_kill") for path in _cgroup_counters()}
        self._machine = _counter(_read("/proc/vmstat"), "oom_kill")

    def evidence(self, pid: int) -> str:
        """Why a process that got SIGKILL, though not from us, may have been out of memory; empty: no sign of it."""
        line = _kernel_log_line(pid)
        if line:
            return f"kernel log: {line}"
        for path, before in self._counters.items():
            now = _counter(_read(path), "oom_kill")
            if before is not None and now is not None and now > before:
                return f"the control group's out-of-memory kills went from {before} to {now} ({path})"
        now = _counter(_read("/proc/vmstat"), "oom_kill")
        if self._machine is not None and now is not None and now > self._machine:
            return f"the machine's out-of-memory kills went from {self._machine} to {now} during the job"
        return ""


def _kernel_log_line(pid: int) -> str:
    """The kernel's last word on killing ``pid``, where we may read its log."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    wanted = re.compile(rb"Killed process %d \(" % pid)
    last = b""
    try:
        for _ in range(_KMSG_LIMIT):
            try:
                record = os.read(log, 8192)
            except BrokenPipeError:  # overwritten while we read: go on with the next
                continue
            if wanted.search(record):
                last = record
    except OSError:  # BlockingIOError: that was the newest
        pass
    finally:
        os.close(log)
    return last.partition(b";")[2].split(b"\n")[0].decode("utf-8", "replace")
