"""Events of hosts: agents come up, hold ports, reach other hosts; they are lost, or closed.

Before anything is started a host that fails ends the launch, but not before the others have answered: with
forty hosts the user wants to see all faults at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher import events
from launcher.report import Failure, Reason, TaskState
from launcher.supervisor.state import HOST_FAULT, JobState, Phase
from launcher.supervisor.tasks import TaskRecord
from launcher.text import listed

#: Seconds for the other agents to answer once a host has failed; for the check of the network.
REST_LIMIT, CHECK_LIMIT = 10.0, 10.0
#: Each host connects to the next one and the one after it in the list.
_STEPS = (1, 2)
#: Of an agent that ends without a command.
_LEFT = "its agent was ended from outside, and ends its tasks"
_ADVICE = (
    "the address: of a host in a hostfile is what others connect to; --no-check starts the job all the same"
)


def agent_ready(job: JobState, event: events.AgentReady) -> None:
    """An agent has answered."""
    if job.phase is Phase.CLOSING:  # it came up after the others were closed
        job.do(events.CloseAgent(event.host))
    elif job.phase is Phase.GATHERING:
        tasks = tuple(record.task for record in job.by_host[event.host])
        job.do(events.HoldPorts(event.host, tasks))


def ports_held(job: JobState, event: events.PortsHeld) -> None:
    """A host holds its ports; with the last of them the plan can be made."""
    for task, port in event.ports.items():
        job.records[task].port = port
    job.early.pop(event.host, None)
    if job.phase is Phase.GATHERING and not job.early and job.failure is None:
        _try_peers(job) if job.check else _make_plan(job)
    _give_up_if_failed(job)


def ports_refused(job: JobState, event: events.PortsRefused) -> None:
    """A host has too few ports."""
    job.early.pop(event.host, None)
    _refuse(job, event, f"{event.host} does not have a port for each of its tasks: {event.why}")
    _give_up_if_failed(job)


def peers_tried(job: JobState, event: events.PeersTried) -> None:
    """A host has tried to reach others; when all have, the plan can be made."""
    if event.host not in job.checking:
        return
    job.checking.discard(event.host)
    for address, why in event.unreachable.items():
        _refuse(job, event, f"{event.host} can't reach {address}: {why} ({_ADVICE})")
    if not job.checking and job.failure is None:
        job.do(events.CancelTimer("check"))
        _make_plan(job)
    _give_up_if_failed(job)


def check_late(job: JobState) -> None:
    """The check of the network takes too long: start without it, if nothing else is wrong."""
    late = listed(sorted(job.checking))
    job.checking.clear()
    if job.failure is None:
        job.notify(f"going on without the check of the network on {late}: no answer")
        _make_plan(job)
    _give_up_if_failed(job)


def lose(job: JobState, hosts: Iterable[str], why: str, at: float) -> None:
    """Hosts that did not answer in time are lost."""
    for host in list(hosts):
        if host in job.agents and job.phase is not Phase.OVER:
            agent_lost(job, events.AgentLost(host, at, why))


def agent_lost(job: JobState, event: events.AgentLost) -> None:
    """Nothing more will come from the host, and its tasks will not be seen again."""
    # Whether it is lost: a host that never was ready can't be used.
    lost = "can't be used" if event.host in job.early else "is lost"
    job.left(event.host)
    text = f"host {event.host} {lost}: {event.why.removeprefix(f'{event.host}: ')}"
    job.notify(text, urgent=True)
    job.do(events.HangUp(event.host))
    if job.phase is Phase.CLOSING:  # nothing of the job was there any more
        job.finish_if_closed()
        return
    for record in job.open_on(event.host):
        _lose_task(job, record, event, lost)
    _fail(job, Reason.HOST_LOST, event.host, event.at, text)
    _give_up_if_failed(job) if job.phase is Phase.GATHERING else job.judge()


def agent_closed(job: JobState, event: events.AgentClosed) -> None:
    """It closed on command, or was ended from outside."""
    if job.phase is Phase.CLOSING:
        job.left(event.host)
        job.finish_if_closed()
    else:
        agent_lost(job, events.AgentLost(event.host, event.at, _LEFT))


def stopped_without_command(job: JobState, event: events.TaskSignalled) -> None:
    """An agent stops a task without a command: the agent, or its watchdog, was ended from outside."""
    job.records[event.task].move(TaskState.STOPPING, event)
    if event.host not in job.leaving:
        job.leaving.add(event.host)
        text = f"host {event.host} is lost: {_LEFT}"
        job.notify(text, urgent=True)
        _fail(job, Reason.HOST_LOST, event.host, event.at, text)
        job.judge()


def _refuse(job: JobState, event: events.PortsRefused | events.PeersTried, text: str) -> None:
    if job.phase is Phase.GATHERING:
        job.notify(text, urgent=True)
        _fail(job, Reason.LAUNCHER, event.host, event.at, text)


def _fail(job: JobState, reason: Reason, host: str, at: float, text: str) -> None:
    """The fault of a host is the job's failure, unless the job has begun and only sidecars run there."""
    gathering = job.phase is Phase.GATHERING
    if gathering or not all(record.sidecar for record in job.by_host[host]):
        first = job.fail(Failure(reason, None, host, at, text), HOST_FAULT)
        if first and gathering:
            job.do(events.SetTimer("rest", REST_LIMIT))


def _give_up_if_failed(job: JobState) -> None:
    """Before the start: stop after a failure, once every host has answered."""
    if job.phase is Phase.GATHERING and job.failure is not None and not job.early and not job.checking:
        job.stop()


def _make_plan(job: JobState) -> None:
    records = job.records.items()
    job.do(events.MakePlan({task: record.port for task, record in records if record.port is not None}))


def _try_peers(job: JobState) -> None:
    """Each host tries the next two: together that is both directions, and little work for each."""
    hosts = tuple(job.by_host)
    job.checking = set(hosts)
    job.do(events.SetTimer("check", CHECK_LIMIT))
    for index, host in enumerate(hosts):
        others = dict.fromkeys(hosts[(index + step) % len(hosts)] for step in _STEPS)
        addresses = tuple(job.by_host[other][0].reached_at for other in others if other != host)
        job.do(events.TryPeers(host, addresses))


def _lose_task(job: JobState, record: TaskRecord, event: events.AgentLost, lost: str) -> None:
    if record.state is TaskState.ENDED:  # its own end was seen: only its leftover processes are lost
        record.move(record.outcome, event)
    else:
        record.move(TaskState.LOST, event)
        record.reason = Reason.HOST_LOST
        record.detail = f"its host {lost}: {event.why}"
        record.ended_at = None if record.started_at is None else event.at
    job.ended(record.task, event.at)
    job.over(record.task)
