"""``--json``: events, output and the report, one JSON object a line, for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from launcher import events
from launcher.job import TaskId
from launcher.output.base import Opening, Shown
from launcher.output.reportjson import event_as_dict, report_as_dict
from launcher.output.writer import Writer
from launcher.report import Report

#: A line longer than this (bytes) comes in several objects, all but the last with ``"more": true``.
_LIMIT = 1 << 20


class Jsonl:
    """The renderer for programs. Nothing is collapsed or left out.

    Args:
        writer: what it goes through; give it ``notice=skipped_notice`` if it is made for this.
        fd: where to.
        clock: seconds since the epoch, for remarks.
    """

    def __init__(self, writer: Writer, fd: int = 1, clock: Callable[[], float] = time.time) -> None:
        self._writer = writer
        self._fd = fd
        self._clock = clock
        self._rests: dict[TaskId, list[bytes]] = {}

    def begin(self, opening: Opening) -> None:
        """Nothing is known yet that a fact would not say."""

    def on(self, event: Shown) -> None:
        """One line for each event; output by whole lines."""
        if isinstance(event, events.TaskOutput):
            self._output(event.task, event.data)
            return
        if isinstance(event, events.TaskGone):
            self._end(event.task)
        self._write(json.dumps(event_as_dict(event, self._clock())))

    def tick(self, now: float) -> float | None:
        """Nothing waits here."""
        return None

    def close(self, report: Report) -> None:
        """Lines without an end, then the report."""
        for task in list(self._rests):
            self._end(task)
        line = json.dumps({"event": "Report", **report_as_dict(report)})
        self._writer.write(self._fd, f"{line}\n".encode(), urgent=True)

    def _write(self, line: str) -> None:
        self._writer.write(self._fd, f"{line}\n".encode())

    def _output(self, task: TaskId, data: bytes) -> None:
        rest = self._rests.setdefault(task, [])
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            lines = b"".join([*rest, head]).split(b"\n")
            self._rests[task] = rest = []
            self._writer.write(self._fd, "".join(_objects(task, line) for line in lines).encode())
        if tail:
            rest.append(tail)
            if sum(map(len, rest)) > _LIMIT:
                self._cut(task, b"".join(rest))

    def _cut(self, task: TaskId, line: bytes) -> None:
        """Let go of the beginning of an endless line."""
        at = _boundary(line, _LIMIT)
        self._writer.write(self._fd, _object(task, line[:at], more=True).encode())
        self._rests[task] = [line[at:]]

    def _end(self, task: TaskId) -> None:
        rest = b"".join(self._rests.pop(task, ()))
        if rest:
            self._writer.write(self._fd, _objects(task, rest).encode())


def skipped_notice(lines: int) -> bytes:
    """What stands where lines were skipped because nobody read them."""
    return f"{json.dumps({'event': 'Skipped', 'lines': lines})}\n".encode()


def _objects(task: TaskId, line: bytes) -> str:
    """One line, cut if it is too long."""
    said = ""
    while len(line) > _LIMIT:
        at = _boundary(line, _LIMIT)
        said += _object(task, line[:at], more=True)
        line = line[at:]
    return said + _object(task, line)


def _object(task: TaskId, line: bytes, more: bool = False) -> str:
    text = json.dumps(line.decode("utf-8", "replace").removesuffix("\r"))
    return f'{{"event": "TaskOutput", "task": "{task}", "line": {text}{", " if more else ""}' + (
        '"more": true}\n' if more else "}\n"
    )


def _boundary(data: bytes, at: int) -> int:
    """The last place up to ``at`` that does not cut a UTF-8 character."""
    for place in range(at, max(0, at - 4), -1):
        if data[place] & 0xC0 != 0x80:
            return place
    return at
