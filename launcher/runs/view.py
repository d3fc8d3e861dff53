"""What there is to see of a run at one moment: its verdict, its tasks, how far and how fast they are.

``launch top``, ``launch page`` and ``launch report --html`` show it. It is computed from the files of the
run, which may be damaged or written by another user, so all texts here are safe to show on one line.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError, ProtocolError
from launcher.common.record import Record, from_attributes, replace
from launcher.common.report import Report, TaskReport, TaskState, report_from_json
from launcher.common.text import escape_controls, join_names, plural
from launcher.output.table import ending
from launcher.runs.history import RunHistory, read_history, report_by_events
from launcher.runs.run import Run, RunState
from launcher.runs.samples import Sample, SampleReader, seconds_left, steps_per_second

#: More tasks than this are folded by role and state.
_MAX_ROWS = 40
#: The largest number of tasks that are named before the folded rows.
_MAX_NAMED = 20
_BAD_STATES = (TaskState.FAILED, TaskState.LOST)
#: States in which a task may have processes.
_ALIVE_STATES = (TaskState.RUNNING, TaskState.STOPPING, TaskState.ENDED)


class TaskRow(Record):
    """What there is to see of one task. What is not known is None or empty."""

    task: TaskId
    #: The host, with the machine under a host that is a pod.
    host: str
    state: TaskState
    attempt: int
    #: Whether it waits to start again.
    restarting: bool
    #: How it ended, such as ``exit code 7``.
    detail: str
    #: What is remarkable about its attempt, by its kind, such as ``slow``.
    noticed: Mapping[str, str]
    #: Seconds since its host last answered.
    heard: float | None = None
    step: float | None = None
    total: float | None = None
    #: Steps per second in the last minute.
    rate: float | None = None
    #: Seconds until the last step.
    left: float | None = None
    #: Seconds since it last printed something.
    silent: float | None = None
    #: Cores in use, resident bytes, percent of its GPUs, and bytes on them.
    cpu: float | None = None
    memory: int | None = None
    gpu: float | None = None
    gpu_memory: int | None = None

    @property
    def state_text(self) -> str:
        """Its state in words."""
        return ", ".join([self.state.value, *(["starts again"] if self.restarting else []), *self.noticed])

    @property
    def is_remarkable(self) -> bool:
        """Whether something is wrong with it, so it stands first."""
        return self.state in _BAD_STATES or self.restarting or bool(self.noticed)


class FoldedRow(Record):
    """What there is to see of all tasks of one role in the same state."""

    role: str
    state_text: str
    count: int
    #: The smallest and the largest step.
    steps: tuple[float, float] | None
    #: The median of the tasks.
    rate: float | None = None
    cpu: float | None = None
    gpu: float | None = None
    #: The largest of the tasks.
    silent: float | None = None
    memory: int | None = None
    heard: float | None = None


class RunView(Record):
    """What there is to see of a run at one moment."""

    #: The run, whose files are here.
    run: Run
    state: RunState
    #: How it ended, or how it is now.
    report: Report
    history: RunHistory
    #: The samples of tasks by their names, the oldest first.
    samples: Mapping[str, Sequence[Sample]]
    #: When this was so, in seconds since the epoch.
    seen_at: float
    #: What is known about a run whose tasks have not started, or that cannot be asked. It may be empty.
    note: str = ""
    #: How often failed tasks may still start again. None without ``--restarts``.
    restarts_left: int | None = None
    #: Seconds until ``--timeout``. None without one.
    time_left: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the run is over, so that its view stays as it is."""
        return self.state in (RunState.ENDED, RunState.DIED)

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return max(0.0, self.report.ended_at - self.report.started_at)

    @property
    def headline(self) -> str:
        """How the run ended, or what it does now, in few words."""
        failure = self.report.failure
        if self.state is RunState.ENDED:
            return escape_controls(ending(self.report))
        if self.state is RunState.DIED:
            return self.note or "died: its launcher was killed, or its machine was restarted"
        if not any(task.started_at for task in self.report.tasks):
            return escape_controls(self.note or "starts: no task runs yet")
        if failure is not None:
            return escape_controls(f"ends: {failure.text}")
        if names := sorted(self.history.restarting):
            return f"runs: {join_names(names)} {'starts' if len(names) == 1 else 'start'} again"
        alive = sum(task.state in _ALIVE_STATES for task in self.report.tasks)
        where = "" if self.state is RunState.RUNNING or not self.note else f" ({self.note})"
        return escape_controls(f"runs: {alive:,} of {plural(len(self.report.tasks), 'task')}{where}")

    def rows(self) -> list[TaskRow]:
        """Return a row for each task, in the order of the plan."""
        restarting = self.history.restarting
        return [self._row(task, restarting=task.task in restarting) for task in self.report.tasks]

    def _row(self, task: TaskReport, *, restarting: bool) -> TaskRow:
        """Return the row of a task.

        Args:
            task: What the report tells about the task.
            restarting: Whether the task waits to start again.
        """
        # A sample that belongs to an earlier attempt says nothing about this one. And only while the task has
        # processes, its last sample says what it uses now (`in_use`), and not only how far it was (`last`).
        # `nothing`, a sample without values, stands for what is not known.
        samples, nothing = self.samples.get(task.task, ()), Sample(0.0, task.attempt)
        last = samples[-1] if samples and samples[-1].attempt == task.attempt else nothing
        in_use = last if task.state in _ALIVE_STATES and not self.has_ended else nothing
        return from_attributes(
            TaskRow,
            in_use,
            task,
            task=TaskId(escape_controls(task.task)),
            host=escape_controls(f"{task.host} on {task.node}" if task.node else task.host),
            restarting=restarting,
            detail=escape_controls(task.detail),
            noticed=self.history.noticed.get(task.task, {}),
            heard=self._seconds_since(in_use.at),
            step=last.step,
            total=last.total,
            rate=None if last is nothing else steps_per_second(samples),
            left=None if in_use is nothing else seconds_left(samples),
            silent=self._seconds_since(in_use.printed_at),
        )

    def _seconds_since(self, at: float | None) -> float | None:
        """Return how long ago a moment was. None if it is None or 0, which both mean that nobody knows it."""
        return max(0.0, self.seen_at - at) if at else None


def named_and_folded(
    rows: Sequence[TaskRow], max_rows: int = _MAX_ROWS
) -> tuple[list[TaskRow], list[FoldedRow]]:
    """Return the tasks of a large job that are shown by name, and rows for all others, by role and state.

    Args:
        rows: The rows of all tasks.
        max_rows: Up to this number, all of them are named.
    """
    if len(rows) <= max_rows:
        return [*rows], []
    named = [row for row in rows if row.is_remarkable][:_MAX_NAMED]
    names = {row.task for row in named}
    groups: dict[tuple[str, str], list[TaskRow]] = {}
    for row in rows:
        if row.task not in names:
            groups.setdefault((row.task.role, row.state_text), []).append(row)
    return named, [_folded_row(role, state, group) for (role, state), group in groups.items()]


def _folded_row(role: str, state_text: str, rows: Sequence[TaskRow]) -> FoldedRow:
    """Return one row for tasks of the same role in the same state.

    It contains the range of their steps, the median of what shows how fast and busy they are, and the largest
    of everything else, such as their memory or how long one is silent.
    """
    known = {
        name: [value for row in rows if (value := getattr(row, name)) is not None]
        for name in ("step", "rate", "cpu", "gpu", "silent", "memory", "heard")
    }
    steps = known.pop("step")
    folded: dict[str, Any] = {
        name: median(values) if name in ("rate", "cpu", "gpu") else max(values)
        for name, values in known.items()
        if values
    }
    return FoldedRow(role, state_text, len(rows), (min(steps), max(steps)) if steps else None, **folded)


def view_from_files(run: Run, report: Report | None = None, state: RunState | None = None) -> RunView:
    """Return what the files of a run tell now.

    Args:
        run: The run, whose files are here.
        report: Its report, if the caller has a later one than the files contain, such as the answer of the
            launcher.
        state: The state that belongs to that report.

    Raises:
        LaunchError: The files are damaged, or of another version of launch.
    """
    history, samples, now = read_history(run), SampleReader(run.paths), time.time()
    samples.read()
    state = state or run.state
    report = report or report_from_files(run, history, state, now)
    return RunView(run, state, report, history, samples.series, seen_at=now)


def report_from_files(run: Run, history: RunHistory, state: RunState, now: float) -> Report:
    """Return the report of a run by its files: the one at its end, or what its events tell.

    Args:
        run: The run.
        history: What its events tell.
        state: Its state.
        now: The present time, up to which a run lasts that has not ended.

    Raises:
        LaunchError: The files are damaged, or of another version of launch.
    """
    content = run.report()
    if not content and state is not RunState.ENDED:
        return report_by_events(run, history, state, now)
    try:
        # The files may have been copied from another machine.
        return replace(report_from_json(content), run_dir=run.paths.root)
    except (ProtocolError, ValueError) as error:
        raise LaunchError(f"{run.name} has a report of another version of launch: {error!r}") from error
