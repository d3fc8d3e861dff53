"""Restarts under way: tasks are stopped, and start again when they are gone and the wait is over."""

from __future__ import annotations

from collections.abc import Sequence

from launcher import events
from launcher.job import Placement
from launcher.report import ExitStatus, Failure, Reason, TaskState
from launcher.scheduler.placement import replace
from launcher.supervisor.restarts import (
    ALIKE,
    FIRST,
    OUTSIDE,
    Decision,
    Restart,
    Stage,
    cannot_import,
    exception,
)
from launcher.supervisor.state import (
    HOST_FAULT,
    NOTICE_TIMER,
    READY_LIMIT,
    START_LIMIT,
    JobState,
    Phase,
    longest,
    quick,
)
from launcher.supervisor.tasks import TaskRecord
from launcher.task_id import TaskId
from launcher.text import duration, listed

#: Seconds for all tasks of a preempted job to save a checkpoint and to exit.
_SAVING = 30.0
#: Seconds, at most, from the end of a ps to the failure of a task that needs it.
_NEEDED = 60.0


def after_failure(job: JobState, record: TaskRecord, failure: Failure, others: Sequence[TaskId] = ()) -> bool:
    """Let a task start again that has failed, if the policy allows it.

    Args:
        job, record, failure: of the task.
        others: tasks that have failed together with it.

    Returns:
        Whether it starts again; the failure is then not that of the job.
    """
    if job.phase is not Phase.RUNNING:
        return False
    if record.task in job.restarting:  # it follows from the failure of another task
        return True
    silence = (job.policy.stall or 0.0) if record.stalled else 0.0
    ran = 0.0 if record.started_at is None else max(0.0, failure.at - record.started_at - silence)
    lost = _lost_ps(job, record, failure.at)
    decision = job.restarts.after(record.task, record.status, ran, others, follows=bool(lost))
    if decision is None:
        return False
    restart = _begin(job, decision, failure)
    of_limit = f"restart {decision.number} of {job.restarts.limit}" if decision.number else "not counted"
    of_limit += f": {lost} failed before" if lost else ""
    when = f"in {duration(decision.wait)}" if decision.wait >= 0.1 else "at once"
    again = f"starting {job.names(restart.tasks)} again {when}"
    restart.notice = f"{failure.text}; {again} (attempt {record.attempt + 1}, {of_limit})"
    if record.stalled:
        _tell(job, restart)
    return True


def _lost_ps(job: JobState, record: TaskRecord, at: float) -> str:
    """The ps that has failed so shortly before that a task failed because of it; empty: there is none."""
    if record.task.role == "ps" or record.stalled or record.status.signal in OUTSIDE:
        return ""
    for peer in job.records.values():
        ends = [(each.state, each.ended_at) for each in peer.earlier[-1:]] + [(peer.outcome, peer.ended_at)]
        failed = [end for state, end in ends if state is TaskState.FAILED and end is not None]
        if peer.task.role == "ps" and any(0 <= at - end <= _NEEDED for end in failed):
            return str(peer.task)
    return ""


def after_loss(job: JobState, own: Sequence[TaskRecord], at: float) -> tuple[bool, str]:
    """Let the tasks of a lost host start again with all tasks of the job, if the policy allows it.

    They move to other hosts. No two attempts of a task may be alive, so they wait until those on the lost
    host have certainly ended. A lost container is removed, which ends its tasks; a new one takes its place.

    Args:
        job: the host and its tasks are dropped.
        own: its tasks, without sidecars.
        at: when it was lost.

    Returns:
        Whether they start again, and what to tell the user; the loss is then no failure of the job.
    """
    if job.phase is not Phase.RUNNING or job.failure is not None or not own:
        return False, ""
    if job.tasks_end is None or not job.restarts.limit:
        return False, ""
    agents = {host.name for host in job.placement.agent_hosts()}
    placement: Placement | None = job.placement
    if job.tasks_end:
        placement = replace(job.placement, agents - job.agents.keys())
    names = listed([str(record.task) for record in own])
    if placement is None:
        return False, f"; no other host has room for {names}"
    first = own[0]
    ran = at - (first.started_at or at) if first.ended_at == at else 0.0  # else it did not run any more
    decision = job.restarts.after(first.task, ExitStatus(), max(0.0, ran), [each.task for each in own[1:]])
    if decision is None:
        why = job.restarts.why_not(first.task, ExitStatus())
        return False, f"; {why}" if why else ""
    tasks = {placed.task for placed in placement.tasks if not placed.role.sidecar}
    tasks |= {record.task for record in job.records.values() if record.state is TaskState.LOST}
    tasks |= job.restarting.keys()
    decision = decision._replace(tasks=frozenset(tasks), all=True, wait=max(decision.wait, job.tasks_end))
    job.moving, job.placing = placement, False
    job.not_ready.clear()
    job.checking.clear()
    job.do(events.CancelTimer("ready"), events.CancelTimer("check"))
    _begin(job, decision, None)
    of_limit = f"attempt {first.attempt + 1}, restart {decision.number} of {job.restarts.limit}"
    if not job.tasks_end:
        return True, f"; a new one takes its place, all tasks start again ({of_limit})"
    there = dict.fromkeys(p.host.name for p in placement.tasks if job.records[p.task] in own)
    verb = "moves" if len(own) == 1 else "move"
    moves = f"{names} {verb} to {listed([*there])}"
    return True, f"; {moves}, all tasks start again in {duration(decision.wait)} ({of_limit})"


def _hold_ports(job: JobState, placement: Placement) -> None:
    """Let all hosts hold ports for the tasks that they have now; the plan follows."""
    job.placement, job.placing = placement, True
    job.by_host = {host: [] for host in job.by_host}
    for placed in placement.tasks:
        job.records[placed.task].place(placed)
        job.by_host[placed.host.name].append(job.records[placed.task])
    job.do(events.MoveTasks(placement), events.SetTimer("ready", READY_LIMIT))
    hosts = [host.name for host in placement.hosts() if host.name in job.agents]  # not that of a lost sidecar
    job.not_ready = dict.fromkeys(hosts)
    job.do(*(events.HoldPorts(host, tuple(r.task for r in job.by_host[host])) for host in hosts))


def planned(job: JobState) -> None:
    """The plan with the new hosts is made."""
    job.moving, job.placing = None, False
    start_due(job)


def asked(job: JobState, event: events.RestartAsked) -> None:
    """The user asks to start tasks again."""
    if job.moving is not None:
        job.notify("all tasks start again anyway, because a host is lost")
        return
    tasks = frozenset(event.tasks).intersection(job.records)
    if job.phase is not Phase.RUNNING or not tasks:
        job.notify("cannot restart: the job is not running")
        return
    job.notify(f"starting {job.names(tasks)} again, as asked")
    _begin(job, Decision(tasks, all=True, wait=0.0, number=0), None)


def ended_well(job: JobState, record: TaskRecord, at: float) -> None:
    """A task has ended by itself with 0: it starts again only with the whole job, or if the user asked."""
    restart = job.restarting.get(record.task)
    if restart is not None and not restart.all:
        job.forget_restarts([record.task])
        job.process_ended(record.task, at)
        _start_if_due(job, restart)


def gone(job: JobState, record: TaskRecord, at: float) -> None:
    """All processes of a task have ended."""
    restart = job.restarting.get(record.task)
    if restart is None:
        return
    cause = restart.cause
    if record.unkillable:
        text = f"{record.task} can't start again: SIGKILL did not stop its last attempt"
        _give_up(job, restart, Failure(Reason.LAUNCHER, None, record.host, at, text), HOST_FAULT)
        return
    if cause is not None and cause.task == record.task and (why := _why_not(job, record, restart)):
        text = f"{cause.text}; not started again: {why}"
        _give_up(job, restart, cause._replace(text=text), record.status.shell)
        return
    if cause is None or cause.task == record.task:
        _tell(job, restart)
    if restart.stage is Stage.ENDING and not job.open.intersection(restart.tasks):
        _stop(job, restart)
    else:
        _start_if_due(job, restart)


def time_up(job: JobState, event: events.TimeUp) -> list[str]:
    """The timer of a restart has run out. Returns hosts that did not end tasks in time."""
    restart = next((each for each in job.restarting.values() if each.timer == event.timer), None)
    if restart is None:
        return []
    if restart.stage is Stage.ENDING:
        _stop(job, restart)
    elif restart.stage is Stage.WAITING:
        restart.stage = Stage.DUE
        job.do(NOTICE_TIMER, events.SetTimer(restart.timer, longest(job.stop_steps)))
        if job.moving is not None and not job.tasks_end:
            for host in job.hosts_of(restart.tasks):
                if host not in job.agents and host not in job.returning:
                    job.start_agent(host)
        _start_if_due(job, restart)
    else:
        return job.hosts_of(job.open.intersection(restart.tasks))
    return []


def start_due(job: JobState) -> None:
    """Start the tasks of all restarts that are due."""
    for restart in dict.fromkeys(job.restarting.values()):
        _start_if_due(job, restart)


def _begin(job: JobState, decision: Decision, cause: Failure | None) -> Restart:
    """Begin a restart; it includes the restarts under way of the same tasks."""
    everything = decision.all
    tasks = {task for task in decision.tasks if job.moving or job.records[task].host in job.agents}
    if cause is not None:
        tasks -= job.failed
    if not everything:
        tasks -= {task for task in tasks if job.records[task].outcome is TaskState.SUCCEEDED}
    for other in {job.restarting[task] for task in tasks & job.restarting.keys()}:
        _tell(job, other)
        tasks |= other.tasks
        everything = everything or other.all
        other.tasks.clear()
        job.do(events.CancelTimer(other.timer))
    job.restarts_begun += 1
    restart = Restart(job.restarts_begun, tasks, everything, decision, cause)
    job.restarting.update(dict.fromkeys(tasks, restart))
    job.tell_restarting(_in_order(job, restart), on=True)
    job.deciding |= tasks & job.all_deciding
    if decision.ending:
        restart.stage = Stage.ENDING
        job.do(events.SetTimer(restart.timer, _SAVING))
    else:
        _stop(job, restart)
    return restart


def _stop(job: JobState, restart: Restart) -> None:
    """Stop those of its tasks that run; the time until the start begins.

    After a failure they have that time to end, at least 1 s: TensorFlow's collectives ignore SIGTERM, and
    hang without the task that failed.
    """
    restart.stage = Stage.WAITING
    running = [job.records[task] for task in _in_order(job, restart) if _runs(job.records[task])]
    for record in running:
        record.move(TaskState.STOPPING, "to start again")
        record.stop_sent = True
    steps = quick(job.policy.grace, max(FIRST, restart.wait)) if restart.cause else job.stop_steps
    job.send_stops(running, steps)
    job.do(NOTICE_TIMER, events.SetTimer(restart.timer, restart.wait))


def _start_if_due(job: JobState, restart: Restart) -> None:
    if not restart.tasks or restart.stage is not Stage.DUE or job.open.intersection(restart.tasks):
        return
    if job.moving is not None:
        if not job.placing and not any(placed.host.name in job.returning for placed in job.moving.tasks):
            job.do(events.CancelTimer(restart.timer))
            _hold_ports(job, job.moving)
        return
    job.restarts_made += 1
    for task in _in_order(job, restart):
        del job.restarting[task]
        job.records[task].start_again()
        job.open.add(task)
        job.start(job.records[task])
    job.do(events.CancelTimer(restart.timer), events.SetTimer("start", START_LIMIT), NOTICE_TIMER)


def _give_up(job: JobState, restart: Restart, failure: Failure, exit_code: int) -> None:
    """Do not start the tasks again: the job fails."""
    job.forget_restarts(restart.tasks)
    job.report_failure(failure.text, job.fail(failure, exit_code))


def _in_order(job: JobState, restart: Restart) -> list[TaskId]:
    """Its tasks in the order of the table."""
    return [task for task in job.records if task in restart.tasks]


def _runs(record: TaskRecord) -> bool:
    return record.state in (TaskState.STARTING, TaskState.RUNNING)


def _tell(job: JobState, restart: Restart) -> None:
    """Tell the user why and when it starts again, once."""
    if restart.notice:
        job.notify(restart.notice, urgent=True)
    restart.notice = ""


def _why_not(job: JobState, record: TaskRecord, restart: Restart) -> str:
    """Why a task that failed does not start again after all, now that all its output is here; else empty."""
    by_itself = not record.stalled and record.status.signal is None
    if record.attempt == 1 and by_itself and record.runs_python and cannot_import(record.tail):
        return "an import failed"
    if not restart.counts or record.reason is Reason.SIGNAL and record.status.signal in OUTSIDE:
        return ""
    cause = f"{record.reason} {record.status} {exception(record.tail)}"
    stuck = job.restarts.is_stuck(record.task, cause)
    return f"it failed {ALIKE} times in the same way without progress (docs/restarts.md)" if stuck else ""
