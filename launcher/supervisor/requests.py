"""The end of a job that the user asks for: by a signal, or by a time limit."""

from __future__ import annotations

from launcher.common import events
from launcher.common.report import Failure, Reason
from launcher.common.text import duration, join_names, plural
from launcher.stop_requests import LIMIT_NOTICES, StopRequest
from launcher.supervisor import stalls
from launcher.supervisor.ending import finish_if_closed, send_stops, stop
from launcher.supervisor.hosts import ACTIVE, HostState
from launcher.supervisor.state import TIMED_OUT, JobState, Phase, limit_text
from launcher.supervisor.steps import AT_ONCE, longest
from launcher.supervisor.waiting import waiting_for

#: Seconds for an agent to answer: a request to end at once; and, after the grace, a request to end in order.
_ANSWER_LIMIT = 1.0
_LATE_ANSWER_LIMIT = 3.0


def stop_asked(job: JobState, event: events.StopAsked) -> None:
    """Stop the job, because the user or what runs this launch asks for it.

    The job is stopped in order once, whatever asks for it. A person who sends the same signal again kills the
    tasks, see `StopRequests`.
    """
    request = job.stop_requests.add(event.signal, event.at)
    again = request is StopRequest.AGAIN
    if request is StopRequest.SAME and not event.at_once:
        return
    if job.phase in (Phase.STOPPING, Phase.CLOSING):
        if event.signal in LIMIT_NOTICES:
            return
        if event.at_once or again:
            _hurry(job, event, f"{event.who} again" if again else event.who)
        else:
            _continue_to_stop(job, event)
        return
    if job.phase is Phase.DRAINING:
        _stop_in_order(job, f"{event.who}: the job is done; ", event)
    else:
        limit = event.signal in LIMIT_NOTICES
        reason, code = (Reason.TIMEOUT, TIMED_OUT) if limit else (Reason.INTERRUPTED, 128 + event.signal)
        job.fail(Failure(reason, None, None, event.at, f"stopped by {event.who}"), code)
        _stop_in_order(job, f"{event.who}: ", event)
    if event.at_once and job.tasks.open:
        _kill(job, event.who)


def _stop_in_order(job: JobState, why: str, event: events.StopAsked) -> None:
    grace = job.policy.grace
    how_long = ""
    if job.phase is not Phase.STARTUP and job.tasks.alive and grace > 0 and not event.at_once:
        how_long = f", up to {limit_text(grace)}; {_how_to_kill(job, event)}"
    job.notify(f"{why}{_stop_text(job)}{how_long}")
    _stop_and_expect_answers(job)


def _how_to_kill(job: JobState, event: events.StopAsked) -> str:
    if job.stop_requests.can_repeat(event.signal):
        return f"{event.who} again kills them at once"
    return "`launch stop --now` kills them at once"


def _continue_to_stop(job: JobState, event: events.StopAsked) -> None:
    """Go on to stop a job that is being stopped already, because of a failure or another request."""
    if job.phase is Phase.STOPPING and not job.answer_limit:
        _expect_answers(job, max(0.0, job.policy.grace) + _LATE_ANSWER_LIMIT)
    if job.stop_requests.can_repeat(event.signal) and not job.immediate:
        if job.phase is Phase.CLOSING:
            agents = join_names(job.hosts.names(*ACTIVE))
            text = f"waiting for the agent on {agents} to close; {event.who} again ends the wait"
        else:
            tasks = plural(len(job.tasks.open), "task")
            text = f"waiting for {tasks} to end; {_how_to_kill(job, event)}"
        job.notify(f"{event.who}: {text}")


def _hurry(job: JobState, event: events.StopAsked, name: str) -> None:
    """No longer wait for tasks that save their state, or for agents that close."""
    if job.phase is Phase.STOPPING:
        _kill(job, name)
        return
    job.immediate = True
    agents = job.hosts.names(*ACTIVE)
    job.notify(f"{name}: not waiting for the agent on {join_names(agents)} to close")
    for host in agents:
        job.hosts[host].move(HostState.LOST, event)
        job.do(events.CloseLink(host))
    finish_if_closed(job)


def _stop_and_expect_answers(job: JobState) -> None:
    stop(job)
    if job.phase is Phase.STOPPING:
        _expect_answers(job, max(0.0, job.policy.grace) + _LATE_ANSWER_LIMIT)


def _kill(job: JobState, name: str) -> None:
    """Kill the tasks that are left; on a further request only name them."""
    if job.immediate:
        job.notify(f"{name}: the tasks were killed; {waiting_for(job)}")
        return
    job.immediate = True
    job.notify(f"{name}: killing what is left of {plural(len(job.tasks.open), 'task')} at once")
    job.do(events.SetTimer("end", longest(AT_ONCE)))
    _expect_answers(job, _ANSWER_LIMIT)
    send_stops(job, job.tasks.in_order(job.tasks.open), AT_ONCE)


def _expect_answers(job: JobState, seconds: float) -> None:
    """Set a limit for each host to answer, so that nothing waits for the lease of a silent host."""
    for task in job.tasks.open:
        job.hosts[job.tasks[task].host].unanswered = True
    job.answer_limit = seconds
    job.do(events.SetTimer("answer", seconds))


def _stop_text(job: JobState) -> str:
    if job.phase is Phase.STARTUP:
        return "no task was started yet"
    going = job.tasks.alive or job.tasks.open
    return f"stopping {plural(len(going), 'task')}" if going else "no task runs now"


def took_too_long(job: JobState, event: events.TimeUp) -> None:
    """The job has reached its time limit."""
    if job.phase not in (Phase.STARTUP, Phase.RUNNING, Phase.DRAINING):
        return
    limit = limit_text(job.policy.timeout or 0.0, job.policy.timeout_text)
    job.notify(f"the time limit of {limit} is over: {_stop_text(job)}")
    if job.phase is not Phase.DRAINING:
        ended = [
            f"{record.task} ended after {duration(record.ended_at - record.started_at)}"
            for record in job.tasks.values()
            if not record.service and record.task not in job.tasks.restarting
            if record.started_at is not None and record.ended_at is not None
        ]
        went_on = f"; {join_names(ended)}, {job.tasks.names(job.tasks.deciding)} went on" if ended else ""
        text = f"the job took longer than its time limit of {limit}{went_on}"
        hint = stalls.hint_at_timeout(job)
        job.fail(Failure(Reason.TIMEOUT, None, None, event.at, text, hint, limit), TIMED_OUT)
    _stop_and_expect_answers(job)
