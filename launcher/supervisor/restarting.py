"""Restarts under way: tasks are stopped, and start again when they are gone and the wait is over."""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.report import ExitStatus, Failure, Reason, TaskState
from launcher.common.text import duration, join_names
from launcher.job import Placement
from launcher.scheduler.placement import replace_hosts
from launcher.supervisor.ending import continue_or_stop, report_failure, stop_tasks
from launcher.supervisor.records import HostRecord, HostState, Restart, Stage, TaskRecord
from launcher.supervisor.restart_policy import FIRST_PAUSE_SECONDS, OUTSIDE_SIGNALS, PREEMPTED_EXIT_CODE
from launcher.supervisor.state import (
    HOST_FAULT_EXIT_CODE,
    NOTICE_TIMER,
    READY_TIMEOUT_SECONDS,
    START_TIMEOUT_SECONDS,
    JobState,
    Phase,
    longest,
    quick,
)

#: Begins the name of the timer of each host that may come back.
RETURN_TIMER_PREFIX = "return of "
#: Seconds between two attempts to reach a lost host.
_RECOVERY_PAUSE_SECONDS = 30.0
#: Hosts that are lost by one cause are lost within about this time: then look once for hosts for all tasks.
PLACE_TIMER = events.SetTimer("place", 1.0)


def choose(state: JobState) -> Placement | None:
    """Where the tasks run without the lost hosts; ``None``: there is no room. New containers are made."""
    if not state.tasks_end:
        return state.placement
    return replace_hosts(state.placement, {name for name, host in state.hosts.items() if not host.is_active})


def place_tick(state: JobState, _: events.TimeUp) -> None:
    """End the job now if there is no room for its tasks."""
    if state.moving is not None and not state.moving.placing and choose(state) is None:
        _fail_without_room(state, state.moving)


def hold_ports(state: JobState, restart: Restart) -> None:
    """Let all hosts hold ports for the tasks that they have from now on; the plan follows."""
    placement = choose(state)
    if placement is None:
        _fail_without_room(state, restart)
        return
    state.placement, restart.placing = placement, True
    for placed in placement.tasks:
        state.tasks[placed.task].place(placed)
    state.hosts.place(state.tasks.values())
    state.emit(events.MoveTasks(placement), events.SetTimer("ready", READY_TIMEOUT_SECONDS))
    for host in state.hosts.values():
        if host.is_active and host.tasks:  # one without an agent is that of a lost sidecar
            host.transition_to(HostState.HOLDING, "tasks move")
            if host.ready:
                state.emit(host.hold_ports())


def _fail_without_room(state: JobState, restart: Restart) -> None:
    lost = [*restart.lost_hosts]
    stranded = state.tasks.names([task.task for host in lost for task in state.hosts[host].own])
    hosts = f"host {lost[0]} is" if len(lost) == 1 else f"hosts {join_names(lost)} are"
    why = "; ".join(dict.fromkeys(restart.lost_hosts.values()))
    text = f"{hosts} lost: {why}; no other host has room for {stranded}"
    state.forget_restarts(state.tasks)
    state.tell(text, urgent=True)
    state.fail(
        Failure(Reason.HOST_LOST, task=None, host=lost[0], at=restart.lost_at, text=text),
        HOST_FAULT_EXIT_CODE,
    )
    continue_or_stop(state)


def expect_back(state: JobState, host: str) -> None:
    """Try to reach a lost host later, when its tasks have ended for certain."""
    if state.tasks_end and state.restarts.limit and _goes_on(state):
        state.emit(events.SetTimer(RETURN_TIMER_PREFIX + host, max(state.tasks_end, _RECOVERY_PAUSE_SECONDS)))


def reach(state: JobState, timer: str) -> None:
    """Try to reach a lost host; not before its tasks have moved to others, and not without a restart."""
    if state.moving is not None or not state.restarts.has_restarts_left:
        state.emit(events.SetTimer(timer, _RECOVERY_PAUSE_SECONDS))
    elif _goes_on(state):
        state.start_agent(state.hosts[timer.removeprefix(RETURN_TIMER_PREFIX)])


def came_back(state: JobState, host: HostRecord, event: events.AgentReady) -> None:
    """A new agent runs on a lost host."""
    if not _goes_on(state):  # the link is closed with the others
        host.transition_to(HostState.LOST, event)
        return
    host.transition_to(HostState.READY, event)
    host.ready = True
    if not host.tasks and host.host not in state.placement.standby:
        state.placement = replace(state.placement, standby=(*state.placement.standby, host.host))
    if state.tasks_end:
        state.tell(f"host {host.name} is back: it can take the tasks of a host that is lost")


def stays_lost(state: JobState, host: HostRecord, event: events.AgentLost) -> None:
    """No new agent could be started on a lost host: try it again."""
    host.transition_to(HostState.LOST, event)
    if _goes_on(state):
        state.emit(events.SetTimer(RETURN_TIMER_PREFIX + host.name, _RECOVERY_PAUSE_SECONDS))


def _goes_on(state: JobState) -> bool:
    return state.phase in (Phase.STARTUP, Phase.RUNNING) and state.failure is None


#: Seconds for all tasks of a preempted job to save a checkpoint and to exit.
_SAVE_TIMEOUT_SECONDS = 30.0
#: Seconds, at most, from the failure of a task to the failure of another one that needs it.
_NEEDED_TASK_SECONDS = 60.0
#: Words of TensorFlow in an exception before the task that the error came from.
_ERROR_FROM = rb"(?:From|remote target) /job:(\w+)/replica:\d+/task:(\d+)\b"


def after_failure(
    state: JobState, record: TaskRecord, failure: Failure, others: Sequence[TaskId] = ()
) -> bool:
    """Let a task start again that has failed, if the policy allows it.

    Args:
        state, record, failure: of the task.
        others: tasks that have failed together with it.

    Returns:
        Whether it starts again; the failure is then not that of the job.
    """
    if state.phase is not Phase.RUNNING:
        return False
    if record.task in state.tasks.restarting:  # it follows from the failure of another task
        return True
    silence = (state.policy.stall or 0.0) if record.stalled else 0.0
    ran = 0.0 if record.started_at is None else max(0.0, failure.at - record.started_at - silence)
    lost = _lost_ps(state, record, failure.at)
    suspects = set() if lost else _suspects(state, record, failure.at)
    own = not (lost or suspects)
    if own and not record.stalled and state.restarts.is_permanent(record.task, record.status):
        return False
    restart = state.restarts.after(record.task, record.status, ran, others, counted=own)
    if restart is None:
        return False
    restart.suspects, restart.follows = suspects, lost
    if own:
        state.tasks.failed_at[record.task] = failure.at
    restart.tasks = {
        task
        for task in restart.tasks - state.tasks.failed
        if restart.all or state.tasks[task].outcome is not TaskState.SUCCEEDED
        if _has_host(state, task)
    }
    _begin(state, restart, failure)
    restart.notice = _notice(state, restart, record, failure)
    if record.stalled:
        _tell(state, restart)
    return True


def _notice(state: JobState, restart: Restart, record: TaskRecord, failure: Failure) -> str:
    """Return the line that tells why and when tasks start again."""
    of_limit = f"restart {restart.number} of {state.restarts.limit}" if restart.number else "not counted"
    of_limit += f": {restart.follows} failed before" if restart.follows else ""
    when = f"in {duration(restart.wait)}" if restart.wait >= 0.1 else "at once"
    again = f"starting {state.tasks.names(restart.tasks)} again {when}"
    return f"{failure.text}; {again} (attempt {record.attempt + 1}, {of_limit})"


def _lost_ps(state: JobState, record: TaskRecord, at: float) -> str:
    """The ps that has failed so shortly before that a task failed because of it; empty: there is none."""
    if record.task.role == "ps" or record.stalled or record.status.signal in OUTSIDE_SIGNALS:
        return ""
    for peer in state.tasks.ps:
        ends = [(each.state, each.ended_at) for each in peer.earlier[-1:]] + [(peer.outcome, peer.ended_at)]
        failed = [end for state, end in ends if state is TaskState.FAILED and end is not None]
        if any(0 <= at - end <= _NEEDED_TASK_SECONDS for end in failed):
            return str(peer.task)
    return ""


def _suspects(state: JobState, record: TaskRecord, at: float) -> set[TaskId]:
    """Return the tasks whose failures may have led to that of another task, which starts again alone.

    Its output tells, all of which is here only when the task is gone. Only failures that count are causes, so
    two tasks that fail because of each other do not start again for ever.
    """
    if (
        record.stalled
        or record.status.signal in OUTSIDE_SIGNALS
        or not state.restarts.restarts_alone(record.task)
    ):
        return set()
    if record.status.code == PREEMPTED_EXIT_CODE:
        return set()
    failed_at = state.tasks.failed_at.items()
    return {
        task for task, failed in failed_at if task != record.task and 0 <= at - failed <= _NEEDED_TASK_SECONDS
    }


def _own_failure(state: JobState, restart: Restart, record: TaskRecord, failure: Failure) -> str:
    """Find out whether a failure follows from that of another task, now that all output of the task is here.

    Returns:
        Why the task does not start again, because the failure is one of its own; else empty.
    """
    suspects, restart.suspects = restart.suspects, set()
    named = {TaskId(b"/".join(found).decode()) for found in re.findall(_ERROR_FROM, record.tail)}
    if follows := named & suspects:
        restart.follows = state.tasks.names(follows)
    elif why := state.restarts.why_not(record.task, record.status):
        return why
    else:
        restart.number = state.restarts.count(record.task)
        state.tasks.failed_at[record.task] = failure.at
    restart.notice = _notice(state, restart, record, failure)
    return ""


def after_loss(
    state: JobState, host: HostRecord, moving: Restart | None, event: events.AgentLost, why: str
) -> tuple[bool, str]:
    """Let the tasks of a lost host start again with all tasks of the job, if the policy allows it.

    They move to other hosts. No two attempts of a task may be alive, so they wait until those on the lost
    host have certainly ended. A lost container is removed, which kills its tasks; a new one takes its place.

    Args:
        state: the host and its tasks are dropped.
        host: that is lost.
        moving: the restart in which tasks of other hosts moved when it was lost, to which its loss belongs.
        event: the loss.
        why: the reason.

    Returns:
        Whether they start again, and the text for the user. If they do, the job has not failed.
    """
    own = host.own
    if moving is not None and not own:  # tasks may have been to move there
        state.emit(PLACE_TIMER)
    if state.phase is not Phase.RUNNING or state.failure is not None or not own:
        return False, ""
    if state.tasks_end is None or not state.restarts.may_start([record.task for record in own]):
        return False, ""
    names = state.tasks.names([record.task for record in own])
    if moving is not None and host.name not in moving.lost_hosts:
        restart, where = moving, ", too"
        state.withdraw()
        _add(state, restart, {record.task for record in host.tasks if _moves(record)})
        _wait(state, restart)
        state.emit(PLACE_TIMER)
    else:
        placement = choose(state)
        if placement is None:
            return False, f"; no other host has room for {names}"
        new = _after_loss(state, own, event)
        if new is None:
            return False, f"; {state.restarts.why_not(own[0].task, ExitStatus())}"
        restart = new
        state.withdraw()
        _begin(state, restart)
        there = dict.fromkeys(
            placed.host.name for placed in placement.tasks if state.tasks[placed.task] in own
        )
        where = f" to {join_names([*there])}"
    restart.lost_hosts[host.name], restart.lost_at = why, event.at
    state.moving = restart
    number = f"restart {restart.number} of {state.restarts.limit}" if restart.number else "not counted"
    of_limit = f"attempt {own[0].attempt + 1}, {number}"
    of_limit += f" for {join_names([*restart.lost_hosts])}" if restart is moving else ""
    if not state.tasks_end:
        return True, f"; a new one takes its place, all tasks start again ({of_limit})"
    moves = f"{names} {'moves' if len(own) == 1 else 'move'}{where}"
    return True, f"; {moves}, all tasks start again in {duration(restart.wait)} ({of_limit})"


def _after_loss(state: JobState, own: Sequence[TaskRecord], event: events.AgentLost) -> Restart | None:
    """The restart of all tasks after the loss of a host with these ones; ``None``: no restart is left."""
    first, *others = own
    at, others_too = event.at, [each.task for each in others]
    ran = at - (first.started_at or at) if first.ended_at == at else 0.0  # else it did not run any more
    restart = state.restarts.after(first.task, ExitStatus(), max(0.0, ran), others_too, not event.preempted)
    if restart is not None:
        restart.tasks = {task for task, record in state.tasks.items() if _moves(record)}
        restart.tasks |= state.tasks.restarting.keys()
        restart.all, restart.wait = True, max(restart.wait, state.tasks_end or 0.0)
    return restart


def asked(state: JobState, event: events.RestartAsked) -> None:
    """The user asks to start tasks again."""
    if state.moving is not None:
        state.tell("all tasks start again anyway, because a host is lost")
        return
    tasks = [task for task in event.tasks if task in state.tasks and _has_host(state, task)]
    if state.phase is not Phase.RUNNING or not tasks:
        state.tell("cannot restart: the job is not running")
        return
    state.tell(f"starting {state.tasks.names(tasks)} again, as asked")
    _begin(state, Restart(tasks, all=True))


def ended_well(state: JobState, record: TaskRecord, at: float) -> None:
    """A task has ended by itself with 0: it starts again only with the whole job, or if the user asked."""
    restart = state.tasks.restarting.get(record.task)
    if restart is not None and not restart.all:
        state.forget_restarts([record.task])
        state.tasks.process_ended(record.task, at)
        start_if_due(state, restart)


def gone(state: JobState, record: TaskRecord, at: float) -> None:
    """All processes of a task have ended."""
    restart = state.tasks.restarting.get(record.task)
    if restart is None:
        return
    cause = restart.cause
    if record.unkillable:
        text = f"{record.task} can't start again: SIGKILL did not stop its last attempt"
        _give_up(
            state,
            restart,
            Failure(Reason.LAUNCHER, task=None, host=record.host, at=at, text=text),
            HOST_FAULT_EXIT_CODE,
        )
        return
    if cause is not None and cause.task == record.task:
        why = _own_failure(state, restart, record, cause) if restart.suspects else ""
        if not why and (given_up := state.restarts.given_up(record, restart.number > 0)):
            why = f"not started again: {given_up}"
        if why:
            _give_up(state, restart, replace(cause, text=f"{cause.text}; {why}"), record.status.shell)
            return
    if cause is None or cause.task == record.task:
        _tell(state, restart)
    if restart.stage is Stage.ENDING and restart.tasks.isdisjoint(state.tasks.open):
        _stop(state, restart)
    else:
        start_if_due(state, restart)


def time_up(state: JobState, event: events.TimeUp) -> list[str]:
    """The timer of a restart has run out. Returns hosts that did not end tasks in time."""
    restart = state.under_way.get(event.timer)
    if restart is None:
        return []
    if restart.stage is Stage.ENDING:
        _stop(state, restart)
    elif restart.stage is Stage.WAITING:
        restart.stage = Stage.DUE
        state.emit(NOTICE_TIMER, events.SetTimer(restart.timer, longest(state.stop_steps)))
        if state.moving is not None and not state.tasks_end:
            for host in state.hosts.of(state.tasks[task] for task in restart.tasks):
                if state.hosts[host].state is HostState.LOST:
                    state.start_agent(state.hosts[host])
        start_if_due(state, restart)
    else:
        return state.hosts.of(state.tasks[task] for task in restart.tasks & state.tasks.open)
    return []


def start_if_due(state: JobState, restart: Restart) -> None:
    """Start the tasks of a restart if its time is over and the last of them is gone.

    If tasks move, their new hosts hold ports first; new containers are waited for.
    """
    if not restart.tasks or restart.stage is not Stage.DUE or not restart.tasks.isdisjoint(state.tasks.open):
        return
    if state.moving is not None:
        made = state.tasks_end or not state.hosts.have(HostState.RETURNING)
        if made and not restart.placing:
            state.emit(events.CancelTimer(restart.timer))
            hold_ports(state, restart)
        return
    state.restarts_made += 1
    for record in state.tasks.start_order(restart.tasks):
        state.tasks.begin_attempt(record)
        state.start(record)
    state.end_restart(restart)
    state.emit(events.SetTimer("start", START_TIMEOUT_SECONDS), NOTICE_TIMER)


def _begin(state: JobState, restart: Restart, cause: Failure | None = None) -> None:
    """Begin a restart; it includes the restarts under way of the same tasks.

    Args:
        state, restart: of the tasks.
        cause: the failure; ``None``: there is none.
    """
    for other in {state.tasks.restarting[task] for task in restart.tasks & state.tasks.restarting.keys()}:
        _tell(state, other)
        restart.tasks |= other.tasks
        restart.all = restart.all or other.all
        other.tasks.clear()
        state.end_restart(other)
    state.restarts_begun += 1
    restart.timer, restart.cause = f"restart {state.restarts_begun}", cause
    _add(state, restart, restart.tasks)
    if restart.stage is Stage.ENDING:
        state.emit(events.SetTimer(restart.timer, _SAVE_TIMEOUT_SECONDS))
    else:
        _stop(state, restart)


def _add(state: JobState, restart: Restart, tasks: set[TaskId]) -> None:
    """Let these tasks start again with a restart."""
    state.under_way[restart.timer] = restart
    restart.tasks |= tasks
    state.tasks.restarting.update(dict.fromkeys(tasks, restart))
    for record in (own := state.tasks.in_order(tasks)):
        record.mark_changed()
    if own:
        state.emit(events.Restarting({record.task: record.attempt for record in own}))
    state.tasks.deciding |= tasks & state.tasks.all_deciding


def _stop(state: JobState, restart: Restart) -> None:
    """Stop those of its tasks that run; the time until the start begins.

    After a failure they have that time to end, at least 1 s: TensorFlow's collectives ignore SIGTERM, and
    hang without the task that failed.
    """
    steps = (
        quick(state.policy.grace, max(FIRST_PAUSE_SECONDS, restart.wait))
        if restart.cause
        else state.stop_steps
    )
    stop_tasks(state, state.tasks.in_order(restart.tasks), steps, "to start again")
    _wait(state, restart)


def _wait(state: JobState, restart: Restart) -> None:
    restart.stage = Stage.WAITING
    state.emit(NOTICE_TIMER, events.SetTimer(restart.timer, restart.wait))


def _give_up(state: JobState, restart: Restart, failure: Failure, exit_code: int) -> None:
    """Do not start the tasks again: the job fails."""
    state.forget_restarts(restart.tasks)
    report_failure(state, failure.text, state.fail(failure, exit_code))


def _has_host(state: JobState, task: TaskId) -> bool:
    return state.hosts[state.tasks[task].host].is_active


def _moves(record: TaskRecord) -> bool:
    """Whether a task starts again with all others: a sidecar only if its host is lost."""
    return not record.sidecar or record.state is TaskState.LOST


def _tell(state: JobState, restart: Restart) -> None:
    """Tell the user why and when it starts again, once."""
    if restart.notice:
        state.tell(restart.notice, urgent=True)
    restart.notice = ""
