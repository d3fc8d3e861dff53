"""The end of a job: it goes on, drains, stops or closes after the end of a task.

Whatever ends a task or a host calls `continue_or_stop`, which decides whether the job goes on without it. The
other handlers use this module: it must know neither requests of the user nor silent tasks.
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import StopSequence
from launcher.common.report import Failure, Reason, TaskState
from launcher.job import CHIEF_ROLES
from launcher.supervisor import describe
from launcher.supervisor.commands import CloseLink, Timer, TimerKind
from launcher.supervisor.records import ACTIVE_STATES, HostState, TaskRecord
from launcher.supervisor.state import NOTICE_REPEAT_SECONDS, SIGTERM, JobState, Phase, longest_stop

#: Timers that are useless once the job is stopped.
_TIMERS_BEFORE_STOP = (
    TimerKind.JOB,
    TimerKind.READY,
    TimerKind.OTHER_HOSTS,
    TimerKind.CHECK,
    TimerKind.START,
    TimerKind.DRAIN,
    TimerKind.SILENCE,
    TimerKind.PLACE,
)
#: Timers that are useless once every task is gone.
_TIMERS_BEFORE_CLOSE = (TimerKind.END, TimerKind.ANSWER)
#: A worker that only serves a chief prints a few lines at its start. One that printed before this many ticks
#: of `launcher.supervisor.stalls` works by itself.
_MIN_TICKS_AT_WORK = 5
_ACTIVE_PHASES = (Phase.RUNNING, Phase.DRAINING)


def continue_or_stop(state: JobState) -> None:
    """Decide what the end of a task means for the job.

    - A job that is being stopped already closes its agents once every task is gone.
    - While there are tasks to wait for and no failure stops them, the job goes on.
    - A job that is done drains: some tasks have time left to finish (``--drain``). Without such tasks it is
      stopped.
    - After a failure, or when the time to finish is over, it is stopped.

    Call it after every event that may have ended a task, when the state already shows that.
    """
    if state.phase not in _ACTIVE_PHASES:
        _close_if_empty(state)
    elif _continues(state):
        _stop_unneeded_services(state)
    elif state.phase is Phase.RUNNING and state.is_done():
        _end_successfully(state)
    else:
        stop(state)


def _continues(state: JobState) -> bool:
    """Return whether there are still tasks to wait for, and no failure stops them.

    Until the job is done these are the deciding tasks, and then those with time left to finish (``--drain``).
    """
    waited_for = state.tasks.drain.tasks if state.phase is Phase.DRAINING else state.tasks.deciding
    return bool(waited_for) and not state.must_stop()


def _end_successfully(state: JobState) -> None:
    """Stop a job that is done, or let the tasks finish that have time for that (``--drain``).

    If the user has stopped all tasks that decide when it is done, it is not done, but stopped by the user.
    """
    if state.tasks.are_deciding_dismissed():
        state.fail(describe.all_dismissed(state), 128 + SIGTERM)
        stop(state)
        return
    _tell_of_workers_at_work(state)
    state.was_done = True
    seconds = state.tasks.drain.update(state.tasks.values())
    if not state.tasks.drain.tasks:
        stop(state)
        return
    state.phase = Phase.DRAINING
    state.cancel_restarts(state.tasks)
    state.set_timer(TimerKind.NOTICE)  # When it fires, the user is told which tasks may still finish.
    _drain(state, seconds)


def _tell_of_workers_at_work(state: JobState) -> None:
    """Tell the user that the end of the chief stops workers that were at work until then.

    Under ParameterServerStrategy this is right, and nobody is told: its workers only print a few lines at
    their start.
    """
    at_work = [record for record in state.tasks.values() if _is_worker_at_work(state, record)]
    chief_decides = {task.role for task in state.tasks.all_deciding}.issubset(CHIEF_ROLES)
    if at_work and chief_decides and not state.policy.done_when:  # The user did not choose what decides.
        state.tell(describe.chief_ends_workers(state, at_work))


def _is_worker_at_work(state: JobState, record: TaskRecord) -> bool:
    """Return whether a worker trains now, as its output shows, and has no time to finish (``--drain``)."""
    if record.role.name != "worker" or record.state is not TaskState.RUNNING or record.drain:
        return False
    # Ticks count the time, see `launcher.supervisor.stalls`.
    prints_now = (record.current.output_tick or 0) >= state.stalls.ticks - 1
    return prints_now and record.current.ticks_with_output >= _MIN_TICKS_AT_WORK


# ---------------------------------------------------------------------- draining


def handle_drain_timer(state: JobState, timer: Timer, at: float) -> None:
    """Stop the tasks that did not finish in the time that their role allows, while the job drains."""
    drain, unfinished = state.tasks.drain, state.tasks.drain.tasks
    drain.elapsed_seconds = drain.next_seconds
    seconds = drain.update(state.tasks.values())
    # A task whose time is over runs on if it serves one that has time left.
    if late := unfinished - drain.tasks - drain.serving:
        state.tell(describe.drain_over(state, late))
    if drain.tasks:
        _drain(state, seconds)
    else:
        stop(state)


def may_finish(state: JobState, record: TaskRecord) -> bool:
    """Return whether a task may still exit by itself, because the job is done and drains.

    It may if its role allows time for that (``--drain``), if another such task needs it, or if it is a
    sidecar, such as TensorBoard.
    """
    drain = state.tasks.drain
    is_kept = record.sidecar or record.task in drain.tasks or record.task in drain.serving
    return is_kept and state.phase is Phase.DRAINING


def _drain(state: JobState, seconds: float) -> None:
    """Let tasks finish for these seconds, and stop those at once that neither finish nor serve others."""
    state.set_timer(TimerKind.DRAIN, seconds)
    stop_tasks(state, [record for record in state.tasks.values() if not may_finish(state, record)])


def _stop_unneeded_services(state: JobState) -> None:
    """Stop the services that run on only for other tasks, once all of these others have finished.

    That happens only while the job drains. Services with time of their own to finish (``--drain``) run on.
    """
    drain = state.tasks.drain  # `serving` is empty unless the job drains.
    if drain.serving and all(state.tasks[task].service for task in drain.tasks):
        stop_tasks(state, state.tasks.in_order(drain.serving))
        drain.serving = set()


# ---------------------------------------------------------------------- failures


def fail_task(state: JobState, failure: Failure, exit_code: int) -> None:
    """Record the failure of a task, and tell the user about it unless it follows from the stop of the job.

    The caller has removed the task from `TaskTable.alive`, and calls `continue_or_stop` next.

    Args:
        state: The state of the job.
        failure: The failure of the task.
        exit_code: The exit code of the job if this is its first failure.
    """
    is_first = state.fail(failure, exit_code)
    if state.phase not in _ACTIVE_PHASES:
        if is_first:  # The job stops because of a failure that happened later, but was known before.
            state.tell(f"{failure.text}; this is the first failure")
    elif state.tasks.alive:  # Without any, the failure report follows at once and says the same.
        goes_on = _continues(state) or _will_drain(state)
        state.tell(describe.failure_beside_others(state, failure.text, goes_on=goes_on))


def _will_drain(state: JobState) -> bool:
    """Return whether the job is done now and lets tasks finish, so it does not stop all of them yet."""
    # The update only finds out which tasks have time left. It is repeated when the job begins to drain.
    return state.is_done() and state.tasks.drain.update(state.tasks.values()) > 0


# ---------------------------------------------------------------------- stopping


def stop(state: JobState) -> None:
    """Stop every task that runs, cancel those that were not started, and close the agents if none is left."""
    state.phase = Phase.STOPPING
    state.cancel_restarts(state.tasks)
    state.cancel_timers(*_TIMERS_BEFORE_STOP)
    for record in state.tasks.values():
        if record.state is TaskState.PENDING:
            record.transition_to(TaskState.CANCELLED, "the job was over")
            record.current.reason = Reason.NEVER_STARTED
            state.tasks.task_gone(record.task)
    if state.tasks.not_gone:  # The agents get a limited time to stop them, and the user is told of the wait.
        state.set_timer(TimerKind.NOTICE)
        state.set_timer(TimerKind.END, longest_stop(state.stop_sequence))
    stop_tasks(state, state.tasks.in_order(state.tasks.not_gone))
    _close_if_empty(state)


def stop_tasks(
    state: JobState,
    records: Iterable[TaskRecord],
    sequence: StopSequence = (),
    cause: str = "the job is over",
) -> None:
    """Stop tasks whose own process has not ended, by one command for each host.

    A task that is being stopped already gets no second command.

    Args:
        state: The state of the job.
        records: The tasks.
        sequence: The signals that stop them, each with the seconds until the next one. If it is empty, those
            of the job are used: SIGTERM first.
        cause: Why they are stopped, for the history of their states.
    """
    stopped = []
    for record in records:
        if record.task not in state.tasks.not_gone or record.state is TaskState.ENDED:
            continue
        # A task whose agent was stopped from outside is STOPPING already, without a command.
        if record.state is not TaskState.STOPPING:
            record.transition_to(TaskState.STOPPING, cause)
        if not record.current.was_told_to_stop:
            record.current.was_told_to_stop = True
            stopped.append(record)
    send_stops(state, stopped, sequence or state.stop_sequence)


def send_stops(state: JobState, records: Iterable[TaskRecord], sequence: StopSequence) -> None:
    """Tell the agents of these tasks to stop them, by one command for each host.

    Args:
        state: The state of the job.
        records: The tasks.
        sequence: The signals that the agents send, each with the seconds until the next one.
    """
    tasks: dict[str, list[TaskId]] = {}
    for record in records:
        tasks.setdefault(record.host, []).append(record.task)
    state.emit(*(events.StopTasks(host, tuple(on_host), sequence) for host, on_host in tasks.items()))


def _close_if_empty(state: JobState) -> None:
    """Close the agents of a job that is being stopped, once every task is gone."""
    if state.tasks.not_gone or state.phase is not Phase.STOPPING:
        return
    state.phase = Phase.CLOSING
    state.cancel_timers(*_TIMERS_BEFORE_CLOSE)
    for name in state.hosts.names(*ACTIVE_STATES):
        # A host whose agent has not answered yet runs no task, so nothing there is waited for.
        if not state.hosts[name].has_agent:
            state.hosts[name].transition_to(HostState.LOST, "it has not answered before the job was over")
            state.emit(CloseLink(name))
    if agents := state.hosts.names(*ACTIVE_STATES):
        state.set_timer(TimerKind.NOTICE)  # When it fires, the user is told which agents are waited for.
        state.set_timer(TimerKind.CLOSE)  # It limits how long the agents may take to close.
        state.emit(*map(events.CloseAgent, agents))
    finish_if_closed(state)


def finish_if_closed(state: JobState) -> None:
    """Note that the job is over, if every agent is closed or lost."""
    if not state.hosts.has_any(*ACTIVE_STATES):
        state.phase = Phase.OVER


# ---------------------------------------------------------------------- waiting


def handle_notice_timer(state: JobState, timer: Timer, at: float) -> None:
    """Tell the user what the job waits for, unless the last message said the same.

    `launcher.supervisor.machine` calls it, as all handlers of timers, with the timer and the present time.
    """
    text = describe.wait(state)
    # Without a text the wait is over. What begins another one, such as a restart, sets the timer again.
    if not text:
        return
    wait = (text, state.started_restarts)
    if state.last_wait != wait:  # After another restart, the same words are about a new wait.
        state.tell(text)
    state.last_wait = wait
    state.set_timer(TimerKind.NOTICE, NOTICE_REPEAT_SECONDS)
