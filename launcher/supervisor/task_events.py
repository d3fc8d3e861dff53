"""What becomes of tasks: started or not, signalled, exited, gone."""

from __future__ import annotations

from launcher import events
from launcher.events import Command, Tell
from launcher.job import TaskId
from launcher.report import ExitStatus, Failure, Reason, TaskState
from launcher.supervisor import ending, host_events
from launcher.supervisor.state import SIGABRT, JobState, Phase
from launcher.supervisor.tasks import SIGKILL, TaskRecord
from launcher.text import KNOWN_SIGNALS, counted, duration, listed, signal_name

#: Seconds after which TensorFlow's collectives miss a peer that has ended, and some more.
_LATELY = 60.0
#: Tasks that have a message of their own about not ending on SIGTERM.
_MOST_STUBBORN = 3
_SIGNAL_HINTS = {
    4: "it used an instruction that this CPU does not have: perhaps it was built for another CPU",
    7: "a mapped file was truncated, or shared memory (/dev/shm) is full",
    9: "launch did not send it: an administrator, a batch system, a limit of CPU time (`ulimit -t`), or lack "
    "of memory (`dmesg` may show it)",
    11: "it crashed in native code: a stack may be in its log (PYTHONFAULTHANDLER is set)",
    24: "it has used all the CPU time that it may use (`ulimit -t`)",
    25: "a file would have become larger than allowed (`ulimit -f`)",
}
_START_REASONS = {127: Reason.NOT_FOUND, 126: Reason.NOT_RUNNABLE}


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
    record.reason = _START_REASONS.get(event.code, Reason.LAUNCHER)
    record.detail = event.why
    record.ended_at = event.at
    job.ended(event.task, event.at)
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
    if event.signal != SIGABRT:
        return []
    job.stubborn += 1
    if job.stubborn > _MOST_STUBBORN + 1:
        return []
    subject = "more tasks" if job.stubborn > _MOST_STUBBORN else str(event.task)
    if record.status.known:
        subject = f"a process that {subject} left behind"
    text = "did not end on SIGTERM: sent SIGABRT, so that Python shows its stacks; SIGKILL is next"
    drain = "; the job was done: if it ends by itself a little later, `--drain 60s` allows it"
    return [Tell(f"{subject} {text}{drain if _advise_drain(job, record) else ''}")]


def exited(job: JobState, event: events.TaskExited) -> list[Command]:
    """Its own process is over."""
    record = job.tasks.records[event.task]
    may_go_on = job.phase is Phase.DRAINING and record.task in job.draining.staying()
    too_late = job.too_late(event.at) and not may_go_on
    record.move(TaskState.ENDED, event)
    record.status = ExitStatus(event.code, event.signal)
    record.ended_at, record.peak_rss, record.cpu_s = event.at, event.peak_rss, event.cpu_s
    record.detail = f"exit code {event.code}"
    if event.signal is not None:
        oom = f", out of memory ({event.oom})" if event.oom else ""
        record.detail = f"killed by {signal_name(event.signal)}{oom}"
    job.ended(event.task, event.at)
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
        pids = ", ".join(map(str, event.unkillable))
        text = f"{event.task}: SIGKILL did not end pid {pids}{job.on(event.host)}"
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
    record.reason = Reason.EXIT if event.signal is None else Reason.SIGNAL
    if event.oom and event.signal == SIGKILL:
        record.reason = Reason.OUT_OF_MEMORY
    record.outcome = TaskState.SUCCEEDED if record.status.ok else TaskState.FAILED
    if record.status.ok:
        early = record.service and job.tasks.undecided
        return [Tell(f"{record.task} ended by itself (exit code 0) before the job was done")] if early else []
    after = "" if record.started_at is None else f" after {duration(event.at - record.started_at)}"
    text = f"{record.task} failed{job.on(record.host)}{after}: {record.detail}"
    hint = _exit_hint(event) or _peers_hint(job, record, event.at)
    return _fail(job, record, Failure(record.reason, record.task, record.host, event.at, text, hint))


def _fail(job: JobState, record: TaskRecord, failure: Failure) -> list[Command]:
    """Report it. The failure of a sidecar is not the job's."""
    if record.sidecar:
        return [Tell(f"{failure.text}; it is a sidecar: the job does not depend on it")]
    return ending.failure_message(job, failure.text, job.fail(failure, record.status.shell))


def _exit_hint(event: events.TaskExited) -> str:
    """What the user could look at; may be empty."""
    if event.oom:
        return "give it a machine with more memory, or make its batches or caches smaller"
    if event.signal is not None:
        return _SIGNAL_HINTS.get(event.signal, "")
    if event.code in (126, 127):
        return "126 and 127 are what a shell returns when a program can't be run or found: see its last lines"
    number = (event.code or 0) - 128
    if number in KNOWN_SIGNALS:
        return f"{event.code} is what a shell returns when its program was killed by {signal_name(number)}"
    return ""


def _peers_hint(job: JobState, record: TaskRecord, at: float) -> str:
    """For a Python program whose peers had succeeded shortly before: collectives end with them."""
    ended = job.tasks.succeeded() if record.runs_python and not record.service else {}
    lately = {task: then for task, then in ended.items() if at - _LATELY <= then <= at}
    if not lately:
        return ""
    before = f"{listed([*lately])} had ended with 0, {duration(at - max(lately.values()))} before"
    return f"{before}: tasks that communicate collectively must end together"
