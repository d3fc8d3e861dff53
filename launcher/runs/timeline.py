"""Makes the time line of a run: when each attempt of a task ran, and how it ended.

``launch page`` and ``launch report --html`` draw it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
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
    """Return the rows of the time line. Attempts that never started are left out.

    Of many tasks, only those with trouble have rows of their own. The others share a row for each role.
    """
    named: Sequence[TaskReport] = report.tasks
    if len(named) > _MAX_ROWS:
        named = [task for task in named if task.earlier or task.state in _TROUBLE_STATES][:_MAX_ROWS]
    rows = {task.task: TimelineRow(task.task, _spans(task)) for task in named}
    others: dict[str, list[TaskReport]] = defaultdict(list)
    for task in report.tasks:
        if task.task not in rows:
            others[task.task.role].append(task)
    noun = "other task" if rows else "task"
    folded = [
        TimelineRow(f"{role}: {plural(len(tasks), noun)}", _joined(tasks)) for role, tasks in others.items()
    ]
    return [*rows.values(), *folded]


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


def _joined(tasks: Sequence[TaskReport]) -> list[Span]:
    """Return one span for several tasks of a role: from their first start to their last end.

    Returns:
        A list with the span. It is empty if no task has started.
    """
    spans = [span for task in tasks for span in _spans(task)]
    if not spans:
        return []
    # A task that still runs counts as the one that ends last.
    last = max(spans, key=lambda span: span.ended_at or math.inf)
    states = Counter(task.state.value for task in tasks)
    text = ", ".join(f"{count} {state}" for state, count in states.items())
    # The colour of the span is that of the first task. The text counts the states of all.
    return [Span(min(span.started_at for span in spans), last.ended_at, next(iter(states)), text)]
