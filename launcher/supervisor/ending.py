"""How a job ends: it continues, drains, stops and closes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import StopSequence
from launcher.common.report import Reason, TaskState
from launcher.common.text import plural
from launcher.job import CHIEF_ROLES
from launcher.supervisor.hosts import ACTIVE
from launcher.supervisor.state import CLOSE_LIMIT, NOTICE_TIMER, JobState, Phase, limit_text
from launcher.supervisor.steps import longest
from launcher.supervisor.tasks import TaskRecord

#: Timers that are cancelled when the job is stopped, and when every task is gone.
_BEFORE_STOP = ("job", "ready", "rest", "check", "start", "drain", "silence", "place")
_BEFORE_CLOSE = ("end", "answer")
#: A worker that has printed something in this number of looks (`stalls`) does more than to serve a chief.
_AT_WORK = 5
_ACTIVE = (Phase.RUNNING, Phase.DRAINING)


def continue_or_stop(job: JobState) -> None:
    """After the end of a task: continue, drain, or stop the other tasks."""
    if job.phase not in _ACTIVE:
        _close_if_empty(job)
    elif _continues(job):
        drain = job.tasks.drain
        if drain.serving and all(job.tasks[task].service for task in drain.tasks):  # no other one needs them
            stop_tasks(job, job.tasks.in_order(drain.serving))
            drain.serving = set()
    else:
        now_done = job.phase is Phase.RUNNING and job.is_done()
        if now_done and not job.done:
            _tell_of_workers(job)
        job.done = job.done or now_done
        seconds = job.tasks.drain.begin(job.tasks.values()) if now_done else 0.0
        if now_done and job.tasks.drain.tasks:
            job.phase = Phase.DRAINING
            job.forget_restarts(job.tasks)
            job.do(NOTICE_TIMER)
            _drain(job, seconds)
        else:
            stop(job)


def _tell_of_workers(job: JobState) -> None:
    """Tell the user that the end of the chief stops workers that were at work until then.

    Under ParameterServerStrategy that is right, and workers print nothing but a few lines at their start.
    """
    at_work = [record.task for record in job.tasks.values() if _is_worker_at_work(job, record)]
    chief_decides = {task.role for task in job.tasks.all_deciding}.issubset(CHIEF_ROLES)
    if at_work and chief_decides and not job.policy.done_when:
        job.notify(
            f"the chief is done, and {job.tasks.names(at_work)} still printed: stopped; `--done-when workers`"
            " waits for workers, `--drain 60s` gives them time to finish"
        )


def _is_worker_at_work(job: JobState, record: TaskRecord) -> bool:
    if record.role.name != "worker" or record.state is not TaskState.RUNNING or record.drain:
        return False
    prints_now = (record.output_look or 0) >= job.silence.looks - 1
    return prints_now and record.looks_with_output >= _AT_WORK


def drain_time_up(job: JobState, _: events.TimeUp) -> None:
    """The drain timer has run out: stop the tasks whose time is over."""
    drain, before = job.tasks.drain, job.tasks.drain.tasks
    drain.over = drain.next
    seconds = drain.begin(job.tasks.values())
    if late := before - drain.tasks - drain.serving:
        what = f"{job.tasks.names(late)} did not finish within {limit_text(drain.over)}"
        job.notify(f"{what} of the job's end: stopped")
    _drain(job, seconds) if drain.tasks else stop(job)


def may_finish(job: JobState, record: TaskRecord) -> bool:
    """Whether a task may end by itself after the job is done."""
    kept = record.sidecar or record.task in job.tasks.drain.tasks or record.task in job.tasks.drain.serving
    return kept and job.phase is Phase.DRAINING


def report_failure(job: JobState, text: str, first: bool) -> None:
    """Notify the user that a task failed, unless its failure follows from the stop.

    Args:
        job: the task is dropped.
        text: about it.
        first: whether it is the first failure by time.
    """
    others = len(job.tasks.alive)
    if job.phase not in _ACTIVE:
        if first:
            job.notify(f"{text}; this is the first failure")
    elif not others:
        pass  # the failure report follows
    elif _continues(job) or (job.is_done() and job.tasks.drain.begin(job.tasks.values())):
        job.notify(f"{text}; {plural(others, 'task')} left")
    else:
        job.notify(f"{text}; stopping the other {'task' if others == 1 else plural(others, 'task')}")


def stop(job: JobState) -> None:
    """Stop every task that runs; cancel those that were not started."""
    job.phase = Phase.STOPPING
    job.forget_restarts(job.tasks)
    job.do(*map(events.CancelTimer, _BEFORE_STOP))
    for record in job.tasks.values():
        if record.state is TaskState.PENDING:
            record.move(TaskState.CANCELLED, "the job was over")
            record.reason = Reason.NEVER_STARTED
            job.tasks.drop(record.task)
    if job.tasks.open:
        job.do(NOTICE_TIMER, events.SetTimer("end", longest(job.stop_steps)))
    stop_tasks(job, job.tasks.in_order(job.tasks.open))
    _close_if_empty(job)


def stop_tasks(
    job: JobState, records: Iterable[TaskRecord], steps: StopSequence = (), cause: str = "the job is over"
) -> None:
    """Stop these tasks but those whose own process has ended; each is stopped once.

    Args:
        job, records: of the tasks.
        steps: the stop sequence; default: that of the job.
        cause: for the history.
    """
    stopped = []
    for record in records:
        if record.task not in job.tasks.open or record.state is TaskState.ENDED:
            continue
        if record.state is not TaskState.STOPPING:
            record.move(TaskState.STOPPING, cause)
        if not record.stop_sent:
            record.stop_sent = True
            stopped.append(record)
    send_stops(job, stopped, steps or job.stop_steps)


def send_stops(job: JobState, records: Iterable[TaskRecord], steps: StopSequence) -> None:
    """Add the commands to stop these tasks, one for each host."""
    tasks: dict[str, list[TaskId]] = {}
    for record in records:
        tasks.setdefault(record.host, []).append(record.task)
    job.do(*(events.StopTasks(host, tuple(own), steps) for host, own in tasks.items()))


def finish_if_closed(job: JobState) -> None:
    """Finish the job when every agent is closed or lost."""
    if not job.hosts.have(*ACTIVE):
        job.phase = Phase.OVER
        job.do(events.Finish(job.exit_code))


def _continues(job: JobState) -> bool:
    """Whether the job runs or drains on: there are tasks to wait for, and no failure stops them."""
    left: Collection[TaskId] = job.tasks.drain.tasks if job.phase is Phase.DRAINING else job.tasks.deciding
    return bool(left) and not job.must_stop()


def _drain(job: JobState, seconds: float) -> None:
    """Let tasks finish for these seconds; stop those that neither finish nor serve others."""
    job.do(events.SetTimer("drain", seconds))
    stop_tasks(job, (job.tasks[task] for task in job.tasks if not may_finish(job, job.tasks[task])))


def _close_if_empty(job: JobState) -> None:
    if job.tasks.open or job.phase is not Phase.STOPPING:
        return
    job.phase = Phase.CLOSING
    job.do(*map(events.CancelTimer, _BEFORE_CLOSE))
    if agents := job.hosts.names(*ACTIVE):
        job.do(NOTICE_TIMER, events.SetTimer("close", CLOSE_LIMIT))
        job.do(*map(events.CloseAgent, agents))
    finish_if_closed(job)
