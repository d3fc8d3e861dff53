"""Executes restarts: tasks are stopped, and start again when they are gone and a pause is over.

The handlers of events call it after a failure, the loss of a host or a request of the user, and
`launcher.supervisor.restart_policy` decides which tasks start again. The tasks of a lost host start on other
hosts, or on a new host in its place. Lost hosts may return: a new agent is started there, and later restarts
may use the host. No two attempts of a task may ever be alive at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import replace
from launcher.common.report import ExitStatus, Failure, TaskState
from launcher.job import Placement
from launcher.scheduler.placement import replace_hosts
from launcher.supervisor import describe
from launcher.supervisor.commands import CancelTimer, MoveTasks, SaveResults, SetTimer, Timer, TimerKind
from launcher.supervisor.ending import continue_or_stop, fail_task, stop_tasks
from launcher.supervisor.records import HostRecord, HostState, Restart, Stage, TaskRecord
from launcher.supervisor.restart_policy import FIRST_PAUSE_SECONDS, OUTSIDE_SIGNALS, PREEMPTED_EXIT_CODE
from launcher.supervisor.state import HOST_FAULT_EXIT_CODE, JobState, Phase, longest_stop, quick_stop_sequence

#: How long all tasks of a preempted job may take to save a checkpoint and to exit.
_SAVE_TIMEOUT_SECONDS = 30.0
#: How long after the failure of a task others that need it fail at most.
_DEPENDENT_FAILURE_SECONDS = 60.0
#: How an exception of TensorFlow names the task that the error came from.
_ERROR_FROM_PATTERN = rb"(?:From|remote target) /job:(\w+)/replica:\d+/task:(\d+)\b"
#: The states of a task whose own process has not ended.
_PROCESS_STATES = (TaskState.STARTING, TaskState.RUNNING, TaskState.STOPPING)
#: The pause between two attempts to use a lost host again.
_RECOVERY_PAUSE_SECONDS = 30.0


# ---------------------------------------------------------------------- causes


def restart_after_failure(
    state: JobState, record: TaskRecord, failure: Failure, others: Sequence[TaskId] = ()
) -> bool:
    """Start a task again that has failed, if the policy allows it.

    - A task that starts again anyway, with the restart of another task, needs no restart of its own.
    - A failure that certainly or perhaps follows from that of another task leads to a restart that does not
      count against ``--restarts``. If it is not certain, the last output of the task decides later.
    - Any other failure leads to a restart that counts against it, unless the exit code shows that a restart
      is useless.

    Args:
        state: The state of the job.
        record: The task.
        failure: The failure of the task.
        others: Tasks that have failed together with it.

    Returns:
        Whether it starts again. If so, its failure is not a failure of the job.
    """
    if state.phase is not Phase.RUNNING:
        return False
    if record.task in state.tasks.restarting:  # It starts again anyway.
        return True
    failed_ps = _ps_that_failed_before(state, record, failure.at)
    suspects = set() if failed_ps else _suspects(state, record, failure.at)
    has_own_cause, attempt = not (failed_ps or suspects), record.current
    policy = state.restart_policy
    # The exit code of a silent task says nothing, because launch itself stops it.
    if has_own_cause and not attempt.has_stalled and policy.is_permanent(record.task, attempt.status):
        return False
    seconds = _seconds_of_work(state, record, failure.at)
    restart = policy.restart_after(record.task, attempt.status, seconds, others, counted=has_own_cause)
    if restart is None:
        return False
    restart.suspects, restart.caused_by = suspects, failed_ps
    if has_own_cause:  # It may be the cause of failures of other tasks, which are compared with this time.
        state.tasks.failed_at[record.task] = failure.at
    # The policy names whole roles, of which some tasks may have lost their host or may have ended for good.
    restart.tasks = {task for task in restart.tasks if _can_take_part(state, restart, task)}
    _begin_restart(state, restart, failure)
    # The notice is shown when the task is gone, as its last output may show that a restart is useless. A
    # silent task takes a while to stop, so the user is told at once why.
    restart.unshown_notice = describe.restart(state, restart, record, failure)
    if attempt.has_stalled:
        _show_notice(state, restart)
    return True


def _seconds_of_work(state: JobState, record: TaskRecord, failed_at: float) -> float:
    """Return how many seconds a task ran before its failure. 0 if its process was never started.

    If it was stopped because it was silent for the time of ``--stall``, this silence does not count.
    """
    attempt = record.current
    if attempt.started_at is None:
        return 0.0
    silence = (state.policy.stall or 0.0) if attempt.has_stalled else 0.0
    return max(0.0, failed_at - attempt.started_at - silence)


def _can_take_part(state: JobState, restart: Restart, task: TaskId) -> bool:
    """Return whether a task starts again with this restart.

    A task does not if its host is lost, if it has failed for good, or if the user has stopped it. One that
    has succeeded only does if the restart includes such tasks.
    """
    record = state.tasks[task]
    if task in state.tasks.failed or record.is_dismissed or not _has_active_host(state, task):
        return False
    return restart.includes_succeeded or record.current.outcome is not TaskState.SUCCEEDED


def _has_active_host(state: JobState, task: TaskId) -> bool:
    """Return whether an agent runs or starts on the host of a task, which is neither lost nor closed."""
    return state.hosts[state.tasks[task].host].is_active


def _ps_that_failed_before(state: JobState, record: TaskRecord, failed_at: float) -> str:
    """Return the name of the ps whose failure, shortly before, made this task fail. Empty if there is none.

    Args:
        state: The state of the job.
        record: The task that failed.
        failed_at: When it failed, in seconds since the epoch.
    """
    attempt = record.current
    # A ps does not use another ps. Silence and a signal from outside have causes of their own.
    if record.task.role == "ps" or attempt.has_stalled or attempt.status.signal in OUTSIDE_SIGNALS:
        return ""
    for ps in state.tasks.ps:
        # The ps may have started again since it failed.
        ends = [(earlier.state, earlier.ended_at) for earlier in ps.earlier[-1:]]
        ends.append((ps.current.outcome, ps.current.ended_at))
        failure_times = [at for outcome, at in ends if outcome is TaskState.FAILED and at is not None]
        if any(0 <= failed_at - at <= _DEPENDENT_FAILURE_SECONDS for at in failure_times):
            return str(ps.task)
    return ""


def _suspects(state: JobState, record: TaskRecord, failed_at: float) -> set[TaskId]:
    """Return the tasks whose failures, shortly before, may have made this task fail.

    Only the output of the task shows whether they did, and all of it has arrived only when the task is gone.
    Only failures that count against ``--restarts`` are causes, so two tasks that fail because of each other
    do not start again for ever.

    Args:
        state: The state of the job.
        record: The task that failed.
        failed_at: When it failed, in seconds since the epoch.

    Returns:
        The tasks. Empty if the failure has a cause of its own, or if other tasks start again with this one.
    """
    attempt = record.current
    is_external = attempt.status.signal in OUTSIDE_SIGNALS or attempt.status.code == PREEMPTED_EXIT_CODE
    # Where tasks start again together, the failure of one of them has made all of them start again already.
    if attempt.has_stalled or is_external or not state.restart_policy.restarts_alone(record.task):
        return set()
    others = [(task, at) for task, at in state.tasks.failed_at.items() if task != record.task]
    return {task for task, at in others if 0 <= failed_at - at <= _DEPENDENT_FAILURE_SECONDS}


def _resolve_suspects(state: JobState, restart: Restart, record: TaskRecord, failure: Failure) -> str:
    """Find out whether a failure follows from the failure of another task, now that all output has arrived.

    Args:
        state: The state of the job.
        restart: The restart of the failed task, which counts if the failure has a cause of its own.
        record: The failed task.
        failure: Its failure.

    Returns:
        Why the task does not start again after all. Empty if it starts again.
    """
    suspects, restart.suspects = restart.suspects, set()
    # Each match is the role and the index of the task that the error came from.
    found = re.findall(_ERROR_FROM_PATTERN, record.current.tail)
    culprits = {TaskId(b"/".join(role_and_index).decode()) for role_and_index in found} & suspects
    if culprits:
        restart.caused_by = state.tasks.names(culprits)
    elif refusal := state.restart_policy.refusal(record.task, record.current.status):
        return refusal
    else:  # The failure has a cause of its own, so it counts against --restarts.
        restart.number = state.restart_policy.count_restart(record.task)
        state.tasks.failed_at[record.task] = failure.at
    restart.unshown_notice = describe.restart(state, restart, record, failure)
    return ""


def handle_restart_asked(state: JobState, event: events.RestartAsked) -> None:
    """Start tasks again because the user asks for it (``launch restart``).

    Tasks that have succeeded start again, too, and so do those that the user has stopped. That does not count
    against ``--restarts``.
    """
    if state.moving_restart is not None:
        state.tell("all tasks start again anyway, because a host is lost")
        return
    # A task whose host was lost after the user had asked is left out.
    tasks = [task for task in event.tasks if task in state.tasks and _has_active_host(state, task)]
    if state.phase is not Phase.RUNNING or not tasks:
        state.tell("cannot restart: the job is not running")
        return
    state.tell(f"starting {state.tasks.names(tasks)} again, as asked")
    for task in tasks:
        state.tasks[task].is_dismissed = False
    _begin_restart(state, Restart(tasks, includes_succeeded=True))


# ---------------------------------------------------------------------- stages


def _begin_restart(state: JobState, restart: Restart, cause: Failure | None = None) -> None:
    """Begin a restart. Restarts of the same tasks that are under way become part of it.

    Args:
        state: The state of the job.
        restart: The restart.
        cause: The failure that led to it, if one did.
    """
    restarting = state.tasks.in_order(restart.tasks & state.tasks.restarting.keys())
    # A dict contains each of the other restarts once, and in order. Their notices are shown now, because they
    # end here. Their tasks are removed from them, so that a late event of a task does not continue them.
    for other in dict.fromkeys(state.tasks.restarting[record.task] for record in restarting):
        _show_notice(state, other)
        restart.tasks |= other.tasks
        restart.includes_succeeded = restart.includes_succeeded or other.includes_succeeded
        other.tasks.clear()
        state.end_restart(other)
    state.started_restarts += 1
    restart.key, restart.cause = str(state.started_restarts), cause
    _add_tasks(state, restart, restart.tasks)
    if restart.stage is Stage.ENDING:  # The job is preempted: its tasks save their state and exit.
        state.emit(SetTimer(restart.timer, _SAVE_TIMEOUT_SECONDS))
    else:
        _stop_tasks(state, restart)


def _add_tasks(state: JobState, restart: Restart, tasks: set[TaskId]) -> None:
    """Let these tasks start again with a restart, and tell the user so."""
    state.restarts[restart.key] = restart
    restart.tasks |= tasks
    state.tasks.restarting.update(dict.fromkeys(tasks, restart))
    records = state.tasks.in_order(tasks)
    for record in records:
        record.mark_changed()  # An event tells those who show the job that the task will start again.
    if records:
        attempts = {record.task: record.attempt for record in records}
        state.emit(events.Restarting(attempts, restart.number))
    # The job waits again for the restarted tasks whose ends decide that it is done.
    state.tasks.deciding |= tasks & state.tasks.all_deciding


def _stop_tasks(state: JobState, restart: Restart) -> None:
    """Stop the tasks of a restart that still run, and begin the pause before their next start.

    After a failure, tasks that are still alive when the pause is over are killed, because TensorFlow's
    collectives ignore SIGTERM, and hang without the task that failed. They have at least 1 s to exit. In any
    other restart they have the time of ``--grace``, as when the job is stopped.
    """
    sequence = state.stop_sequence
    if restart.cause:
        sequence = quick_stop_sequence(state.policy.grace, max(FIRST_PAUSE_SECONDS, restart.pause_seconds))
    stop_tasks(state, state.tasks.in_order(restart.tasks), sequence, "to start again")
    _begin_pause(state, restart)


def _begin_pause(state: JobState, restart: Restart) -> None:
    """Begin the pause before the tasks of a restart start. When its timer fires, `advance` continues.

    The pause grows with each restart of a task. After the loss of a host it lasts at least until the tasks
    there have certainly ended. If it has begun before, it begins anew.
    """
    restart.stage = Stage.WAITING
    state.set_timer(TimerKind.NOTICE)  # When it fires, the user is told what the job waits for.
    state.emit(SetTimer(restart.timer, restart.pause_seconds))


def handle_success(state: JobState, record: TaskRecord, at: float) -> None:
    """Take a task that has succeeded out of the restart with which it was to start again, if there is one.

    A restart that includes tasks that succeed is not changed: the task starts again with it.
    """
    restart = state.tasks.restarting.get(record.task)
    if restart is not None and not restart.includes_succeeded:
        state.cancel_restarts([record.task])
        # Its end was noted before as that of a task that starts again. Now it is for good.
        state.tasks.process_ended(record.task, at)
        start_if_due(state, restart)  # The other tasks of the restart no longer wait for it.


def leave_out(state: JobState, records: Iterable[TaskRecord], at: float) -> None:
    """Let these tasks not start again, because the user stops them. Others of their restarts still do.

    Args:
        state: The state of the job.
        records: The tasks, which need not be about to start again.
        at: When the user asked for it, in seconds since the epoch.
    """
    waiting = [record for record in records if record.task in state.tasks.restarting]
    for restart in dict.fromkeys(state.tasks.restarting[record.task] for record in waiting):
        _show_notice(state, restart)  # It says what has happened to them before.
    cancelled = state.cancel_restarts(record.task for record in waiting)
    for record in waiting:
        if record.state not in _PROCESS_STATES:  # Its end was noted as that of a task that starts again.
            state.tasks.process_ended(record.task, at)
    for restart in dict.fromkeys(cancelled.values()):
        start_if_due(state, restart)


def handle_task_gone(state: JobState, record: TaskRecord, at: float) -> None:
    """Continue the restart of a task that is gone (no process of it is left), or give the restart up.

    - A task that is not to start again needs nothing.
    - A task with processes that SIGKILL did not stop cannot start again, so the job fails.
    - If the failure of this task has led to the restart, its last output may show that another attempt is
      useless. Then the job fails, too. All of its output has arrived only now.
    - Otherwise the tasks start, if this was the last one that was waited for.

    Args:
        state: The state of the job.
        record: The task.
        at: When it was gone, in seconds since the epoch.
    """
    restart = state.tasks.restarting.get(record.task)
    if restart is None:
        return
    if record.current.unkillable:
        _give_up_restart(state, restart, describe.cannot_restart(record, at), HOST_FAULT_EXIT_CODE)
        return
    cause = restart.cause
    if cause is None:  # The user asked for the restart, or a host was lost, so no output is waited for.
        _show_notice(state, restart)
    elif cause.task == record.task:  # Its failure has led to the restart.
        if refusal := _late_refusal(state, restart, record, cause):
            failure = replace(cause, text=f"{cause.text}; {refusal}")
            _give_up_restart(state, restart, failure, record.current.status.shell)
            return
        _show_notice(state, restart)
    # The tasks of a preempted job may have saved their state and exited before the time for that is over.
    if restart.stage is Stage.ENDING and restart.tasks.isdisjoint(state.tasks.not_gone):
        _stop_tasks(state, restart)
    else:
        start_if_due(state, restart)


def _late_refusal(state: JobState, restart: Restart, record: TaskRecord, cause: Failure) -> str:
    """Return why a task does not start again after all, according to its last output.

    Args:
        state: The state of the job.
        restart: The restart that the failure of the task has led to.
        record: The task, of which no process is left.
        cause: Its failure.

    Returns:
        The reason for the user. Empty if the task starts again.
    """
    refusal = _resolve_suspects(state, restart, record, cause) if restart.suspects else ""
    if refusal:
        return refusal
    futility = state.restart_policy.futility(record, counts=restart.number > 0)
    return f"not started again: {futility}" if futility else ""


def _give_up_restart(state: JobState, restart: Restart, failure: Failure, exit_code: int) -> None:
    """Give up a restart: its tasks do not start again, and the job fails."""
    state.cancel_restarts(restart.tasks)
    fail_task(state, failure, exit_code)


def _show_notice(state: JobState, restart: Restart) -> None:
    """Tell the user why and when the tasks of a restart start again, unless that was said before."""
    if restart.unshown_notice:
        state.tell(restart.unshown_notice, urgent=True)
    restart.unshown_notice = ""


def advance(state: JobState, key: str) -> list[str]:
    """Take the next step of a restart, whose timer has fired.

    The stage of the restart says what the timer was for:

    - ENDING: the time in which preempted tasks save their state and exit is over. They are stopped now.
    - WAITING: the pause is over. The tasks start if all of them are gone, and otherwise when the last one is.
    - DUE: tasks are still not gone, although their agents had time for all signals. Their hosts count as
      lost.

    Args:
        state: The state of the job.
        key: The key of the restart, which may be over already.

    Returns:
        The names of the hosts that did not stop its tasks in time, and are lost.
    """
    restart = state.restarts.get(key)
    if restart is None:
        return []
    if restart.stage is Stage.DUE:
        return state.hosts.names_of(state.tasks[task] for task in restart.tasks & state.tasks.not_gone)
    if restart.stage is Stage.ENDING:
        _stop_tasks(state, restart)
        return []
    restart.stage = Stage.DUE
    state.set_timer(TimerKind.NOTICE)  # The user is told if tasks are still waited for.
    state.emit(SetTimer(restart.timer, longest_stop(state.stop_sequence)))
    # Now that the pause is over, lost containers are made again. `start_if_due` waits for them.
    if state.moving_restart is not None and state.replaces_hosts:
        for host_name in state.hosts.names_of(state.tasks[task] for task in restart.tasks):
            if state.hosts[host_name].state is HostState.LOST:
                state.start_agent(state.hosts[host_name])
    start_if_due(state, restart)
    return []


def start_if_due(state: JobState, restart: Restart) -> None:
    """Start the tasks of a restart if its pause is over and the last of them is gone.

    - Nothing happens before that. Whatever may have been the last reason to wait calls this function again.
    - With ``--output-to`` the results of the tasks are copied first, which calls it again, too.
    - After the loss of a host, all hosts must hold ports for their tasks first. When the plan with these
      ports is made, `Machine.handle_plan` resets `moving_restart` and calls this function again. A new
      container in place of a lost one is waited for, too.
    - In all other cases, the tasks start at once on the hosts and ports that the plan contains.
    """
    are_gone = restart.tasks.isdisjoint(state.tasks.not_gone)
    if not restart.tasks or restart.stage is not Stage.DUE or not are_gone:
        return
    unsaved = restart.tasks - restart.saved if state.spec.output_to else set()
    if unsaved and not restart.is_saving:
        restart.is_saving = True
        restart.saved |= unsaved
        # Nothing is left on a lost host, or nobody can fetch it.
        reachable = (task for task in unsaved if state.tasks[task].host not in restart.lost_hosts)
        state.emit(SaveResults(restart.key, frozenset(reachable)))
    if restart.is_saving:
        return
    if state.moving_restart is not None:  # A restart because of a lost host includes all others.
        hosts_are_made = state.moves_tasks or not state.hosts.has_any(HostState.RETURNING)
        if hosts_are_made and not restart.is_placing:
            state.emit(CancelTimer(restart.timer))
            _place_tasks(state, restart)
        return
    state.completed_restarts += 1
    for record in state.tasks.start_order(restart.tasks):
        state.tasks.begin_attempt(record)
        state.start(record)
    state.end_restart(restart)
    state.set_timer(TimerKind.START)  # It limits how long the agents may take to start them.
    state.set_timer(TimerKind.NOTICE)  # When it fires, the user is told which starts are waited for.


def handle_saved(state: JobState, key: str) -> None:
    """Start the tasks of a restart whose results were copied, or could not be.

    Args:
        state: The state of the job.
        key: The key of the restart, which may be over already.
    """
    restart = state.restarts.get(key)
    if restart is not None:
        restart.is_saving = False
        start_if_due(state, restart)


# ---------------------------------------------------------------------- lost hosts


def restart_after_loss(
    state: JobState, host: HostRecord, moving: Restart | None, event: events.AgentLost, why: str
) -> tuple[bool, str]:
    """Start the tasks of a lost host elsewhere, with all tasks of the job, if the policy allows it.

    They wait until their last attempts on the lost host have certainly ended. A lost container is removed,
    which kills its tasks.

    - A host without tasks needs no restart.
    - If the job is ending, or the policy allows no restart of these tasks, they do not start again.
    - If tasks of other lost hosts move already, the tasks of this host join them.
    - Otherwise a restart of all tasks begins, if the other hosts have room and a restart is left.

    Args:
        state: The state of the job, in which the host and its tasks are lost already.
        host: The lost host.
        moving: The restart that moved tasks of other hosts when this host was lost, if there was one. The
            loss then becomes part of it.
        event: The loss.
        why: The reason of the loss, for the user.

    Returns:
        Two values. The first is whether the tasks start again, so the job has not failed. The second is
        a text about that for the user, which is empty if the message about the loss needs no addition.
    """
    # Tasks of other hosts may have been about to move to this host. When the timer PLACE fires, the job fails
    # if the remaining hosts have no room for them.
    if moving is not None and not host.main_tasks:
        state.set_timer(TimerKind.PLACE)
    if not _can_restart_after_loss(state, host):
        return False, ""
    if moving is not None and host.name not in moving.lost_hosts:
        _join_move(state, host, moving)
        restart, new_hosts = moving, None
    else:  # No tasks move yet, or the new container in place of this host is lost, too.
        placement = _placement_without_lost(state)
        if placement is None:
            return False, describe.no_room_for(state, host.main_tasks)
        restart_of_all = _restart_of_all(state, host.main_tasks, event)
        if restart_of_all is None:
            return False, state.restart_policy.refusal(host.main_tasks[0].task, ExitStatus())
        # Hosts that were to hold ports for the earlier restart are no longer waited for. That is said before
        # `moving_restart` is replaced below.
        state.stop_placing()
        _begin_restart(state, restart_of_all)
        restart, new_hosts = restart_of_all, _hosts_of(placement, host.main_tasks)
    restart.lost_hosts[host.name], restart.lost_at = why, event.at
    state.moving_restart = restart
    return True, describe.move(state, host, restart, new_hosts)


def _can_restart_after_loss(state: JobState, host: HostRecord) -> bool:
    """Return whether the tasks of a lost host may start again: the job runs, and the policy allows it."""
    if state.phase is not Phase.RUNNING or state.failure is not None or not host.main_tasks:
        return False
    # If the user has stopped all tasks that decide when the job is done, it is over when they have ended.
    if state.tasks.are_deciding_dismissed():
        return False
    # The state has None for this time if tasks of a lost host can never start again.
    can_recover = state.seconds_until_tasks_ended is not None
    return can_recover and state.restart_policy.allows_restart([record.task for record in host.main_tasks])


def _join_move(state: JobState, host: HostRecord, moving: Restart) -> None:
    """Let the tasks of one more lost host move with the tasks of others.

    The pause before the start, after which the tasks of a lost host have certainly ended, begins again. New
    hosts are chosen when this pause is over, and not now, because the same cause may take more hosts. If
    there is no room for all tasks, the job fails before that, when the timer PLACE fires.

    Args:
        state: The state of the job.
        host: The host that was lost last.
        moving: The restart in which the tasks of the other lost hosts move.
    """
    state.stop_placing()  # Hosts may have been chosen, and the lost one may be among them.
    _add_tasks(state, moving, {record.task for record in host.tasks if _takes_part_in_move(record)})
    _begin_pause(state, moving)
    state.set_timer(TimerKind.PLACE)


def _restart_of_all(
    state: JobState, lost_tasks: Sequence[TaskRecord], event: events.AgentLost
) -> Restart | None:
    """Return a restart of all tasks after the loss of a host, because the addresses of all tasks change.

    Args:
        state: The state of the job.
        lost_tasks: The tasks of the lost host, at least one.
        event: The loss.

    Returns:
        The restart, which waits until tasks of the lost host have certainly ended. None if no restart is
        left.
    """
    first, *others = lost_tasks
    # The policy is told how long the first task ran, and 0 if the task had ended before its host was lost.
    was_running = first.current.ended_at == event.at
    ran = max(0.0, event.at - (first.current.started_at or event.at)) if was_running else 0.0
    also_failed = [record.task for record in others]
    policy = state.restart_policy
    restart = policy.restart_after(first.task, ExitStatus(), ran, also_failed, counted=not event.preempted)
    if restart is not None:
        # The policy would restart only some of the tasks.
        restart.tasks = {task for task, record in state.tasks.items() if _takes_part_in_move(record)}
        restart.tasks |= state.tasks.restarting.keys()
        restart.includes_succeeded = True
        restart.pause_seconds = max(restart.pause_seconds, state.seconds_until_tasks_ended or 0.0)
    return restart


def _takes_part_in_move(record: TaskRecord) -> bool:
    """Return whether a task starts again when all do.

    One that the user has stopped does not, and a sidecar (TensorBoard) does so only if its own host is lost.
    """
    return not record.is_dismissed and (not record.sidecar or record.state is TaskState.LOST)


def _placement_without_lost(state: JobState) -> Placement | None:
    """Return a placement of all tasks without the lost hosts. None if the other hosts lack room for them."""
    if state.replaces_hosts:  # A new container has the name of the lost one, so the placement stays.
        return state.placement
    lost = {name for name, host in state.hosts.items() if not host.is_active}
    # Tasks that the user has stopped need no other host when theirs is lost.
    dismissed = {task for task, record in state.tasks.items() if record.is_dismissed}
    return replace_hosts(state.placement, lost, dismissed)


def _hosts_of(placement: Placement, records: Sequence[TaskRecord]) -> Iterable[str]:
    """Return the names of the hosts of these tasks in a placement, each once."""
    tasks = {record.task for record in records}
    return dict.fromkeys(placed.host.name for placed in placement.tasks if placed.task in tasks)


def handle_place_timer(state: JobState, timer: Timer, at: float) -> None:
    """Let the job fail now if there is no room for the tasks of all hosts that were lost by one cause."""
    moving = state.moving_restart
    if moving is not None and not moving.is_placing and _placement_without_lost(state) is None:
        _fail_without_room(state, moving)


def _place_tasks(state: JobState, restart: Restart) -> None:
    """Choose hosts for the tasks of lost hosts, and let all hosts hold ports for their tasks.

    When they do, a plan with the new addresses is made, and the tasks start. If no host has room for a task,
    the job fails instead.
    """
    placement = _placement_without_lost(state)
    if placement is None:
        _fail_without_room(state, restart)
        return
    state.placement, restart.is_placing = placement, True
    for placed in placement.tasks:
        state.tasks[placed.task].move_to(placed.host)
    state.hosts.assign(state.tasks.values())
    # The launcher must know the new hosts of the tasks before it gets the commands to hold ports there.
    state.emit(MoveTasks(placement))
    state.set_timer(TimerKind.READY)  # It limits how long the agents may take to hold the ports.
    for host in state.hosts.values():
        # A host that is not active ran only a sidecar, which is lost with it.
        if host.is_active and host.tasks:
            host.transition_to(HostState.HOLDING, "tasks move")
            if host.has_agent:  # An agent that still starts gets the command when it is ready.
                state.emit(host.hold_ports())


def _fail_without_room(state: JobState, restart: Restart) -> None:
    """Let the job fail, because its tasks have lost their hosts and no other host has room for them."""
    failure = describe.no_room(state, restart)  # It names the tasks, which the next line removes.
    state.cancel_restarts(state.tasks)
    if not state.fail(failure, HOST_FAULT_EXIT_CODE):  # The failure report tells of an earlier failure.
        state.tell(failure.text, urgent=True)
    continue_or_stop(state)


# ---------------------------------------------------------------------- hosts that return


def expect_return(state: JobState, host_name: str) -> None:
    """Set a timer to use a lost host again later, when its tasks have certainly ended.

    Nothing is set if tasks do not move to other hosts, the user wants no restarts, or the job is ending.
    """
    if state.moves_tasks and state.restart_policy.max_restarts and _can_use_hosts(state):
        seconds = max(state.seconds_until_tasks_ended or 0.0, _RECOVERY_PAUSE_SECONDS)
        state.set_timer(TimerKind.HOST_RETURN, seconds, host_name)


def handle_return_timer(state: JobState, timer: Timer, at: float) -> None:
    """Start a new agent on the lost host that the key of the timer names, or set the timer again.

    The agent must not start before the host's tasks have moved, and is useless when no restart is left.
    """
    if state.moving_restart is not None or not state.restart_policy.has_restarts_left:
        state.emit(SetTimer(timer, _RECOVERY_PAUSE_SECONDS))
    elif _can_use_hosts(state):
        state.start_agent(state.hosts[timer.key])


def use_again(state: JobState, host: HostRecord, event: events.AgentReady) -> None:
    """Use a lost host again, because a new agent runs on it. Without a task it waits as a standby host."""
    if not _can_use_hosts(state):  # The job is ending, which closes the link to the agent, too.
        host.transition_to(HostState.LOST, event)
        return
    host.transition_to(HostState.READY, event)
    host.has_agent = True
    # A host that has tasks already is a new container in place of a lost one.
    if not host.tasks and host.host not in state.placement.standby:
        state.placement = replace(state.placement, standby=(*state.placement.standby, host.host))
    if state.moves_tasks:
        state.tell(f"host {host.name} is back: it can take the tasks of a host that is lost")


def try_again_later(state: JobState, host: HostRecord, event: events.AgentLost) -> None:
    """Leave a host lost on which no new agent could be started, and try it again later."""
    host.transition_to(HostState.LOST, event)
    if _can_use_hosts(state):
        state.set_timer(TimerKind.HOST_RETURN, _RECOVERY_PAUSE_SECONDS, host.name)


def _can_use_hosts(state: JobState) -> bool:
    """Return whether the job may still use a lost host that returns: it is not ending, and has not failed."""
    return state.phase in (Phase.STARTUP, Phase.RUNNING) and state.failure is None
