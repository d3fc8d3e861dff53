"""What becomes of agents after they are ready: lost, closed, or ended from outside."""

from __future__ import annotations

from launcher import events
from launcher.events import Command, Tell
from launcher.report import Failure, Reason, TaskState
from launcher.supervisor import ending, messages, startup
from launcher.supervisor.hosts import AgentState
from launcher.supervisor.state import HOST_FAULT, JobState, Phase
from launcher.supervisor.tasks import TaskRecord


def agent_lost(job: JobState, event: events.AgentLost) -> list[Command]:
    """Nothing more will come from the host, and its tasks will not be seen again."""
    reached = not job.agents.is_early(event.host)
    job.agents.set(event.host, AgentState.LOST)
    job.checking.discard(event.host)
    text = messages.host_lost(event.host, event.why, reached)
    commands: list[Command] = [Tell(text, urgent=True), events.HangUp(event.host)]
    if job.phase is Phase.CLOSING:  # nothing of the job was there any more
        return commands + ending.finish_if_closed(job)
    for task in job.tasks.open_on(event.host):
        _lose_task(job, job.tasks.records[task], event, reached)
    _fail(job, event.host, event.at, text)
    return startup.go_on(job, commands) if job.phase is Phase.GATHERING else ending.judge(job, commands)


def agent_closed(job: JobState, event: events.AgentClosed) -> list[Command]:
    """It closed on command, or was ended from outside."""
    if job.phase is not Phase.CLOSING:
        return agent_lost(job, events.AgentLost(event.host, event.at, messages.LEFT))
    job.agents.set(event.host, AgentState.CLOSED)
    return ending.finish_if_closed(job)


def stopped_without_command(job: JobState, event: events.TaskSignalled) -> list[Command]:
    """An agent stops a task without a command: the agent, or its watchdog, was ended from outside."""
    job.tasks.records[event.task].move(TaskState.STOPPING, event)
    if job.agents.is_leaving(event.host):
        return []
    job.agents.set(event.host, AgentState.LEAVING)
    text = f"host {event.host} is lost: {messages.LEFT}"
    _fail(job, event.host, event.at, text)
    return ending.judge(job, [Tell(text, urgent=True)])


def _lose_task(job: JobState, record: TaskRecord, event: events.AgentLost, reached: bool) -> None:
    if record.state is TaskState.ENDED:  # its own end was seen: only its leftover processes are lost
        record.move(record.outcome, event)
    else:
        record.move(TaskState.LOST, event)
        record.reason = Reason.HOST_LOST
        record.detail = f"its host {messages.lost_how(reached)}: {event.why}"
        record.ended_at = None if record.started_at is None else event.at
    if job.tasks.ended(record.task):
        job.decided(event.at)
    job.tasks.over(record.task)


def _fail(job: JobState, host: str, at: float, text: str) -> None:
    """A lost host is the job's failure, unless the job has begun and only sidecars ran there."""
    if job.phase is Phase.GATHERING or not job.tasks.only_sidecars_on(host):
        job.fail(Failure(Reason.HOST_LOST, None, host, at, text), HOST_FAULT)
