"""The messages about tasks, hosts, restarts and the end of the job.

Each function puts into words what another module of the supervisor has decided, and changes nothing. It
returns a text, or the `Failure` that contains it. `launcher.supervisor.describe_stalls` does the same for
silent tasks. A text that needs no function is written where the user is told it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.report import Failure, Reason, TaskState
from launcher.common.text import KNOWN_SIGNALS, duration, join_names, plural, signal_name
from launcher.job import is_loopback
from launcher.supervisor.commands import TimerKind
from launcher.supervisor.records import ACTIVE_STATES, HostRecord, HostState, Restart, TaskRecord
from launcher.supervisor.state import TIMER_SECONDS, JobState, Phase

#: How long TensorFlow's collectives take at most to fail after a peer has ended.
_COLLECTIVE_FAILURE_SECONDS = 60.0
#: A shorter pause before a restart is called "at once".
_MIN_SHOWN_PAUSE_SECONDS = 0.1
_MAX_NAMED_PIDS = 10
STOPPED_OUTSIDE = "its agent was stopped from outside; it stops its tasks"
ADDRESS_ADVICE = (
    "`address:` in a hostfile is the address that others connect to; --no-check starts the job all the same"
)
_SIGNAL_HINTS = {
    4: "it used an instruction that this CPU does not have: perhaps it was built for another CPU",
    7: "a mapped file was truncated, or shared memory (/dev/shm) is full",
    9: "launch did not send it: an administrator, a batch system, a limit of CPU time (`ulimit -t`), or lack "
    "of memory (`dmesg` may show it)",
    11: "it crashed in native code: a stack may be in its log (PYTHONFAULTHANDLER is set)",
    24: "it has used all the CPU time that it may use (`ulimit -t`)",
    25: "a file would have become larger than allowed (`ulimit -f`)",
}


def time_limit(seconds: float, written: str = "") -> str:
    """Return a time limit as the user wrote it, or in seconds if the user wrote no unit.

    Args:
        seconds: The limit.
        written: What the user wrote, as in ``2h``. Empty if that is not known.

    Returns:
        A text like ``2h`` or ``0.5s``.
    """
    return written if written[-1:].isalpha() else f"{seconds:.10g}s"


def on_host(state: JobState, host_name: str) -> str:
    """Return `` on node1`` to append to the name of a task, or an empty text if the host is obvious.

    It is obvious if it is this machine, or a container that is named after its task.
    """
    tasks = state.hosts[host_name].tasks
    is_obvious = is_loopback(host_name) or any(record.task.is_own_host(host_name) for record in tasks)
    return "" if is_obvious else f" on {host_name}"


def host_with_node(state: JobState, host_name: str) -> str:
    """Return the name of a host.

    A pod or a container also gets the name of its machine: ``worker-0 on n2``.
    """
    nodes = {record.node for record in state.hosts[host_name].tasks if record.node}
    return " on ".join([host_name, *sorted(nodes)])


# ---------------------------------------------------------------------- waits


def wait(state: JobState) -> str:
    """Return what the job waits for, as in ``waiting for worker/0 to end``.

    Returns:
        The message. Empty if the job waits for no task and no host in particular, as while all tasks run.
    """
    if state.phase is Phase.STARTUP:
        hosts_without_ports = join_names(state.hosts.names(HostState.HOLDING))
        if hosts_without_ports:
            return f"waiting for the agent on {hosts_without_ports}"
        return "waiting for the hosts to connect to each other"
    if state.phase is Phase.CLOSING:
        return f"waiting for the agent on {join_names(state.hosts.names(*ACTIVE_STATES))} to close"
    if state.phase is Phase.DRAINING:
        draining = state.tasks.drain.tasks
        limit = time_limit(max(state.tasks[task].drain for task in draining))
        return f"waiting for {state.tasks.names(draining)} to finish (at most {limit} after the job's end)"
    if state.phase is Phase.RUNNING:
        return _wait_while_running(state)
    return _wait_for_tasks(state, state.tasks.not_gone, "end")


def _wait_while_running(state: JobState) -> str:
    """Return what a job waits for whose tasks run, start or are about to start again.

    Empty if it is nothing.
    """
    # A task starts again only when all processes of its last attempt have ended.
    if ending := state.tasks.not_gone & state.tasks.restarting.keys():
        return _wait_for_tasks(state, ending, "end")
    hosts = state.hosts.names(HostState.HOLDING, HostState.RETURNING)
    if late := [host for host in hosts if state.hosts[host].tasks]:
        return f"waiting for the agent on {join_names(late)}"
    starting = state.tasks.starting
    # Later attempts are as a rule forked from processes that have imported the modules of --preload already.
    is_first_start = all(state.tasks[task].attempt == 1 for task in starting)
    preloaded = join_names(state.spec.preload) if is_first_start else ""
    to_do = f"start: --preload imports {preloaded} first" if preloaded else "start"
    return _wait_for_tasks(state, starting, to_do)


def _wait_for_tasks(state: JobState, tasks: Collection[TaskId], to_do: str) -> str:
    """Return that the job waits for tasks to do something, or an empty text if there are no tasks."""
    return f"waiting for {state.tasks.names(tasks)} to {to_do}" if tasks else ""


def late_host(state: JobState, kind: TimerKind) -> str:
    """Return why a host is lost that did not answer before a timer fired.

    Args:
        state: The state of the job.
        kind: What the timer was for.
    """
    # The table lacks ANSWER, whose limit is `answer_seconds`. It lacks RESTART and END, too, but their texts
    # below contain no limit.
    limit = time_limit(TIMER_SECONDS.get(kind, state.answer_seconds))
    reasons = {
        TimerKind.READY: f"no answer from its agent in {limit}",
        TimerKind.OTHER_HOSTS: "it had not answered yet when another host failed",
        TimerKind.START: f"its agent could not start a task in {limit}",
        TimerKind.ANSWER: f"its agent did not answer in {limit}",
        TimerKind.RESTART: "its agent did not stop the tasks",
        TimerKind.END: "its agent did not stop the tasks",
        TimerKind.CLOSE: f"its agent did not close in {limit}",
    }
    return reasons[kind]


# ---------------------------------------------------------------------- tasks


def start_failure(state: JobState, record: TaskRecord, event: events.TaskNotStarted) -> Failure:
    """Return the failure of a task that could not be started.

    Args:
        state: The state of the job.
        record: The task.
        event: What its agent said about it.
    """
    text = f"{record.task} could not be started{on_host(state, event.host)}: {event.why}"
    return _task_failure(record, event.at, text)


def exit_failure(state: JobState, record: TaskRecord, event: events.TaskExited) -> Failure:
    """Return the failure of a task whose process has exited.

    Args:
        state: The state of the job.
        record: The task, whose attempt contains the exit already.
        event: The exit.
    """
    started_at = record.current.started_at
    after = "" if started_at is None else f" after {duration(event.at - started_at)}"
    attempt = f" (attempt {record.attempt})" if record.attempt > 1 else ""
    text = f"{record.task} failed{on_host(state, record.host)}{after}{attempt}: {record.current.detail}"
    return _task_failure(record, event.at, text, _exit_hint(record, event))


def _task_failure(record: TaskRecord, at: float, text: str, hint: str = "") -> Failure:
    """Return the failure of a task whose record contains the reason already."""
    reason = record.current.reason
    assert reason is not None
    return Failure(reason=reason, task=record.task, host=record.host, at=at, text=text, hint=hint)


def _exit_hint(record: TaskRecord, event: events.TaskExited) -> str:
    """Return what the exit code or the signal of a task usually means, and what to do.

    Empty if it is unclear.
    """
    if event.oom and record.role.memory:  # The user has limited the memory of this role.
        return "a larger `--memory` gives it more; or make its batches or caches smaller"
    if event.oom:
        return "give it a machine with more memory, or make its batches or caches smaller"
    if event.signal is not None:
        return _SIGNAL_HINTS.get(event.signal, "")
    if event.code in (126, 127):
        return "126 and 127 are what a shell returns when it cannot run or find a program: see its last lines"
    number = (event.code or 0) - 128  # A shell adds 128 to the number of a signal.
    if number in KNOWN_SIGNALS:
        return f"{event.code} is what a shell returns when its program was killed by {signal_name(number)}"
    return ""


def peers_hint(state: JobState, failure: Failure) -> str:
    """Return advice for a Python program that failed shortly after its peers had succeeded.

    Tasks that communicate collectively must finish together: the first that exits makes the others fail.

    Args:
        state: The state of the job.
        failure: The failure of the job.

    Returns:
        The advice. Empty if it does not apply to this failure.
    """
    record = state.tasks.get(failure.task or TaskId(""))
    failed_by_itself = failure.reason in (Reason.EXIT, Reason.SIGNAL)
    if record is None or record.service or not record.runs_python or not failed_by_itself:
        return ""
    ends = {
        peer.task: peer.current.ended_at
        for peer in state.tasks.values()
        if not peer.service and peer.current.outcome is TaskState.SUCCEEDED
    }
    since = failure.at - _COLLECTIVE_FAILURE_SECONDS
    recent_ends = {task: at for task, at in ends.items() if at is not None and since <= at <= failure.at}
    if not recent_ends:
        return ""
    earlier = duration(failure.at - max(recent_ends.values()))
    before = f"{join_names([*recent_ends])} had exited with code 0, {earlier} earlier"
    return f"{before}: tasks that communicate collectively must finish together"


def ignored_sigterm(state: JobState, record: TaskRecord, *, names_task: bool) -> str:
    """Return that a task did not exit on SIGTERM, and which signals follow.

    Args:
        state: The state of the job.
        record: The task.
        names_task: Whether the message is about this task, and not about all further ones.
    """
    subject = str(record.task) if names_task else "more tasks"
    if record.current.status.known:  # The own process of the task has exited.
        subject = f"a process that {subject} left behind"
    text = f"{subject} ignored SIGTERM: sent SIGABRT, so that Python shows its stacks; SIGKILL is next"
    # ``--drain`` helps a task that still worked when the job was done, and was stopped because of that.
    could_drain = not (state.failure or record.service or record.current.status.known or record.drain)
    if state.was_done and could_drain:
        text += "; the job was done: `--drain 60s` gives it time to finish"
    return text


def unkillable_processes(state: JobState, event: events.TaskGone) -> str:
    """Return that SIGKILL did not stop some processes of a task."""
    pids = join_names([str(pid) for pid in event.unkillable], max_names=_MAX_NAMED_PIDS)
    return f"{event.task}: SIGKILL did not stop pid {pids}{on_host(state, event.host)}"


def failure_beside_others(state: JobState, text: str, *, goes_on: bool) -> str:
    """Return that a task failed, and what that means for the tasks that are still alive.

    If they are stopped, the cause is left out, because the failure report follows and tells it.

    Args:
        state: The state of the job.
        text: What happened, and after a colon its cause.
        goes_on: Whether the other tasks run on.
    """
    others = len(state.tasks.alive)
    if goes_on:
        return f"{text}; {plural(others, 'task')} left"
    what, _, _ = text.partition(": ")
    return f"{what}; stopping the other {'task' if others == 1 else plural(others, 'task')}"


# ---------------------------------------------------------------------- hosts


def host_loss(host: HostRecord) -> str:
    """Return how a host is lost, as in ``is lost``. Call it before the host gets the state LOST."""
    if host.state is HostState.RETURNING:  # No new container could be started in its place.
        return "cannot be made again"
    # A host that holds no ports yet, or runs no task, had no use until now.
    return "cannot be used" if host.state is HostState.HOLDING or not host.tasks else "is lost"


def host_lost(state: JobState, host: HostRecord, why: str) -> str:
    """Return that a host is lost, and why. Call it before the host gets the state LOST."""
    # The machine of a new container is not known yet.
    name = host.name if host.state is HostState.RETURNING else host_with_node(state, host.name)
    return f"host {name} {host_loss(host)}: {why}"


def unreachable(host_name: str, address: str, why: str) -> str:
    """Return that a host cannot connect to the address of another host, and what to do."""
    return f"{host_name} cannot reach {address}: {why} ({ADDRESS_ADVICE})"


def missing_environments(state: JobState) -> tuple[str, str]:
    """Return on which hosts tasks cannot use their environments, and the commands that would make them.

    Returns:
        Two texts, which are empty if no host lacks an environment.
    """
    hosts_by_error: dict[str, list[HostRecord]] = {}
    for host in state.hosts.values():
        if host.environment_error:
            hosts_by_error.setdefault(host.environment_error, []).append(host)
    texts = [f"{why} on {', '.join(host.name for host in hosts)}" for why, hosts in hosts_by_error.items()]
    # ``launch prepare`` makes only environments that the user has named, and not those at a path.
    environments = dict.fromkeys(hosts[0].host.venv for hosts in hosts_by_error.values())
    commands = [f"`{state.spec.prepare} --name {name}`" for name in environments if name and "/" not in name]
    return "; ".join(texts), f"{' and '.join(commands)} would make it" if commands else ""


# ---------------------------------------------------------------------- restarts


def restart(state: JobState, restart: Restart, record: TaskRecord, failure: Failure) -> str:
    """Return that a task has failed, and which tasks start again because of that, and when.

    Args:
        state: The state of the job.
        restart: The restart.
        record: The task that failed.
        failure: Its failure.
    """
    pause = restart.pause_seconds
    when = f"in {duration(pause)}" if pause >= _MIN_SHOWN_PAUSE_SECONDS else "at once"
    details = f"attempt {record.attempt + 1}, {_restart_number(state, restart)}"
    details += f": {restart.caused_by} failed before" if restart.caused_by else ""
    again = f"starting {state.tasks.names(restart.tasks)} again {when}"
    return f"{failure.text}; {again} ({details})"


def move(state: JobState, host: HostRecord, restart: Restart, new_hosts: Iterable[str] | None) -> str:
    """Return that the tasks of a lost host start again elsewhere. It is appended to `host_lost`.

    Args:
        state: The state of the job.
        host: The lost host.
        restart: The restart with which its tasks start again.
        new_hosts: Where they move. None if another host was lost before, and they join its restart, which
            places them later. The text then names all hosts that were lost.
    """
    tasks = host.main_tasks
    details = f"attempt {tasks[0].attempt + 1}, {_restart_number(state, restart)}"
    details += f" for {join_names([*restart.lost_hosts])}" if new_hosts is None else ""
    if state.replaces_hosts:
        return f"a new one takes its place, all tasks start again ({details})"
    where = ", too" if new_hosts is None else f" to {join_names([*new_hosts])}"
    moves = f"{state.tasks.names_of(tasks)} {'moves' if len(tasks) == 1 else 'move'}{where}"
    return f"{moves}, all tasks start again in {duration(restart.pause_seconds)} ({details})"


def _restart_number(state: JobState, restart: Restart) -> str:
    """Return ``restart 1 of 3``, or that a restart does not count against ``--restarts``."""
    if not restart.number:
        return "not counted"
    return f"restart {restart.number} of {state.restart_policy.max_restarts}"


def no_room_for(state: JobState, tasks: Iterable[TaskRecord]) -> str:
    """Return that no other host has room for these tasks, whose host is lost."""
    return f"no other host has room for {state.tasks.names_of(tasks)}"


def no_room(state: JobState, restart: Restart) -> Failure:
    """Return the failure of a job whose tasks cannot move, because no host has room for them."""
    lost = [*restart.lost_hosts]
    stranded = [task for host in lost for task in state.hosts[host].main_tasks]
    hosts = f"host {lost[0]} is" if len(lost) == 1 else f"hosts {join_names(lost)} are"
    why = "; ".join(dict.fromkeys(restart.lost_hosts.values()))
    text = f"{hosts} lost: {why}; {no_room_for(state, stranded)}"
    return Failure(reason=Reason.HOST_LOST, task=None, host=lost[0], at=restart.lost_at, text=text)


def cannot_restart(record: TaskRecord, at: float) -> Failure:
    """Return the failure of a job with a task that cannot start again, as SIGKILL did not stop it."""
    text = f"{record.task} cannot start again: SIGKILL did not stop its last attempt"
    return Failure(reason=Reason.LAUNCHER, task=None, host=record.host, at=at, text=text)


# ---------------------------------------------------------------------- ends of jobs


def chief_ends_workers(state: JobState, at_work: Iterable[TaskRecord]) -> str:
    """Return that the end of the chief stops workers that still printed, and which options prevent that."""
    return (
        f"the chief is done, and {state.tasks.names_of(at_work)} still printed: stopped;"
        " `--done-when workers` waits for workers, `--drain 60s` gives them time to finish"
    )


def task_stop(state: JobState, records: Collection[TaskRecord]) -> str:
    """Return that the user stops these tasks, and what that means for the job."""
    text = f"launch stop: stopping {state.tasks.names_of(records)}"
    if state.tasks.are_deciding_dismissed():
        return f"{text}; no other task decides when the job is done, so the job ends"
    return f"{text}; the job goes on without {'it' if len(records) == 1 else 'them'}"


def all_dismissed(state: JobState) -> Failure:
    """Return the failure of a job of which the user has stopped all tasks that decide when it is done."""
    text = "stopped by launch stop: no task is left that decides when the job is done"
    at = state.tasks.last_event_at
    return Failure(reason=Reason.INTERRUPTED, task=None, host=None, at=at, text=text)


def drain_over(state: JobState, late: Iterable[TaskId]) -> str:
    """Return that tasks did not finish within the time after the end of the job that their role allows."""
    limit = time_limit(state.tasks.drain.elapsed_seconds)
    return f"{state.tasks.names(late)} did not finish within {limit} of the job's end: stopped"


def stop(state: JobState) -> str:
    """Return what a stop of the job means for its tasks, as in ``stopping 3 tasks``."""
    if state.phase is Phase.STARTUP:
        return "no task was started yet"
    # Without a task that is alive, only processes that tasks have left behind are stopped.
    running = state.tasks.alive or state.tasks.not_gone
    return f"stopping {plural(len(running), 'task')}" if running else "no task runs now"


def orderly_stop(state: JobState, event: events.StopAsked) -> str:
    """Return that the job stops because of a request, how long that takes, and how to shorten it."""
    grace = state.policy.grace
    done = "the job is done; " if state.phase is Phase.DRAINING else ""
    text = f"{event.who}: {done}{stop(state)}"
    if state.phase is not Phase.STARTUP and state.tasks.alive and grace > 0 and not event.at_once:
        text += f", up to {time_limit(grace)}; {_how_to_kill(state, event)}"
    return text


def _how_to_kill(state: JobState, event: events.StopAsked) -> str:
    """Return how the sender of a request to stop can end the wait for the tasks."""
    if state.stop_requests.can_repeat(event.signal):
        return f"{event.who} again kills them at once"
    return "`launch stop --now` kills them at once"


def stop_continues(state: JobState, event: events.StopAsked) -> str:
    """Return what a job that already stops waits for, as an answer to one more request to stop it."""
    if state.phase is Phase.CLOSING:
        return f"{event.who}: {wait(state)}; {event.who} again ends the wait"
    tasks = plural(len(state.tasks.not_gone), "task")
    return f"{event.who}: waiting for {tasks} to end; {_how_to_kill(state, event)}"


def job_time_limit(state: JobState) -> str:
    """Return the time limit of the job (``--timeout``) as the user wrote it."""
    return time_limit(state.policy.timeout or 0.0, state.policy.timeout_text)


def timeout(state: JobState, at: float, hint: str) -> Failure:
    """Return the failure of a job that took longer than its time limit.

    Args:
        state: The state of the job.
        at: When the limit was over, in seconds since the epoch.
        hint: What the user may do about it. Empty if nothing is known.
    """
    limit = job_time_limit(state)
    # If some tasks have ended, the message says for which ones the job went on.
    ended = [
        f"{record.task} ended after {duration(record.current.ended_at - record.current.started_at)}"
        for record in state.tasks.values()
        if not record.service and record.task not in state.tasks.restarting
        if record.current.started_at is not None and record.current.ended_at is not None
    ]
    went_on = f"; {join_names(ended)}, {state.tasks.names(state.tasks.deciding)} went on" if ended else ""
    text = f"the job took longer than its time limit of {limit}{went_on}"
    return Failure(
        reason=Reason.TIMEOUT,
        task=None,
        host=None,
        at=at,
        text=text,
        hint=hint,
        limit=limit,
        stacks=state.stalls.stacks,
    )
