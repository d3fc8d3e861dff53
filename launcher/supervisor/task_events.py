"""Events of tasks: started or not started, signalled, exited, gone."""

from __future__ import annotations

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.report import ExitStatus, Failure, Reason, TaskState
from launcher.common.text import KNOWN_SIGNALS, duration, join_names, plural, signal_name
from launcher.supervisor import restarting, stalls
from launcher.supervisor.ending import continue_or_stop, may_finish, report_failure
from launcher.supervisor.host_events import stopped_without_command
from launcher.supervisor.state import START_REASONS, JobState, Phase
from launcher.supervisor.steps import SIGABRT, SIGKILL, SIGTERM
from launcher.supervisor.tasks import TaskRecord

#: Seconds, at most, from the end of a peer to the failure of TensorFlow's collectives for lack of it.
_RECENTLY = 60.0
#: Number of tasks that are named in messages about not ending on SIGTERM.
_MOST_NAMED = 3
_SIGNAL_HINTS = {
    4: "it used an instruction that this CPU does not have: perhaps it was built for another CPU",
    7: "a mapped file was truncated, or shared memory (/dev/shm) is full",
    9: "launch did not send it: an administrator, a batch system, a limit of CPU time (`ulimit -t`), or lack "
    "of memory (`dmesg` may show it)",
    11: "it crashed in native code: a stack may be in its log (PYTHONFAULTHANDLER is set)",
    24: "it has used all the CPU time that it may use (`ulimit -t`)",
    25: "a file would have become larger than allowed (`ulimit -f`)",
}


def started(job: JobState, event: events.TaskStarted) -> None:
    """The task's process exists."""
    job.hosts[event.host].notices = 0
    record = job.tasks[event.task]
    record.pid, record.started_at = event.pid, event.at
    record.first_look = job.silence.looks
    record.has_moved()
    if record.state is TaskState.STARTING:
        record.move(TaskState.RUNNING, event)
    _start_answered(job, event.task)


def printed(job: JobState, event: events.TaskOutput) -> None:
    """The task has printed something."""
    record = job.tasks[event.task]
    stalls.printed(job, record, event.data)
    if job.restarts.limit:
        record.printed(event.data)
        job.restarts.printed(event.task, event.data)


def not_started(job: JobState, event: events.TaskNotStarted) -> None:
    """The task could not be started."""
    record = job.tasks[event.task]
    record.move(TaskState.FAILED, event)
    record.status = ExitStatus(code=event.code)
    record.reason = START_REASONS.get(event.code, Reason.LAUNCHER)
    record.detail = event.why
    record.ended_at = event.at
    _start_answered(job, event.task)
    job.tasks.process_ended(event.task, event.at)
    job.tasks.drop(event.task)
    _fail(job, record, event, f"could not be started{job.on(event.host)}: {event.why}")
    continue_or_stop(job)


def signalled(job: JobState, event: events.TaskSignalled) -> None:
    """A signal of a stop sequence was sent to the task."""
    record = job.tasks[event.task]
    record.signalled = record.signalled or not record.status.known
    if record.state in (TaskState.STARTING, TaskState.RUNNING):
        stopped_without_command(job, event)
    elif event.signal == SIGABRT and not record.stalled and job.ignored_sigterm <= _MOST_NAMED:
        job.ignored_sigterm += 1
        subject = "more tasks" if job.ignored_sigterm > _MOST_NAMED else str(event.task)
        if record.status.known:
            subject = f"a process that {subject} left behind"
        text = "ignored SIGTERM: sent SIGABRT, so that Python shows its stacks; SIGKILL is next"
        if job.done and not (job.failure or record.service or record.status.known or record.drain):
            text += "; the job was done: `--drain 60s` gives it time to finish"
        job.notify(f"{subject} {text}")


def exited(job: JobState, event: events.TaskExited) -> None:
    """The task's own process has ended."""
    record = job.tasks[event.task]
    too_late = job.done_before(event.at) and not may_finish(job, record)
    # SIGTERM to all processes of a service or a step reaches the task before the agent does.
    stopped = record.signalled or (record.state is TaskState.STOPPING and event.signal == SIGTERM)
    record.move(TaskState.ENDED, event)
    record.status = ExitStatus(event.code, event.signal)
    record.ended_at, record.peak_rss, record.cpu_s = event.at, event.peak_rss, event.cpu_s
    oom = f", out of memory ({event.oom})" if event.oom and event.signal is not None else ""
    record.detail = f"{record.status.text}{oom}"
    job.tasks.process_ended(event.task, event.at)
    if record.stalled and record.signalled:
        record.outcome, record.reason = TaskState.FAILED, Reason.STALLED
        record.detail = f"stalled, {record.detail}"
    elif stopped or (too_late and not record.status.ok):
        record.outcome, record.reason = TaskState.STOPPED, Reason.STOPPED
    else:
        _exited_by_itself(job, record, event)
    continue_or_stop(job)


def gone(job: JobState, event: events.TaskGone) -> None:
    """All processes of the task have ended, or can't be killed."""
    record = job.tasks[event.task]
    record.leftovers, record.unkillable = event.leftovers, event.unkillable
    killed_by_us = record.signalled and record.status.signal == SIGKILL  # so it could not end its children
    if event.leftovers and not killed_by_us:
        left = plural(event.leftovers, "process", "processes")
        job.notify(f"{event.task} left {left} behind, which launch stopped")
    if event.unkillable:
        pids = join_names([str(pid) for pid in event.unkillable], most=10)
        job.notify(f"{event.task}: SIGKILL did not stop pid {pids}{job.on(event.host)}", urgent=True)
    if not record.status.known:
        record.reason, record.detail = Reason.STOPPED, "SIGKILL did not stop it"
    record.move(record.outcome, event)
    job.tasks.drop(event.task)
    restarting.gone(job, record, event.at)
    continue_or_stop(job)


def _start_answered(job: JobState, task: TaskId) -> None:
    job.tasks.starting.discard(task)
    if job.tasks.starting or job.phase not in (Phase.RUNNING, Phase.DRAINING):
        return
    job.do(events.CancelTimer("start"))
    if job.phase is Phase.RUNNING:
        job.do(events.CancelTimer("notice"))


def _exited_by_itself(job: JobState, record: TaskRecord, event: events.TaskExited) -> None:
    record.reason = Reason.EXIT if event.signal is None else Reason.SIGNAL
    if event.oom and event.signal == SIGKILL:
        record.reason = Reason.OUT_OF_MEMORY
    record.outcome = TaskState.SUCCEEDED if record.status.ok else TaskState.FAILED
    if not record.status.ok:
        after = "" if record.started_at is None else f" after {duration(event.at - record.started_at)}"
        after += f" (attempt {record.attempt})" if record.attempt > 1 else ""
        text, hint = f"failed{job.on(record.host)}{after}: {record.detail}", _exit_hint(record, event)
        _fail(job, record, event, text, hint)
    else:
        restarting.ended_well(job, record, event.at)
        if record.service and job.tasks.deciding and record.task not in job.tasks.restarting:
            job.notify(f"{record.task} finished (exit code 0); the job goes on")


def _fail(
    job: JobState,
    record: TaskRecord,
    event: events.TaskExited | events.TaskNotStarted,
    text: str,
    hint: str = "",
) -> None:
    """Record and report the failure of a task; the failure of a sidecar is only reported."""
    text = f"{record.task} {text}"
    if record.sidecar:
        job.notify(f"{text}; it is a sidecar: the job does not depend on it")
        return
    assert record.reason is not None
    failure = Failure(record.reason, record.task, record.host, event.at, text, hint)
    running = job.phase is Phase.RUNNING and isinstance(event, events.TaskExited)
    if not restarting.after_failure(job, record, failure):
        if running and (why := job.restarts.why_not(record.task, record.status)):
            text = f"{text}; {why}"
            failure = failure._replace(text=text)
        job.tasks.failed.add(record.task)
        report_failure(job, text, job.fail(failure, record.status.shell))


def _exit_hint(record: TaskRecord, event: events.TaskExited) -> str:
    """A hint for the user; may be empty."""
    if event.oom and record.role.memory:
        return "a larger `--memory` gives it more; or make its batches or caches smaller"
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


def peers_hint(job: JobState, failure: Failure) -> str:
    """A hint for a Python program whose peers had succeeded shortly before it failed; may be empty."""
    record = job.tasks.get(failure.task or TaskId(""))
    by_itself = failure.reason in (Reason.EXIT, Reason.SIGNAL)
    if record is None or record.service or not record.runs_python or not by_itself:
        return ""
    recent = {
        peer.task: peer.ended_at
        for peer in job.tasks.values()
        if not peer.service and peer.outcome is TaskState.SUCCEEDED and peer.ended_at is not None
        if failure.at - _RECENTLY <= peer.ended_at <= failure.at
    }
    if not recent:
        return ""
    earlier = duration(failure.at - max(recent.values()))
    before = f"{join_names([*recent])} had exited with code 0, {earlier} earlier"
    return f"{before}: tasks that communicate collectively must finish together"
