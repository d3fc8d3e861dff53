"""How a task is, from the events of its run so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from launcher.report import ExitStatus, TaskState
from launcher.text import signal_name

_STATES = {
    "TaskStarted": TaskState.RUNNING,
    "TaskNotStarted": TaskState.FAILED,
    "TaskSignalled": TaskState.STOPPING,
    "TaskExited": TaskState.ENDED,
}


def state_of(events: Iterable[Mapping[str, Any]]) -> TaskState:
    """The state that these events of one task lead to. Only the report knows who was too late to fail."""
    state, outcome = TaskState.PENDING, TaskState.FAILED
    for event in events:
        kind = event["event"]
        if kind == "TaskExited":
            outcome = _outcome(state is TaskState.STOPPING, event["code"] == 0)
        elif kind == "TaskGone":
            state = outcome
        if kind in _STATES and state is not TaskState.ENDED:  # what it left behind is signalled too
            state = _STATES[kind]
    return state


def _outcome(by_us: bool, well: bool) -> TaskState:
    if by_us:
        return TaskState.STOPPED
    return TaskState.SUCCEEDED if well else TaskState.FAILED


def exit_status_of(events: Iterable[Mapping[str, Any]]) -> ExitStatus | None:
    """How the task ended, if these events of it say so."""
    for event in events:
        if event["event"] == "TaskExited":
            return ExitStatus(event["code"], event["signal"])
        if event["event"] == "TaskNotStarted":
            return ExitStatus(code=event["code"])
    return None


def described(state: TaskState, status: ExitStatus | None) -> str:
    """``running``; ``failed, killed by SIGKILL``."""
    if status is None or not status.known:
        return state.value
    if status.signal is None:
        return f"{state.value}, exit code {status.code}"
    return f"{state.value}, killed by {signal_name(status.signal)}"
