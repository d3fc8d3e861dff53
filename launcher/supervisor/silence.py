"""Finds the tasks that are silent. `launcher.supervisor.stalls` asks it at each tick.

A task is silent when it has printed nothing for the limit, and neither has any other task; or, beside others
that print, when one of them belongs to its role. Services and sidecars do not count: a ps prints nothing in
``server.join()``. Beside a chief and a ps, workers are servers, too, and count as silent only when the chief
is.

Silence is counted in ticks of one timer and not in seconds: the time in which the launcher is suspended then
counts as one tick. With ``--progress``, a task that has printed a step is silent when it prints no other one,
whatever else it prints. This module only looks; what follows from silence is decided by
`launcher.supervisor.stalls`.
"""

from __future__ import annotations

from launcher.common.cluster import TaskId
from launcher.common.report import TaskState
from launcher.job import CHIEF_ROLES
from launcher.supervisor.records import TaskRecord
from launcher.supervisor.state import JobState

TICKS_IN_LIMIT = 10
_MIN_TICK_SECONDS = 0.1
#: Without ``--stall``, a message names the tasks that are silent for this long.
_DEFAULT_LIMIT_SECONDS = 60.0


def tick_seconds(state: JobState) -> float:
    """Return the seconds between two ticks: a tenth of ``--stall``, or of the default limit without it."""
    return max(_MIN_TICK_SECONDS, (state.policy.stall or _DEFAULT_LIMIT_SECONDS) / TICKS_IN_LIMIT)


def silent_tasks(state: JobState, limit: int, limit_beside_others: int) -> list[TaskRecord]:
    """Return the tasks that have been silent for longer than a limit, in the order of the table.

    Silence is counted in ticks of a timer. A task is silent

    - if no other task has printed within the first limit, and neither has it;
    - if others have, but a task of its role has printed since the last tick but one, and it has not within
      the second limit. Roles that print nothing just now may all wait for something, as in an evaluation.

    Services do not count. Beside a chief and a ps, workers serve the chief, so their output does not show
    that the job is alive.

    Args:
        state: The state of the job.
        limit: How many ticks a task may print nothing when no other task prints.
        limit_beside_others: How many ticks it may print nothing when another task of its role prints.

    Returns:
        The records of the tasks. Empty if no task is silent.
    """
    # Silence counts from the tick `since` on: before it, output could not arrive, or tasks started again.
    if state.stalls.ticks - state.stalls.since <= limit:
        return []
    # A task that starts is never silent, so it is one of the others.
    states = (TaskState.STARTING, TaskState.RUNNING)
    working = [each for each in state.tasks.values() if not each.service and each.state in states]
    silent = [record for record in working if _is_silent(state, record, limit)]
    if not silent:
        return []
    others = [record for record in working if not _is_silent(state, record, limit)]
    roles = {task.role for task in state.tasks}
    # These workers do what the chief says, so they may print although the job hangs.
    serving_roles = {"worker"} if "ps" in roles and roles.intersection(CHIEF_ROLES) else set()
    # If there are no others, or they only serve the chief, nothing shows that the job is alive.
    if serving_roles.issuperset(record.task.role for record in others):
        return silent
    # Other tasks print, so a task hangs for certain only if tasks that do the same work are among them.
    printing_roles = {record.task.role for record in others if _prints_now(state, record)} - serving_roles
    beside_others = [record for record in silent if record.task.role in printing_roles]
    return [record for record in beside_others if _is_silent(state, record, limit_beside_others)]


def _is_silent(state: JobState, record: TaskRecord, limit: int) -> bool:
    """Return whether a task runs and has printed nothing for more than this number of ticks."""
    # Whether there are new steps was last known when the logs were read.
    now = state.stalls.steps_read_tick if counts_steps(state, record) else state.stalls.ticks
    return record.state is TaskState.RUNNING and (now or 0) - silent_since(state, record) > limit


def _prints_now(state: JobState, record: TaskRecord) -> bool:
    """Return whether a task has printed something since the last tick but one, a step if that counts."""
    if counts_steps(state, record) and record.current.step_tick != state.stalls.steps_read_tick:
        return False
    # The tick of now has just begun, so what was printed lately carries the number of the one before.
    return record.current.output_tick == state.stalls.ticks - 1


def counts_steps(state: JobState, record: TaskRecord) -> bool:
    """Return whether a task counts as silent if it makes no steps, whatever else it prints."""
    has_steps = record.current.step_tick is not None and state.stalls.steps_read_tick is not None
    return has_steps and state.policy.stall is not None


def silent_since(state: JobState, record: TaskRecord) -> int:
    """Return the tick from which the silence of a task counts.

    It is the last of three: the start of the attempt, its last output or step, and the tick from which the
    silence of all tasks counts.
    """
    attempt = record.current
    last_tick = attempt.step_tick if counts_steps(state, record) else attempt.output_tick
    return max(attempt.start_tick, last_tick or 0, state.stalls.since)


def has_ended(state: JobState, task: TaskId) -> bool:
    """Return whether a task has ended and will not start again."""
    return task not in state.tasks.not_gone and task not in state.tasks.restarting
