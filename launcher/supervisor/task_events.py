"""Handles the events of tasks: started or not, printed, signalled, exited, gone.

The machine calls a handler for each event. A handler decides what the event means for the task; what it means
for the job is decided by `launcher.supervisor.restarting` and `launcher.supervisor.ending`.
"""

from __future__ import annotations

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.report import ExitStatus, Failure, Reason, TaskState
from launcher.common.text import plural
from launcher.supervisor import describe, restarting, stalls
from launcher.supervisor.commands import TimerKind
from launcher.supervisor.ending import continue_or_stop, fail_task, may_finish
from launcher.supervisor.host_events import handle_stop_from_outside
from launcher.supervisor.records import TaskRecord
from launcher.supervisor.state import SIGABRT, SIGKILL, SIGTERM, START_REASONS, JobState, Phase

#: At most this many tasks that ignored SIGTERM are named.
_MAX_NAMED_TASKS = 3


def handle_started(state: JobState, event: events.TaskStarted) -> None:
    """Note that the process of a task exists now.

    A task that was told to stop meanwhile stays in the state STOPPING.
    """
    state.hosts[event.host].notice_count = 0  # Its agent may send some messages for each start.
    record = state.tasks[event.task]
    attempt = record.current
    attempt.pid, attempt.started_at = event.pid, event.at
    attempt.start_tick = state.stalls.ticks
    record.mark_changed()  # The pid is reported even if the state stays STOPPING.
    if record.state is TaskState.STARTING:
        record.transition_to(TaskState.RUNNING, event)
    _note_start_answer(state, event.task)


def handle_not_started(state: JobState, event: events.TaskNotStarted) -> None:
    """Let a task fail that could not be started, and start it again or let the job fail with it."""
    record = state.tasks[event.task]
    attempt = record.current
    record.transition_to(TaskState.FAILED, event)
    attempt.status = ExitStatus(code=event.code)
    attempt.reason = START_REASONS.get(event.code, Reason.LAUNCHER)
    attempt.detail = event.why
    attempt.ended_at = event.at
    _note_start_answer(state, event.task)
    state.tasks.process_ended(event.task, event.at)
    state.tasks.task_gone(event.task)
    _handle_failure(state, record, describe.start_failure(state, record, event))
    continue_or_stop(state)


def _note_start_answer(state: JobState, task: TaskId) -> None:
    """Note that an agent has answered the command to start a task. The last answer cancels the timers."""
    state.tasks.starting.discard(task)
    if state.tasks.starting or state.phase not in (Phase.RUNNING, Phase.DRAINING):
        return
    state.cancel_timers(TimerKind.START)
    # While the job drains, the same timer tells the user which tasks may still finish, so it stays set.
    if state.phase is Phase.RUNNING:
        state.cancel_timers(TimerKind.NOTICE)


def handle_output(state: JobState, event: events.TaskOutput) -> None:
    """Look for a sign in the output of a task that it does not hang, and for the progress of the job."""
    record = state.tasks[event.task]
    stalls.observe_output(state, record, event.data)
    # Only a policy of restarts asks how a task failed, and whether the job makes progress.
    if state.restart_policy.max_restarts:
        record.current.keep_tail(event.data)
        state.restart_policy.observe_output(event.task, event.data)


def handle_signalled(state: JobState, event: events.TaskSignalled) -> None:
    """Note that an agent, which stops a task, has sent it a signal: SIGTERM, then SIGABRT, then SIGKILL.

    A task that was not to be stopped is signalled only if its agent was stopped from outside.
    """
    record = state.tasks[event.task]
    # Once its own process has exited, only processes that it left behind are signalled.
    if not record.current.status.known:
        record.current.was_signalled = True
    if record.state in (TaskState.STARTING, TaskState.RUNNING):
        handle_stop_from_outside(state, event)
    # SIGABRT follows only if SIGTERM had no effect, except for a silent task, which gets it first.
    elif event.signal == SIGABRT and not record.current.has_stalled:
        _tell_of_ignored_sigterm(state, record)


def _tell_of_ignored_sigterm(state: JobState, record: TaskRecord) -> None:
    """Tell the user that a task did not exit on SIGTERM.

    After `_MAX_NAMED_TASKS` such tasks, one message is about all others.
    """
    if state.ignored_sigterm_count > _MAX_NAMED_TASKS:
        return
    state.ignored_sigterm_count += 1
    names_task = state.ignored_sigterm_count <= _MAX_NAMED_TASKS
    state.tell(describe.ignored_sigterm(state, record, names_task=names_task))


def handle_exited(state: JobState, event: events.TaskExited) -> None:
    """Decide what the exit of a task's own process means.

    - A silent task that launch has stopped for its silence has failed, whatever its exit code is.
    - A task that was stopped for another reason is stopped, and neither succeeded nor failed.
    - A task that fails after the job was done is stopped, too, as it cannot make the job fail then, unless it
      had time to finish (``--drain``). So is one that fails just when the user stops it.
    - The exit of any other task is a success or a failure, and a failed task may start again.
    """
    record = state.tasks[event.task]
    attempt = record.current
    is_too_late = state.was_done_before(event.at) and not may_finish(state, record)
    cannot_fail = is_too_late or record.is_dismissed
    # systemd and Slurm send SIGTERM to all processes of a service or a step at once, so a task may exit
    # on it before its agent says that it has sent a signal.
    was_terminated = record.state is TaskState.STOPPING and event.signal == SIGTERM
    record.transition_to(TaskState.ENDED, event)
    attempt.status = ExitStatus(event.code, event.signal)
    attempt.ended_at, attempt.peak_rss, attempt.cpu_s = event.at, event.peak_rss, event.cpu_s
    oom = f", out of memory ({event.oom})" if event.oom and event.signal is not None else ""
    attempt.detail = f"{attempt.status.text}{oom}"
    state.tasks.process_ended(event.task, event.at)
    # What the exit means was decided before if launch has stopped the task: for its silence, or with the job.
    if attempt.has_stalled and attempt.was_signalled:
        attempt.outcome, attempt.reason = TaskState.FAILED, Reason.STALLED
        attempt.detail = f"stalled, {attempt.detail}"
    elif attempt.was_signalled or was_terminated or (cannot_fail and not attempt.status.ok):
        attempt.outcome, attempt.reason = TaskState.STOPPED, Reason.STOPPED
    else:
        _handle_exit_by_itself(state, record, event)
    continue_or_stop(state)


def _handle_exit_by_itself(state: JobState, record: TaskRecord, event: events.TaskExited) -> None:
    """Decide between success and failure of a task that has exited by itself, and let the job know."""
    record.current.reason = _exit_reason(event)
    if not record.current.status.ok:
        record.current.outcome = TaskState.FAILED
        _handle_failure(state, record, describe.exit_failure(state, record, event))
        return
    record.current.outcome = TaskState.SUCCEEDED
    restarting.handle_success(state, record, event.at)
    # A service, such as a ps, is not expected to exit while the job goes on.
    if record.service and state.tasks.deciding and record.task not in state.tasks.restarting:
        state.tell(f"{record.task} finished (exit code 0); the job goes on")


def _exit_reason(event: events.TaskExited) -> Reason:
    """Return the reason of an exit that launch did not cause."""
    if event.oom and event.signal == SIGKILL:  # The kernel was out of memory and killed the process.
        return Reason.OUT_OF_MEMORY
    return Reason.EXIT if event.signal is None else Reason.SIGNAL


def _handle_failure(state: JobState, record: TaskRecord, failure: Failure) -> None:
    """Start a failed task again, or let the job fail with it.

    The failure of a sidecar, such as TensorBoard, is only shown, because the job does not depend on it. If
    the user has stopped the task, its end is no failure.

    Args:
        state: The state of the job.
        record: The task, whose attempt contains the failure already.
        failure: The failure, for the user.
    """
    if record.is_dismissed:
        return
    if record.sidecar:
        state.tell(f"{failure.text}; it is a sidecar: the job does not depend on it")
        return
    if restarting.restart_after_failure(state, record, failure):
        return
    # A task that could not be started, or that failed while the job ends, needs no explanation.
    was_running = state.phase is Phase.RUNNING and record.state is TaskState.ENDED
    if was_running and (refusal := state.restart_policy.refusal(record.task, record.current.status)):
        failure = replace(failure, text=f"{failure.text}; {refusal}")
    state.tasks.failed.add(record.task)
    fail_task(state, failure, record.current.status.shell)


def handle_gone(state: JobState, event: events.TaskGone) -> None:
    """Note that all processes of a task have ended, or that some cannot be killed."""
    record = state.tasks[event.task]
    attempt = record.current
    attempt.leftovers, attempt.unkillable = event.leftovers, event.unkillable
    # A main process that launch has killed could not end its children, so the user is not told of them.
    killed_by_us = attempt.was_signalled and attempt.status.signal == SIGKILL
    if event.leftovers and not killed_by_us:
        left = plural(event.leftovers, "process", "processes")
        state.tell(f"{event.task} left {left} behind, which launch stopped")
    if event.unkillable:
        state.tell(describe.unkillable_processes(state, event), urgent=True)
    if not attempt.status.known:  # It has not exited.
        attempt.reason, attempt.detail = Reason.STOPPED, "SIGKILL did not stop it"
    record.transition_to(attempt.outcome, event)
    state.tasks.task_gone(event.task)
    restarting.handle_task_gone(state, record, event.at)
    continue_or_stop(state)
