"""Silence: tasks that have printed nothing for long, which `--stall` ends, and else a line names.

A task is silent when it has printed nothing for the limit, and neither has any other task, or one of its role
prints. Services and sidecars do not count: a ps prints nothing in ``server.join()``. Beside a chief and a ps,
workers are servers, too, and are silent only when the chief is.

Lines in which TensorFlow says that it waits are silence, too. Silence is counted in looks: the time in which
the launcher is suspended counts as one. Nothing counts while output is delayed on its way, and while tasks
are to start again.
"""

from __future__ import annotations

import re

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import StopSequence
from launcher.common.report import Failure, Reason, TaskState
from launcher.common.text import duration
from launcher.job import CHIEF_ROLES
from launcher.supervisor import restarting
from launcher.supervisor.ending import continue_or_stop, report_failure, stop_tasks
from launcher.supervisor.state import TIMED_OUT, JobState, Phase, limit_text
from launcher.supervisor.steps import AT_ONCE, SIGABRT, STACKS
from launcher.supervisor.tasks import TaskRecord

#: The timer of the looks.
TIMER = "silence"
#: Looks in a limit, the shortest time between two, and the limit without ``--stall``, in seconds.
LOOKS = 10
_SHORTEST = 0.1
_UNASKED = 60.0
#: Without ``--stall``: the factor of the limit for tasks beside others that print; and how often, at most, a
#: line about silence doubles the limit.
_BESIDE_OTHERS = 5
_DOUBLED = 10
_STEPS: StopSequence = ((SIGABRT, STACKS), *AT_ONCE)
_HINT = (
    "a Python program prints its stacks on SIGABRT: see the end of its output; a program that prints less"
    " often needs a longer --stall"
)
_STALL = "`--stall 10m` would stop such tasks and show where they hang"
_FILTERS = "a session of TensorFlow 1 without device_filters waits for every task (docs/restarts.md)"
_DONE_WHEN_CHIEF = "; `--done-when chief` ends the job with worker/0"
_NO_CHIEF = (
    "does the program use ParameterServerStrategy? Then only a chief trains, and this job has none: `--chief`"
    " starts one; else: "
)
_TOGETHER = "tasks that communicate collectively must finish together"
#: For tasks that the time limit stops: Python prints no stacks on SIGTERM by itself.
_FAULTHANDLER = (
    "let the program call faulthandler.register(signal.SIGTERM, chain=True) (after it made its tf.distribute"
    " strategy, which may handle SIGTERM itself): its log then has its stacks"
)
#: Lines in which TensorFlow says that it waits; words that are in each; the line of a TensorFlow 1 session.
_WAITS = (
    rb"(?m)^.*(?:CreateSession still waiting for response from worker: |Waiting for \d+/\d+ tasks to connect"
    rb"|Waiting for model to be ready\.|Example stragglers:).*\n?|^/job:\w+/replica:0/task:\d+\n?"
)
_WORDS = (b"aiting for ", b"stragglers:")
_SESSION = rb"CreateSession still waiting for .*/job:(\w+)/replica:\d+/task:(\d+)"
#: The most bytes of a piece of output that has only such lines; how many pieces until the user is informed.
_MOST_WAITS = 4000
_TELL_AFTER = 3


def begin(job: JobState) -> None:
    """Set the timer of the next look."""
    limit = job.policy.stall or _UNASKED
    job.do(events.SetTimer(TIMER, max(_SHORTEST, limit / LOOKS)))


def output_delayed(job: JobState, _: events.OutputDelayed | None = None) -> None:
    """Silence counts only from now on: output may be on its way."""
    job.silence.since = job.silence.looks


def printed(job: JobState, record: TaskRecord, data: bytes) -> None:
    """A task has printed something."""
    if not _only_waits(data):
        record.looks_with_output += record.output_look != job.silence.looks
        record.output_look = job.silence.looks
        record.waits, record.awaited = 0, None
        return
    record.waits += 1
    found = re.search(_SESSION, data)
    peer = job.tasks.get(TaskId(b"/".join(found.groups()).decode())) if found else None
    if peer is None:
        return
    record.awaited = peer.task
    ended = _has_ended(job, peer.task)
    if not job.silence.filters_told and (ended or record.waits >= _TELL_AFTER):
        job.silence.filters_told = True
        has_ended = ", which has ended" if ended else ""
        advice = _FILTERS + _done_when_chief(job, [peer.task] if ended else [])
        job.notify(f"{record.task} waits for {peer.task}{has_ended}: {advice}", urgent=True)


def _only_waits(data: bytes) -> bool:
    """Whether all lines of this output say that TensorFlow waits."""
    may_be = len(data) <= _MOST_WAITS and any(word in data for word in _WORDS)
    return may_be and not re.sub(_WAITS, b"", data).strip()


def look(job: JobState, event: events.TimeUp) -> None:
    """Look for silent tasks."""
    if job.phase is not Phase.RUNNING:
        return
    begin(job)
    job.silence.looks += 1
    if job.tasks.restarting:
        output_delayed(job)
    looks = LOOKS * 2 ** min(job.silence.lines, _DOUBLED)
    silent = _silent(job, looks, looks if job.policy.stall else _BESIDE_OTHERS * looks)
    if silent and job.policy.stall:
        _end(job, silent, event.at)
    elif silent:
        since = max(_last_look(job, record) for record in silent)
        limit = duration((job.silence.looks - since - 1) * _UNASKED / LOOKS)
        job.notify(f"{_text(job, silent, limit)}; {_advice(job, silent, _STALL)}")
        job.silence.lines += 1


def hint_at_timeout(job: JobState) -> str:
    """How to find out why tasks are silent, for a job that the time limit ends; empty: all of them print."""
    looks = min(LOOKS, job.silence.looks // 2)
    silent = [record for record in _silent(job, looks, looks) if record.runs_python]
    if not silent:
        return ""
    names = job.tasks.names([record.task for record in silent])
    hang = "hangs" if len(silent) == 1 else "hang"
    return _advice(job, silent, f"to see where {names} {hang}, {_FAULTHANDLER}")


def _silent(job: JobState, looks: int, beside_others: int) -> list[TaskRecord]:
    """The silent tasks, in the order of the table.

    Args:
        job: of the tasks.
        looks: the limit.
        beside_others: the limit for tasks beside others that print.
    """
    if job.silence.looks - job.silence.since <= looks:
        return []  # the silence of all tasks counts from then on, or from later
    states = (TaskState.STARTING, TaskState.RUNNING)
    working = [each for each in job.tasks.values() if not each.service and each.state in states]
    silent = [record for record in working if _is_silent(job, record, looks)]
    if not silent:
        return []
    others = [record for record in working if not _is_silent(job, record, looks)]
    roles = {task.role for task in job.tasks}
    serving = {"worker"} if "ps" in roles and roles.intersection(CHIEF_ROLES) else set()
    if serving.issuperset(record.task.role for record in others):
        return silent
    last = job.silence.looks - 1
    printing = {record.task.role for record in others if record.output_look == last} - serving
    return [r for r in silent if r.task.role in printing and _is_silent(job, r, beside_others)]


def _is_silent(job: JobState, record: TaskRecord, looks: int) -> bool:
    return record.state is TaskState.RUNNING and job.silence.looks - _last_look(job, record) > looks


def _last_look(job: JobState, record: TaskRecord) -> int:
    """The look from which the silence of a task counts."""
    return max(record.first_look, record.output_look or 0, job.silence.since)


def _text(job: JobState, silent: list[TaskRecord], limit: str) -> str:
    where = job.on(silent[0].host) if len(silent) == 1 else ""
    what = "nothing but waiting notices" if all(record.waits for record in silent) else "nothing"
    return f"{job.tasks.names([record.task for record in silent])}{where} printed {what} for {limit}"


def _advice(job: JobState, silent: list[TaskRecord], otherwise: str) -> str:
    """Return the likely cause of a silence and what to do.

    Args:
        job, silent: the silent tasks.
        otherwise: what to do if no cause is known.
    """
    if not any(record.runs_python or record.awaited for record in silent):
        return otherwise
    cause = _awaited(job, silent) or _ended_before(job) or _started_again_alone(job, silent)
    if not cause and _may_lack_chief(job, silent):
        return _NO_CHIEF + otherwise
    return cause or otherwise


def _awaited(job: JobState, silent: list[TaskRecord]) -> str:
    """The cause of a silence in which sessions of TensorFlow 1 wait; else empty."""
    awaited = {record.awaited for record in silent if record.awaited}
    if not awaited:
        return ""
    ended = [task for task in awaited if _has_ended(job, task)]
    return f"TensorFlow waits for {job.tasks.names(awaited)}: {_FILTERS}{_done_when_chief(job, ended)}"


def _ended_before(job: JobState) -> str:
    """Return the cause of a silence of tasks whose peers have ended, or nothing."""
    ended = [task.task for task in job.tasks.values() if not task.service and _has_ended(job, task.task)]
    if not ended:
        return ""
    has_ps = any(task.role == "ps" for task in job.tasks)
    why = _FILTERS + _done_when_chief(job, ended) if has_ps else _TOGETHER
    return f"{job.tasks.names(ended)} ended before: {why}"


def _started_again_alone(job: JobState, silent: list[TaskRecord]) -> str:
    """Return the cause of a silence that began when some of the tasks started again, or nothing."""
    again = [record for record in job.tasks.values() if record.earlier and not record.sidecar]
    others = [record for record in silent if not record.earlier]
    if not again or not others:
        return ""
    since = max(record.first_look for record in again)
    if any((record.output_look or 0) > since for record in others):
        return ""
    names = job.tasks.names([record.task for record in again])
    return (
        f"{names} started again alone: if the others wait for what is lost, `--restart job` starts all again"
    )


def _may_lack_chief(job: JobState, silent: list[TaskRecord]) -> bool:
    """Return whether all workers are silent since their start, beside a ps and without a chief."""
    roles = {task.role for task in job.tasks}
    workers = [record for record in job.tasks.values() if record.role.name == "worker"]
    at_start = all((record.output_look or 0) - record.first_look <= LOOKS for record in silent)
    without_chief = "ps" in roles and not roles.intersection(CHIEF_ROLES)
    return without_chief and at_start and silent == workers


def _has_ended(job: JobState, task: TaskId) -> bool:
    return task not in job.tasks.open and task not in job.tasks.restarting


def _done_when_chief(job: JobState, ended: list[TaskId]) -> str:
    """Return advice for a job that waits for workers though worker 0, its chief, has ended, or nothing."""
    return _DONE_WHEN_CHIEF if TaskId("worker/0") in ended and not job.policy.done_when else ""


def _end(job: JobState, silent: list[TaskRecord], at: float) -> None:
    """End silent tasks: together one failure."""
    limit = limit_text(job.policy.stall or 0.0, job.policy.stall_text)
    for record in silent:
        record.stalled = True
        job.tasks.alive.discard(record.task)
    stop_tasks(job, silent, _STEPS, "it is silent")
    first, *others = silent
    text, hint = _text(job, silent, limit), _advice(job, silent, _HINT)
    failure = Failure(Reason.STALLED, first.task, first.host, at, text, hint, limit)
    if not restarting.after_failure(job, first, failure, [record.task for record in others]):
        if why := job.restarts.why_not(first.task, first.status):
            text = f"{text}; {why}"
            failure = failure._replace(text=text)
        job.tasks.failed.update(record.task for record in silent)
        report_failure(job, text, job.fail(failure, TIMED_OUT))
        continue_or_stop(job)
