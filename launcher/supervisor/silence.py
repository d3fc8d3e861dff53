"""Which tasks are silent.

A task is silent when it has printed nothing for the limit, and neither has any other task, or one of its role
prints. Services and sidecars do not count: a ps prints nothing in ``server.join()``. Beside a chief and a ps,
workers are servers, too, and are silent only when the chief is.

Silence is counted in ticks of one timer, so the time in which the launcher is suspended counts as one tick.
"""

from __future__ import annotations

from launcher.common.cluster import TaskId
from launcher.common.report import TaskState
from launcher.job import CHIEF_ROLES
from launcher.supervisor.records import TaskRecord
from launcher.supervisor.state import JobState

TICKS_IN_LIMIT = 10
_MIN_TICK_SECONDS = 0.1
#: The limit without ``--stall``, after which a line tells of silent tasks.
_DEFAULT_LIMIT_SECONDS = 60.0


def tick_seconds(state: JobState) -> float:
    """Return the time between two ticks."""
    return max(_MIN_TICK_SECONDS, (state.policy.stall or _DEFAULT_LIMIT_SECONDS) / TICKS_IN_LIMIT)


def silent_tasks(state: JobState, limit: int, limit_beside_others: int) -> list[TaskRecord]:
    """Return the silent tasks in the order of the table.

    Args:
        state: The state of the job.
        limit: The limit in ticks.
        limit_beside_others: The limit for tasks beside others that print.
    """
    if state.stalls.ticks - state.stalls.since <= limit:
        return []  # the silence of all tasks counts from then on, or from later
    states = (TaskState.STARTING, TaskState.RUNNING)
    working = [each for each in state.tasks.values() if not each.service and each.state in states]
    silent = [record for record in working if _is_silent(state, record, limit)]
    if not silent:
        return []
    others = [record for record in working if not _is_silent(state, record, limit)]
    roles = {task.role for task in state.tasks}
    serving = {"worker"} if "ps" in roles and roles.intersection(CHIEF_ROLES) else set()
    if serving.issuperset(record.task.role for record in others):
        return silent
    last = state.stalls.ticks - 1
    printing = {record.task.role for record in others if record.current.output_tick == last} - serving
    return [
        record
        for record in silent
        if record.task.role in printing and _is_silent(state, record, limit_beside_others)
    ]


def _is_silent(state: JobState, record: TaskRecord, limit: int) -> bool:
    return record.state is TaskState.RUNNING and state.stalls.ticks - last_tick(state, record) > limit


def last_tick(state: JobState, record: TaskRecord) -> int:
    """Return the tick from which the silence of a task counts."""
    return max(record.current.start_tick, record.current.output_tick or 0, state.stalls.since)


def has_ended(state: JobState, task: TaskId) -> bool:
    """Return whether a task is gone for good."""
    return task not in state.tasks.open and task not in state.tasks.restarting
