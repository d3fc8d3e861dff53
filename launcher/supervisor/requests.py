"""Requests to stop, and timers."""

from __future__ import annotations

from launcher import events
from launcher.events import Command, Tell
from launcher.report import Failure, Reason
from launcher.supervisor import ending, host_events
from launcher.supervisor.state import (
    REPEAT,
    SIGINT,
    SIGTERM,
    TIMED_OUT,
    AgentState,
    JobState,
    Phase,
    at_once,
    limit_text,
    longest,
)
from launcher.text import counted, duration, listed

#: Seconds for agents to be ready and hold their ports; to start a task.
READY_LIMIT, START_LIMIT = 60.0, 60.0
#: Seconds for an agent to answer a request to end at once; and, after the grace, one to end in order.
_ANSWER_LIMIT, _LATE_ANSWER_LIMIT = 1.0, 3.0
#: Seconds within which a second signal is an echo of the first: ``timeout`` signals its command and then the
#: command's process group, a shell passes on a hang-up.
_ECHO = 0.02
#: Signals that a user can send again; a terminal or a pipe is closed only once.
_REPEATABLE = (SIGINT, SIGTERM)
#: For a task that hung until it was stopped: Python prints no stacks on SIGTERM by itself.
_STACKS_HINT = (
    "to see where a Python program hangs, let it call faulthandler.register(signal.SIGTERM, chain=True)"
    " (after it made its tf.distribute strategy, which may take SIGTERM for itself): its stacks are in its"
    " log then"
)


def stop_asked(job: JobState, event: events.StopAsked) -> list[Command]:
    """A request to end the job: in order the first time, then at once."""
    before, again = job.asked_at, "" if job.asked_at is None else " again"
    if before is not None and abs(event.at - before) < _ECHO:
        return []
    job.asked_at = event.at
    if job.phase is Phase.STOPPING:
        return _kill(job, event.who + again, event.at)
    if job.phase is Phase.CLOSING:
        return _leave_agents(job, event.who + again)
    if job.phase is Phase.DRAINING:
        return _stop_in_order(job, f"{event.who}: the job is done; ", event)
    failure = Failure(Reason.INTERRUPTED, None, None, event.at, f"stopped by {event.who}")
    job.fail(failure, 128 + event.signal)
    return _stop_in_order(job, f"{event.who}: ", event)


def time_up(job: JobState, event: events.TimeUp) -> list[Command]:
    """A timer has run out."""
    if event.timer == "patience":
        text = job.draining.waiting_for() if job.phase is Phase.DRAINING else waiting_for(job)
        return [Tell(text), events.SetTimer("patience", REPEAT)] if text else []
    if event.timer == "job":
        return _job_took_too_long(job, event)
    if event.timer == "drain":
        return ending.drain_time_up(job)
    if event.timer == "check":
        return host_events.check_late(job)
    return _lose(job, *_late(job, event.timer), event.at)


def waiting_for(job: JobState) -> str:
    """``waiting for worker/0 to end``; empty if nothing has to come soon."""
    if job.phase is Phase.GATHERING:
        late = listed(job.agents.early())
        return f"waiting for {f'the agent on {late}' if late else 'the hosts to connect to each other'}"
    if job.phase is Phase.CLOSING:
        return f"waiting for the agent on {listed(job.agents.open())} to close"
    verb, tasks = ("start", job.tasks.starting) if job.phase is Phase.RUNNING else ("end", job.tasks.open)
    return f"waiting for {listed(job.tasks.named(tasks))} to {verb}" if tasks else ""


def _late(job: JobState, timer: str) -> tuple[tuple[str, ...], str]:
    """The hosts that are late when this timer runs out, and why they count as lost."""
    if timer == "ready":
        return job.agents.early(), f"no answer from its agent in {limit_text(READY_LIMIT)}"
    if timer == "rest":
        return job.agents.early(), "it had not answered yet when another host failed"
    if timer == "start":
        late = job.tasks.hosts_of(job.tasks.starting)
        return late, f"its agent could not start a task in {limit_text(START_LIMIT)}"
    if timer == "answer":
        return job.agents.silent(), _no_answer(job)
    if timer == "end":
        return job.tasks.hosts_of(job.tasks.open), "its agent did not end the tasks"
    return job.agents.open(), f"its agent did not close in {limit_text(ending.CLOSE_LIMIT)}"


def _no_answer(job: JobState) -> str:
    return f"its agent did not answer in {limit_text(job.answer_limit)}"


def _lose(job: JobState, hosts: tuple[str, ...], why: str, now: float) -> list[Command]:
    commands: list[Command] = []
    for host in hosts:
        if job.phase is not Phase.OVER and job.agents.received(host):
            commands += host_events.agent_lost(job, events.AgentLost(host, now, why))
    return commands


def _stop_in_order(job: JobState, why: str, event: events.StopAsked) -> list[Command]:
    grace = job.policy.grace
    how_long = ""
    if job.phase is not Phase.GATHERING and grace > 0:
        again = "once more" if event.signal in _REPEATABLE else "Ctrl-C"
        how_long = f", up to {limit_text(grace)}; {again} kills them at once"
    commands = ending.stop(job, [Tell(f"{why}{_what_stops(job)}{how_long}")])
    if job.phase is Phase.STOPPING:  # do not wait for the lease of a host from which nothing comes any more
        job.agents.expect_answers(job.tasks.hosts_of(job.tasks.open), event.at)
        commands.append(_answer_timer(job, max(0.0, grace) + _LATE_ANSWER_LIMIT))
    return commands


def _kill(job: JobState, name: str, now: float) -> list[Command]:
    """Kill what is left; on the third request say what is waited for."""
    if job.hurried:
        return [Tell(f"{name}: they were killed; {waiting_for(job)}")]
    job.hurried = True
    job.agents.expect_answers(job.tasks.hosts_of(job.tasks.open), now)
    sequence = at_once()
    text = f"{name}: killing what is left of {counted(len(job.tasks.open), 'task')} at once"
    timers = (events.SetTimer("end", longest(sequence)), _answer_timer(job, _ANSWER_LIMIT))
    stops = job.tasks.stops(sequence, ended=True)
    silent = job.agents.silent(now - _ANSWER_LIMIT)
    return [Tell(text), *timers, *stops, *_lose(job, silent, _no_answer(job), now)]


def _answer_timer(job: JobState, seconds: float) -> events.SetTimer:
    job.answer_limit = seconds
    return events.SetTimer("answer", seconds)


def _leave_agents(job: JobState, name: str) -> list[Command]:
    """Nothing of the job is left: do not wait for agents that take their time to close."""
    job.hurried = True
    hosts = job.agents.open()
    for host in hosts:
        job.agents.set(host, AgentState.LOST)
    text = f"{name}: not waiting for the agent on {listed(hosts)} to close"
    return [Tell(text), *map(events.HangUp, hosts), *ending.finish_if_closed(job)]


def _job_took_too_long(job: JobState, event: events.TimeUp) -> list[Command]:
    limit = limit_text(job.policy.timeout or 0.0, job.policy.timeout_text)
    notice: list[Command] = [Tell(f"the time limit of {limit} is over: {_what_stops(job)}")]
    if job.phase is Phase.DRAINING:
        return ending.stop(job, notice)
    if job.phase not in (Phase.GATHERING, Phase.RUNNING):
        return []
    ended = [f"{task} ended after {duration(after)}" for task, after in job.tasks.ended_by_themselves()]
    went_on = f"; {listed(ended)}, {listed(job.tasks.named(job.tasks.undecided))} went on" if ended else ""
    text = f"the job took longer than its time limit of {limit}{went_on}"
    python = any(record.runs_python for record in job.tasks.records.values())
    hint = _STACKS_HINT if python else ""
    job.fail(Failure(Reason.TIMEOUT, None, None, event.at, text, hint, limit), TIMED_OUT)
    return ending.stop(job, notice)


def _what_stops(job: JobState) -> str:
    if job.phase is Phase.GATHERING:
        return "no task was started yet"
    return f"stopping {counted(job.tasks.alive(), 'task')}"
