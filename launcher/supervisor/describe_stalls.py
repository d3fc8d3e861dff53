"""The messages about silent tasks: the likely cause of the silence, and what to do.

`launcher.supervisor.stalls` and `launcher.supervisor.requests` call it. Like `launcher.supervisor.describe`
it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.common.cluster import TaskId
from launcher.common.report import Failure, Reason
from launcher.common.text import duration
from launcher.job import CHIEF_ROLES
from launcher.supervisor.describe import on_host, time_limit
from launcher.supervisor.records import TaskRecord
from launcher.supervisor.silence import (
    TICKS_IN_LIMIT,
    counts_steps,
    has_ended,
    silent_since,
    silent_tasks,
    tick_seconds,
)
from launcher.supervisor.state import JobState

_LONGER_ADVICE = "a program that prints less often needs a longer --stall"
_STACKS_ADVICE = f"a Python program prints its stacks on SIGABRT: see the end of its output; {_LONGER_ADVICE}"
_STALL_ADVICE = "`--stall 10m` would stop such tasks and show where they hang"
_DEVICE_FILTERS_ADVICE = (
    "a session of TensorFlow 1 without device_filters waits for every task (docs/hangs.md)"
)
_DONE_WHEN_CHIEF_ADVICE = "; `--done-when chief` ends the job with worker/0"
_NO_CHIEF_ADVICE = (
    "does the program use ParameterServerStrategy? Then only a chief trains, and this job has none: `--chief`"
    " starts one; else: "
)
_COLLECTIVE_ADVICE = "tasks that communicate collectively must finish together"
# The time limit stops tasks by SIGTERM, on which Python prints no stacks unless the program asks for it.
_FAULTHANDLER_ADVICE = (
    "let the program call faulthandler.register(signal.SIGTERM, chain=True) (after it made its tf.distribute"
    " strategy, which may handle SIGTERM itself): its log then has its stacks"
)


def stall_failure(state: JobState, silent: Sequence[TaskRecord], at: float) -> Failure:
    """Return the failure of tasks that were silent for longer than ``--stall``.

    They are one failure together, which carries the name and the host of the first one. Its text names all.

    Args:
        state: The state of the job.
        silent: The silent tasks, at least one.
        at: When they were found, in seconds since the epoch.
    """
    limit = time_limit(state.policy.stall or 0.0, state.policy.stall_text)
    return Failure(
        reason=Reason.STALLED,
        task=silent[0].task,
        host=silent[0].host,
        at=at,
        text=_silence_text(state, silent, limit),
        hint=_advice(state, silent, otherwise=_LONGER_ADVICE if state.stalls.stacks else _STACKS_ADVICE),
        limit=limit,
        stacks=state.stalls.stacks,
    )


def silent_line(state: JobState, silent: Sequence[TaskRecord]) -> str:
    """Return the message about silent tasks of a job without ``--stall``."""
    # It names the time for which all of them were silent, which began with the last that became so. One tick
    # is subtracted, because the last output may have come at any time before the next tick.
    since = max(silent_since(state, record) for record in silent)
    limit = duration((state.stalls.ticks - since - 1) * tick_seconds(state))
    return f"{_silence_text(state, silent, limit)}; {_advice(state, silent, otherwise=_STALL_ADVICE)}"


def waits_for_task(state: JobState, record: TaskRecord, awaited: TaskId) -> str:
    """Return that the session of a task of TensorFlow 1 waits for another task, and what to do.

    Args:
        state: The state of the job.
        record: The task that waits.
        awaited: The task that it waits for.
    """
    ended = [awaited] if has_ended(state, awaited) else []
    advice = _DEVICE_FILTERS_ADVICE + _done_when_chief_advice(state, ended)
    return f"{record.task} waits for {awaited}{', which has ended' if ended else ''}: {advice}"


def hint_at_timeout(state: JobState) -> str:
    """Return how to find out why tasks were silent when the time limit stopped the job.

    Returns:
        The hint. Empty if no task of a Python program was silent.
    """
    # In a short job, which had no time for the usual limit, half of its time without output is enough.
    ticks = min(TICKS_IN_LIMIT, state.stalls.ticks // 2)
    silent = [record for record in silent_tasks(state, ticks, ticks) if record.runs_python]
    if not silent:
        return ""
    if state.stalls.stacks:
        return _advice(state, silent, otherwise="")
    hang = "hangs" if len(silent) == 1 else "hang"
    see = f"to see where {state.tasks.names_of(silent)} {hang}, {_FAULTHANDLER_ADVICE}"
    return _advice(state, silent, otherwise=see)


def _silence_text(state: JobState, silent: Sequence[TaskRecord], limit: str) -> str:
    """Return that tasks printed nothing for this time, or only that TensorFlow waits."""
    where = on_host(state, silent[0].host) if len(silent) == 1 else ""
    if all(counts_steps(state, record) for record in silent):
        return f"{state.tasks.names_of(silent)}{where} made no step for {limit}"
    only_waited = all(record.current.waiting_pieces for record in silent)
    what = "nothing but messages about waiting" if only_waited else "nothing"
    return f"{state.tasks.names_of(silent)}{where} printed {what} for {limit}"


def _advice(state: JobState, silent: Sequence[TaskRecord], *, otherwise: str) -> str:
    """Return the likely cause of a silence and what to do.

    Args:
        state: The state of the job.
        silent: The silent tasks.
        otherwise: What to return if no cause is known.
    """
    # The known causes are those of TensorFlow.
    if not any(record.runs_python or record.current.awaited_task for record in silent):
        return otherwise
    cause = _awaited_tasks_advice(state, silent) or _ended_peers_advice(state)
    cause = cause or _lone_restart_advice(state, silent)
    # A missing chief is only a guess: its advice is a question that ends with "else: ", so the rest follows.
    if not cause and _may_lack_chief(state, silent):
        return _NO_CHIEF_ADVICE + otherwise
    return cause or otherwise


def _awaited_tasks_advice(state: JobState, silent: Sequence[TaskRecord]) -> str:
    """Return for which tasks the sessions of silent tasks wait, and what to do.

    Only sessions of TensorFlow 1 say for which task they wait. By default a session waits for every task of
    the cluster, which device filters prevent.

    Returns:
        The advice to use device filters. If worker 0, which acts as the chief, is waited for and has ended,
        the advice to use ``--done-when chief``, too. Empty if no silent task has said that it waits.
    """
    awaited = {record.current.awaited_task for record in silent if record.current.awaited_task}
    if not awaited:
        return ""
    ended = [task for task in awaited if has_ended(state, task)]
    advice = f"{_DEVICE_FILTERS_ADVICE}{_done_when_chief_advice(state, ended)}"
    return f"TensorFlow waits for {state.tasks.names(awaited)}: {advice}"


def _ended_peers_advice(state: JobState) -> str:
    """Return which peers of the silent tasks have ended, and what to do. Empty if none has ended."""
    ended = [task.task for task in state.tasks.values() if not task.service and has_ended(state, task.task)]
    if not ended:
        return ""
    # With a ps, sessions of TensorFlow 1 may wait for the peers. Without one, tasks communicate collectively.
    has_ps = any(task.role == "ps" for task in state.tasks)
    advice = _COLLECTIVE_ADVICE
    if has_ps:
        advice = _DEVICE_FILTERS_ADVICE + _done_when_chief_advice(state, ended)
    return f"{state.tasks.names(ended)} ended before: {advice}"


def _lone_restart_advice(state: JobState, silent: Sequence[TaskRecord]) -> str:
    """Return which tasks started again before the others became silent, and what to do.

    The others may be waiting for something that was lost with the restart and will never come. If one of them
    has printed anything since the last restart, they have gone on after it, so the restart is not the cause.

    Returns:
        The text. Empty if no task started again, or if the restart is not the cause.
    """
    # A task that has started again has earlier attempts.
    restarted = [record for record in state.tasks.values() if record.earlier and not record.sidecar]
    others = [record for record in silent if not record.earlier]
    if not restarted or not others:
        return ""
    since = max(record.current.start_tick for record in restarted)
    if any((record.current.output_tick or 0) > since for record in others):
        return ""
    advice = "if the others wait for what is lost, `--restart job` starts all again"
    return f"{state.tasks.names_of(restarted)} started again alone: {advice}"


def _may_lack_chief(state: JobState, silent: Sequence[TaskRecord]) -> bool:
    """Return whether all workers have been silent since their start, beside a ps and without a chief.

    Workers of ParameterServerStrategy wait for a chief, and print nothing without one.
    """
    roles = {task.role for task in state.tasks}
    workers = [record for record in state.tasks.values() if record.role.name == "worker"]
    attempts = [record.current for record in silent]
    printed_only_at_start = all(
        (attempt.output_tick or 0) - attempt.start_tick <= TICKS_IN_LIMIT for attempt in attempts
    )
    lacks_chief = "ps" in roles and not roles.intersection(CHIEF_ROLES)
    return lacks_chief and printed_only_at_start and [*silent] == workers


def _done_when_chief_advice(state: JobState, ended: Sequence[TaskId]) -> str:
    """Return the advice to use ``--done-when chief``. Empty if it does not fit.

    It fits a job that waits for all workers although worker 0, which acts as its chief, has ended. A user
    who has given ``--done-when`` has chosen what the job waits for, and needs no advice.

    Args:
        state: The state of the job.
        ended: The tasks that have ended while others wait for them.
    """
    return _DONE_WHEN_CHIEF_ADVICE if TaskId("worker/0") in ended and not state.policy.done_when else ""
