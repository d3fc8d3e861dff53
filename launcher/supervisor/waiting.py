"""What the job waits for: the message about it, and the hosts that are late when a timer runs out."""

from __future__ import annotations

from launcher.common import events
from launcher.common.text import join_names
from launcher.supervisor.hosts import ACTIVE, HostState
from launcher.supervisor.state import (
    CLOSE_LIMIT,
    NOTICE_TIMER,
    READY_LIMIT,
    REPEAT,
    START_LIMIT,
    JobState,
    Phase,
    limit_text,
)


def waiting_for(job: JobState) -> str:
    """``waiting for worker/0 to end``; empty if the job waits for nothing in particular."""
    verb, waited = "end", job.tasks.open
    if job.phase is Phase.STARTUP:
        holding = join_names(job.hosts.names(HostState.HOLDING))
        return f"waiting for {f'the agent on {holding}' if holding else 'the hosts to connect to each other'}"
    if job.phase is Phase.CLOSING:
        return f"waiting for the agent on {join_names(job.hosts.names(*ACTIVE))} to close"
    if job.phase is Phase.DRAINING:
        draining = job.tasks.drain.tasks
        limit = limit_text(max(job.tasks[task].drain for task in draining))
        return f"waiting for {job.tasks.names(draining)} to finish (at most {limit} after the job's end)"
    if job.phase is Phase.RUNNING:
        ending = job.tasks.open & job.tasks.restarting.keys()
        hosts = job.hosts.names(HostState.HOLDING, HostState.RETURNING)
        late = [host for host in hosts if job.hosts[host].tasks]
        if late and not ending:
            return f"waiting for the agent on {join_names(late)}"
        verb, waited = ("end", ending) if ending else ("start", job.tasks.starting)
        first = all(job.tasks[task].attempt == 1 for task in waited)
        if job.preload and first and verb == "start":
            verb += f": --preload imports {join_names(job.preload)} first"
    return f"waiting for {job.tasks.names(waited)} to {verb}" if waited else ""


def notice(job: JobState, _: events.TimeUp) -> None:
    """Tell the user what the job waits for, once."""
    if text := waiting_for(job):
        if job.shown != (shown := (text, job.restarts_begun)):
            job.notify(text)
        job.shown = shown
        job.do(events.SetTimer(NOTICE_TIMER.timer, REPEAT))


def late_hosts(job: JobState, timer: str) -> tuple[list[str], str]:
    """The hosts that are late when this timer runs out, and the reason why they are lost."""
    holding, active = job.hosts.names(HostState.HOLDING), job.hosts.names(*ACTIVE)
    if timer == "ready":
        return holding, f"no answer from its agent in {limit_text(READY_LIMIT)}"
    if timer == "rest":
        return holding, "it had not answered yet when another host failed"
    if timer == "start":
        late = job.hosts.of(job.tasks[task] for task in job.tasks.starting)
        return late, f"its agent could not start a task in {limit_text(START_LIMIT)}"
    if timer == "answer":
        silent = [name for name in active if job.hosts[name].unanswered]
        return silent, f"its agent did not answer in {limit_text(job.answer_limit)}"
    if timer == "end":
        return job.hosts.of(job.tasks[task] for task in job.tasks.open), "its agent did not stop the tasks"
    return active, f"its agent did not close in {limit_text(CLOSE_LIMIT)}"
