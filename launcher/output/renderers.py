"""The interface of renderers, and those for programs: ``--json`` and ``--events-fd``, an object a line.

`event_as_dict` and `record_as_dict` give the JSON form of events and reports, which is public.
"""

from __future__ import annotations

import enum
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import Event, Restarting, TaskMoved, Tell
from launcher.common.record import Record, as_dict
from launcher.common.report import Report
from launcher.job import Placement, RunPaths
from launcher.output.lines import whole_characters
from launcher.output.writer import Writer

#: Events that a renderer shows. `TaskMoved` has the state of a task: what agents say about it is not shown.
DisplayEvent = Event | Tell | TaskMoved | Restarting


class RunInfo(Record):
    """The job as renderers get it before the first event."""

    run_name: str
    placement: Placement
    #: The run's files.
    paths: RunPaths
    #: Seconds since the epoch.
    started_at: float
    #: Other machines without a port that ``--relay`` forwards here.
    without_relay: tuple[str, ...] = ()


class TaskPlace(Record):
    """What a launch knows about where its tasks run, for the hints of a failure."""

    #: Whether there may be other machines than this one.
    other_machines: bool = False
    #: Whether these are reached over SSH.
    over_ssh: bool = False
    in_container: bool = False
    #: Whether ``--sync`` copied folders there.
    synced: bool = False
    #: How files get into a container; see `launcher.backends.backend.Backend.missing_file_hint`.
    files: str = ""
    #: The command that makes environments there.
    prepare: str = "launch prepare"
    #: The name of the environment that such a command made, and the tasks use; empty if they use none.
    venv: str = ""
    #: Names of variables that the user sets for tasks. The plan does not have those of ``-x NAME``.
    passed: frozenset[str] = frozenset()


class Renderer:
    """Shows a job. One thread calls `begin` once, then `on` and `tick`, then `close` once.

    No method raises an exception if output cannot be written: a full disk or a closed pipe does not end a
    job. Subclasses override what they need: each method does nothing here.
    """

    def begin(self, run_info: RunInfo) -> None:
        """The run begins."""

    def on(self, event: DisplayEvent) -> None:
        """An event happened."""

    def tick(self, now: float) -> float | None:
        """Time passes (``now`` by ``time.monotonic``).

        Returns:
            Seconds until the next call is needed; ``None``: no time limit.
        """
        return None

    def close(self, report: Report) -> None:
        """The run has ended. When this returns, all output is written or queued."""


#: Bytes of an unfinished line that wait for its end; more of them become an object with ``"more": true``.
_MAX_LINE_BYTES = 1 << 20
#: Types of values that are the same in JSON.
_PLAIN_TYPES = frozenset({str, TaskId, int, float, bool, type(None)})
#: Seconds between two attempts to write to a full pipe of ``--events-fd``.
_RETRY_SECONDS = 0.05


def event_as_dict(event: DisplayEvent, now: float) -> dict[str, Any]:
    """``{"event": "TaskMoved", "at": ..., ...}``; ``now`` (seconds since the epoch) dates a notice."""
    fields = record_as_dict(event)
    return {"event": type(event).__name__, "at": fields.pop("at", now), **fields}


def record_as_dict(record: Record) -> dict[str, Any]:
    """Return a record as a dict: an enum becomes its value, a record in it a dict, a tuple a list."""
    return {
        name: value if type(value) in _PLAIN_TYPES else _value(value)
        for name, value in as_dict(record).items()
    }


def _value(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Record):
        return record_as_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _value(each) for key, each in value.items()}
    return [_value(each) for each in value]


class Jsonl(Renderer):
    """The renderer for programs: all events and all output.

    Args:
        writer: Writes the lines. Its ``make_notice`` is `skipped_notice`.
        fd: The descriptor.
    """

    def __init__(self, writer: Writer, fd: int = 1) -> None:
        self._writer = writer
        self._fd = fd
        #: The unfinished line of each task.
        self._rests: dict[TaskId, bytearray] = {}

    def on(self, event: DisplayEvent) -> None:
        """Write a line for each event, and for each line of output."""
        if isinstance(event, events.TaskOutput):
            self._output(event.task, event.data)
            return
        if isinstance(event, events.TaskMoved) and event.state.is_over:
            self._end(event.task)
        self._write(event_as_dict(event, time.time()))

    def close(self, report: Report) -> None:
        """Write unfinished lines, then the report."""
        for task in list(self._rests):
            self._end(task)
        self._write({"event": "Report", **record_as_dict(report)}, is_urgent=True)

    def _write(self, fields: dict[str, Any], *, is_urgent: bool = False) -> None:
        self._writer.write(self._fd, json.dumps(fields).encode() + b"\n", is_urgent=is_urgent)

    def _output(self, task: TaskId, data: bytes) -> None:
        rest = self._rests.setdefault(task, bytearray())
        rest += data
        *lines, last = bytes(rest).split(b"\n") if b"\n" in data else [rest]
        text = "".join(_object(task, line) for line in lines)
        if len(last) > _MAX_LINE_BYTES:
            end = whole_characters(last)
            text += _object(task, last[:end], has_more=True)
            last = last[end:]
        if text:
            rest[:] = last
            self._writer.write(self._fd, text.encode())

    def _end(self, task: TaskId) -> None:
        rest = self._rests.pop(task, None)
        if rest:
            self._writer.write(self._fd, _object(task, rest).encode())


class EventPipe(Jsonl):
    """Writes events, without output of tasks, and the report for the program that started `launch`.

    The first line is ``{"event": "Opened", "job": NAME, "run_dir": PATH, "without_relay": [HOST, ...]}``, the
    last one ``{"event": "Report", ...}``; if `launch` fails, ``{"event": "Failed", "error": PICKLE}``.
    ``{"event": "Skipped", "lines": N, "bytes": N}`` stands for lines that were dropped because the reader was
    too slow.

    Args:
        fd: The inherited descriptor of a pipe.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(Writer(make_notice=skipped_notice, capacity=1 << 20), fd)
        os.set_inheritable(fd, False)

    def begin(self, run_info: RunInfo) -> None:
        """Write the first line, with the name and the folder of the run."""
        fields = {"event": "Opened", "at": run_info.started_at, "job": run_info.run_name}
        self._write({**fields, "run_dir": run_info.paths.root, "without_relay": run_info.without_relay})

    def on(self, event: DisplayEvent) -> None:
        """Write the event, unless it is output."""
        if not isinstance(event, events.TaskOutput):
            super().on(event)

    def tick(self, now: float) -> float | None:
        """Write the lines that wait for the reader."""
        self._writer.flush()
        return _RETRY_SECONDS if self._writer.blocked() else None

    def close(self, report: Report) -> None:
        """Write the report, wait for the reader within the limits of the writer, close the pipe."""
        super().close(report)
        self._writer.close()


def skipped_notice(lines: int, size: int) -> bytes:
    """Return the line in place of lines that were dropped because the reader was too slow."""
    return f"{json.dumps({'event': 'Skipped', 'lines': lines, 'bytes': size})}\n".encode()


def _object(task: TaskId, line: bytes | bytearray, *, has_more: bool = False) -> str:
    text = json.dumps(line.decode("utf-8", "replace").removesuffix("\r"))
    end = ', "more": true}\n' if has_more else "}\n"
    return f'{{"event": "TaskOutput", "task": "{task}", "line": {text}{end}'
