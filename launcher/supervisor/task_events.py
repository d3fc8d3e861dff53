"""What becomes of tasks: started or not, signalled, exited, gone."""

from __future__ import annotations

from launcher import events
from launcher.events import Command, Tell
from launcher.job import TaskId
from launcher.report import ExitStatus, Failure, Reason, TaskState
from launcher.supervisor import ending, host_events, messages, stopping
from launcher.supervisor.state import JobState, Phase
from launcher.supervisor.tasks import TaskRecord
from launcher.text import counted, duration

#: Seconds after which TensorFlow's collectives miss a peer that has ended, and some more.
_LATELY = 60.0
#: Tasks that have a message of their own about not ending on SIGTERM.
_MOST_STUBBORN = 3


def started(job: JobState, event: events.TaskStarted) -> list[Command]:
    """Its process exists."""
    record = job.tasks.records[event.task]
    record.pid, record.started_at = event.pid, event.at
    if record.state is TaskState.STARTING:
        record.move(TaskState.RUNNING, event)
    return _start_answered(job, event.task)


def not_started(job: JobState, event: events.TaskNotStarted) -> list[Command]:
    """It could not be started, and is over."""
    record = job.tasks.records[event.task]
    record.move(TaskState.FAILED, event)
    record.status = ExitStatus(code=event.code)
    record.reason, record.detail = messages.start_reason(event.code), event.why
    record.ended_at = event.at
    if job.tasks.ended(event.task):
        job.decided(event.at)
    job.tasks.over(event.task)
    text = f"{event.task} could not be started{job.on(event.host)}: {event.why}"
    commands = _fail(job, record, Failure(record.reason, event.task, event.host, event.at, text))
    return _start_answered(job, event.task) + ending.judge(job, commands)


def signalled(job: JobState, event: events.TaskSignalled) -> list[Command]:
    """A signal of a stop sequence reached it."""
    record = job.tasks.records[event.task]
    record.signalled = record.signalled or not record.status.known
    if record.state in (TaskState.STARTING, TaskState.RUNNING):
        return host_events.stopped_without_command(job, event)
    if event.signal != stopping.SIGABRT:
        return []
    job.stubborn += 1
    if job.stubborn > _MOST_STUBBORN + 1:
        return []
    name = "more tasks" if job.stubborn > _MOST_STUBBORN else str(event.task)
    return [Tell(messages.stubborn(name, record.status.known, _advise_drain(job, record)))]


def exited(job: JobState, event: events.TaskExited) -> list[Command]:
    """Its own process is over."""
    record = job.tasks.records[event.task]
    may_go_on = job.phase is Phase.DRAINING and record.task in job.draining.staying()
    too_late = job.too_late(event.at) and not may_go_on
    record.move(TaskState.ENDED, event)
    record.status = ExitStatus(event.code, event.signal)
    record.ended_at, record.peak_rss, record.cpu_s = event.at, event.peak_rss, event.cpu_s
    record.detail = messages.exit_detail(record.status, event.oom)
    if job.tasks.ended(event.task):
        job.decided(event.at)
    if record.signalled or (too_late and not record.status.ok):
        record.outcome, record.reason = TaskState.STOPPED, Reason.STOPPED
        return ending.judge(job, [])
    return ending.judge(job, _exited_by_itself(job, record, event))


def gone(job: JobState, event: events.TaskGone) -> list[Command]:
    """All its processes are over, or can't be killed."""
    record = job.tasks.records[event.task]
    record.leftovers, record.unkillable = event.leftovers, event.unkillable
    commands: list[Command] = []
    if event.leftovers and not record.killed_by_us:
        left = counted(event.leftovers, "process", "processes")
        commands.append(Tell(f"{event.task} left {left} behind: ended by us"))
    if event.unkillable:
        text = messages.unkillable(event.task, event.unkillable) + job.on(event.host)
        commands.append(Tell(text, urgent=True))
    if not record.status.known:
        record.reason, record.detail = Reason.STOPPED, "SIGKILL did not end it"
    record.move(record.outcome, event)
    job.tasks.over(event.task)
    return ending.judge(job, commands)


def _start_answered(job: JobState, task: TaskId) -> list[Command]:
    job.tasks.starting.discard(task)
    if job.tasks.starting or job.phase not in (Phase.RUNNING, Phase.DRAINING):
        return []
    done: list[Command] = [events.CancelTimer("start")]
    return [*done, events.CancelTimer("patience")] if job.phase is Phase.RUNNING else done


def _advise_drain(job: JobState, record: TaskRecord) -> bool:
    """Whether ``--drain`` would have helped a task that was stopped because the chief was done; once."""
    cut_off = not (record.service or record.status.known or record.drain)
    if job.advised_drain or not (cut_off and job.was_done):
        return False
    job.advised_drain = True
    return True


def _exited_by_itself(job: JobState, record: TaskRecord, event: events.TaskExited) -> list[Command]:
    record.reason = messages.exit_reason(record.status, event.oom)
    record.outcome = TaskState.SUCCEEDED if record.status.ok else TaskState.FAILED
    if record.status.ok:
        early = record.service and job.tasks.undecided
        return [Tell(f"{record.task} ended by itself (exit code 0) before the job was done")] if early else []
    after = "" if record.started_at is None else f" after {duration(event.at - record.started_at)}"
    text = f"{record.task} failed{job.on(record.host)}{after}: {record.detail}"
    hint = messages.exit_hint(record.status, event.oom) or _peers_hint(job, record, event.at)
    return _fail(job, record, Failure(record.reason, record.task, record.host, event.at, text, hint))


def _fail(job: JobState, record: TaskRecord, failure: Failure) -> list[Command]:
    """Report it. The failure of a sidecar is not the job's."""
    if record.sidecar:
        return [Tell(f"{failure.text}; it is a sidecar: the job does not depend on it")]
    return ending.failure_message(job, failure.text, job.fail(failure, record.status.shell))


def _peers_hint(job: JobState, record: TaskRecord, at: float) -> str:
    """For a Python program whose peers had succeeded shortly before: collectives end with them."""
    ended = job.tasks.succeeded() if record.runs_python and not record.service else {}
    lately = {task: then for task, then in ended.items() if at - _LATELY <= then <= at}
    return messages.ended_before([*lately], at - max(lately.values(), default=at))
