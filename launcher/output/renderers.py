"""The interface of renderers, and the renderers for programs: ``--json`` and ``--events-fd``.

These write one JSON object a line. `event_as_dict` and `record_as_dict` return the JSON form of events and
reports, which is public. `launcher.launch.display` makes the renderers of a job.
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
from launcher.common.events import Event, Noticed, Restarting, TaskMoved, Tell
from launcher.common.record import Record, as_dict
from launcher.common.report import Report
from launcher.job import Placement, RunPaths
from launcher.output.lines import whole_characters
from launcher.output.writer import Writer

#: Events that a renderer shows. `TaskMoved` carries the state of a task, so what agents say about it is not
#: among them.
DisplayEvent = Event | Tell | Noticed | TaskMoved | Restarting


class RunInfo(Record):
    """The knowledge of renderers about a run before its first event."""

    run_name: str
    placement: Placement
    #: The files of the run.
    paths: RunPaths
    #: When it started, in seconds since the epoch.
    started_at: float
    #: The command line of ``launch``, without values that may be secret.
    command: tuple[str, ...] = ()
    #: The names of other machines without a port that ``--relay`` forwards to this one.
    without_relay: tuple[str, ...] = ()


class TaskPlace(Record):
    """The knowledge about where the tasks of a launch run, for the hints of a failure."""

    #: Whether tasks may run on other machines than this one.
    other_machines: bool = False
    #: Whether these are reached over SSH.
    over_ssh: bool = False
    in_container: bool = False
    #: Whether ``--sync`` copied folders to them.
    synced: bool = False
    #: How files get into a container, see `launcher.backends.backend.Backend.missing_file_hint`.
    files: str = ""
    #: The command that makes environments on them.
    prepare: str = "launch prepare"
    #: The name of the environment that such a command made and that the tasks use. Empty if they use none.
    venv: str = ""
    #: The names of variables that the user sets for tasks. The plan does not contain those of ``-x NAME``.
    passed: frozenset[str] = frozenset()


class Renderer:
    """The interface of what shows a job.

    One thread calls `begin` once, then `on` and `tick`, then `close` once.

    Subclasses override the methods that they need, as each does nothing here. No method may raise an
    exception because output cannot be written: a full disk or a closed pipe must not end a job.
    """

    def begin(self, run_info: RunInfo) -> None:
        """Called once, before the first event of the run."""

    def on(self, event: DisplayEvent) -> None:
        """Called for each event."""

    def tick(self, now: float) -> float | None:
        """Called at each turn of the loop.

        Args:
            now: The time by ``time.monotonic``.

        Returns:
            The seconds until it must be called again. None if only an event can make that necessary.
        """
        return None

    def close(self, report: Report) -> None:
        """Called once, when the run has ended. When it returns, all output is written or queued."""


#: How many bytes of an unfinished line wait for its end. More become an object with ``"more": true``.
_MAX_LINE_BYTES = 1 << 20
#: Types whose values are the same in JSON.
_PLAIN_TYPES = frozenset({str, TaskId, int, float, bool, type(None)})
#: The pause between two attempts to write to a full pipe of ``--events-fd``.
_RETRY_SECONDS = 0.05


def event_as_dict(event: DisplayEvent, now: float) -> dict[str, Any]:
    """Return the JSON form of an event, as in ``{"event": "TaskMoved", "at": ..., ...}``.

    Args:
        event: The event.
        now: The time of an event that carries none, a message, in seconds since the epoch.
    """
    fields = record_as_dict(event)
    return {"event": type(event).__name__, "at": fields.pop("at", now), **fields}


def record_as_dict(record: Record) -> dict[str, Any]:
    """Return a record as a dict: an enum becomes its value, a record in it a dict, and a tuple a list."""
    fields = as_dict(record)
    for name, value in fields.items():
        if type(value) not in _PLAIN_TYPES:  # Most values need no call.
            fields[name] = _json_value(value)
    return fields


def _json_value(value: Any) -> Any:
    """Return the JSON form of a value of a record's field."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Record):
        return record_as_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _json_value(each) for key, each in value.items()}
    return [_json_value(each) for each in value]


class Jsonl(Renderer):
    """The renderer of ``--json``, which writes all events and all output for programs.

    Args:
        writer: Writes the lines. Its ``make_notice`` is `skipped_notice`.
        fd: The descriptor to which they are written.
    """

    def __init__(self, writer: Writer, fd: int = 1) -> None:
        self._writer = writer
        self._fd = fd
        #: The unfinished line of each task.
        self._partial_lines: dict[TaskId, bytearray] = {}

    def on(self, event: DisplayEvent) -> None:
        """Write a line for each event, and for each line of output."""
        if isinstance(event, events.TaskOutput):
            self._write_output(event.task, event.data)
            return
        if isinstance(event, events.TaskMoved) and event.state.is_over:
            self._write_unfinished(event.task)
        self._write(event_as_dict(event, time.time()))

    def close(self, report: Report) -> None:
        """Write the unfinished lines, then the report."""
        for task in list(self._partial_lines):
            self._write_unfinished(task)
        self._write({"event": "Report", **record_as_dict(report)}, is_urgent=True)

    def _write(self, fields: dict[str, Any], *, is_urgent: bool = False) -> None:
        """Write an object as a line. An urgent one is not dropped if the reader is slow."""
        self._writer.write(self._fd, json.dumps(fields).encode() + b"\n", is_urgent=is_urgent)

    def _write_output(self, task: TaskId, data: bytes) -> None:
        """Write an object for each line that this output completes, and keep the rest for later."""
        # After the call this array contains the part of a line that is not written yet.
        partial_line = self._partial_lines.setdefault(task, bytearray())
        partial_line += data
        *lines, rest = bytes(partial_line).split(b"\n") if b"\n" in data else [partial_line]
        text = "".join(_output_object(task, line) for line in lines)
        if len(rest) > _MAX_LINE_BYTES:  # It is written in parts, as memory must not grow without limit.
            end = whole_characters(rest)
            text += _output_object(task, rest[:end], has_more=True)
            rest = rest[end:]
        if text:  # Otherwise no line was completed, and the array contains the rest already.
            partial_line[:] = rest
            self._writer.write(self._fd, text.encode())

    def _write_unfinished(self, task: TaskId) -> None:
        """Write the last line of a task that has ended, if it has no newline."""
        partial_line = self._partial_lines.pop(task, None)
        if partial_line:
            self._writer.write(self._fd, _output_object(task, partial_line).encode())


class EventPipe(Jsonl):
    """The renderer of ``--events-fd``, for the program that started `launch`: events and the report.

    It does not write the output of tasks. Its lines are::

        {"event": "Opened", "job": NAME, "run_dir": PATH, "without_relay": [HOST, ...]}   the first line
        {"event": "Skipped", "lines": N, "bytes": N}   for lines that were dropped, as the reader was too slow
        {"event": "Report", ...}                       the last line
        {"event": "Failed", "error": PICKLE}           the last line if `launch` fails

    Args:
        fd: The inherited descriptor of the pipe.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(Writer(make_notice=skipped_notice, capacity=1 << 20), fd)
        os.set_inheritable(fd, False)

    def begin(self, run_info: RunInfo) -> None:
        """Write the first line, with the name and the folder of the run."""
        fields = {"event": "Opened", "at": run_info.started_at, "job": run_info.run_name}
        self._write({**fields, "run_dir": run_info.paths.root, "without_relay": run_info.without_relay})

    def on(self, event: DisplayEvent) -> None:
        """Write the event, unless it is output of a task."""
        if not isinstance(event, events.TaskOutput):
            super().on(event)

    def tick(self, now: float) -> float | None:
        """Write the lines that wait for the reader."""
        self._writer.flush()
        return _RETRY_SECONDS if self._writer.blocked() else None

    def close(self, report: Report) -> None:
        """Write the report, wait for the reader within the limits of the writer, and close the pipe."""
        super().close(report)
        self._writer.close()


def skipped_notice(lines: int, size: int) -> bytes:
    """Return the line that replaces lines that were dropped because the reader was too slow.

    Args:
        lines: The number of dropped lines.
        size: The number of their bytes.
    """
    return f"{json.dumps({'event': 'Skipped', 'lines': lines, 'bytes': size})}\n".encode()


def _output_object(task: TaskId, line: bytes | bytearray, *, has_more: bool = False) -> str:
    """Return a line of output as a JSON object, with ``more`` if the rest of the line follows."""
    text = json.dumps(line.decode("utf-8", "replace").removesuffix("\r"))
    end = ', "more": true}\n' if has_more else "}\n"
    return f'{{"event": "TaskOutput", "task": "{task}", "line": {text}{end}'
