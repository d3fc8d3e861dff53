"""The end of a job: when it has come, and the commands that bring it about."""

from __future__ import annotations

from collections.abc import Collection

from launcher import events
from launcher.events import Command, Tell
from launcher.job import TaskId
from launcher.supervisor.state import PATIENCE, JobState, Phase, longest, orderly
from launcher.text import counted

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
        if job.phase is Phase.DRAINING and not job.draining.works():
            return first + _stops(job, job.draining.staying())  # services stayed only for what has ended now
        return first
    if job.phase is Phase.RUNNING and job.is_done():
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
    if _goes_on(job) or (job.is_done() and job.draining.going_on()):
        return [Tell(f"{text}; {counted(others, 'task')} left")]
    return [Tell(f"{text}; stopping the other {'task' if others == 1 else counted(others, 'task')}")]


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
        timers += [PATIENCE_TIMER, events.SetTimer("end", longest(orderly(job.policy.grace)))]
    return first + timers + stops + _close_if_empty(job)


def finish_if_closed(job: JobState) -> list[Command]:
    """The job is over when every agent is."""
    if job.agents.open():
        return []
    job.phase = Phase.OVER
    return [events.Finish(job.exit_code)]


def _goes_on(job: JobState) -> bool:
    """Whether there is no reason to stop the rest yet."""
    left = job.draining.going_on() if job.phase is Phase.DRAINING else job.tasks.undecided
    return bool(left) and not job.must_stop()


def _stop_but_draining(job: JobState) -> list[Command]:
    return [events.SetTimer("drain", job.draining.next_end()), *_stops(job, job.draining.staying())]


def _stops(job: JobState, but: Collection[TaskId] = ()) -> list[Command]:
    """Commands to stop the tasks in order, each once; ``but`` these."""
    job.tasks.to_stop(but)
    stops = job.tasks.stops(orderly(job.policy.grace), ended=False, but=job.stopped.union(but))
    job.stopped.update(task for command in stops for task in command.tasks)
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
