"""Events of hosts: agents come up, hold ports, reach other hosts; they are lost, or closed.

Before anything is started a host that fails ends the launch, but not before the others have answered: with
forty hosts the user wants to see all faults at once.
"""

from __future__ import annotations

from launcher import events
from launcher.events import Command, Tell
from launcher.report import Failure, Reason, TaskState
from launcher.supervisor import ending
from launcher.supervisor.state import HOST_FAULT, AgentState, JobState, Phase
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


def agent_ready(job: JobState, event: events.AgentReady) -> list[Command]:
    """An agent has answered."""
    if job.phase is Phase.CLOSING:  # it came up after the others were closed
        return [events.CloseAgent(event.host)]
    job.agents.set(event.host, AgentState.READY)
    return _go_on(job, [events.HoldPorts(event.host, job.tasks.on(event.host))])


def ports_held(job: JobState, event: events.PortsHeld) -> list[Command]:
    """A host holds its ports; with the last of them the plan can be made."""
    job.agents.set(event.host, AgentState.HOLDING)
    for task, port in event.ports.items():
        job.tasks.records[task].port = port
    commands: list[Command] = []
    if all(state is AgentState.HOLDING for state in job.agents.states.values()):
        commands = _try_peers(job) if job.check else _make_plan(job)
    return _go_on(job, commands)


def ports_refused(job: JobState, event: events.PortsRefused) -> list[Command]:
    """A host has too few ports."""
    job.agents.set(event.host, AgentState.REFUSED)
    text = f"{event.host} does not have a port for each of its tasks: {event.why}"
    job.fail(Failure(Reason.LAUNCHER, None, event.host, event.at, text), HOST_FAULT)
    return _go_on(job, [Tell(text, urgent=True)])


def peers_tried(job: JobState, event: events.PeersTried) -> list[Command]:
    """A host has tried to reach others; when all have, the plan can be made."""
    if event.host not in job.checking:
        return _go_on(job, [])
    job.checking.discard(event.host)
    commands: list[Command] = []
    for address, why in event.unreachable.items():
        text = f"{event.host} can't reach {address}: {why} ({_ADVICE})"
        job.fail(Failure(Reason.LAUNCHER, None, event.host, event.at, text), HOST_FAULT)
        commands.append(Tell(text, urgent=True))
    if not job.checking and job.failure is None:
        commands += [events.CancelTimer("check"), *_make_plan(job)]
    return _go_on(job, commands)


def check_late(job: JobState) -> list[Command]:
    """The check of the network takes too long: start without it, if nothing else is wrong."""
    late = listed(sorted(job.checking))
    job.checking.clear()
    commands: list[Command] = []
    if job.failure is None:
        text = f"going on without the check of the network on {late}: no answer"
        commands = [Tell(text), *_make_plan(job)]
    return _go_on(job, commands)


def _go_on(job: JobState, commands: list[Command]) -> list[Command]:
    """Go on, or give up once every host has answered."""
    if job.phase is not Phase.GATHERING or job.failure is None:
        return commands if job.phase is Phase.GATHERING else []
    if not job.agents.early() and not job.checking:
        return ending.stop(job, commands)
    if not job.answers_limited:
        job.answers_limited = True
        commands.append(events.SetTimer("rest", REST_LIMIT))
    return commands


def _make_plan(job: JobState) -> list[Command]:
    records = job.tasks.records.items()
    return [events.MakePlan({task: record.port for task, record in records if record.port is not None})]


def _try_peers(job: JobState) -> list[Command]:
    """Each host tries the next two: together that is both directions, and little work for each."""
    hosts = tuple(job.agents.states)
    job.checking = set(hosts)
    commands: list[Command] = [events.SetTimer("check", CHECK_LIMIT)]
    for index, host in enumerate(hosts):
        others = dict.fromkeys(hosts[(index + step) % len(hosts)] for step in _STEPS)
        addresses = (
            job.tasks.records[job.tasks.on(other)[0]].reached_at for other in others if other != host
        )
        commands.append(events.TryPeers(host, tuple(addresses)))
    return commands


def agent_lost(job: JobState, event: events.AgentLost) -> list[Command]:
    """Nothing more will come from the host, and its tasks will not be seen again."""
    # Whether it is lost: a host that never was ready can't be used.
    lost = "can't be used" if event.host in job.agents.early() else "is lost"
    job.agents.set(event.host, AgentState.LOST)
    job.checking.discard(event.host)
    text = f"host {event.host} {lost}: {event.why.removeprefix(f'{event.host}: ')}"
    commands: list[Command] = [Tell(text, urgent=True), events.HangUp(event.host)]
    if job.phase is Phase.CLOSING:  # nothing of the job was there any more
        return commands + ending.finish_if_closed(job)
    for task in job.tasks.open_on(event.host):
        _lose_task(job, job.tasks.records[task], event, lost)
    _fail(job, event.host, event.at, text)
    return _go_on(job, commands) if job.phase is Phase.GATHERING else ending.judge(job, commands)


def agent_closed(job: JobState, event: events.AgentClosed) -> list[Command]:
    """It closed on command, or was ended from outside."""
    if job.phase is not Phase.CLOSING:
        return agent_lost(job, events.AgentLost(event.host, event.at, _LEFT))
    job.agents.set(event.host, AgentState.CLOSED)
    return ending.finish_if_closed(job)


def stopped_without_command(job: JobState, event: events.TaskSignalled) -> list[Command]:
    """An agent stops a task without a command: the agent, or its watchdog, was ended from outside."""
    job.tasks.records[event.task].move(TaskState.STOPPING, event)
    if job.agents.states[event.host] is AgentState.LEAVING:
        return []
    job.agents.set(event.host, AgentState.LEAVING)
    text = f"host {event.host} is lost: {_LEFT}"
    _fail(job, event.host, event.at, text)
    return ending.judge(job, [Tell(text, urgent=True)])


def _lose_task(job: JobState, record: TaskRecord, event: events.AgentLost, lost: str) -> None:
    if record.state is TaskState.ENDED:  # its own end was seen: only its leftover processes are lost
        record.move(record.outcome, event)
    else:
        record.move(TaskState.LOST, event)
        record.reason = Reason.HOST_LOST
        record.detail = f"its host {lost}: {event.why}"
        record.ended_at = None if record.started_at is None else event.at
    job.ended(record.task, event.at)
    job.tasks.over(record.task)


def _fail(job: JobState, host: str, at: float, text: str) -> None:
    """A lost host is the job's failure, unless the job has begun and only sidecars ran there."""
    if job.phase is Phase.GATHERING or not job.tasks.only_sidecars_on(host):
        job.fail(Failure(Reason.HOST_LOST, None, host, at, text), HOST_FAULT)
