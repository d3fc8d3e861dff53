"""Events of hosts: an agent is ready, holds ports, has tried other hosts, is lost, has closed.

Before the first task starts, a host that fails ends the launch, but only when the other hosts have answered:
the user sees all faults at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.report import Failure, Reason, TaskState
from launcher.common.text import join_names
from launcher.supervisor import moving, restarting
from launcher.supervisor.ending import continue_or_stop, finish_if_closed, stop
from launcher.supervisor.hosts import HostRecord, HostState
from launcher.supervisor.state import HOST_FAULT, START_REASONS, JobState, Phase
from launcher.supervisor.tasks import TaskRecord

#: Seconds for the other agents to answer when a host has failed; for the check of the network.
OTHERS_LIMIT = 10.0
CHECK_LIMIT = 12.0
#: Each host connects to the next one and the one after it in the list.
_STEPS = (1, 2)
#: Why a host is lost whose agent exits without being asked to.
_ENDED_OUTSIDE = "its agent was stopped from outside; it stops its tasks"
_ADVICE = (
    "`address:` in a hostfile is the address that others connect to; --no-check starts the job all the same"
)


def agent_ready(job: JobState, event: events.AgentReady) -> None:
    """The agent of a host runs."""
    host = job.hosts[event.host]
    if host.state is HostState.RETURNING:
        moving.came_back(job, host, event)
        if job.moving is not None:
            restarting.start_if_due(job, job.moving)
        return
    host.ready = True
    if host.state is HostState.STARTING:
        host.move(HostState.READY, event)
    if job.phase is Phase.CLOSING:  # it started after the other agents got CloseAgent
        job.do(events.CloseAgent(event.host))
    elif host.state is HostState.HOLDING:
        job.do(host.hold_ports())


def noticed(job: JobState, event: events.HostNotice) -> None:
    """The agent has a line for the user."""
    job.hosts[event.host].notices += 1
    job.notify(f"{event.host}: {event.text}")


def ports_held(job: JobState, event: events.PortsHeld) -> None:
    """A host holds its ports; with the last of them the plan can be made."""
    host = job.hosts[event.host]
    if host.state is not HostState.HOLDING:
        return
    for record in host.tasks:
        record.port = event.ports.get(record.task, record.port)
    if all(record.port is not None for record in host.tasks):
        host.move(HostState.READY, event)
        _try_peers_if_held(job)
    _stop_if_failed(job)


def ports_refused(job: JobState, event: events.PortsRefused) -> None:
    """A host has too few free ports, or can't use the environment of its tasks."""
    reason = START_REASONS.get(event.code)
    if job.placing:
        why = event.why if reason else f"it has no port for each of its tasks: {event.why}"
        agent_lost(job, events.AgentLost(event.host, event.at, why))
        return
    host = job.hosts[event.host]
    if host.state is HostState.HOLDING:
        host.move(HostState.READY, event)
    if reason is None:
        _refuse(job, event, f"{event.host} does not have a port for each of its tasks: {event.why}")
    elif job.phase is Phase.STARTUP and host.tasks:
        host.no_environment = event.why
        if job.fail(Failure(reason, None, host.name, event.at, event.why), event.code):
            job.do(events.SetTimer("rest", OTHERS_LIMIT))
    _stop_if_failed(job)


def peers_tried(job: JobState, event: events.PeersTried) -> None:
    """A host has tried to connect to others; when all have, the plan can be made."""
    host = job.hosts[event.host]
    if host.state is not HostState.TRYING:
        return
    host.move(HostState.READY, event)
    for address, why in event.unreachable.items():
        _refuse(job, event, f"{event.host} can't reach {address}: {why} ({_ADVICE})")
    if not job.hosts.have(HostState.TRYING) and job.may_plan():
        job.do(events.CancelTimer("check"))
        _make_plan(job)
    _stop_if_failed(job)


def check_late(job: JobState, _: events.TimeUp) -> None:
    """The check of the network takes too long: start without its result, unless something has failed."""
    late = job.hosts.names(HostState.TRYING)
    for host in late:
        job.hosts[host].withdraw()
    if job.may_plan():
        job.notify(f"continuing without the check of the network on {join_names(late)}: no answer")
        _make_plan(job)
    _stop_if_failed(job)


def lose_hosts(job: JobState, hosts: Iterable[str], why: str, at: float) -> None:
    """Hosts that did not answer in time are lost."""
    for host in list(hosts):
        if job.hosts[host].active and job.phase is not Phase.OVER:
            agent_lost(job, events.AgentLost(host, at, why))


def agent_lost(job: JobState, event: events.AgentLost) -> None:
    """The launcher has no link to the agent any more, and gets no further event of its tasks."""
    host, restart = job.hosts[event.host], job.moving
    again = host.state is HostState.RETURNING
    if again and (job.tasks_end or job.phase is not Phase.RUNNING):
        moving.stays_lost(job, host, event)
        return
    lost = "can't be used" if host.state is HostState.HOLDING or not host.tasks else "is lost"
    lost = "can't be made again" if again else lost
    host.move(HostState.LOST, event)
    why = event.why.removeprefix(f"{event.host}: ")
    text = f"host {event.host if again else job.with_node(event.host)} {lost}: {why}"
    if not again:  # else its new agent was never reached: there is no link to close
        job.do(events.CloseLink(event.host))
    moving.expect_back(job, event.host)
    forgotten = job.forget_restarts(record.task for record in host.tasks)
    for record in host.tasks:
        if record.task in job.tasks.open:
            _lose_task(job, record, event, lost)
    start_again = False
    if not event.all_gone:
        start_again, more = restarting.after_loss(job, host, restart, event, why)
        text += more
    job.notify(text, urgent=True)
    if job.phase is Phase.CLOSING:  # no task of the job ran there any more
        finish_if_closed(job)
        return
    if start_again:
        return
    if host.own and restart is not None:
        job.forget_restarts(job.tasks)
    _fail(job, Reason.HOST_LOST, host, event.at, text, host.own)
    _stop_if_failed(job) if job.phase is Phase.STARTUP else continue_or_stop(job)
    if job.placing:  # it may have been the last that held no ports
        _try_peers_if_held(job)
    for other in dict.fromkeys(forgotten.values()):
        restarting.start_if_due(job, other)


def agent_closed(job: JobState, event: events.AgentClosed) -> None:
    """The agent closed on command, or was ended from outside."""
    if job.phase is Phase.CLOSING:
        job.hosts[event.host].move(HostState.CLOSED, event)
        finish_if_closed(job)
    else:
        agent_lost(job, events.AgentLost(event.host, event.at, _ENDED_OUTSIDE))


def stopped_without_command(job: JobState, event: events.TaskSignalled) -> None:
    """An agent stops a task without a command, because the agent or its watchdog was ended from outside."""
    host = job.hosts[event.host]
    job.tasks[event.task].move(TaskState.STOPPING, event)
    if host.state is HostState.ENDING:
        return
    if job.tasks_end is not None and job.restarts.limit:
        agent_lost(job, events.AgentLost(event.host, event.at, _ENDED_OUTSIDE))
        return
    host.move(HostState.ENDING, event)
    text = f"host {job.with_node(event.host)} is lost: {_ENDED_OUTSIDE}"
    job.notify(text, urgent=True)
    _fail(job, Reason.HOST_LOST, host, event.at, text, host.own)
    continue_or_stop(job)


def _refuse(job: JobState, event: events.PortsRefused | events.PeersTried, text: str) -> None:
    host = job.hosts[event.host]
    if job.phase is Phase.STARTUP or job.placing:
        job.notify(text, urgent=True)
        _fail(job, Reason.LAUNCHER, host, event.at, text, host.tasks)
    if job.placing:
        stop(job)


def _fail(
    job: JobState, reason: Reason, host: HostRecord, at: float, text: str, own: Sequence[TaskRecord]
) -> None:
    """Record the fault of a host as the job's failure, unless the host has none of these tasks."""
    gathering = job.phase is Phase.STARTUP
    if own or (gathering and host.tasks):
        first = job.fail(Failure(reason, None, host.name, at, text), HOST_FAULT)
        if first and gathering:
            job.do(events.SetTimer("rest", OTHERS_LIMIT))


def _stop_if_failed(job: JobState) -> None:
    """Before the first task starts: stop after a failure, when every host has answered."""
    waiting = job.hosts.have(HostState.HOLDING, HostState.TRYING)
    if job.phase is Phase.STARTUP and job.failure is not None and not waiting:
        _name_missing_environments(job, job.failure)
        stop(job)


def _name_missing_environments(job: JobState, failure: Failure) -> None:
    """Name all hosts whose tasks can't use their environment."""
    found: dict[str, list[HostRecord]] = {}
    for host in job.hosts.values():
        if host.no_environment:
            found.setdefault(host.no_environment, []).append(host)
    texts = [f"{why} on {', '.join(host.name for host in hosts)}" for why, hosts in found.items()]
    names = dict.fromkeys(hosts[0].host.venv for hosts in found.values())
    commands = [f"`{job.prepare} --name {name}`" for name in names if name and "/" not in name]
    text, hint = "; ".join(texts), f"{' and '.join(commands)} would make it" if commands else ""
    if failure.reason in START_REASONS.values():
        job.failure = failure._replace(text=text, hint=hint)
    elif found:
        job.notify(f"{text}; {hint}" if hint else text, urgent=True)


def _make_plan(job: JobState) -> None:
    records = job.tasks.items()
    job.do(events.MakePlan({task: record.port for task, record in records if record.port is not None}))


def _try_peers_if_held(job: JobState) -> None:
    """When all hosts hold their ports, let each connect to the next two in the list.

    So each is also connected to by two.
    """
    if job.hosts.have(HostState.HOLDING, HostState.TRYING) or not job.may_plan():
        return
    hosts = [host for host in job.hosts.values() if host.tasks and host.active]
    if not job.check or len(hosts) == 1:
        _make_plan(job)
        return
    job.do(events.SetTimer("check", CHECK_LIMIT))
    peers: dict[str, dict[TaskId, int]] = {}
    for index, host in enumerate(hosts):
        host.move(HostState.TRYING, "all hosts hold their ports")
        others = [hosts[(index + step) % len(hosts)] for step in _STEPS]
        ports = {other.tasks[0].task: other.tasks[0].port for other in others if other is not host}
        peers[host.name] = {task: port for task, port in ports.items() if port is not None}
    job.do(events.CheckNetwork(peers))


def _lose_task(job: JobState, record: TaskRecord, event: events.AgentLost, lost: str) -> None:
    if record.state is TaskState.ENDED:  # its exit is known: only its leftover processes are lost
        record.move(record.outcome, event)
    else:
        record.move(TaskState.LOST, event)
        record.reason = Reason.HOST_LOST
        record.detail = f"its host {lost}: {event.why}"
        record.ended_at = None if record.started_at is None else event.at
    job.tasks.process_ended(record.task, event.at)
    job.tasks.drop(record.task)
