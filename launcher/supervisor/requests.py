"""The end of a job that the user asks for: by a signal, or by a time limit."""

from __future__ import annotations

from launcher.common import events
from launcher.common.report import Failure, Reason
from launcher.common.text import duration, join_names, plural
from launcher.stop_requests import LIMIT_NOTICES, StopRequest
from launcher.supervisor import stalls
from launcher.supervisor.ending import finish_if_closed, send_stops, stop, waiting_for
from launcher.supervisor.records import ACTIVE_STATES, HostState
from launcher.supervisor.state import (
    IMMEDIATE_STOP_SEQUENCE,
    TIMED_OUT_EXIT_CODE,
    JobState,
    Phase,
    limit_text,
    longest,
)

#: Seconds for an agent to answer: a request to end at once; and, after the grace, a request to end in order.
_ANSWER_TIMEOUT_SECONDS = 1.0
_LATE_ANSWER_TIMEOUT_SECONDS = 3.0


def stop_asked(state: JobState, event: events.StopAsked) -> None:
    """Stop the job, because the user or what runs this launch asks for it.

    The job is stopped in order once, whatever asks for it. A person who sends the same signal again kills the
    tasks, see `StopRequests`.
    """
    request = state.stop_requests.add(event.signal, event.at)
    again = request is StopRequest.AGAIN
    if request is StopRequest.SAME and not event.at_once:
        return
    if state.phase in (Phase.STOPPING, Phase.CLOSING):
        if event.signal in LIMIT_NOTICES:
            return
        if event.at_once or again:
            _hurry(state, event, f"{event.who} again" if again else event.who)
        else:
            _continue_to_stop(state, event)
        return
    if state.phase is Phase.DRAINING:
        _stop_in_order(state, f"{event.who}: the job is done; ", event)
    else:
        limit = event.signal in LIMIT_NOTICES
        reason, code = (
            (Reason.TIMEOUT, TIMED_OUT_EXIT_CODE) if limit else (Reason.INTERRUPTED, 128 + event.signal)
        )
        state.fail(Failure(reason, task=None, host=None, at=event.at, text=f"stopped by {event.who}"), code)
        _stop_in_order(state, f"{event.who}: ", event)
    if event.at_once and state.tasks.open:
        _kill(state, event.who)


def _stop_in_order(state: JobState, why: str, event: events.StopAsked) -> None:
    grace = state.policy.grace
    how_long = ""
    if state.phase is not Phase.STARTUP and state.tasks.alive and grace > 0 and not event.at_once:
        how_long = f", up to {limit_text(grace)}; {_how_to_kill(state, event)}"
    state.tell(f"{why}{_stop_text(state)}{how_long}")
    _stop_and_expect_answers(state)


def _how_to_kill(state: JobState, event: events.StopAsked) -> str:
    if state.stop_requests.can_repeat(event.signal):
        return f"{event.who} again kills them at once"
    return "`launch stop --now` kills them at once"


def _continue_to_stop(state: JobState, event: events.StopAsked) -> None:
    """Go on to stop a job that is being stopped already, because of a failure or another request."""
    if state.phase is Phase.STOPPING and not state.answer_limit:
        _expect_answers(state, max(0.0, state.policy.grace) + _LATE_ANSWER_TIMEOUT_SECONDS)
    if state.stop_requests.can_repeat(event.signal) and not state.immediate:
        if state.phase is Phase.CLOSING:
            agents = join_names(state.hosts.names(*ACTIVE_STATES))
            text = f"waiting for the agent on {agents} to close; {event.who} again ends the wait"
        else:
            tasks = plural(len(state.tasks.open), "task")
            text = f"waiting for {tasks} to end; {_how_to_kill(state, event)}"
        state.tell(f"{event.who}: {text}")


def _hurry(state: JobState, event: events.StopAsked, name: str) -> None:
    """No longer wait for tasks that save their state, or for agents that close."""
    if state.phase is Phase.STOPPING:
        _kill(state, name)
        return
    state.immediate = True
    agents = state.hosts.names(*ACTIVE_STATES)
    state.tell(f"{name}: not waiting for the agent on {join_names(agents)} to close")
    for host in agents:
        state.hosts[host].transition_to(HostState.LOST, event)
        state.emit(events.CloseLink(host))
    finish_if_closed(state)


def _stop_and_expect_answers(state: JobState) -> None:
    stop(state)
    if state.phase is Phase.STOPPING:
        _expect_answers(state, max(0.0, state.policy.grace) + _LATE_ANSWER_TIMEOUT_SECONDS)


def _kill(state: JobState, name: str) -> None:
    """Kill the tasks that are left; on a further request only name them."""
    if state.immediate:
        state.tell(f"{name}: the tasks were killed; {waiting_for(state)}")
        return
    state.immediate = True
    state.tell(f"{name}: killing what is left of {plural(len(state.tasks.open), 'task')} at once")
    state.emit(events.SetTimer("end", longest(IMMEDIATE_STOP_SEQUENCE)))
    _expect_answers(state, _ANSWER_TIMEOUT_SECONDS)
    send_stops(state, state.tasks.in_order(state.tasks.open), IMMEDIATE_STOP_SEQUENCE)


def _expect_answers(state: JobState, seconds: float) -> None:
    """Set a limit for each host to answer, so that nothing waits for the lease of a silent host."""
    for task in state.tasks.open:
        state.hosts[state.tasks[task].host].unanswered = True
    state.answer_limit = seconds
    state.emit(events.SetTimer("answer", seconds))


def _stop_text(state: JobState) -> str:
    if state.phase is Phase.STARTUP:
        return "no task was started yet"
    going = state.tasks.alive or state.tasks.open
    return f"stopping {plural(len(going), 'task')}" if going else "no task runs now"


def took_too_long(state: JobState, event: events.TimeUp) -> None:
    """The job has reached its time limit."""
    if state.phase not in (Phase.STARTUP, Phase.RUNNING, Phase.DRAINING):
        return
    limit = limit_text(state.policy.timeout or 0.0, state.policy.timeout_text)
    state.tell(f"the time limit of {limit} is over: {_stop_text(state)}")
    if state.phase is not Phase.DRAINING:
        ended = [
            f"{record.task} ended after {duration(record.ended_at - record.started_at)}"
            for record in state.tasks.values()
            if not record.service and record.task not in state.tasks.restarting
            if record.started_at is not None and record.ended_at is not None
        ]
        went_on = f"; {join_names(ended)}, {state.tasks.names(state.tasks.deciding)} went on" if ended else ""
        text = f"the job took longer than its time limit of {limit}{went_on}"
        hint = stalls.hint_at_timeout(state)
        state.fail(
            Failure(Reason.TIMEOUT, task=None, host=None, at=event.at, text=text, hint=hint, limit=limit),
            TIMED_OUT_EXIT_CODE,
        )
    _stop_and_expect_answers(state)
