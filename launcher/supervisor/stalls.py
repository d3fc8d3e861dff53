"""Silence: tasks that have printed nothing for long, which `--stall` ends, and else a line names.

A task is silent when it has printed nothing for the limit, and neither has any other task, or one of its role
prints. Services and sidecars do not count: a ps prints nothing in ``server.join()``. Beside a chief and a ps,
workers are servers, too, and are silent only when the chief is.

Lines in which TensorFlow says that it waits are silence, too. Silence is counted in looks: the time in which
the launcher is suspended counts as one. Nothing counts while output is delayed on its way, and while tasks
are to start again.
"""

from __future__ import annotations

import re

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import StopSequence
from launcher.common.record import replace
from launcher.common.report import Failure, Reason, TaskState
from launcher.common.text import duration
from launcher.job import CHIEF_ROLES
from launcher.supervisor import restarting
from launcher.supervisor.ending import continue_or_stop, report_failure, stop_tasks
from launcher.supervisor.records import TaskRecord
from launcher.supervisor.state import (
    IMMEDIATE_STOP_SEQUENCE,
    SIGABRT,
    STACKS_SECONDS,
    TIMED_OUT_EXIT_CODE,
    JobState,
    Phase,
    limit_text,
)

#: The timer of the looks.
SILENCE_TIMER = "silence"
#: Looks in a limit, the shortest time between two, and the limit without ``--stall``, in seconds.
TICKS_IN_LIMIT = 10
_MIN_TICK_SECONDS = 0.1
_UNASKED_LIMIT_SECONDS = 60.0
#: Without ``--stall``: the factor of the limit for tasks beside others that print; and how often, at most, a
#: line about silence doubles the limit.
_BESIDE_OTHERS_FACTOR = 5
_MAX_DOUBLINGS = 10
_STACKS_STOP_SEQUENCE: StopSequence = ((SIGABRT, STACKS_SECONDS), *IMMEDIATE_STOP_SEQUENCE)
_STACKS_HINT = (
    "a Python program prints its stacks on SIGABRT: see the end of its output; a program that prints less"
    " often needs a longer --stall"
)
_STALL_HINT = "`--stall 10m` would stop such tasks and show where they hang"
_DEVICE_FILTERS_HINT = (
    "a session of TensorFlow 1 without device_filters waits for every task (docs/restarts.md)"
)
_DONE_WHEN_CHIEF_HINT = "; `--done-when chief` ends the job with worker/0"
_NO_CHIEF_HINT = (
    "does the program use ParameterServerStrategy? Then only a chief trains, and this job has none: `--chief`"
    " starts one; else: "
)
_COLLECTIVE_HINT = "tasks that communicate collectively must finish together"
#: For tasks that the time limit stops: Python prints no stacks on SIGTERM by itself.
_FAULTHANDLER_HINT = (
    "let the program call faulthandler.register(signal.SIGTERM, chain=True) (after it made its tf.distribute"
    " strategy, which may handle SIGTERM itself): its log then has its stacks"
)
#: Lines in which TensorFlow says that it waits; words that are in each; the line of a TensorFlow 1 session.
_WAIT_PATTERN = (
    rb"(?m)^.*(?:CreateSession still waiting for response from worker: |Waiting for \d+/\d+ tasks to connect"
    rb"|Waiting for model to be ready\.|Example stragglers:).*\n?|^/job:\w+/replica:0/task:\d+\n?"
)
_WAIT_WORDS = (b"aiting for ", b"stragglers:")
_SESSION_PATTERN = rb"CreateSession still waiting for .*/job:(\w+)/replica:\d+/task:(\d+)"
#: The most bytes of a piece of output that has only such lines; how many pieces until the user is informed.
_MAX_WAIT_BYTES = 4000
_TELL_AFTER_PIECES = 3


def begin(state: JobState) -> None:
    """Set the timer of the next look."""
    limit = state.policy.stall or _UNASKED_LIMIT_SECONDS
    state.emit(events.SetTimer(SILENCE_TIMER, max(_MIN_TICK_SECONDS, limit / TICKS_IN_LIMIT)))


def output_delayed(state: JobState, _: events.OutputDelayed | None = None) -> None:
    """Silence counts only from now on: output may be on its way."""
    state.silence.since = state.silence.ticks


def printed(state: JobState, record: TaskRecord, data: bytes) -> None:
    """A task has printed something."""
    if not _only_waits(data):
        record.ticks_with_output += record.output_tick != state.silence.ticks
        record.output_tick = state.silence.ticks
        record.waits, record.awaited = 0, None
        return
    record.waits += 1
    found = re.search(_SESSION_PATTERN, data)
    peer = state.tasks.get(TaskId(b"/".join(found.groups()).decode())) if found else None
    if peer is None:
        return
    record.awaited = peer.task
    ended = _has_ended(state, peer.task)
    if not state.silence.filters_told and (ended or record.waits >= _TELL_AFTER_PIECES):
        state.silence.filters_told = True
        has_ended = ", which has ended" if ended else ""
        advice = _DEVICE_FILTERS_HINT + _done_when_chief(state, [peer.task] if ended else [])
        state.tell(f"{record.task} waits for {peer.task}{has_ended}: {advice}", urgent=True)


def _only_waits(data: bytes) -> bool:
    """Whether all lines of this output say that TensorFlow waits."""
    may_be = len(data) <= _MAX_WAIT_BYTES and any(word in data for word in _WAIT_WORDS)
    return may_be and not re.sub(_WAIT_PATTERN, b"", data).strip()


def tick(state: JobState, event: events.TimeUp) -> None:
    """Look for silent tasks."""
    if state.phase is not Phase.RUNNING:
        return
    begin(state)
    state.silence.ticks += 1
    if state.tasks.restarting:
        output_delayed(state)
    ticks = TICKS_IN_LIMIT * 2 ** min(state.silence.lines, _MAX_DOUBLINGS)
    silent = _silent(state, ticks, ticks if state.policy.stall else _BESIDE_OTHERS_FACTOR * ticks)
    if silent and state.policy.stall:
        _end(state, silent, event.at)
    elif silent:
        since = max(_last_tick(state, record) for record in silent)
        limit = duration((state.silence.ticks - since - 1) * _UNASKED_LIMIT_SECONDS / TICKS_IN_LIMIT)
        state.tell(f"{_text(state, silent, limit)}; {_advice(state, silent, _STALL_HINT)}")
        state.silence.lines += 1


def hint_at_timeout(state: JobState) -> str:
    """How to find out why tasks are silent, for a job that the time limit ends; empty: all of them print."""
    ticks = min(TICKS_IN_LIMIT, state.silence.ticks // 2)
    silent = [record for record in _silent(state, ticks, ticks) if record.runs_python]
    if not silent:
        return ""
    names = state.tasks.names([record.task for record in silent])
    hang = "hangs" if len(silent) == 1 else "hang"
    return _advice(state, silent, f"to see where {names} {hang}, {_FAULTHANDLER_HINT}")


def _silent(state: JobState, ticks: int, beside_others: int) -> list[TaskRecord]:
    """The silent tasks, in the order of the table.

    Args:
        state: of the tasks.
        ticks: the limit.
        beside_others: the limit for tasks beside others that print.
    """
    if state.silence.ticks - state.silence.since <= ticks:
        return []  # the silence of all tasks counts from then on, or from later
    states = (TaskState.STARTING, TaskState.RUNNING)
    working = [each for each in state.tasks.values() if not each.service and each.state in states]
    silent = [record for record in working if _is_silent(state, record, ticks)]
    if not silent:
        return []
    others = [record for record in working if not _is_silent(state, record, ticks)]
    roles = {task.role for task in state.tasks}
    serving = {"worker"} if "ps" in roles and roles.intersection(CHIEF_ROLES) else set()
    if serving.issuperset(record.task.role for record in others):
        return silent
    last = state.silence.ticks - 1
    printing = {record.task.role for record in others if record.output_tick == last} - serving
    return [r for r in silent if r.task.role in printing and _is_silent(state, r, beside_others)]


def _is_silent(state: JobState, record: TaskRecord, ticks: int) -> bool:
    return record.state is TaskState.RUNNING and state.silence.ticks - _last_tick(state, record) > ticks


def _last_tick(state: JobState, record: TaskRecord) -> int:
    """The look from which the silence of a task counts."""
    return max(record.first_tick, record.output_tick or 0, state.silence.since)


def _text(state: JobState, silent: list[TaskRecord], limit: str) -> str:
    where = state.name_of_host(silent[0].host) if len(silent) == 1 else ""
    what = "nothing but waiting notices" if all(record.waits for record in silent) else "nothing"
    return f"{state.tasks.names([record.task for record in silent])}{where} printed {what} for {limit}"


def _advice(state: JobState, silent: list[TaskRecord], otherwise: str) -> str:
    """Return the likely cause of a silence and what to do.

    Args:
        state, silent: the silent tasks.
        otherwise: what to do if no cause is known.
    """
    if not any(record.runs_python or record.awaited for record in silent):
        return otherwise
    cause = _awaited(state, silent) or _ended_before(state) or _started_again_alone(state, silent)
    if not cause and _may_lack_chief(state, silent):
        return _NO_CHIEF_HINT + otherwise
    return cause or otherwise


def _awaited(state: JobState, silent: list[TaskRecord]) -> str:
    """The cause of a silence in which sessions of TensorFlow 1 wait; else empty."""
    awaited = {record.awaited for record in silent if record.awaited}
    if not awaited:
        return ""
    ended = [task for task in awaited if _has_ended(state, task)]
    return (
        f"TensorFlow waits for {state.tasks.names(awaited)}: "
        f"{_DEVICE_FILTERS_HINT}{_done_when_chief(state, ended)}"
    )


def _ended_before(state: JobState) -> str:
    """Return the cause of a silence of tasks whose peers have ended, or nothing."""
    ended = [task.task for task in state.tasks.values() if not task.service and _has_ended(state, task.task)]
    if not ended:
        return ""
    has_ps = any(task.role == "ps" for task in state.tasks)
    why = _DEVICE_FILTERS_HINT + _done_when_chief(state, ended) if has_ps else _COLLECTIVE_HINT
    return f"{state.tasks.names(ended)} ended before: {why}"


def _started_again_alone(state: JobState, silent: list[TaskRecord]) -> str:
    """Return the cause of a silence that began when some of the tasks started again, or nothing."""
    again = [record for record in state.tasks.values() if record.earlier and not record.sidecar]
    others = [record for record in silent if not record.earlier]
    if not again or not others:
        return ""
    since = max(record.first_tick for record in again)
    if any((record.output_tick or 0) > since for record in others):
        return ""
    names = state.tasks.names([record.task for record in again])
    return (
        f"{names} started again alone: if the others wait for what is lost, `--restart job` starts all again"
    )


def _may_lack_chief(state: JobState, silent: list[TaskRecord]) -> bool:
    """Return whether all workers are silent since their start, beside a ps and without a chief."""
    roles = {task.role for task in state.tasks}
    workers = [record for record in state.tasks.values() if record.role.name == "worker"]
    at_start = all((record.output_tick or 0) - record.first_tick <= TICKS_IN_LIMIT for record in silent)
    without_chief = "ps" in roles and not roles.intersection(CHIEF_ROLES)
    return without_chief and at_start and silent == workers


def _has_ended(state: JobState, task: TaskId) -> bool:
    return task not in state.tasks.open and task not in state.tasks.restarting


def _done_when_chief(state: JobState, ended: list[TaskId]) -> str:
    """Return advice for a job that waits for workers though worker 0, its chief, has ended, or nothing."""
    return _DONE_WHEN_CHIEF_HINT if TaskId("worker/0") in ended and not state.policy.done_when else ""


def _end(state: JobState, silent: list[TaskRecord], at: float) -> None:
    """End silent tasks: together one failure."""
    limit = limit_text(state.policy.stall or 0.0, state.policy.stall_text)
    for record in silent:
        record.stalled = True
        state.tasks.alive.discard(record.task)
    stop_tasks(state, silent, _STACKS_STOP_SEQUENCE, "it is silent")
    first, *others = silent
    text, hint = _text(state, silent, limit), _advice(state, silent, _STACKS_HINT)
    failure = Failure(
        Reason.STALLED, task=first.task, host=first.host, at=at, text=text, hint=hint, limit=limit
    )
    if not restarting.after_failure(state, first, failure, [record.task for record in others]):
        if why := state.restarts.why_not(first.task, first.status):
            text = f"{text}; {why}"
            failure = replace(failure, text=text)
        state.tasks.failed.update(record.task for record in silent)
        report_failure(state, text, state.fail(failure, TIMED_OUT_EXIT_CODE))
        continue_or_stop(state)
