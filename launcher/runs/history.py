"""What happened in a run, as its ``events.jsonl`` tells it: messages, lost hosts, and each attempt of a task.

``launch report`` and ``launch stop`` call it. The events are there even if the launcher was killed. The file
may be damaged or written by another user, so everything in it is checked.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.common.cluster import TaskId, is_task_name
from launcher.common.errors import LaunchError, ProtocolError
from launcher.common.record import Record
from launcher.common.report import Reason, Report, TaskReport, TaskState, report_from_json
from launcher.common.text import escape_controls
from launcher.common.trusted_io import open_regular
from launcher.common.validation import FieldReader
from launcher.job import RunPaths
from launcher.runs.run import Run, RunState, tasks, time_in

#: Only the last messages are kept, the last losses of hosts, and the last attempts of each task.
_MAX_MESSAGES = 50
_MAX_LOST_HOSTS = 1000
_MAX_ATTEMPTS = 100
#: The largest number of tasks that the events may name.
_MAX_TASKS = 100_000
#: The kinds of `launcher.common.events.Noticed` that are about one attempt of a task.
_TASK_NOTICES = ("nan", "slow")
#: A longer line about a task or a host is damaged, and more characters of a message are left out.
_MAX_LINE_BYTES, _MAX_TEXT_CHARACTERS = 16 * 1024, 16 * 1024
_BOUNDED_KINDS = (b'"TaskMoved"', b'"AgentLost"')
#: How much of the events is read at once.
_MAX_READ_BYTES = 1 << 20
#: The reader gives up after this number of lines that are no events, as a task may write them without end.
_MAX_DAMAGED_LINES = 100
#: The exit code of a run whose launcher was killed, as that of ``launch attach``.
_DIED_EXIT_CODE = 125
#: What is not known about an attempt before an event tells it.
_UNKNOWN = {"status": {"code": None, "signal": None}, "started_at": None, "ended_at": None}
_OVER_STATES = [state.value for state in TaskState if state.is_over]


class RunHistory(Record):
    """What the events of a run tell."""

    #: The last messages to the user with their times, without the first one, which only names the run.
    messages: Sequence[tuple[float, str]]
    #: Each loss of a host, as ``launch report --json`` prints it.
    lost_hosts: Sequence[Mapping[str, Any]]
    #: How often tasks were started again.
    restarts: int
    #: By task and number, each attempt in the form of ``report.json``.
    attempts: Mapping[str, Mapping[int, Mapping[str, Any]]]
    #: How many of these restarts count for ``--restarts``.
    counted_restarts: int = 0
    #: What is remarkable about the last attempt of tasks, such as a slow one: texts by kind, by task.
    noticed: Mapping[str, Mapping[str, str]] = {}

    @property
    def restarting(self) -> frozenset[str]:
        """The names of the tasks that wait to start again."""
        last = {task: [*attempts.values()][-1] for task, attempts in self.attempts.items()}
        return frozenset(task for task, attempt in last.items() if attempt.get("restarting"))


class HistoryReader:
    """A reader of the events of a run, which may still grow. What is damaged is left out.

    Args:
        paths: The paths of the run.
    """

    def __init__(self, paths: RunPaths) -> None:
        """Prepare to read the events. Nothing is read yet."""
        self._paths = paths
        self._clear()

    def _clear(self) -> None:
        """Forget all events, because the file is read from its start."""
        #: How many bytes of the file were read, and how many lines in them were no events.
        self._offset = self._damaged_lines = 0
        #: The last messages with their times: one more than `history` returns, which leaves out the first.
        self._messages: deque[tuple[float, str]] = deque(maxlen=_MAX_MESSAGES + 1)
        #: The last losses of hosts.
        self._lost_hosts: deque[Mapping[str, Any]] = deque(maxlen=_MAX_LOST_HOSTS)
        #: By task and number, the fields of the last attempts of each task.
        self._attempts: dict[str, dict[int, Mapping[str, Any]]] = {}
        #: By task and kind, the texts about what is remarkable in its last attempt.
        self._noticed: dict[str, dict[str, str]] = {}
        #: How often tasks were started again, and how many of these restarts count for ``--restarts``.
        self._restarts = self._counted_restarts = 0

    def read(self) -> bool:
        """Read the next complete events, not too many, so that a large file keeps nobody busy for long.

        Returns:
            Whether there was anything new, so there may be more.
        """
        if self._damaged_lines >= _MAX_DAMAGED_LINES:
            return False
        try:
            with open_regular(self._paths.events) as file:
                if os.fstat(file.fileno()).st_size < self._offset:  # The file was replaced.
                    self._clear()
                file.seek(self._offset)
                data = file.read(_MAX_READ_BYTES)
        except OSError:
            return False
        # The end of the last line may not be written yet. A line that is longer than what is read at once,
        # and so has no end, is dropped.
        whole = data[: data.rfind(b"\n") + 1] or (data if len(data) == _MAX_READ_BYTES else b"")
        self._offset += len(whole)
        for line in whole.splitlines():
            # Events about tasks and hosts are short. A longer one is damaged, and would only cost memory.
            if len(line) > _MAX_LINE_BYTES and any(kind in line for kind in _BOUNDED_KINDS):
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                self._damaged_lines += 1
                if self._damaged_lines >= _MAX_DAMAGED_LINES:
                    return False
                continue
            with suppress(ValueError, LookupError, TypeError, AttributeError, ProtocolError):
                self._note(event)
        return bool(whole)

    def history(self) -> RunHistory:
        """Return what the events so far tell."""
        return RunHistory(
            [*self._messages][1:],  # The first message only names the run.
            [*self._lost_hosts],
            self._restarts,
            {task: dict(attempts) for task, attempts in self._attempts.items()},
            self._counted_restarts,
            {task: dict(texts) for task, texts in self._noticed.items()},
        )

    def _note(self, event: Mapping[str, Any]) -> None:
        """Note what an event tells. The event may be damaged, because tasks can write to the file, too.

        Raises:
            ProtocolError: A field has another type.
            LookupError: A field is missing. For some values it is another error that `read` ignores.
        """
        at, kind = time_in(event, "at"), event["event"]
        if at is None:
            return
        if kind == "Restarting":
            self._restarts += 1
            if type(number := event.get("number")) is int:
                self._counted_restarts = max(number, self._counted_restarts)
        if kind == "TaskMoved":
            self._note_move(event)
        elif kind == "Tell":
            self._messages.append((at, escape_controls(event["text"][:_MAX_TEXT_CHARACTERS])))
        elif kind == "Noticed":
            text = escape_controls(event["text"][:_MAX_TEXT_CHARACTERS])
            self._messages.append((at, text))
            if (task := event["task"]) in self._attempts and event["kind"] in _TASK_NOTICES:
                self._noticed.setdefault(task, {})[event["kind"]] = text
        elif kind == "AgentLost":
            host, why = escape_controls(event["host"]), escape_controls(event["why"])
            self._lost_hosts.append({"host": host, "at": at, "why": why.removeprefix(f"{host}: ")})

    def _note_move(self, move: Mapping[str, Any]) -> None:
        """Note a `TaskMoved`: what it tells replaces what earlier events have told about the same attempt.

        The times of the start and of the end are those of the first events that show them, if no event
        contains them.

        Args:
            move: The fields of the event. An event with a wrong time, or about too many tasks, is ignored.

        Raises:
            ProtocolError: A field has another type.
        """
        task, number, state = move["task"], move["attempt"], move["state"]
        if not is_task_name(task) or (task not in self._attempts and len(self._attempts) >= _MAX_TASKS):
            return
        attempts = self._attempts.get(task, {})
        fields = {**_UNKNOWN, **attempts.get(number, {}), **move}
        if fields["started_at"] is None and fields.get("pid") is not None:
            fields["started_at"] = move["at"]
        if fields["ended_at"] is None and state in (*_OVER_STATES, TaskState.ENDED.value):
            fields["ended_at"] = move["at"]
        if any(fields[name] is not None and not time_in(fields, name) for name in ("started_at", "ended_at")):
            return
        # This raises if a field has a wrong type, which must not reach the report. Events lack only the port.
        FieldReader(trusted=True).read(TaskReport, {**fields, "port": None})
        if number not in attempts:  # What was noticed about the attempt before does not hold for a new one.
            self._noticed.pop(task, None)
        self._attempts.setdefault(task, {})[number] = fields
        if len(attempts) > _MAX_ATTEMPTS:
            del attempts[next(iter(attempts))]


def read_history(run: Run) -> RunHistory:
    """Read the events of a run, in bounded memory. What is damaged is left out."""
    reader = HistoryReader(run.paths)
    while reader.read():
        continue
    return reader.history()


def remaining(run: Run) -> list[TaskId]:
    """Return the tasks of a run that are not over according to its events."""
    attempts = read_history(run).attempts
    # Of the attempts of a task, the last one counts.
    states = {task: attempt["state"] for task in attempts for attempt in attempts[task].values()}
    return [task for task in tasks(run) if states.get(task) not in _OVER_STATES]


def report_by_events(run: Run, history: RunHistory, state: RunState, now: float) -> Report:
    """Return the report of a run that has left none, as far as its events tell.

    Args:
        run: The run.
        history: What its events tell.
        state: Its state.
        now: The present time, up to which a run lasts whose launcher has not died.

    Raises:
        LaunchError: The events are damaged, or of another version of launch.
    """
    has_died = state is RunState.DIED
    try:
        task_fields = [
            _task_fields(str(task), host, history.attempts.get(task, {}), has_died=has_died)
            for task, host in tasks(run).items()
        ]
        ended_at, failure = now, _first_failure(task_fields)
        if has_died:
            ended_at = run.last_sign or run.started_at
            text = "the launcher died without a report: it was killed, or its machine was restarted"
            death = {"reason": Reason.LAUNCHER.value, "task": None, "host": None, "text": text}
            if run.origin.program and not run.origin.driver:
                death["hint"] = f"`launch rerun {run.called}` starts it again"
            failure = failure or {**death, "at": ended_at}
        fields: dict[str, Any] = {"job": run.name, "run_dir": run.paths.root, "restarts": history.restarts}
        fields |= {"started_at": run.started_at, "ended_at": ended_at, "tasks": task_fields}
        fields |= {"failure": failure, "exit_code": _DIED_EXIT_CODE if has_died else 0}
        return report_from_json(fields)
    except (ProtocolError, LookupError, TypeError, ValueError) as error:
        raise LaunchError(f"{run.paths.events!r} is damaged, or of another version of launch") from error


def _task_fields(
    task: str, host: str, attempts: Mapping[int, Mapping[str, Any]], *, has_died: bool
) -> dict[str, Any]:
    """Return the report of a task in the form of ``report.json``.

    Args:
        task: The name of the task.
        host: Its host, by the plan.
        attempts: Its attempts by their numbers.
        has_died: Whether its launcher died, so an unfinished attempt has ended, too.
    """
    # A task without any event has not been started yet.
    never = {"task": task, "host": host, "address": "", "state": TaskState.PENDING.value, "reason": None}
    *earlier, last = attempts.values() or [{**never, **_UNKNOWN, "attempt": 1}]
    if has_died and last["state"] not in _OVER_STATES:
        gone = {"state": TaskState.LOST.value, "reason": Reason.LAUNCHER.value, "detail": "its launcher died"}
        last = {**last, **gone}
    port = str(last["address"]).rpartition(":")[2]
    return {**last, "port": int(port) if port.isdecimal() else None, "earlier": earlier}


def _first_failure(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the failure of the first task that failed and was not to start again. None if there is none."""
    failed = [task for task in tasks if task["state"] == TaskState.FAILED.value]
    # What a damaged event lacks is None.
    failed = [each for each in failed if each["reason"] and each["ended_at"] and not each.get("restarting")]
    if not failed:
        return None
    first = min(failed, key=lambda task: float(task["ended_at"]))
    return {**first, "at": first["ended_at"], "text": f"{first['task']} failed: {first['detail']}"}
