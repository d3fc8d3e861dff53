"""Handles silence: ``--stall`` stops silent tasks, and without it a message names them.

The machine calls `handle_tick` at each tick of a timer, and `observe_output` for each piece of output;
`launcher.supervisor.silence` decides which tasks are silent. Lines in which TensorFlow says that it waits
count as silence, too. Silence does not count while output is delayed on its way or tasks start again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import StopSequence
from launcher.common.record import replace
from launcher.stop_requests import TIMED_OUT_EXIT_CODE
from launcher.supervisor import describe_stalls, restarting
from launcher.supervisor.commands import Timer, TimerKind
from launcher.supervisor.ending import continue_or_stop, fail_task, stop_tasks
from launcher.supervisor.records import TaskRecord
from launcher.supervisor.silence import TICKS_IN_LIMIT, has_ended, silent_tasks, tick_seconds
from launcher.supervisor.state import IMMEDIATE_STOP_SEQUENCE, SIGABRT, STACKS_SECONDS, JobState, Phase

#: How much longer the limit is for tasks beside others that print, without ``--stall``.
_BESIDE_OTHERS_FACTOR = 5
#: Without ``--stall`` each message about silence doubles the limit, at most this often.
_MAX_DOUBLINGS = 10
_STACKS_STOP_SEQUENCE: StopSequence = ((SIGABRT, STACKS_SECONDS), *IMMEDIATE_STOP_SEQUENCE)
#: Lines in which TensorFlow says that it waits.
_WAIT_PATTERN = (
    rb"(?m)^.*(?:CreateSession still waiting for response from worker: |Waiting for \d+/\d+ tasks to connect"
    rb"|Waiting for model to be ready\.|Example stragglers:).*\n?|^/job:\w+/replica:0/task:\d+\n?"
)
#: Each such line contains one of these words, which are found faster than the pattern.
_WAIT_WORDS = (b"aiting for ", b"stragglers:")
#: The line in which a session of TensorFlow 1 says for which task it waits.
_SESSION_PATTERN = rb"CreateSession still waiting for .*/job:(\w+)/replica:\d+/task:(\d+)"
_MAX_WAIT_BYTES = 4000
#: The user is told that a session waits when this many pieces of output in a row say so.
_MIN_WAITING_PIECES = 3


def set_tick_timer(state: JobState) -> None:
    """Set the timer for the next tick, at which silent tasks are looked for."""
    state.set_timer(TimerKind.SILENCE, tick_seconds(state))


def handle_output_delayed(state: JobState, event: events.OutputDelayed) -> None:
    """Let the silence of all tasks count only from now on, because their output may be delayed on its way."""
    state.stalls.since = state.stalls.ticks


def handle_steps_read(state: JobState, event: events.StepsRead) -> None:
    """Note which tasks have made steps. Once a task has made one, ``--stall`` counts steps and not output."""
    state.stalls.steps_read_tick = None if event.given_up else state.stalls.ticks
    for task, attempt in event.changed.items():
        if state.tasks[task].attempt == attempt:
            state.tasks[task].current.step_tick = state.stalls.ticks


# ---------------------------------------------------------------------- output


def observe_output(state: JobState, record: TaskRecord, data: bytes) -> None:
    """Note that a task has printed something, or only that TensorFlow waits, which counts as silence.

    Args:
        state: The state of the job.
        record: The task.
        data: The piece of output.
    """
    attempt = record.current
    if _only_waits(data):
        attempt.waiting_pieces += 1
        _observe_awaited_task(state, record, data)
        return
    if attempt.output_tick != state.stalls.ticks:  # This is the task's first output since the last tick.
        attempt.ticks_with_output += 1
    attempt.output_tick = state.stalls.ticks
    attempt.waiting_pieces, attempt.awaited_task = 0, None


def _only_waits(data: bytes) -> bool:
    """Return whether every line of this output says that TensorFlow waits for something.

    A long piece of output is not searched, as such lines are few and short, and counts as other output.
    """
    may_wait = len(data) <= _MAX_WAIT_BYTES and any(word in data for word in _WAIT_WORDS)
    return may_wait and not re.sub(_WAIT_PATTERN, b"", data).strip()


def _observe_awaited_task(state: JobState, record: TaskRecord, data: bytes) -> None:
    """Note for which task a session of TensorFlow 1 waits, and tell the user if it waits for long.

    The user is told once in a job.

    Args:
        state: The state of the job.
        record: The task that printed.
        data: A piece of its output in which TensorFlow says that it waits.
    """
    found = re.search(_SESSION_PATTERN, data)  # The groups are the role and the index of that task.
    awaited = TaskId(b"/".join(found.groups()).decode()) if found else None
    if awaited is None or awaited not in state.tasks:
        return
    record.current.awaited_task = awaited
    waits_long = has_ended(state, awaited) or record.current.waiting_pieces >= _MIN_WAITING_PIECES
    if waits_long and not state.stalls.has_advised_filters:
        state.stalls.has_advised_filters = True
        state.tell(describe_stalls.waits_for_task(state, record, awaited), urgent=True)


# ---------------------------------------------------------------------- ticks


def handle_tick(state: JobState, timer: Timer, at: float) -> None:
    """Look for silent tasks. With ``--stall`` stop them, without it tell the user about them.

    The timer fires, and is set again, several times within the limit, which is `TICKS_IN_LIMIT` ticks.
    Without ``--stall`` every message doubles the limit, so that a long job is not full of messages.
    """
    if state.phase is not Phase.RUNNING:
        return
    set_tick_timer(state)
    state.stalls.ticks += 1
    if state.tasks.restarting:  # The silence of all tasks counts again when these have started.
        state.stalls.since = state.stalls.ticks
    if state.policy.stall:
        if silent := silent_tasks(state, TICKS_IN_LIMIT, TICKS_IN_LIMIT):
            _stop_silent(state, silent, at)
        return
    limit = TICKS_IN_LIMIT * 2 ** min(state.stalls.line_count, _MAX_DOUBLINGS)
    # While others print, the silence of one task says less, so it counts later.
    if silent := silent_tasks(state, limit, _BESIDE_OTHERS_FACTOR * limit):
        state.tell(describe_stalls.silent_line(state, silent))
        state.stalls.line_count += 1


def tasks_to_stop(state: JobState) -> list[TaskRecord]:
    """Return the silent tasks that the next tick will stop, if nothing happens before."""
    if not state.policy.stall or state.phase is not Phase.RUNNING or state.tasks.restarting:
        return []
    state.stalls.ticks += 1  # As if the next tick had come already.
    try:
        return silent_tasks(state, TICKS_IN_LIMIT, TICKS_IN_LIMIT)
    finally:
        state.stalls.ticks -= 1


def _stop_silent(state: JobState, silent: Sequence[TaskRecord], at: float) -> None:
    """Stop the silent tasks, then start them again or let the job fail. Together they are one failure.

    A restart decides by `has_stalled` that they failed for their silence, so that is noted before anything
    else.
    """
    for record in silent:
        record.current.has_stalled = True
        state.tasks.alive.discard(record.task)
    stop_tasks(state, silent, _STACKS_STOP_SEQUENCE, "it is silent")
    failure = describe_stalls.stall_failure(state, silent, at)
    first, *others = silent
    if restarting.restart_after_failure(state, first, failure, [record.task for record in others]):
        return
    if refusal := state.restart_policy.refusal(first.task, first.current.status):
        failure = replace(failure, text=f"{failure.text}; {refusal}")
    state.tasks.failed.update(record.task for record in silent)  # No later restart includes them.
    fail_task(state, failure, TIMED_OUT_EXIT_CODE)
    continue_or_stop(state)
