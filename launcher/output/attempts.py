"""The table of all attempts of the tasks of a run, with the exceptions that those printed which failed."""

from __future__ import annotations

from launcher.clock_times import time_stamp
from launcher.common.report import Attempt, Report, TaskReport, TaskState
from launcher.common.text import duration, shortened
from launcher.job import RunPaths
from launcher.output.failure import exception_of

ATTEMPT_HEADERS = ("task", "attempt", "host", "began", "ended", "time", "state", "cause")
_MAX_ROWS = 60
_MAX_CAUSE_CHARACTERS = 120


def attempt_rows(report: Report, paths: RunPaths) -> tuple[list[list[str]], int]:
    """Return the rows of the last attempts of tasks that were started again, in the order of their starts.

    Args:
        report: How the job ended, or how it is now.
        paths: The files of the run.

    Returns:
        The rows, and how many earlier attempts are left out.
    """
    attempts: list[tuple[TaskReport, Attempt | TaskReport]] = []
    for task in report.tasks:
        if task.earlier:
            attempts += [*((task, each) for each in task.earlier), (task, task)]
    attempts.sort(key=lambda pair: pair[1].started_at or 0.0)
    left_out = max(0, len(attempts) - _MAX_ROWS)
    return [_row(*pair, paths) for pair in attempts[left_out:]], left_out


def _row(task: TaskReport, attempt: Attempt | TaskReport, paths: RunPaths) -> list[str]:
    """Return the cells of an attempt of a task, in the order of `ATTEMPT_HEADERS`."""
    cause, began, ended = attempt.detail, attempt.started_at, attempt.ended_at
    if attempt.state is TaskState.FAILED:
        exception = exception_of(task.task, paths, None if attempt is task else attempt.attempt)
        cause += f": {exception}" if exception else ""
    return [
        str(task.task),
        str(attempt.attempt),
        attempt.host,
        *("-" if at is None else time_stamp(at) for at in (began, ended)),
        duration(None if began is None or ended is None else ended - began),
        attempt.state.value,
        shortened(cause, _MAX_CAUSE_CHARACTERS),
    ]
