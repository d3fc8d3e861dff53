"""``--json``: events, output and the report, one JSON object a line; and the JSON form of records."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from launcher import events
from launcher.job import TaskId
from launcher.output.base import Opening, Shown
from launcher.output.writer import Writer
from launcher.report import Report

#: A line longer than this (bytes) comes in several objects, all but the last with ``"more": true``.
_LIMIT = 1 << 20


def report_as_dict(report: Report) -> dict[str, Any]:
    """The report field by field: an enum is its value, a record an object, a tuple a list."""
    return _record(report)


def event_as_dict(event: Shown, now: float) -> dict[str, Any]:
    """``{"event": "TaskExited", "at": ..., ...}``; ``now`` (seconds since the epoch) dates a notice."""
    fields = _record(event)
    return {"event": type(event).__name__, "at": fields.pop("at", now), **fields}


def _record(record: Any) -> dict[str, Any]:
    return {name: _value(value) for name, value in zip(record._fields, record, strict=True)}


def _value(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "_fields"):
        return _record(value)
    if isinstance(value, Mapping):
        return {str(key): _value(each) for key, each in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [_value(each) for each in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Jsonl:
    """The renderer for programs. Nothing is folded or left out.

    Args:
        writer: what it writes to; give it ``notice=skipped_notice``.
        fd: the descriptor.
        clock: seconds since the epoch, for notices.
    """

    def __init__(self, writer: Writer, fd: int = 1, clock: Callable[[], float] = time.time) -> None:
        self._writer = writer
        self._fd = fd
        self._clock = clock
        #: The start of each task's last line, and its size in bytes.
        self._rests: dict[TaskId, list[bytes]] = {}
        self._sizes: dict[TaskId, int] = {}

    def begin(self, opening: Opening) -> None:
        """Nothing is known that an event would not say."""

    def on(self, event: Shown) -> None:
        """One line for each event; output by whole lines."""
        if isinstance(event, events.TaskOutput):
            self._output(event.task, event.data)
            return
        if isinstance(event, events.TaskGone):
            self._end(event.task)
        self._write(json.dumps(event_as_dict(event, self._clock())) + "\n")

    def tick(self, now: float) -> float | None:
        """Nothing waits here."""
        return None

    def close(self, report: Report) -> None:
        """Lines without an end, then the report."""
        for task in list(self._rests):
            self._end(task)
        line = json.dumps({"event": "Report", **report_as_dict(report)})
        self._writer.write(self._fd, f"{line}\n".encode(), urgent=True)

    def _write(self, text: str) -> None:
        self._writer.write(self._fd, text.encode())

    def _output(self, task: TaskId, data: bytes) -> None:
        head, newline, tail = data.rpartition(b"\n")
        rest = self._rests.setdefault(task, [])
        if newline:
            lines = b"".join([*rest, head]).split(b"\n")
            rest.clear()
            self._sizes[task] = 0
            self._write("".join(_objects(task, line) for line in lines))
        if tail:
            rest.append(tail)
            self._sizes[task] = self._sizes.get(task, 0) + len(tail)
            if self._sizes[task] > _LIMIT:
                line = b"".join(rest)
                end = _boundary(line, _LIMIT)
                self._write(_object(task, line[:end], more=True))
                self._rests[task], self._sizes[task] = [line[end:]], len(line) - end

    def _end(self, task: TaskId) -> None:
        self._sizes.pop(task, None)
        rest = b"".join(self._rests.pop(task, ()))
        if rest:
            self._write(_objects(task, rest))


def skipped_notice(lines: int, size: int) -> bytes:
    """What stands where lines were dropped because the reader was too slow."""
    return f"{json.dumps({'event': 'Skipped', 'lines': lines, 'bytes': size})}\n".encode()


def _objects(task: TaskId, line: bytes) -> str:
    """One line, cut if it is too long."""
    text = ""
    while len(line) > _LIMIT:
        end = _boundary(line, _LIMIT)
        text += _object(task, line[:end], more=True)
        line = line[end:]
    return text + _object(task, line)


def _object(task: TaskId, line: bytes, more: bool = False) -> str:
    text = json.dumps(line.decode("utf-8", "replace").removesuffix("\r"))
    end = ', "more": true}\n' if more else "}\n"
    return f'{{"event": "TaskOutput", "task": "{task}", "line": {text}{end}'


def _boundary(data: bytes, at: int) -> int:
    """The last place up to ``at`` that does not cut a UTF-8 character."""
    for place in range(at, max(0, at - 4), -1):
        if data[place] & 0xC0 != 0x80:
            return place
    return at
