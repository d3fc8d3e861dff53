"""Events of hosts: an agent is ready, holds ports, has tried other hosts, is lost, has closed.

Before the first task starts, a host that fails ends the launch, but only when the other hosts have answered:
the user sees all faults at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher import events
from launcher.report import Failure, Reason, TaskState
from launcher.supervisor import restarting, returning
from launcher.supervisor.state import HOST_FAULT, JobState, Phase
from launcher.supervisor.tasks import TaskRecord
from launcher.task_id import TaskId
from launcher.text import listed

#: Seconds for the other agents to answer when a host has failed; for the check of the network.
OTHERS_LIMIT, CHECK_LIMIT = 10.0, 12.0
#: Each host connects to the next one and the one after it in the list.
_STEPS = (1, 2)
#: Why a host is lost whose agent ends without a command.
_ENDED_OUTSIDE = "its agent was stopped from outside; it stops its tasks"
_ADVICE = (
    "`address:` in a hostfile is the address that others connect to; --no-check starts the job all the same"
)


def agent_ready(job: JobState, event: events.AgentReady) -> None:
    """The agent of a host runs."""
    job.ready.add(event.host)
    if event.host in job.returning:
        returning.came_back(job, event.host)
    elif job.phase is Phase.CLOSING:  # it started after the other agents got CloseAgent
        job.do(events.CloseAgent(event.host))
    elif job.phase is Phase.STARTUP:
        tasks = tuple(record.task for record in job.by_host[event.host])
        job.do(*([events.HoldPorts(event.host, tasks)] if tasks else []))


def noticed(job: JobState, event: events.HostNotice) -> None:
    """The agent has a line for the user."""
    job.notices[event.host] = job.notices.get(event.host, 0) + 1
    job.notify(f"{event.host}: {event.text}")


def ports_held(job: JobState, event: events.PortsHeld) -> None:
    """A host holds its ports; with the last of them the plan can be made."""
    if event.host not in job.not_ready:
        return
    own = job.by_host[event.host]
    for record in own:
        record.port = event.ports.get(record.task, record.port)
    if all(record.port is not None for record in own):
        del job.not_ready[event.host]
        if not job.not_ready and job.may_plan():
            _try_peers(job)
    _stop_if_failed(job)


def ports_refused(job: JobState, event: events.PortsRefused) -> None:
    """A host has too few free ports."""
    if job.placing:
        why = f"it has no port for each of its tasks: {event.why}"
        agent_lost(job, events.AgentLost(event.host, event.at, why))
        return
    job.not_ready.pop(event.host, None)
    _refuse(job, event, f"{event.host} does not have a port for each of its tasks: {event.why}")
    _stop_if_failed(job)


def peers_tried(job: JobState, event: events.PeersTried) -> None:
    """A host has tried to connect to others; when all have, the plan can be made."""
    if event.host not in job.checking:
        return
    job.checking.discard(event.host)
    for address, why in event.unreachable.items():
        _refuse(job, event, f"{event.host} can't reach {address}: {why} ({_ADVICE})")
    if not job.checking and job.may_plan():
        job.do(events.CancelTimer("check"))
        _make_plan(job)
    _stop_if_failed(job)


def check_late(job: JobState) -> None:
    """The check of the network takes too long: start without its result, unless something has failed."""
    late = listed(sorted(job.checking))
    job.checking.clear()
    if job.may_plan():
        job.notify(f"continuing without the check of the network on {late}: no answer")
        _make_plan(job)
    _stop_if_failed(job)


def lose_hosts(job: JobState, hosts: Iterable[str], why: str, at: float) -> None:
    """Hosts that did not answer in time are lost."""
    for host in list(hosts):
        if host in job.agents and job.phase is not Phase.OVER:
            agent_lost(job, events.AgentLost(host, at, why))


def agent_lost(job: JobState, event: events.AgentLost) -> None:
    """The launcher has no link to the agent any more, and gets no further event of its tasks."""
    if event.host in job.returning and (job.tasks_end or job.phase is not Phase.RUNNING):
        returning.stays_lost(job, event.host)
        return
    own = job.belongs_to(event.host)
    lost = "can't be used" if event.host in job.not_ready or not job.by_host[event.host] else "is lost"
    lost = "can't be made again" if event.host in job.returning else lost
    job.drop_host(event.host)
    text = f"host {event.host} {lost}: {event.why.removeprefix(f'{event.host}: ')}"
    job.do(events.HangUp(event.host))
    returning.expect(job, event.host)
    job.forget_restarts(record.task for record in job.by_host[event.host])
    for record in job.open_on(event.host):
        _lose_task(job, record, event, lost)
    start_again, more = restarting.after_loss(job, own, event.at)
    text += more
    job.notify(text, urgent=True)
    if job.phase is Phase.CLOSING:  # no task of the job ran there any more
        job.finish_if_closed()
        return
    if start_again:
        return
    if own and job.moving is not None:
        job.forget_restarts(job.records)
    _fail(job, Reason.HOST_LOST, event.host, event.at, text, own)
    _stop_if_failed(job) if job.phase is Phase.STARTUP else job.continue_or_stop()
    if job.placing and not job.not_ready and not job.checking:  # it was the last that held no ports
        _try_peers(job)
    restarting.start_due(job)


def agent_closed(job: JobState, event: events.AgentClosed) -> None:
    """The agent closed on command, or was ended from outside."""
    if job.phase is Phase.CLOSING:
        job.drop_host(event.host)
        job.finish_if_closed()
    else:
        agent_lost(job, events.AgentLost(event.host, event.at, _ENDED_OUTSIDE))


def stopped_without_command(job: JobState, event: events.TaskSignalled) -> None:
    """An agent stops a task without a command, because the agent or its watchdog was ended from outside."""
    job.records[event.task].move(TaskState.STOPPING, event)
    if event.host not in job.self_stopping:
        job.self_stopping.add(event.host)
        if job.tasks_end is not None and job.restarts.limit:
            agent_lost(job, events.AgentLost(event.host, event.at, _ENDED_OUTSIDE))
            return
        text = f"host {event.host} is lost: {_ENDED_OUTSIDE}"
        job.notify(text, urgent=True)
        _fail(job, Reason.HOST_LOST, event.host, event.at, text, job.belongs_to(event.host))
        job.continue_or_stop()


def _refuse(job: JobState, event: events.PortsRefused | events.PeersTried, text: str) -> None:
    if job.phase is Phase.STARTUP or job.placing:
        job.notify(text, urgent=True)
        _fail(job, Reason.LAUNCHER, event.host, event.at, text, job.by_host[event.host])
    if job.placing:
        job.stop()


def _fail(job: JobState, reason: Reason, host: str, at: float, text: str, own: Sequence[TaskRecord]) -> None:
    """Record the fault of a host as the job's failure, unless the host has none of these tasks."""
    gathering = job.phase is Phase.STARTUP
    if own or (gathering and job.by_host[host]):
        first = job.fail(Failure(reason, None, host, at, text), HOST_FAULT)
        if first and gathering:
            job.do(events.SetTimer("rest", OTHERS_LIMIT))


def _stop_if_failed(job: JobState) -> None:
    """Before the first task starts: stop after a failure, when every host has answered."""
    if job.phase is Phase.STARTUP and job.failure is not None and not job.not_ready and not job.checking:
        job.stop()


def _make_plan(job: JobState) -> None:
    records = job.records.items()
    job.do(events.MakePlan({task: record.port for task, record in records if record.port is not None}))


def _try_peers(job: JobState) -> None:
    """Let each host connect to the next two in the list, so that each is also connected to by two."""
    hosts = tuple(host for host, own in job.by_host.items() if own and host in job.agents)
    if not job.check or len(hosts) == 1:
        _make_plan(job)
        return
    job.checking = set(hosts)
    job.do(events.SetTimer("check", CHECK_LIMIT))
    first = {host: job.by_host[host][0] for host in hosts}
    peers: dict[str, dict[TaskId, int]] = {}
    for index, host in enumerate(hosts):
        others = [first[hosts[(index + step) % len(hosts)]] for step in _STEPS]
        ports = {other.task: other.port for other in others if other.port is not None}
        peers[host] = {task: port for task, port in ports.items() if task != first[host].task}
    job.do(events.CheckNetwork(peers))


def _lose_task(job: JobState, record: TaskRecord, event: events.AgentLost, lost: str) -> None:
    if record.state is TaskState.ENDED:  # its exit is known: only its leftover processes are lost
        record.move(record.outcome, event)
    else:
        record.move(TaskState.LOST, event)
        record.reason = Reason.HOST_LOST
        record.detail = f"its host {lost}: {event.why}"
        record.ended_at = None if record.started_at is None else event.at
    job.process_ended(record.task, event.at)
    job.drop_task(record.task)
