"""``--events-fd``: events and report as JSON lines on a pipe, for the program that started `launch`."""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from launcher.events import TaskOutput
from launcher.output.base import Opening, Shown
from launcher.output.jsonl import event_as_dict, report_as_dict
from launcher.report import Report

#: Bytes that wait for the reader at most; further events are dropped and counted.
_MOST_WAITING = 16 * 1024 * 1024
#: Seconds between two attempts to write to a full pipe.
_RETRY = 0.05
#: Seconds without progress after which the end of the job does not wait for the reader any more.
_STALLED = 2.0


class EventPipe:
    """Writes the lines of ``events.jsonl``, without output of tasks, then the report.

    The first line is ``{"event": "Opened", "job": NAME, "run_dir": PATH}``, the last one
    ``{"event": "Report", ...}``. Writing never blocks. Where the reader is too slow,
    ``{"event": "Skipped", "lines": N}`` stands for the lines that were dropped.

    Args:
        fd: the inherited descriptor of a pipe; it is closed at the end.
        clock: seconds since the epoch, for notices.
    """

    def __init__(self, fd: int, clock: Callable[[], float] = time.time) -> None:
        self._fd = fd
        self._clock = clock
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._skipped = 0
        self._broken = False
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)

    def begin(self, opening: Opening) -> None:
        """Name the run."""
        root = opening.paths.root if opening.paths else ""
        self._put({"event": "Opened", "at": opening.started_at, "job": opening.job, "run_dir": root})

    def on(self, event: Shown) -> None:
        """Write the event, unless it is output."""
        if not isinstance(event, TaskOutput):
            self._put(event_as_dict(event, self._clock()))

    def tick(self, now: float) -> float | None:
        """Write what has waited for the reader."""
        self._write()
        return _RETRY if self._waiting else None

    def close(self, report: Report) -> None:
        """Write the report; wait for the reader as long as it reads."""
        self._put({"event": "Report", **report_as_dict(report)}, last=True)
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while self._waiting and poll.poll(_STALLED * 1000):
            self._write()
        os.close(self._fd)

    def _put(self, fields: dict[str, Any], last: bool = False) -> None:
        if self._broken or (self._size > _MOST_WAITING and not last):
            self._skipped += 1
            return
        if self._skipped:
            self._append({"event": "Skipped", "at": self._clock(), "lines": self._skipped})
            self._skipped = 0
        self._append(fields)
        self._write()

    def _append(self, fields: dict[str, Any]) -> None:
        line = json.dumps(fields).encode() + b"\n"
        self._waiting.append(line)
        self._size += len(line)

    def _write(self) -> None:
        try:
            while self._waiting:
                line = self._waiting[0]
                taken = os.write(self._fd, line)
                self._size -= taken
                if taken < len(line):
                    self._waiting[0] = line[taken:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            return
        except OSError:  # the reader is gone: ``--until-eof-fd`` ends the job, if the reader wants that
            self._broken = True
            self._waiting.clear()
