"""The state of one job, and the commands that bring its end about.

The handlers of events (`host_events`, `task_events`, `machine`) change one `JobState` and add commands to it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

from launcher import events
from launcher.events import Command, StopSteps
from launcher.job import JobSpec, OnFailure, Placement, TaskId, is_loopback
from launcher.report import Failure, Reason, TaskState
from launcher.supervisor.tasks import SIGKILL, TaskRecord, deciding_tasks
from launcher.text import counted, listed

#: Exit codes of a job that took too long, and of one with a fault of the launcher or of a host.
TIMED_OUT, HOST_FAULT = 124, 125
#: Seconds of waiting before the first message, then between two messages; for agents to close.
NOTICE_AFTER, REPEAT, CLOSE_LIMIT = 2.0, 10.0, 15.0
NOTICE_TIMER = events.SetTimer("notice", NOTICE_AFTER)
#: Timers of the phases before the stop, and of the stop.
_BEFORE_STOP = ("job", "ready", "rest", "check", "start", "drain")
_BEFORE_CLOSE = ("end", "answer")

# Numbers of signal(7) on Linux: the same on every host, whatever its Python.
SIGINT, SIGABRT, SIGTERM = 2, 6, 15
#: Seconds for a hung program to print its stacks on SIGABRT, at most; after SIGKILL until a process counts as
#: unkillable; that an agent may be late before it counts as lost.
_STACKS, _LAST, _MARGIN = 2.0, 5.0, 10.0
AT_ONCE: StopSteps = ((SIGKILL, _LAST),)


class Phase(enum.Enum):
    """How far the job has come."""

    GATHERING = "gathering"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    CLOSING = "closing"
    OVER = "over"


_GOING = (Phase.RUNNING, Phase.DRAINING)


def orderly(grace: float) -> StopSteps:
    """SIGTERM; after ``grace`` seconds SIGABRT, so that Python shows its stacks; then SIGKILL."""
    return ((SIGTERM, grace), (SIGABRT, min(_STACKS, grace)), *AT_ONCE) if grace > 0 else AT_ONCE


def longest(sequence: StopSteps) -> float:
    """Seconds after which every task that is stopped so is over, or its agent is lost."""
    return sum(seconds for _, seconds in sequence) + _MARGIN


def limit_text(seconds: float, written: str = "") -> str:
    """A time limit as it was written, ``2h``; else in seconds, ``0.5 s``."""
    return written if written[-1:].isalpha() else f"{seconds:.10g} s"


class JobState:
    """One job.

    Args:
        job: what was asked for.
        placement: the host of each task.
        check: let the hosts connect to each other before the tasks start.
    """

    def __init__(self, job: JobSpec, placement: Placement, check: bool = False) -> None:
        self.policy = job.policy
        self.stop_steps = orderly(job.policy.grace)
        self.phase = Phase.GATHERING
        self.failure: Failure | None = None
        self.exit_code = 0
        #: A request to end the job at once was made: nothing is waited for any more.
        self.hurried = False
        self.records = {placed.task: TaskRecord(placed) for placed in placement.tasks}
        self.by_host: dict[str, list[TaskRecord]] = {host.name: [] for host in placement.hosts()}
        for record in self.records.values():
            self.by_host[record.host].append(record)
        #: Tasks that are not over; deciding tasks that have not ended; commanded starts without an answer.
        self.open = set(self.records)
        self.undecided = set(deciding_tasks(placement))
        self.starting: set[TaskId] = set()
        #: Hosts whose agent is neither closed nor lost; that have not answered whether they hold their
        #: ports; that end their tasks without a command; that owe an answer to a stop.
        self.agents = dict.fromkeys(self.by_host)
        self.early = dict.fromkeys(self.by_host)
        self.leaving: set[str] = set()
        self.owing: set[str] = set()
        #: Let the hosts connect to each other; those that have not answered.
        self.check = check and len(self.by_host) > 1
        self.checking: set[str] = set()
        #: When the user last asked for the end; seconds that agents were given to answer.
        self.asked_at: float | None = None
        self.answer_limit = 0.0
        #: How many tasks did not end on SIGTERM.
        self.stubborn = 0
        #: All deciding tasks have ended, and when the last one did.
        self.done = False
        self._decided_at = 0.0
        #: Seconds since then: that have passed, and when the drain timer fires next.
        self._drained = self._next_drain = 0.0
        self._commands: list[Command] = []

    # ------------------------------------------------------------------ commands

    def do(self, *commands: Command) -> None:
        """Add commands."""
        self._commands += commands

    def notify(self, text: str, urgent: bool = False) -> None:
        """Show a line to the user."""
        self.do(events.Tell(text, urgent))

    def take_commands(self) -> list[Command]:
        """The commands since the last call."""
        commands, self._commands = self._commands, []
        return commands

    # ------------------------------------------------------------------ questions

    def on(self, host: str) -> str:
        """`` on node1``; empty for this machine, and for a container that is named after its task."""
        known = is_loopback(host) or any(record.task.names(host) for record in self.by_host[host])
        return "" if known else f" on {host}"

    def open_on(self, host: str) -> list[TaskRecord]:
        """The tasks of this host that are not over."""
        return [record for record in self.by_host[host] if record.task in self.open]

    def hosts_of(self, tasks: Collection[TaskId]) -> list[str]:
        """The hosts of these tasks, each once, in the order of the table."""
        return [host for host, own in self.by_host.items() if any(record.task in tasks for record in own)]

    def names(self, tasks: Collection[TaskId]) -> str:
        """These tasks in the order of the table, for a message."""
        return listed([str(task) for task in self.records if task in tasks])

    def alive(self) -> int:
        """How many tasks have a process of their own, as far as is known."""
        return sum(self.records[task].state is not TaskState.ENDED for task in self.open)

    def too_late(self, at: float) -> bool:
        """Whether the job was done by then: an end is no failure any more."""
        return self.done and at >= self._decided_at

    def must_stop(self) -> bool:
        """Whether a failure stops the other tasks."""
        return self.failure is not None and self.policy.on_failure is OnFailure.STOP

    def is_done(self) -> bool:
        """Whether all deciding tasks have ended, so that the rest is stopped, which counts as success."""
        return not self.must_stop() and not self.undecided

    # ------------------------------------------------------------------ changes

    def fail(self, failure: Failure, exit_code: int) -> bool:
        """Something failed. Returns whether it is the first failure by time.

        Events of several hosts cross on their way. The end of a task has the time when it happened, all else
        the time when it was noticed, which is now: so only a task can turn out to have been the first.
        """
        first = self.failure
        if first is not None and (failure.task is None or failure.at >= first.at):
            return False
        self.failure, self.exit_code = failure, exit_code
        return True

    def ended(self, task: TaskId, at: float) -> None:
        """The process of a task is over."""
        if task in self.undecided:
            self.undecided.discard(task)
            self._decided_at = max(at, self._decided_at)

    def over(self, task: TaskId) -> None:
        """Nothing more can happen to it."""
        self.open.discard(task)
        self.undecided.discard(task)
        self.starting.discard(task)

    def left(self, host: str) -> None:
        """The agent is closed or lost: no event of it counts any more."""
        self.agents.pop(host, None)
        self.early.pop(host, None)
        self.checking.discard(host)
        self.owing.discard(host)

    # ------------------------------------------------------------------ draining

    def draining(self) -> list[TaskRecord]:
        """Tasks that have time left to end by themselves when the job is done, and have not ended."""
        going = (TaskState.STARTING, TaskState.RUNNING)
        return [task for task in self.records.values() if task.drain > self._drained and task.state in going]

    def staying(self) -> frozenset[TaskId]:
        """These tasks, and those that serve them: sidecars; services while a task that is none goes on.

        A worker can't end well when its ps is stopped. Empty if only serving tasks would be left.
        """
        draining = self.draining()
        works = any(not record.service for record in draining)
        serving = [task for task in self.records.values() if task.sidecar or (works and task.service)]
        return frozenset(record.task for record in (*draining, *serving) if draining)

    def drain_time_up(self) -> None:
        """The time that some tasks were given is over."""
        before = {record.task for record in self.draining()}
        self._drained = self._next_drain
        late = self.names(before - self.staying())
        if late:
            self.notify(f"{late} did not finish within {limit_text(self._drained)} of the job's end: stopped")
        self._drain() if self.draining() else self.stop()

    def _drain(self) -> None:
        self._next_drain = min(record.drain for record in self.draining())
        self.do(events.SetTimer("drain", self._next_drain - self._drained))
        self._stop_tasks(self.staying())

    # ------------------------------------------------------------------ the end

    def judge(self) -> None:
        """After the end of a task: go on, or stop the rest."""
        if self.phase not in _GOING:
            self._close_if_empty()
        elif self._goes_on():
            if self.phase is Phase.DRAINING and all(record.service for record in self.draining()):
                self._stop_tasks(self.staying())  # services stayed only for what has ended now
        else:
            now_done = self.phase is Phase.RUNNING and self.is_done()
            self.done = self.done or now_done
            if now_done and self.draining():
                self.phase = Phase.DRAINING
                self.do(NOTICE_TIMER)
                self._drain()
            else:
                self.stop()

    def report_failure(self, text: str, first: bool) -> None:
        """Report that a task failed, unless it is one of many that failed after the first."""
        others = self.alive()
        if self.phase not in _GOING:
            if first:
                self.notify(f"{text}; that was before all else")
        elif not others:
            pass  # the report is next, and has it
        elif self._goes_on() or (self.is_done() and self.draining()):
            self.notify(f"{text}; {counted(others, 'task')} left")
        else:
            self.notify(f"{text}; stopping the other {'task' if others == 1 else counted(others, 'task')}")

    def stop(self) -> None:
        """Stop everything that runs; cancel what was not started."""
        self.phase = Phase.STOPPING
        self.do(*map(events.CancelTimer, _BEFORE_STOP))
        for record in self.records.values():
            if record.state is TaskState.PENDING:
                record.move(TaskState.CANCELLED, "the job was over")
                record.reason = Reason.NEVER_STARTED
                self.over(record.task)
        if self.open:
            self.do(NOTICE_TIMER, events.SetTimer("end", longest(self.stop_steps)))
        self._stop_tasks()
        self._close_if_empty()

    def send_stops(self, records: Iterable[TaskRecord], steps: StopSteps) -> None:
        """Commands to stop these tasks, one a host."""
        tasks: dict[str, list[TaskId]] = {}
        for record in records:
            tasks.setdefault(record.host, []).append(record.task)
        self.do(*(events.StopTasks(host, tuple(own), steps) for host, own in tasks.items()))

    def finish_if_closed(self) -> None:
        """The job is over when every agent is."""
        if not self.agents:
            self.phase = Phase.OVER
            self.do(events.Finish(self.exit_code))

    def _goes_on(self) -> bool:
        """Whether there is no reason to stop the rest yet."""
        left = self.draining() if self.phase is Phase.DRAINING else self.undecided
        return bool(left) and not self.must_stop()

    def _stop_tasks(self, but: Collection[TaskId] = ()) -> None:
        """Stop the tasks in order, each once; ``but`` these, and not those whose own process has ended."""
        stopped = []
        for record in self.records.values():
            if record.task not in self.open or record.task in but or record.state is TaskState.ENDED:
                continue
            if record.state is not TaskState.STOPPING:
                record.move(TaskState.STOPPING, "the job is over")
            if not record.stop_sent:
                record.stop_sent = True
                stopped.append(record)
        self.send_stops(stopped, self.stop_steps)

    def _close_if_empty(self) -> None:
        if self.open or self.phase is not Phase.STOPPING:
            return
        self.phase = Phase.CLOSING
        self.do(*map(events.CancelTimer, _BEFORE_CLOSE))
        if self.agents:
            self.do(NOTICE_TIMER, events.SetTimer("close", CLOSE_LIMIT))
            self.do(*map(events.CloseAgent, self.agents))
        self.finish_if_closed()
