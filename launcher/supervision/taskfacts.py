"""What becomes of tasks: started or not, signalled, exited, gone."""

from __future__ import annotations

from collections.abc import Callable

from launcher import events
from launcher.events import Command, Tell
from launcher.job import TaskId
from launcher.report import ExitStatus, Failure, Reason, TaskState
from launcher.supervision import stopping, wording
from launcher.supervision.ending import Ending
from launcher.supervision.jobstate import JobState
from launcher.supervision.record import Record
from launcher.supervision.waiting import Phase
from launcher.text import counted, duration

#: Seconds after which TensorFlow's collectives miss a peer that has ended, and some more.
_LATELY = 60.0
#: How many tasks may each have a line of their own about not ending on SIGTERM.
_TOLD = 3


class TaskFacts:
    """Follows the tasks.

    Args:
        job: as it stands.
        ending: ends it.
        unasked: what to do when an agent ends a task that nobody asked it to.
    """

    def __init__(
        self, job: JobState, ending: Ending, unasked: Callable[[events.TaskSignalled], list[Command]]
    ) -> None:
        self._job = job
        self._ending = ending
        self._unasked = unasked
        self._stubborn = 0
        #: Somebody was told of ``--drain``.
        self._advised = False

    def _record(self, task: TaskId) -> Record:
        return self._job.tasks.records[task]

    def started(self, fact: events.TaskStarted) -> list[Command]:
        """Its process exists."""
        record = self._record(fact.task)
        record.pid, record.started_at = fact.pid, fact.at
        if record.state is TaskState.STARTING:
            record.move(TaskState.RUNNING, fact)
        return self._start_answered(fact.task)

    def not_started(self, fact: events.TaskNotStarted) -> list[Command]:
        """It could not be started, and is over."""
        record = self._record(fact.task)
        record.move(TaskState.FAILED, fact)
        record.status = ExitStatus(code=fact.code)
        record.reason, record.detail = wording.start_reason(fact.code), fact.why
        record.ended_at = fact.at
        if self._job.tasks.ended(fact.task):
            self._job.blame.decided(fact.at)
        self._job.tasks.over(fact.task)
        text = f"{fact.task} could not be started{self._job.on(fact.host)}: {fact.why}"
        told = self._failed(record, Failure(record.reason, fact.task, fact.host, fact.at, text))
        return self._start_answered(fact.task) + self._ending.judge(told)

    def _failed(self, record: Record, failure: Failure) -> list[Command]:
        """What is said of it. A sidecar's failure is not the job's."""
        if record.sidecar:
            return [Tell(f"{failure.text}; it is a sidecar: the job does not depend on it")]
        return self._ending.tell_failure(failure.text, self._job.blame.fail(failure, record.status.shell))

    def _start_answered(self, task: TaskId) -> list[Command]:
        self._job.tasks.starting.discard(task)
        if self._job.tasks.starting or self._job.phase not in (Phase.RUNNING, Phase.DRAINING):
            return []
        started = events.CancelTimer("start")
        return [started, events.CancelTimer("patience")] if self._job.phase is Phase.RUNNING else [started]

    def signalled(self, fact: events.TaskSignalled) -> list[Command]:
        """A signal of the stop ladder reached it."""
        record = self._record(fact.task)
        record.signalled = record.signalled or not record.status.known
        if record.state in (TaskState.STARTING, TaskState.RUNNING):
            return self._unasked(fact)
        if fact.signal != stopping.SIGABRT:
            return []
        self._stubborn += 1
        if self._stubborn > _TOLD + 1:
            return []
        who = "more tasks" if self._stubborn > _TOLD else str(fact.task)
        return [Tell(wording.stubborn(who, record.status.known, self._drain_would_help(record)))]

    def _drain_would_help(self, record: Record) -> bool:
        """Whether it was stopped because the chief was done, it was given no time, and none was told so."""
        cut_off = not (record.service or record.status.known or record.drain)
        if self._advised or not (cut_off and self._job.blame.was_done):
            return False
        self._advised = True
        return True

    def exited(self, fact: events.TaskExited) -> list[Command]:
        """Its own process is over."""
        record = self._record(fact.task)
        too_late = self._job.blame.too_late(fact.at) and not self._may_go_on(record)
        record.move(TaskState.ENDED, fact)
        record.status = ExitStatus(fact.code, fact.signal)
        record.ended_at, record.peak_rss, record.cpu_s = fact.at, fact.peak_rss, fact.cpu_s
        record.detail = wording.exit_detail(record.status, fact.oom)
        if self._job.tasks.ended(fact.task):
            self._job.blame.decided(fact.at)
        if record.signalled or (too_late and not record.status.ok):
            record.outcome, record.reason = TaskState.STOPPED, Reason.STOPPED
            return self._ending.judge([])
        return self._ending.judge(self._by_itself(record, fact))

    def _may_go_on(self, record: Record) -> bool:
        """Whether the job is done, and it may end by itself all the same."""
        return self._job.phase is Phase.DRAINING and record.task in self._job.draining.staying()

    def _by_itself(self, record: Record, fact: events.TaskExited) -> list[Command]:
        record.reason = wording.exit_reason(record.status, fact.oom)
        record.outcome = TaskState.SUCCEEDED if record.status.ok else TaskState.FAILED
        if record.status.ok:
            early = record.service and self._job.tasks.undecided
            text = f"{record.task} ended by itself (exit code 0) before the job was done"
            return [Tell(text)] if early else []
        after = "" if record.started_at is None else f" after {duration(fact.at - record.started_at)}"
        text = f"{record.task} failed{self._job.on(record.host)}{after}: {record.detail}"
        hint = wording.exit_hint(record.status, fact.oom) or self._left_alone(record, fact.at)
        return self._failed(record, Failure(record.reason, record.task, record.host, fact.at, text, hint))

    def _left_alone(self, record: Record, at: float) -> str:
        """A word of those that had ended well: what is computed together is not without them."""
        ended = {} if record.service else self._job.tasks.succeeded()
        lately = {task: then for task, then in ended.items() if at - _LATELY <= then <= at}
        return wording.ended_before([*lately], at - max(lately.values(), default=at))

    def gone(self, fact: events.TaskGone) -> list[Command]:
        """All its processes are over, or nobody can end them."""
        record = self._record(fact.task)
        record.leftovers, record.unkillable = fact.leftovers, fact.unkillable
        told: list[Command] = []
        if fact.leftovers and not record.killed_by_us:
            left = counted(fact.leftovers, "process", "processes")
            told.append(Tell(f"{fact.task} left {left} behind: ended by us"))
        if fact.unkillable:
            text = wording.unkillable(fact.task, fact.unkillable) + self._job.on(fact.host)
            told.append(Tell(text, urgent=True))
        if not record.status.known:
            record.reason, record.detail = Reason.STOPPED, "SIGKILL did not end it"
        record.move(record.outcome, fact)
        self._job.tasks.over(fact.task)
        return self._ending.judge(told)
