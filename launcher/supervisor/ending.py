"""The end of a job: when it has come, and the commands that bring it about."""

from __future__ import annotations

from collections.abc import Collection

from launcher import events
from launcher.events import Command, Tell
from launcher.job import TaskId
from launcher.supervisor import messages, stopping
from launcher.supervisor.draining import PATIENCE
from launcher.supervisor.state import JobState, Phase, Verdict

#: Seconds for agents to close.
CLOSE_LIMIT = 15.0
PATIENCE_TIMER = events.SetTimer("patience", PATIENCE)
_GOING = (Phase.RUNNING, Phase.DRAINING)
#: Timers of the phases before the stop, and of the stop.
_BEFORE_STOP = ("job", "ready", "rest", "check", "start", "drain")
_BEFORE_CLOSE = ("end", "answer")


def judge(job: JobState, first: list[Command]) -> list[Command]:
    """After the end of a task: go on, or stop the rest. The commands ``first`` come first."""
    if job.phase not in _GOING:
        return first + _close_if_empty(job)
    if _goes_on(job):
        return first + _stop_serving(job)
    if job.phase is Phase.RUNNING and job.verdict() is Verdict.DONE:
        job.done()
        if job.draining.going_on():
            job.phase = Phase.DRAINING
            return [*first, PATIENCE_TIMER, *_stop_but_draining(job)]
    return stop(job, first)


def failure_message(job: JobState, text: str, first: bool) -> list[Command]:
    """Report that a task failed, unless it is one of many that failed after the first."""
    if job.phase not in _GOING:
        return [Tell(f"{text}; that was before all else")] if first else []
    others = job.tasks.alive()
    if not others:
        return []  # the report is next, and has it
    drains = job.verdict() is Verdict.DONE and bool(job.draining.going_on())
    if _goes_on(job) or drains:
        return [Tell(f"{text}; {messages.tasks(others)} left")]
    return [Tell(f"{text}; stopping the other {messages.tasks(others, many_only=True)}")]


def drain_time_up(job: JobState) -> list[Command]:
    """The time that some tasks were given is over."""
    text = job.draining.time_up()
    notice: list[Command] = [Tell(text)] if text else []
    return notice + _stop_but_draining(job) if job.draining.going_on() else stop(job, notice)


def stop(job: JobState, first: list[Command]) -> list[Command]:
    """Stop everything that runs; cancel what was not started. The commands ``first`` come first."""
    job.phase = Phase.STOPPING
    stops = _stops(job)
    timers: list[Command] = [*map(events.CancelTimer, _BEFORE_STOP)]
    if job.tasks.open:
        sequence = stopping.orderly(job.policy.grace)
        timers += [PATIENCE_TIMER, events.SetTimer("end", stopping.longest(sequence))]
    return first + timers + stops + _close_if_empty(job)


def finish_if_closed(job: JobState) -> list[Command]:
    """The job is over when every agent is."""
    if job.agents.open():
        return []
    job.phase = Phase.OVER
    return [events.Finish(job.exit_code)]


def _goes_on(job: JobState) -> bool:
    """Whether there is no reason to stop the rest yet."""
    if job.phase is Phase.DRAINING:
        return job.verdict() is not Verdict.STOP and bool(job.draining.going_on())
    return job.verdict() is Verdict.GO_ON


def _stop_serving(job: JobState) -> list[Command]:
    """While the job drains: stop services that stayed only for tasks that have ended now."""
    if job.phase is not Phase.DRAINING or job.draining.works():
        return []
    return _stops(job, job.draining.staying())


def _stop_but_draining(job: JobState) -> list[Command]:
    return [events.SetTimer("drain", job.draining.next_end()), *_stops(job, job.draining.staying())]


def _stops(job: JobState, but: Collection[TaskId] = ()) -> list[Command]:
    """Commands to stop the tasks in order, each once; ``but`` these."""
    job.tasks.to_stop(but)
    done = {task for task in job.tasks.open if task in job.told_to_stop}
    stops = job.tasks.stops(stopping.orderly(job.policy.grace), ended=False, but=done.union(but))
    job.told_to_stop.update(task for command in stops for task in command.tasks)
    return [*stops]


def _close_if_empty(job: JobState) -> list[Command]:
    if job.tasks.open or job.phase is not Phase.STOPPING:
        return []
    job.phase = Phase.CLOSING
    closes: list[Command] = [*map(events.CloseAgent, job.agents.open())]
    timers: list[Command] = [*map(events.CancelTimer, _BEFORE_CLOSE)]
    if closes:
        timers += [PATIENCE_TIMER, events.SetTimer("close", CLOSE_LIMIT)]
    return [*timers, *closes, *finish_if_closed(job)]
