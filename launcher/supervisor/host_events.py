"""Events of hosts: an agent is ready, holds ports, has tried other hosts, is lost, has closed.

Before the first task starts, a host that fails ends the launch, but only when the other hosts have answered:
the user sees all faults at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.report import Failure, Reason, TaskState
from launcher.common.text import join_names
from launcher.supervisor import restarting
from launcher.supervisor.ending import continue_or_stop, finish_if_closed, stop
from launcher.supervisor.records import HostRecord, HostState, TaskRecord
from launcher.supervisor.state import HOST_FAULT_EXIT_CODE, START_REASONS, JobState, Phase

#: Seconds for the other agents to answer when a host has failed; for the check of the network.
OTHERS_TIMEOUT_SECONDS = 10.0
CHECK_TIMEOUT_SECONDS = 12.0
#: Each host connects to the next one and the one after it in the list.
_PEER_DISTANCES = (1, 2)
#: Why a host is lost whose agent exits without being asked to.
_ENDED_OUTSIDE = "its agent was stopped from outside; it stops its tasks"
_ADDRESS_ADVICE = (
    "`address:` in a hostfile is the address that others connect to; --no-check starts the job all the same"
)


def agent_ready(state: JobState, event: events.AgentReady) -> None:
    """The agent of a host runs."""
    host = state.hosts[event.host]
    if host.state is HostState.RETURNING:
        restarting.came_back(state, host, event)
        if state.moving is not None:
            restarting.start_if_due(state, state.moving)
        return
    host.ready = True
    if host.state is HostState.STARTING:
        host.transition_to(HostState.READY, event)
    if state.phase is Phase.CLOSING:  # it started after the other agents got CloseAgent
        state.emit(events.CloseAgent(event.host))
    elif host.state is HostState.HOLDING:
        state.emit(host.hold_ports())


def noticed(state: JobState, event: events.HostNotice) -> None:
    """The agent has a line for the user."""
    state.hosts[event.host].notices += 1
    state.tell(f"{event.host}: {event.text}")


def ports_held(state: JobState, event: events.PortsHeld) -> None:
    """A host holds its ports; with the last of them the plan can be made."""
    host = state.hosts[event.host]
    if host.state is not HostState.HOLDING:
        return
    for record in host.tasks:
        record.port = event.ports.get(record.task, record.port)
    if all(record.port is not None for record in host.tasks):
        host.transition_to(HostState.READY, event)
        _try_peers_if_held(state)
    _stop_if_failed(state)


def ports_refused(state: JobState, event: events.PortsRefused) -> None:
    """A host has too few free ports, or can't use the environment of its tasks."""
    reason = START_REASONS.get(event.code)
    if state.is_placing:
        why = event.why if reason else f"it has no port for each of its tasks: {event.why}"
        agent_lost(state, events.AgentLost(event.host, event.at, why))
        return
    host = state.hosts[event.host]
    if host.state is HostState.HOLDING:
        host.transition_to(HostState.READY, event)
    if reason is None:
        _refuse(state, event, f"{event.host} does not have a port for each of its tasks: {event.why}")
    elif state.phase is Phase.STARTUP and host.tasks:
        host.no_environment = event.why
        if state.fail(Failure(reason, task=None, host=host.name, at=event.at, text=event.why), event.code):
            state.emit(events.SetTimer("rest", OTHERS_TIMEOUT_SECONDS))
    _stop_if_failed(state)


def peers_tried(state: JobState, event: events.PeersTried) -> None:
    """A host has tried to connect to others; when all have, the plan can be made."""
    host = state.hosts[event.host]
    if host.state is not HostState.TRYING:
        return
    host.transition_to(HostState.READY, event)
    for address, why in event.unreachable.items():
        _refuse(state, event, f"{event.host} can't reach {address}: {why} ({_ADDRESS_ADVICE})")
    if not state.hosts.have(HostState.TRYING) and state.may_plan():
        state.emit(events.CancelTimer("check"))
        _make_plan(state)
    _stop_if_failed(state)


def check_late(state: JobState, _: events.TimeUp) -> None:
    """The check of the network takes too long: start without its result, unless something has failed."""
    late = state.hosts.names(HostState.TRYING)
    for host in late:
        state.hosts[host].withdraw()
    if state.may_plan():
        state.tell(f"continuing without the check of the network on {join_names(late)}: no answer")
        _make_plan(state)
    _stop_if_failed(state)


def lose_hosts(state: JobState, hosts: Iterable[str], why: str, at: float) -> None:
    """Hosts that did not answer in time are lost."""
    for host in list(hosts):
        if state.hosts[host].is_active and state.phase is not Phase.OVER:
            agent_lost(state, events.AgentLost(host, at, why))


def agent_lost(state: JobState, event: events.AgentLost) -> None:
    """The launcher has no link to the agent any more, and gets no further event of its tasks."""
    host, restart = state.hosts[event.host], state.moving
    again = host.state is HostState.RETURNING
    if again and (state.tasks_end or state.phase is not Phase.RUNNING):
        restarting.stays_lost(state, host, event)
        return
    lost = "can't be used" if host.state is HostState.HOLDING or not host.tasks else "is lost"
    lost = "can't be made again" if again else lost
    host.transition_to(HostState.LOST, event)
    why = event.why.removeprefix(f"{event.host}: ")
    text = f"host {event.host if again else state.name_with_node(event.host)} {lost}: {why}"
    if not again:  # else its new agent was never reached: there is no link to close
        state.emit(events.CloseLink(event.host))
    restarting.expect_back(state, event.host)
    forgotten = state.forget_restarts(record.task for record in host.tasks)
    for record in host.tasks:
        if record.task in state.tasks.open:
            _lose_task(state, record, event, lost)
    start_again = False
    if not event.all_gone:
        start_again, more = restarting.after_loss(state, host, restart, event, why)
        text += more
    state.tell(text, urgent=True)
    if state.phase is Phase.CLOSING:  # no task of the job ran there any more
        finish_if_closed(state)
        return
    if start_again:
        return
    if host.own and restart is not None:
        state.forget_restarts(state.tasks)
    _fail(state, Reason.HOST_LOST, host, event.at, text, host.own)
    _stop_if_failed(state) if state.phase is Phase.STARTUP else continue_or_stop(state)
    if state.is_placing:  # it may have been the last that held no ports
        _try_peers_if_held(state)
    for other in dict.fromkeys(forgotten.values()):
        restarting.start_if_due(state, other)


def agent_closed(state: JobState, event: events.AgentClosed) -> None:
    """The agent closed on command, or was ended from outside."""
    if state.phase is Phase.CLOSING:
        state.hosts[event.host].transition_to(HostState.CLOSED, event)
        finish_if_closed(state)
    else:
        agent_lost(state, events.AgentLost(event.host, event.at, _ENDED_OUTSIDE))


def stopped_without_command(state: JobState, event: events.TaskSignalled) -> None:
    """An agent stops a task without a command, because the agent or its watchdog was ended from outside."""
    host = state.hosts[event.host]
    state.tasks[event.task].transition_to(TaskState.STOPPING, event)
    if host.state is HostState.ENDING:
        return
    if state.tasks_end is not None and state.restarts.limit:
        agent_lost(state, events.AgentLost(event.host, event.at, _ENDED_OUTSIDE))
        return
    host.transition_to(HostState.ENDING, event)
    text = f"host {state.name_with_node(event.host)} is lost: {_ENDED_OUTSIDE}"
    state.tell(text, urgent=True)
    _fail(state, Reason.HOST_LOST, host, event.at, text, host.own)
    continue_or_stop(state)


def _refuse(state: JobState, event: events.PortsRefused | events.PeersTried, text: str) -> None:
    host = state.hosts[event.host]
    if state.phase is Phase.STARTUP or state.is_placing:
        state.tell(text, urgent=True)
        _fail(state, Reason.LAUNCHER, host, event.at, text, host.tasks)
    if state.is_placing:
        stop(state)


def _fail(
    state: JobState, reason: Reason, host: HostRecord, at: float, text: str, own: Sequence[TaskRecord]
) -> None:
    """Record the fault of a host as the job's failure, unless the host has none of these tasks."""
    gathering = state.phase is Phase.STARTUP
    if own or (gathering and host.tasks):
        first = state.fail(Failure(reason, task=None, host=host.name, at=at, text=text), HOST_FAULT_EXIT_CODE)
        if first and gathering:
            state.emit(events.SetTimer("rest", OTHERS_TIMEOUT_SECONDS))


def _stop_if_failed(state: JobState) -> None:
    """Before the first task starts: stop after a failure, when every host has answered."""
    waiting = state.hosts.have(HostState.HOLDING, HostState.TRYING)
    if state.phase is Phase.STARTUP and state.failure is not None and not waiting:
        _name_missing_environments(state, state.failure)
        stop(state)


def _name_missing_environments(state: JobState, failure: Failure) -> None:
    """Name all hosts whose tasks can't use their environment."""
    found: dict[str, list[HostRecord]] = {}
    for host in state.hosts.values():
        if host.no_environment:
            found.setdefault(host.no_environment, []).append(host)
    texts = [f"{why} on {', '.join(host.name for host in hosts)}" for why, hosts in found.items()]
    names = dict.fromkeys(hosts[0].host.venv for hosts in found.values())
    commands = [f"`{state.prepare} --name {name}`" for name in names if name and "/" not in name]
    text, hint = "; ".join(texts), f"{' and '.join(commands)} would make it" if commands else ""
    if failure.reason in START_REASONS.values():
        state.failure = replace(failure, text=text, hint=hint)
    elif found:
        state.tell(f"{text}; {hint}" if hint else text, urgent=True)


def _make_plan(state: JobState) -> None:
    records = state.tasks.items()
    state.emit(events.MakePlan({task: record.port for task, record in records if record.port is not None}))


def _try_peers_if_held(state: JobState) -> None:
    """When all hosts hold their ports, let each connect to the next two in the list.

    So each is also connected to by two.
    """
    if state.hosts.have(HostState.HOLDING, HostState.TRYING) or not state.may_plan():
        return
    hosts = [host for host in state.hosts.values() if host.tasks and host.is_active]
    if not state.check or len(hosts) == 1:
        _make_plan(state)
        return
    state.emit(events.SetTimer("check", CHECK_TIMEOUT_SECONDS))
    peers: dict[str, dict[TaskId, int]] = {}
    for index, host in enumerate(hosts):
        host.transition_to(HostState.TRYING, "all hosts hold their ports")
        others = [hosts[(index + step) % len(hosts)] for step in _PEER_DISTANCES]
        ports = {other.tasks[0].task: other.tasks[0].port for other in others if other is not host}
        peers[host.name] = {task: port for task, port in ports.items() if port is not None}
    state.emit(events.CheckNetwork(peers))


def _lose_task(state: JobState, record: TaskRecord, event: events.AgentLost, lost: str) -> None:
    if record.state is TaskState.ENDED:  # its exit is known: only its leftover processes are lost
        record.transition_to(record.outcome, event)
    else:
        record.transition_to(TaskState.LOST, event)
        record.reason = Reason.HOST_LOST
        record.detail = f"its host {lost}: {event.why}"
        record.ended_at = None if record.started_at is None else event.at
    state.tasks.process_ended(record.task, event.at)
    state.tasks.drop(record.task)
