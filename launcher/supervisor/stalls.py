"""What follows from silence: `--stall` stops silent tasks; without it, a line names them.

`launcher.supervisor.silence` decides which tasks are silent. Lines in which TensorFlow says that it waits are
silence, too. Nothing counts while output is delayed on its way, and while tasks are to start again.
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

#: Without ``--stall``: how much longer the limit is for tasks beside others that print.
_BESIDE_OTHERS_FACTOR = 5
#: Without ``--stall`` each line about silence doubles the limit, at most this often.
_MAX_DOUBLINGS = 10
_STACKS_STOP_SEQUENCE: StopSequence = ((SIGABRT, STACKS_SECONDS), *IMMEDIATE_STOP_SEQUENCE)
#: Lines in which TensorFlow says that it waits.
_WAIT_PATTERN = (
    rb"(?m)^.*(?:CreateSession still waiting for response from worker: |Waiting for \d+/\d+ tasks to connect"
    rb"|Waiting for model to be ready\.|Example stragglers:).*\n?|^/job:\w+/replica:0/task:\d+\n?"
)
#: Each such line has one of these. They are found faster than the pattern.
_WAIT_WORDS = (b"aiting for ", b"stragglers:")
#: The line in which a session of TensorFlow 1 says for which task it waits.
_SESSION_PATTERN = rb"CreateSession still waiting for .*/job:(\w+)/replica:\d+/task:(\d+)"
_MAX_WAIT_BYTES = 4000
#: How many pieces of output in a row must say that a session waits, until the user is told.
_MIN_WAITING_PIECES = 3


def set_tick_timer(state: JobState) -> None:
    """Set the timer of the next tick."""
    state.set_timer(TimerKind.SILENCE, tick_seconds(state))


def handle_output_delayed(state: JobState, event: events.OutputDelayed) -> None:
    """Let silence count only from now on: output may be on its way."""
    state.stalls.since = state.stalls.ticks


# ---------------------------------------------------------------------- output


def observe_output(state: JobState, record: TaskRecord, data: bytes) -> None:
    """Note that a task has printed something, and whether that says only that TensorFlow waits."""
    attempt = record.current
    if _only_waits(data):
        attempt.waiting_pieces += 1
        _observe_awaited_task(state, record, data)
        return
    attempt.ticks_with_output += attempt.output_tick != state.stalls.ticks
    attempt.output_tick = state.stalls.ticks
    attempt.waiting_pieces, attempt.awaited_task = 0, None


def _only_waits(data: bytes) -> bool:
    """Return whether all lines of this output say that TensorFlow waits."""
    may_wait = len(data) <= _MAX_WAIT_BYTES and any(word in data for word in _WAIT_WORDS)
    return may_wait and not re.sub(_WAIT_PATTERN, b"", data).strip()


def _observe_awaited_task(state: JobState, record: TaskRecord, data: bytes) -> None:
    """Note for which task a session of TensorFlow 1 waits, and tell the user of the first one that does."""
    found = re.search(_SESSION_PATTERN, data)
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
    """Look for silent tasks, and stop or name them."""
    if state.phase is not Phase.RUNNING:
        return
    set_tick_timer(state)
    state.stalls.ticks += 1
    if state.tasks.restarting:  # silence counts only when they have started
        state.stalls.since = state.stalls.ticks
    if state.policy.stall:
        if silent := silent_tasks(state, TICKS_IN_LIMIT, TICKS_IN_LIMIT):
            _stop_silent(state, silent, at)
        return
    limit = TICKS_IN_LIMIT * 2 ** min(state.stalls.line_count, _MAX_DOUBLINGS)
    if silent := silent_tasks(state, limit, _BESIDE_OTHERS_FACTOR * limit):
        state.tell(describe_stalls.silent_line(state, silent))
        state.stalls.line_count += 1


def _stop_silent(state: JobState, silent: Sequence[TaskRecord], at: float) -> None:
    """Stop silent tasks, which are one failure together, and start them again or let the job fail."""
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
    state.tasks.failed.update(record.task for record in silent)
    fail_task(state, failure, TIMED_OUT_EXIT_CODE)
    continue_or_stop(state)
