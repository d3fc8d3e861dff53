"""Makes the time line of a run: when each attempt of a task ran, and how it ended.

``launch page`` and ``launch report --html`` draw it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from launcher.common.record import Record
from launcher.common.report import Attempt, Report, TaskReport, TaskState
from launcher.common.text import plural

#: Of more tasks than this, only those with a failure or another attempt have a row of their own.
_MAX_ROWS = 20
_TROUBLE_STATES = (TaskState.FAILED, TaskState.LOST)


class Span(Record):
    """One attempt of a task, or what the attempts of many tasks have in common."""

    started_at: float
    #: None while it goes on.
    ended_at: float | None
    #: The value of a `TaskState`.
    state: str
    #: The attempt and how it ended, in words.
    text: str


class TimelineRow(Record):
    """The attempts of one task, or of tasks of a role."""

    name: str
    spans: Sequence[Span]


def timeline(report: Report) -> list[TimelineRow]:
    """Return the rows of the time line. Attempts that never started are left out."""
    is_small = len(report.tasks) <= _MAX_ROWS
    own_rows = [task for task in report.tasks if is_small or _has_trouble(task)][:_MAX_ROWS]
    shown = {task.task for task in own_rows}
    others: dict[str, list[TaskReport]] = defaultdict(list)
    for task in report.tasks:
        if task.task not in shown:
            others[task.task.role].append(task)
    rows = [TimelineRow(str(task.task), _spans(task)) for task in own_rows]
    for role, tasks in others.items():
        noun = "other task" if own_rows else "task"
        rows.append(TimelineRow(f"{role}: {plural(len(tasks), noun)}", _folded(tasks)))
    return rows


def _has_trouble(task: TaskReport) -> bool:
    """Return whether a task failed or started again."""
    return bool(task.earlier) or task.state in _TROUBLE_STATES


def _spans(task: TaskReport) -> list[Span]:
    """Return a span for each attempt of a task."""
    attempts: Sequence[Attempt | TaskReport] = (*task.earlier, task)
    return [
        Span(
            attempt.started_at,
            attempt.ended_at,
            attempt.state.value,
            f"attempt {attempt.attempt} on {attempt.host}: {attempt.detail or attempt.state.value}",
        )
        for attempt in attempts
        if attempt.started_at is not None
    ]


def _folded(tasks: Sequence[TaskReport]) -> list[Span]:
    """Return one span for tasks of a role, or none if none of them started."""
    spans = [span for task in tasks for span in _spans(task)]
    if not spans:
        return []
    states = [task.state.value for task in tasks]
    ends = [span.ended_at for span in spans]
    known = [end for end in ends if end is not None]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    last = max(known) if len(known) == len(ends) else None
    return [Span(min(span.started_at for span in spans), last, states[0], counts)]
