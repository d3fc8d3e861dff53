"""How a job ends: it continues, drains, stops and closes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import StopSequence
from launcher.common.report import Reason, TaskState
from launcher.common.text import join_names, plural
from launcher.job import CHIEF_ROLES
from launcher.supervisor.records import ACTIVE_STATES, HostState, TaskRecord
from launcher.supervisor.state import (
    CLOSE_TIMEOUT_SECONDS,
    NOTICE_REPEAT_SECONDS,
    NOTICE_TIMER,
    READY_TIMEOUT_SECONDS,
    START_TIMEOUT_SECONDS,
    JobState,
    Phase,
    limit_text,
    longest,
)

#: Timers that are cancelled when the job is stopped, and when every task is gone.
_BEFORE_STOP = ("job", "ready", "rest", "check", "start", "drain", "silence", "place")
_BEFORE_CLOSE = ("end", "answer")
#: A worker that has printed something in this number of looks (`stalls`) does more than to serve a chief.
_AT_WORK_TICKS = 5
_ACTIVE_PHASES = (Phase.RUNNING, Phase.DRAINING)


def continue_or_stop(state: JobState) -> None:
    """After the end of a task: continue, drain, or stop the other tasks."""
    if state.phase not in _ACTIVE_PHASES:
        _close_if_empty(state)
    elif _continues(state):
        drain = state.tasks.drain
        if drain.serving and all(
            state.tasks[task].service for task in drain.tasks
        ):  # no other one needs them
            stop_tasks(state, state.tasks.in_order(drain.serving))
            drain.serving = set()
    else:
        now_done = state.phase is Phase.RUNNING and state.is_done()
        if now_done and not state.done:
            _tell_of_workers(state)
        state.done = state.done or now_done
        seconds = state.tasks.drain.begin(state.tasks.values()) if now_done else 0.0
        if now_done and state.tasks.drain.tasks:
            state.phase = Phase.DRAINING
            state.forget_restarts(state.tasks)
            state.emit(NOTICE_TIMER)
            _drain(state, seconds)
        else:
            stop(state)


def _tell_of_workers(state: JobState) -> None:
    """Tell the user that the end of the chief stops workers that were at work until then.

    Under ParameterServerStrategy that is right, and workers print nothing but a few lines at their start.
    """
    at_work = [record.task for record in state.tasks.values() if _is_worker_at_work(state, record)]
    chief_decides = {task.role for task in state.tasks.all_deciding}.issubset(CHIEF_ROLES)
    if at_work and chief_decides and not state.policy.done_when:
        state.tell(
            f"the chief is done, and {state.tasks.names(at_work)} still printed: stopped; `--done-when "
            "workers`"
            " waits for workers, `--drain 60s` gives them time to finish"
        )


def _is_worker_at_work(state: JobState, record: TaskRecord) -> bool:
    if record.role.name != "worker" or record.state is not TaskState.RUNNING or record.drain:
        return False
    prints_now = (record.output_tick or 0) >= state.silence.ticks - 1
    return prints_now and record.ticks_with_output >= _AT_WORK_TICKS


def drain_time_up(state: JobState, _: events.TimeUp) -> None:
    """The drain timer has run out: stop the tasks whose time is over."""
    drain, before = state.tasks.drain, state.tasks.drain.tasks
    drain.over = drain.next
    seconds = drain.begin(state.tasks.values())
    if late := before - drain.tasks - drain.serving:
        what = f"{state.tasks.names(late)} did not finish within {limit_text(drain.over)}"
        state.tell(f"{what} of the job's end: stopped")
    _drain(state, seconds) if drain.tasks else stop(state)


def may_finish(state: JobState, record: TaskRecord) -> bool:
    """Whether a task may end by itself after the job is done."""
    kept = (
        record.sidecar or record.task in state.tasks.drain.tasks or record.task in state.tasks.drain.serving
    )
    return kept and state.phase is Phase.DRAINING


def report_failure(state: JobState, text: str, first: bool) -> None:
    """Notify the user that a task failed, unless its failure follows from the stop.

    Args:
        state: the task is dropped.
        text: about it.
        first: whether it is the first failure by time.
    """
    others = len(state.tasks.alive)
    if state.phase not in _ACTIVE_PHASES:
        if first:
            state.tell(f"{text}; this is the first failure")
    elif not others:
        pass  # the failure report follows
    elif _continues(state) or (state.is_done() and state.tasks.drain.begin(state.tasks.values())):
        state.tell(f"{text}; {plural(others, 'task')} left")
    else:
        state.tell(f"{text}; stopping the other {'task' if others == 1 else plural(others, 'task')}")


def stop(state: JobState) -> None:
    """Stop every task that runs; cancel those that were not started."""
    state.phase = Phase.STOPPING
    state.forget_restarts(state.tasks)
    state.emit(*map(events.CancelTimer, _BEFORE_STOP))
    for record in state.tasks.values():
        if record.state is TaskState.PENDING:
            record.transition_to(TaskState.CANCELLED, "the job was over")
            record.reason = Reason.NEVER_STARTED
            state.tasks.drop(record.task)
    if state.tasks.open:
        state.emit(NOTICE_TIMER, events.SetTimer("end", longest(state.stop_steps)))
    stop_tasks(state, state.tasks.in_order(state.tasks.open))
    _close_if_empty(state)


def stop_tasks(
    state: JobState, records: Iterable[TaskRecord], steps: StopSequence = (), cause: str = "the job is over"
) -> None:
    """Stop these tasks but those whose own process has ended; each is stopped once.

    Args:
        state, records: of the tasks.
        steps: the stop sequence; default: that of the job.
        cause: for the history.
    """
    stopped = []
    for record in records:
        if record.task not in state.tasks.open or record.state is TaskState.ENDED:
            continue
        if record.state is not TaskState.STOPPING:
            record.transition_to(TaskState.STOPPING, cause)
        if not record.stop_sent:
            record.stop_sent = True
            stopped.append(record)
    send_stops(state, stopped, steps or state.stop_steps)


def send_stops(state: JobState, records: Iterable[TaskRecord], steps: StopSequence) -> None:
    """Add the commands to stop these tasks, one for each host."""
    tasks: dict[str, list[TaskId]] = {}
    for record in records:
        tasks.setdefault(record.host, []).append(record.task)
    state.emit(*(events.StopTasks(host, tuple(own), steps) for host, own in tasks.items()))


def finish_if_closed(state: JobState) -> None:
    """Finish the job when every agent is closed or lost."""
    if not state.hosts.have(*ACTIVE_STATES):
        state.phase = Phase.OVER
        state.emit(events.Finish(state.exit_code))


def _continues(state: JobState) -> bool:
    """Whether the job runs or drains on: there are tasks to wait for, and no failure stops them."""
    left: Collection[TaskId] = (
        state.tasks.drain.tasks if state.phase is Phase.DRAINING else state.tasks.deciding
    )
    return bool(left) and not state.must_stop()


def _drain(state: JobState, seconds: float) -> None:
    """Let tasks finish for these seconds; stop those that neither finish nor serve others."""
    state.emit(events.SetTimer("drain", seconds))
    stop_tasks(state, (state.tasks[task] for task in state.tasks if not may_finish(state, state.tasks[task])))


def _close_if_empty(state: JobState) -> None:
    if state.tasks.open or state.phase is not Phase.STOPPING:
        return
    state.phase = Phase.CLOSING
    state.emit(*map(events.CancelTimer, _BEFORE_CLOSE))
    if agents := state.hosts.names(*ACTIVE_STATES):
        state.emit(NOTICE_TIMER, events.SetTimer("close", CLOSE_TIMEOUT_SECONDS))
        state.emit(*map(events.CloseAgent, agents))
    finish_if_closed(state)


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
