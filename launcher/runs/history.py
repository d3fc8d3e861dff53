"""What happened in a run, as its ``events.jsonl`` tells it: messages, lost hosts, and each attempt of a task.

``launch report`` and ``launch stop`` call it. The events are there even if the launcher was killed. The file
may be damaged or written by another user, so that everything in it is checked.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError, ProtocolError
from launcher.common.record import Record
from launcher.common.report import Reason, Report, TaskState, report_from_json
from launcher.common.text import escape_controls
from launcher.common.trusted_io import MAX_FILE_BYTES, open_regular
from launcher.runs.run import Run, RunState, tasks, time_in

#: Only the last messages are kept, the last losses of hosts, and the last attempts of each task.
_MAX_MESSAGES = 50
_MAX_LOST_HOSTS = 1000
_MAX_ATTEMPTS = 100
#: After so many lines that are no events nothing more is read, as others may have written a gigabyte of them.
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


def read_history(run: Run) -> RunHistory:
    """Read the events of a run, in bounded memory. What is damaged is left out."""
    messages: deque[tuple[float, str]] = deque(maxlen=_MAX_MESSAGES + 1)
    lost_hosts: deque[Mapping[str, Any]] = deque(maxlen=_MAX_LOST_HOSTS)
    attempts: dict[str, dict[int, dict[str, Any]]] = {task: {} for task in tasks(run)}
    restarts = damaged_lines = 0
    with suppress(OSError), open_regular(run.paths.events) as file:
        while damaged_lines < _MAX_DAMAGED_LINES and (line := file.readline(MAX_FILE_BYTES)):
            event = _event_in(line)
            if event is None:
                damaged_lines += 1
                continue
            with suppress(LookupError, TypeError, AttributeError):
                at, kind = event["at"], event["event"]
                restarts += kind == "Restarting"
                if kind == "TaskMoved":
                    _note_move(attempts[event["task"]], event)
                elif kind == "Tell":
                    messages.append((at, escape_controls(event["text"])))
                elif kind == "AgentLost":
                    host, why = escape_controls(event["host"]), escape_controls(event["why"])
                    lost_hosts.append({"host": host, "at": at, "why": why.removeprefix(f"{host}: ")})
    return RunHistory([*messages][1:], [*lost_hosts], restarts, attempts)


def _event_in(line: bytes) -> Mapping[str, Any] | None:
    """Return the event in a line, or None if there is none with a time."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and time_in(event, "at") is not None else None


def _note_move(attempts: dict[int, dict[str, Any]], move: Mapping[str, Any]) -> None:
    """Add an event about the state of a task to the attempts of the task.

    Args:
        attempts: The attempts by their numbers, in the form of ``report.json``, where further fields are
            ignored.
        move: The event.
    """
    state, fields = move["state"], attempts.setdefault(move["attempt"], dict(_UNKNOWN))
    fields.update(move)
    if fields["started_at"] is None and fields.get("pid") is not None:
        fields["started_at"] = move["at"]
    if fields["ended_at"] is None and state in (*_OVER_STATES, TaskState.ENDED.value):
        fields["ended_at"] = move["at"]
    if len(attempts) > _MAX_ATTEMPTS:
        del attempts[next(iter(attempts))]


def remaining(run: Run) -> list[TaskId]:
    """Return the tasks of a run that are not over according to its events."""
    attempts = read_history(run).attempts
    # Of the attempts of a task, the last one counts.
    states = {task: attempt["state"] for task in attempts for attempt in attempts[task].values()}
    return [task for task in tasks(run) if states.get(task) not in _OVER_STATES]


def report_by_events(run: Run, history: RunHistory, now: float) -> Report:
    """Return the report of a run that has left none, as far as its events tell.

    Args:
        run: The run.
        history: What its events tell.
        now: The present time, up to which a run lasts whose launcher has not died.

    Raises:
        LaunchError: The events are damaged, or of another version of launch.
    """
    has_died = run.state is RunState.DIED
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
        has_died: Whether its launcher died, so that an unfinished attempt has ended, too.
    """
    never = {"task": task, "host": host, "address": "", "state": TaskState.PENDING.value, "reason": None}
    *earlier, last = attempts.values() or [{**never, **_UNKNOWN, "attempt": 1}]
    if has_died and last["state"] not in _OVER_STATES:
        gone = {"state": TaskState.LOST.value, "reason": Reason.LAUNCHER.value, "detail": "its launcher died"}
        last = {**last, **gone}
    port = str(last["address"]).rpartition(":")[2]
    return {**last, "port": int(port) if port.isdecimal() else None, "earlier": earlier}


def _first_failure(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the failure of the first task that failed and was not to start again. None if there is none."""
    failed = [task for task in tasks if task["state"] == TaskState.FAILED.value and not task["restarting"]]
    if not failed:
        return None
    first = min(failed, key=lambda task: float(task["ended_at"]))
    return {**first, "at": first["ended_at"], "text": f"{first['task']} failed: {first['detail']}"}
