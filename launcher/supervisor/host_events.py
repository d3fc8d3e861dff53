"""Handles the events of hosts: an agent is ready, holds ports, tries other hosts, is lost or closes.

The machine calls a handler for each event. Before the first task starts, a host that fails ends the launch,
but only after the other hosts have answered, so that the user sees all faults at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.report import Failure, Reason, TaskState
from launcher.common.text import join_names
from launcher.supervisor import describe, restarting
from launcher.supervisor.commands import CheckNetwork, CloseLink, MakePlan, Timer, TimerKind
from launcher.supervisor.ending import continue_or_stop, finish_if_closed, stop
from launcher.supervisor.records import ACTIVE_STATES, HostRecord, HostState, Restart, TaskRecord
from launcher.supervisor.state import HOST_FAULT_EXIT_CODE, START_REASONS, JobState, Phase

#: Each host tries to connect to the hosts this far behind it in the list.
_PEER_DISTANCES = (1, 2)


# ---------------------------------------------------------------------- start


def handle_agent_ready(state: JobState, event: events.AgentReady) -> None:
    """Note that the agent of a host runs, and let it hold ports for the tasks of the host.

    The agent binds them until the tasks start, so that no other program takes a port that the plan contains.

    - If the host was lost before, it can be used again.
    - If no task runs on it (a standby host), nothing is asked of it.
    """
    host = state.hosts[event.host]
    if host.state is HostState.RETURNING:
        restarting.use_again(state, host, event)
        if state.moving_restart is not None:  # It may have been the last new container that was waited for.
            restarting.start_if_due(state, state.moving_restart)
        return
    host.has_agent = True
    if host.state is HostState.STARTING:  # The host of a task is HOLDING from the beginning.
        host.transition_to(HostState.READY, event)
    if host.state is HostState.HOLDING:
        state.emit(host.hold_ports())


def handle_notice(state: JobState, event: events.HostNotice) -> None:
    """Show a message of an agent to the user, with the name of its host."""
    state.hosts[event.host].notice_count += 1
    state.tell(f"{event.host}: {event.text}")


def handle_ports_held(state: JobState, event: events.PortsHeld) -> None:
    """Note the ports that an agent holds. Once all hosts hold theirs, the plan can be made."""
    host = state.hosts[event.host]
    if host.state is not HostState.HOLDING:  # Nobody waits for this answer any longer.
        return
    for record in host.tasks:
        record.port = event.ports.get(record.task, record.port)
    # If more tasks have moved to the host since the command that this answers, another answer follows.
    if all(record.port is not None for record in host.tasks):
        host.transition_to(HostState.READY, event)
        _check_network_or_plan(state)
    _stop_if_failed(state)  # If another host has failed, this may be the last answer that was waited for.


def handle_ports_refused(state: JobState, event: events.PortsRefused) -> None:
    """Let the launch fail, because a host has too few ports or lacks the environment of its tasks.

    While tasks move to new hosts, a host that refuses counts as lost instead, so that they can move on.
    Otherwise the other hosts may still answer, so that the user sees the faults of all of them.
    """
    # The code tells whether the environment of the tasks cannot be used. If not, the reason is None, and the
    # host has too few ports.
    reason = START_REASONS.get(event.code)
    if state.is_placing:
        why = event.why if reason else f"it has no port for each of its tasks: {event.why}"
        handle_agent_lost(state, events.AgentLost(event.host, event.at, why))
        return
    host = state.hosts[event.host]
    if host.state is HostState.HOLDING:  # It has answered, so it is no longer waited for.
        host.transition_to(HostState.READY, event)
    if reason is None:
        text = f"{event.host} does not have a port for each of its tasks: {event.why}"
        _fail_by_answer(state, event, text)
    elif state.phase is Phase.STARTUP and host.tasks:  # Its tasks cannot use their environment.
        host.environment_error = event.why
        failure = Failure(reason=reason, task=None, host=host.name, at=event.at, text=event.why)
        if state.fail(failure, event.code):  # The other hosts may still answer, as in `_fail_host`.
            state.set_timer(TimerKind.OTHER_HOSTS)
    _stop_if_failed(state)


def _check_network_or_plan(state: JobState) -> None:
    """Once all hosts hold their ports, let them connect to each other, or make the plan.

    Nothing happens while a host still has to answer, or if the launch has failed. Each host tries the next
    two in the list, so two others try each host.
    """
    if state.hosts.has_any(HostState.HOLDING, HostState.TRYING) or not state.can_plan():
        return
    hosts = [host for host in state.hosts.values() if host.tasks and host.is_active]
    if not state.checks_network or len(hosts) == 1:
        _make_plan(state)
        return
    state.set_timer(TimerKind.CHECK)
    for host in hosts:
        host.transition_to(HostState.TRYING, "all hosts hold their ports")
    state.emit(CheckNetwork({host.name: _ports_to_try(hosts, index) for index, host in enumerate(hosts)}))


def _ports_to_try(hosts: Sequence[HostRecord], index: int) -> dict[TaskId, int]:
    """Return one port of each host that the host at this index of the list tries to connect to."""
    # The list counts as a circle. Of only two hosts, the second one behind a host is that host itself.
    others = [hosts[(index + distance) % len(hosts)] for distance in _PEER_DISTANCES]
    first_tasks = [other.tasks[0] for other in others if other is not hosts[index]]
    return {record.task: record.port for record in first_tasks if record.port is not None}


def handle_peers_tried(state: JobState, event: events.PeersTried) -> None:
    """Let the launch fail if a host cannot connect to others. Once all hosts have tried, make the plan."""
    host = state.hosts[event.host]
    if host.state is not HostState.TRYING:
        return
    host.transition_to(HostState.READY, event)
    for address, why in event.unreachable.items():
        _fail_by_answer(state, event, describe.unreachable(event.host, address, why))
    if not state.hosts.has_any(HostState.TRYING) and state.can_plan():
        state.cancel_timers(TimerKind.CHECK)
        _make_plan(state)
    _stop_if_failed(state)


def handle_check_timer(state: JobState, timer: Timer, at: float) -> None:
    """Start without the rest of the network check, which takes too long, unless something has failed."""
    late = state.hosts.names(HostState.TRYING)
    for host in late:  # They stay in use, but their answers no longer matter.
        state.hosts[host].stop_waiting()
    if state.can_plan():
        state.tell(f"continuing without the check of the network on {join_names(late)}: no answer")
        _make_plan(state)
    _stop_if_failed(state)


def _make_plan(state: JobState) -> None:
    """Ask the launcher to make the plan. `Machine.handle_plan` is called with it, and starts the tasks."""
    records = state.tasks.items()
    state.emit(MakePlan({task: record.port for task, record in records if record.port is not None}))


def _fail_by_answer(state: JobState, event: events.PortsRefused | events.PeersTried, text: str) -> None:
    """Let the job fail because of the answer of a host: no ports, or no connection to another host.

    Before the first start, the other hosts may still answer. If tasks were about to move, the job is stopped
    at once. At any other time nothing happens, because the answer comes too late to matter.

    Args:
        state: The state of the job.
        event: The answer.
        text: The message for the user.
    """
    host = state.hosts[event.host]
    if state.phase is Phase.STARTUP or state.is_placing:
        if host.tasks:
            _fail_host(state, host, Reason.LAUNCHER, event.at, text)
        else:
            state.tell(text, urgent=True)
    if state.is_placing:
        stop(state)


def _fail_host(state: JobState, host: HostRecord, reason: Reason, at: float, text: str) -> None:
    """Record the fault of a host as the job's failure, of which the failure report tells.

    Before the first task starts, the job does not stop at once: the other hosts get some seconds to answer,
    so that the user sees the faults of all hosts.
    """
    failure = Failure(reason=reason, task=None, host=host.name, at=at, text=text)
    is_first = state.fail(failure, HOST_FAULT_EXIT_CODE)
    if is_first and state.phase is Phase.STARTUP:
        state.set_timer(TimerKind.OTHER_HOSTS)
    elif not is_first or not state.must_stop():
        state.tell(text, urgent=True)
    elif state.tasks.alive:  # Without any, the failure report follows at once.
        state.tell(f"{text.partition(': ')[0]}; stopping the job", urgent=True)


def _stop_if_failed(state: JobState) -> None:
    """Stop a job that failed before its first task started, once every host has answered."""
    is_waiting = state.hosts.has_any(HostState.HOLDING, HostState.TRYING)
    if state.phase is Phase.STARTUP and state.failure is not None and not is_waiting:
        _name_missing_environments(state, state.failure)
        stop(state)


def _name_missing_environments(state: JobState, failure: Failure) -> None:
    """Tell the user about all hosts whose tasks cannot use their environment.

    If that is the failure of the job, its text names them all. Otherwise they get a message of their own, if
    there are any.
    """
    text, hint = describe.missing_environments(state)
    if failure.reason in START_REASONS.values():
        state.failure = replace(failure, text=text, hint=hint)
    elif text:
        state.tell(f"{text}; {hint}" if hint else text, urgent=True)


# ---------------------------------------------------------------------- loss


def handle_agent_lost(state: JobState, event: events.AgentLost) -> None:
    """Handle the loss of a host. No event of the host or of its tasks follows.

    - If it was lost before and only its new agent failed, that is tried again later.
    - If the policy allows it and there is room, its tasks start again elsewhere, or in a new container.
    - Otherwise the job fails if it needs the host.
    - While agents close after the end of all tasks, the loss changes nothing but what is waited for.
    """
    # The loss may change which restart moves tasks, so the present one is kept.
    host, moving = state.hosts[event.host], state.moving_restart
    was_returning = host.state is HostState.RETURNING
    # A new agent that could not be started is tried again later if the job runs without it, or ends.
    if was_returning and (state.moves_tasks or state.phase is not Phase.RUNNING):
        restarting.try_again_later(state, host, event)
        return
    why = event.why.removeprefix(f"{event.host}: ")  # The message names the host already.
    text = describe.host_lost(state, host, why)
    cancelled = _lose(state, host, event)  # These are the restarts that waited for tasks of this host.
    starts_again, explanation = False, ""
    if not event.all_gone:  # Otherwise no host is left on which a task could start.
        starts_again, explanation = restarting.restart_after_loss(state, host, moving, event, why)
    text += f"; {explanation}" if explanation else ""
    is_failure = not starts_again and state.phase is not Phase.CLOSING and _is_needed(state, host)
    if not is_failure:
        state.tell(text, urgent=True)
    if state.phase is Phase.CLOSING:  # All tasks had ended, so none was lost.
        finish_if_closed(state)
        return
    if not starts_again:
        if host.main_tasks and moving is not None:
            # All tasks were to start again on new hosts, and cannot do so without those of this host.
            state.cancel_restarts(state.tasks)
        if is_failure:
            _fail_host(state, host, Reason.HOST_LOST, event.at, text)
        _go_on_without_host(state, cancelled.values())


def _go_on_without_host(state: JobState, cancelled: Iterable[Restart]) -> None:
    """Continue or stop the job after the loss of a host whose tasks do not start again.

    Args:
        state: The state of the job, in which the host is lost already, and the job has failed if it needs the
            host.
        cancelled: The restarts that have waited for tasks of this host.
    """
    if state.phase is Phase.STARTUP:
        _stop_if_failed(state)
    else:
        continue_or_stop(state)
    if state.is_placing:  # It may have been the last host that held no ports.
        _check_network_or_plan(state)
    # The other tasks of a restart no longer wait for the tasks of this host.
    for restart in dict.fromkeys(cancelled):
        restarting.start_if_due(state, restart)


def _is_needed(state: JobState, host: HostRecord) -> bool:
    """Return whether the job fails without this host, because it runs tasks of the job.

    Once the tasks run, a host with nothing but sidecars, as TensorBoard, is not needed.
    """
    return bool(host.tasks if state.phase is Phase.STARTUP else host.main_tasks)


def _lose(state: JobState, host: HostRecord, event: events.AgentLost) -> dict[TaskId, Restart]:
    """Change the state of a host and of its tasks to LOST, and plan to use the host again later.

    Args:
        state: The state of the job.
        host: The host.
        event: The loss.

    Returns:
        The tasks of the host that were to start again, with their restarts.
    """
    loss, was_returning = describe.host_loss(host), host.state is HostState.RETURNING
    host.transition_to(HostState.LOST, event)
    if not was_returning:  # The new agent of such a host was never reached, so there is no link to close.
        state.emit(CloseLink(event.host))
    restarting.expect_return(state, event.host)
    cancelled = state.cancel_restarts(record.task for record in host.tasks)
    for record in host.tasks:
        if record.task in state.tasks.not_gone:
            _lose_task(state, record, event, f"its host {loss}: {event.why}")
    return cancelled


def _lose_task(state: JobState, record: TaskRecord, event: events.AgentLost, detail: str) -> None:
    """Change the state of a task to LOST, because its host is lost.

    A task whose exit is known keeps the outcome: only its leftover processes are lost.

    Args:
        state: The state of the job.
        record: The task.
        event: The loss of the host.
        detail: What happened, for the report.
    """
    attempt = record.current
    if record.state is TaskState.ENDED:
        record.transition_to(attempt.outcome, event)
    else:
        record.transition_to(TaskState.LOST, event)
        attempt.reason, attempt.detail = Reason.HOST_LOST, detail
        attempt.ended_at = None if attempt.started_at is None else event.at  # None if it was never started.
    state.tasks.process_ended(record.task, event.at)
    state.tasks.task_gone(record.task)


def handle_agent_closed(state: JobState, event: events.AgentClosed) -> None:
    """Note that an agent has closed on command. A host whose agent closed without a command is lost."""
    if state.phase is Phase.CLOSING:
        state.hosts[event.host].transition_to(HostState.CLOSED, event)
        finish_if_closed(state)
    else:
        _lose_stopped_outside(state, event)


def handle_stop_from_outside(state: JobState, event: events.TaskSignalled) -> None:
    """Handle that a task is stopped without a command, because its agent or the agent's watchdog was.

    The host is lost. If its tasks can start again elsewhere, that happens at once. Otherwise the agent may
    finish stopping the tasks first.
    """
    host = state.hosts[event.host]
    state.tasks[event.task].transition_to(TaskState.STOPPING, event)
    if host.state is HostState.ENDING:  # An event about another task of the host has led to what follows.
        return
    can_move = state.seconds_until_tasks_ended is not None
    if can_move and state.restart_policy.max_restarts:
        _lose_stopped_outside(state, event)
        return
    text = describe.host_lost(state, host, describe.STOPPED_OUTSIDE)
    host.transition_to(HostState.ENDING, event)
    if _is_needed(state, host):
        _fail_host(state, host, Reason.HOST_LOST, event.at, text)
    else:
        state.tell(text, urgent=True)
    continue_or_stop(state)


def _lose_stopped_outside(state: JobState, event: events.AgentClosed | events.TaskSignalled) -> None:
    """Handle the loss of a host whose agent was stopped, and not by launch."""
    handle_agent_lost(state, events.AgentLost(event.host, event.at, describe.STOPPED_OUTSIDE))


# ---------------------------------------------------------------------- late hosts


def handle_late_hosts(state: JobState, timer: Timer, at: float) -> None:
    """Lose the hosts that have not answered before a timer fired."""
    _lose_hosts(state, _late_hosts(state, timer.kind), describe.late_host(state, timer.kind), at)


def _late_hosts(state: JobState, kind: TimerKind) -> list[str]:
    """Return the names of the hosts from which an answer is still due when a timer of this kind fires."""
    active = state.hosts.names(*ACTIVE_STATES)
    if kind in (TimerKind.READY, TimerKind.OTHER_HOSTS):
        return state.hosts.names(HostState.HOLDING)
    if kind is TimerKind.START:
        return state.hosts.names_of(state.tasks[task] for task in state.tasks.starting)
    if kind is TimerKind.END:
        return state.hosts.names_of(state.tasks[task] for task in state.tasks.not_gone)
    if kind is TimerKind.ANSWER:
        return [name for name in active if state.hosts[name].owes_answer]
    return active  # The timer limits how long agents may take to close.


def handle_restart_timer(state: JobState, timer: Timer, at: float) -> None:
    """Take the next step of a restart, or lose the hosts that did not stop its tasks in time."""
    late = restarting.advance(state, timer.key)
    _lose_hosts(state, late, describe.late_host(state, timer.kind), at)


def _lose_hosts(state: JobState, hosts: Iterable[str], why: str, at: float) -> None:
    """Lose these hosts one after the other. The loss of one may end the job, or lose more of them."""
    for host in list(hosts):
        if state.hosts[host].is_active and state.phase is not Phase.OVER:
            handle_agent_lost(state, events.AgentLost(host, at, why))
