"""What the job waits for: the message about it, and the hosts that are late when a timer runs out."""

from __future__ import annotations

from launcher.common import events
from launcher.common.text import join_names
from launcher.supervisor.hosts import ACTIVE_STATES, HostState
from launcher.supervisor.state import (
    CLOSE_TIMEOUT_SECONDS,
    NOTICE_REPEAT_SECONDS,
    NOTICE_TIMER,
    READY_TIMEOUT_SECONDS,
    START_TIMEOUT_SECONDS,
    JobState,
    Phase,
    limit_text,
)


def waiting_for(state: JobState) -> str:
    """``waiting for worker/0 to end``; empty if the job waits for nothing in particular."""
    verb, waited = "end", state.tasks.open
    if state.phase is Phase.STARTUP:
        holding = join_names(state.hosts.names(HostState.HOLDING))
        return f"waiting for {f'the agent on {holding}' if holding else 'the hosts to connect to each other'}"
    if state.phase is Phase.CLOSING:
        return f"waiting for the agent on {join_names(state.hosts.names(*ACTIVE_STATES))} to close"
    if state.phase is Phase.DRAINING:
        draining = state.tasks.drain.tasks
        limit = limit_text(max(state.tasks[task].drain for task in draining))
        return f"waiting for {state.tasks.names(draining)} to finish (at most {limit} after the job's end)"
    if state.phase is Phase.RUNNING:
        ending = state.tasks.open & state.tasks.restarting.keys()
        hosts = state.hosts.names(HostState.HOLDING, HostState.RETURNING)
        late = [host for host in hosts if state.hosts[host].tasks]
        if late and not ending:
            return f"waiting for the agent on {join_names(late)}"
        verb, waited = ("end", ending) if ending else ("start", state.tasks.starting)
        first = all(state.tasks[task].attempt == 1 for task in waited)
        if state.preload and first and verb == "start":
            verb += f": --preload imports {join_names(state.preload)} first"
    return f"waiting for {state.tasks.names(waited)} to {verb}" if waited else ""


def notice(state: JobState, _: events.TimeUp) -> None:
    """Tell the user what the job waits for, once."""
    if text := waiting_for(state):
        if state.shown != (shown := (text, state.restarts_begun)):
            state.tell(text)
        state.shown = shown
        state.emit(events.SetTimer(NOTICE_TIMER.timer, NOTICE_REPEAT_SECONDS))


def late_hosts(state: JobState, timer: str) -> tuple[list[str], str]:
    """The hosts that are late when this timer runs out, and the reason why they are lost."""
    holding, active = state.hosts.names(HostState.HOLDING), state.hosts.names(*ACTIVE_STATES)
    if timer == "ready":
        return holding, f"no answer from its agent in {limit_text(READY_TIMEOUT_SECONDS)}"
    if timer == "rest":
        return holding, "it had not answered yet when another host failed"
    if timer == "start":
        late = state.hosts.of(state.tasks[task] for task in state.tasks.starting)
        return late, f"its agent could not start a task in {limit_text(START_TIMEOUT_SECONDS)}"
    if timer == "answer":
        silent = [name for name in active if state.hosts[name].unanswered]
        return silent, f"its agent did not answer in {limit_text(state.answer_limit)}"
    if timer == "end":
        return state.hosts.of(
            state.tasks[task] for task in state.tasks.open
        ), "its agent did not stop the tasks"
    return active, f"its agent did not close in {limit_text(CLOSE_TIMEOUT_SECONDS)}"
