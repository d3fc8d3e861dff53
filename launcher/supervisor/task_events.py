"""Events of tasks: started or not started, signalled, exited, gone."""

from __future__ import annotations

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.report import ExitStatus, Failure, Reason, TaskState
from launcher.common.text import KNOWN_SIGNALS, duration, join_names, plural, signal_name
from launcher.supervisor import restarting, stalls
from launcher.supervisor.ending import continue_or_stop, may_finish, report_failure
from launcher.supervisor.host_events import stopped_without_command
from launcher.supervisor.records import TaskRecord
from launcher.supervisor.state import SIGABRT, SIGKILL, SIGTERM, START_REASONS, JobState, Phase

#: Seconds, at most, from the end of a peer to the failure of TensorFlow's collectives for lack of it.
_RECENT_SECONDS = 60.0
#: Number of tasks that are named in messages about not ending on SIGTERM.
_MAX_NAMED_TASKS = 3
_SIGNAL_HINTS = {
    4: "it used an instruction that this CPU does not have: perhaps it was built for another CPU",
    7: "a mapped file was truncated, or shared memory (/dev/shm) is full",
    9: "launch did not send it: an administrator, a batch system, a limit of CPU time (`ulimit -t`), or lack "
    "of memory (`dmesg` may show it)",
    11: "it crashed in native code: a stack may be in its log (PYTHONFAULTHANDLER is set)",
    24: "it has used all the CPU time that it may use (`ulimit -t`)",
    25: "a file would have become larger than allowed (`ulimit -f`)",
}


def started(state: JobState, event: events.TaskStarted) -> None:
    """The task's process exists."""
    state.hosts[event.host].notices = 0
    record = state.tasks[event.task]
    record.pid, record.started_at = event.pid, event.at
    record.first_tick = state.silence.ticks
    record.mark_changed()
    if record.state is TaskState.STARTING:
        record.transition_to(TaskState.RUNNING, event)
    _start_answered(state, event.task)


def printed(state: JobState, event: events.TaskOutput) -> None:
    """The task has printed something."""
    record = state.tasks[event.task]
    stalls.printed(state, record, event.data)
    if state.restarts.limit:
        record.printed(event.data)
        state.restarts.printed(event.task, event.data)


def not_started(state: JobState, event: events.TaskNotStarted) -> None:
    """The task could not be started."""
    record = state.tasks[event.task]
    record.transition_to(TaskState.FAILED, event)
    record.status = ExitStatus(code=event.code)
    record.reason = START_REASONS.get(event.code, Reason.LAUNCHER)
    record.detail = event.why
    record.ended_at = event.at
    _start_answered(state, event.task)
    state.tasks.process_ended(event.task, event.at)
    state.tasks.drop(event.task)
    _fail(state, record, event, f"could not be started{state.name_of_host(event.host)}: {event.why}")
    continue_or_stop(state)


def signalled(state: JobState, event: events.TaskSignalled) -> None:
    """A signal of a stop sequence was sent to the task."""
    record = state.tasks[event.task]
    record.signalled = record.signalled or not record.status.known
    if record.state in (TaskState.STARTING, TaskState.RUNNING):
        stopped_without_command(state, event)
    elif event.signal == SIGABRT and not record.stalled and state.ignored_sigterm <= _MAX_NAMED_TASKS:
        state.ignored_sigterm += 1
        subject = "more tasks" if state.ignored_sigterm > _MAX_NAMED_TASKS else str(event.task)
        if record.status.known:
            subject = f"a process that {subject} left behind"
        text = "ignored SIGTERM: sent SIGABRT, so that Python shows its stacks; SIGKILL is next"
        if state.done and not (state.failure or record.service or record.status.known or record.drain):
            text += "; the job was done: `--drain 60s` gives it time to finish"
        state.tell(f"{subject} {text}")


def exited(state: JobState, event: events.TaskExited) -> None:
    """The task's own process has ended."""
    record = state.tasks[event.task]
    too_late = state.done_before(event.at) and not may_finish(state, record)
    # SIGTERM to all processes of a service or a step reaches the task before the agent does.
    stopped = record.signalled or (record.state is TaskState.STOPPING and event.signal == SIGTERM)
    record.transition_to(TaskState.ENDED, event)
    record.status = ExitStatus(event.code, event.signal)
    record.ended_at, record.peak_rss, record.cpu_s = event.at, event.peak_rss, event.cpu_s
    oom = f", out of memory ({event.oom})" if event.oom and event.signal is not None else ""
    record.detail = f"{record.status.text}{oom}"
    state.tasks.process_ended(event.task, event.at)
    if record.stalled and record.signalled:
        record.outcome, record.reason = TaskState.FAILED, Reason.STALLED
        record.detail = f"stalled, {record.detail}"
    elif stopped or (too_late and not record.status.ok):
        record.outcome, record.reason = TaskState.STOPPED, Reason.STOPPED
    else:
        _exited_by_itself(state, record, event)
    continue_or_stop(state)


def gone(state: JobState, event: events.TaskGone) -> None:
    """All processes of the task have ended, or can't be killed."""
    record = state.tasks[event.task]
    record.leftovers, record.unkillable = event.leftovers, event.unkillable
    killed_by_us = record.signalled and record.status.signal == SIGKILL  # so it could not end its children
    if event.leftovers and not killed_by_us:
        left = plural(event.leftovers, "process", "processes")
        state.tell(f"{event.task} left {left} behind, which launch stopped")
    if event.unkillable:
        pids = join_names([str(pid) for pid in event.unkillable], most=10)
        state.tell(
            f"{event.task}: SIGKILL did not stop pid {pids}{state.name_of_host(event.host)}", urgent=True
        )
    if not record.status.known:
        record.reason, record.detail = Reason.STOPPED, "SIGKILL did not stop it"
    record.transition_to(record.outcome, event)
    state.tasks.drop(event.task)
    restarting.gone(state, record, event.at)
    continue_or_stop(state)


def _start_answered(state: JobState, task: TaskId) -> None:
    state.tasks.starting.discard(task)
    if state.tasks.starting or state.phase not in (Phase.RUNNING, Phase.DRAINING):
        return
    state.emit(events.CancelTimer("start"))
    if state.phase is Phase.RUNNING:
        state.emit(events.CancelTimer("notice"))


def _exited_by_itself(state: JobState, record: TaskRecord, event: events.TaskExited) -> None:
    record.reason = Reason.EXIT if event.signal is None else Reason.SIGNAL
    if event.oom and event.signal == SIGKILL:
        record.reason = Reason.OUT_OF_MEMORY
    record.outcome = TaskState.SUCCEEDED if record.status.ok else TaskState.FAILED
    if not record.status.ok:
        after = "" if record.started_at is None else f" after {duration(event.at - record.started_at)}"
        after += f" (attempt {record.attempt})" if record.attempt > 1 else ""
        text, hint = (
            f"failed{state.name_of_host(record.host)}{after}: {record.detail}",
            _exit_hint(record, event),
        )
        _fail(state, record, event, text, hint)
    else:
        restarting.ended_well(state, record, event.at)
        if record.service and state.tasks.deciding and record.task not in state.tasks.restarting:
            state.tell(f"{record.task} finished (exit code 0); the job goes on")


def _fail(
    state: JobState,
    record: TaskRecord,
    event: events.TaskExited | events.TaskNotStarted,
    text: str,
    hint: str = "",
) -> None:
    """Record and report the failure of a task; the failure of a sidecar is only reported."""
    text = f"{record.task} {text}"
    if record.sidecar:
        state.tell(f"{text}; it is a sidecar: the job does not depend on it")
        return
    assert record.reason is not None
    failure = Failure(record.reason, task=record.task, host=record.host, at=event.at, text=text, hint=hint)
    running = state.phase is Phase.RUNNING and isinstance(event, events.TaskExited)
    if not restarting.after_failure(state, record, failure):
        if running and (why := state.restarts.why_not(record.task, record.status)):
            text = f"{text}; {why}"
            failure = replace(failure, text=text)
        state.tasks.failed.add(record.task)
        report_failure(state, text, state.fail(failure, record.status.shell))


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


def peers_hint(state: JobState, failure: Failure) -> str:
    """A hint for a Python program whose peers had succeeded shortly before it failed; may be empty."""
    record = state.tasks.get(failure.task or TaskId(""))
    by_itself = failure.reason in (Reason.EXIT, Reason.SIGNAL)
    if record is None or record.service or not record.runs_python or not by_itself:
        return ""
    recent = {
        peer.task: peer.ended_at
        for peer in state.tasks.values()
        if not peer.service and peer.outcome is TaskState.SUCCEEDED and peer.ended_at is not None
        if failure.at - _RECENT_SECONDS <= peer.ended_at <= failure.at
    }
    if not recent:
        return ""
    earlier = duration(failure.at - max(recent.values()))
    before = f"{join_names([*recent])} had exited with code 0, {earlier} earlier"
    return f"{before}: tasks that communicate collectively must finish together"
