"""The state of one job, and how the job is stopped.

The handlers of events (`host_events`, `task_events`, `machine`) change one `JobState` and add commands to it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

from launcher import events
from launcher.events import Command, StopSteps
from launcher.job import JobSpec, OnFailure, Placement, TaskPlan, is_loopback
from launcher.report import Failure, Reason, TaskState
from launcher.supervisor.restarts import Restart, Restarts
from launcher.supervisor.tasks import SIGKILL, TaskRecord, deciding_tasks
from launcher.task_id import TaskId
from launcher.text import counted, listed

#: Exit codes: the job took longer than its limit; the launcher or a host failed.
TIMED_OUT, HOST_FAULT = 124, 125
#: Seconds before the first message about a wait, and between two messages; for agents to close.
NOTICE_AFTER, REPEAT, CLOSE_LIMIT = 2.0, 10.0, 15.0
NOTICE_TIMER = events.SetTimer("notice", NOTICE_AFTER)
#: Seconds for agents to start and hold their ports; to start a task.
READY_LIMIT, START_LIMIT = 60.0, 60.0
#: Timers that are cancelled when the job is stopped, and when every task is gone.
_BEFORE_STOP = ("job", "ready", "rest", "check", "start", "drain", "silence")
_BEFORE_CLOSE = ("end", "answer")

# Numbers of signal(7) on Linux: the same on every host, whatever its Python.
SIGINT, SIGABRT, SIGTERM = 2, 6, 15
#: Seconds for a hung program to print its stacks on SIGABRT, at most; after SIGKILL until a process counts
#: as unkillable; that an agent may be late until it counts as lost.
STACKS, _LAST, _MARGIN = 2.0, 5.0, 10.0
AT_ONCE: StopSteps = ((SIGKILL, _LAST),)


class Phase(enum.Enum):
    """The phase of the job, see `launcher.supervisor.machine`."""

    STARTUP = "startup"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    CLOSING = "closing"
    OVER = "over"


_ACTIVE = (Phase.RUNNING, Phase.DRAINING)


def orderly(grace: float) -> StopSteps:
    """SIGTERM; after ``grace`` seconds SIGABRT, so that Python shows its stacks; then SIGKILL."""
    return ((SIGTERM, grace), (SIGABRT, min(STACKS, grace)), *AT_ONCE) if grace > 0 else AT_ONCE


def quick(grace: float, most: float) -> StopSteps:
    """SIGTERM; SIGKILL after ``grace`` seconds, ``most`` at the most."""
    return ((SIGTERM, min(grace, most)), *AT_ONCE) if grace > 0 else AT_ONCE


def longest(sequence: StopSteps) -> float:
    """Seconds for an agent to end tasks by this sequence; an agent that takes longer is lost."""
    return sum(seconds for _, seconds in sequence) + _MARGIN


def limit_text(seconds: float, written: str = "") -> str:
    """A time limit as the user wrote it, ``2h``; without a unit in seconds, ``0.5 s``."""
    return written if written[-1:].isalpha() else f"{seconds:.10g}s"


class JobState:
    """The state of one job.

    Args:
        job: roles and policy.
        placement: the host of each task.
        check: let the hosts connect to each other before the tasks start.
        restarts: the policy of restarts.
        tasks_end: seconds from the loss of a host until its tasks have ended; 0: a new host (container) takes
            its place; ``None``: tasks do not move.
    """

    def __init__(
        self,
        job: JobSpec,
        placement: Placement,
        check: bool,
        restarts: Restarts,
        tasks_end: float | None = None,
    ) -> None:
        self.policy, self.preload = job.policy, job.preload
        self.placement = placement
        self.tasks_end = tasks_end
        self.restarts = restarts
        self.stop_steps = orderly(job.policy.grace)
        self.phase = Phase.STARTUP
        self.failure: Failure | None = None
        self.exit_code = 0
        #: The user has asked to end the job at once: hosts get little time to answer.
        self.immediate = False
        self.records = {placed.task: TaskRecord(placed) for placed in placement.tasks}
        #: The tasks by host; also hosts without a task.
        self.by_host: dict[str, list[TaskRecord]] = {host.name: [] for host in placement.agent_hosts()}
        for record in self.records.values():
            self.by_host[record.host].append(record)
        #: Tasks that are not gone; those of them whose ends decide the end of the job; tasks that were
        #: commanded to start, without an answer.
        self.open = set(self.records)
        self.all_deciding = deciding_tasks(placement)
        self.deciding = set(self.all_deciding)
        self.starting: set[TaskId] = set()
        #: Tasks that are to start again; how all tasks are started; restarts that were begun, and made.
        self.restarting: dict[TaskId, Restart] = {}
        self.plans: dict[TaskId, TaskPlan] = {}
        #: Tasks that failed for good: `--on-failure` is `continue`.
        self.failed: set[TaskId] = set()
        self.restarts_begun = self.restarts_made = 0
        #: Where the tasks start again after the loss of a host; whether the hosts hold ports for that.
        self.moving: Placement | None = None
        self.placing = False
        #: All hosts, also lost ones; lost ones on which a new agent is being started.
        self.hosts = {host.name: host for host in placement.agent_hosts()}
        self.returning: set[str] = set()
        #: Hosts whose agent is neither closed nor lost; hosts that have not answered whether they hold their
        #: ports; hosts whose agents stop tasks without a command; hosts that have not answered a stop.
        self.agents = dict.fromkeys(self.by_host)
        self.not_ready = dict.fromkeys(host.name for host in placement.hosts())
        self.self_stopping: set[str] = set()
        self.unanswered: set[str] = set()
        #: Hosts whose agent is ready; notices of each host since it started a task.
        self.ready: set[str] = set()
        self.notices: dict[str, int] = {}
        #: Whether the hosts connect to each other; hosts that have not answered with their results.
        self.check = check
        self.checking: set[str] = set()
        #: When the user last asked for the end; seconds that agents have to answer.
        self.last_stop_at: float | None = None
        self.answer_limit = 0.0
        #: Looks for silent tasks (`stalls`), and the one from which silence counts; lines about silent tasks.
        self.looks = self.silent_from = self.silence_lines = 0
        #: Whether the hint about sessions that wait for every task was shown.
        self.filters_told = False
        #: Number of tasks that ignored SIGTERM.
        self.ignored_sigterm = 0
        #: Whether all deciding tasks have ended, and when the last of them did.
        self.done = False
        self._decided_at = 0.0
        #: Seconds after that: of the last drain timer that ran out, and of the next one.
        self._drained = self._next_drain = 0.0
        self._commands: list[Command] = []

    # ------------------------------------------------------------------ commands

    def do(self, *commands: Command) -> None:
        """Add commands."""
        self._commands += commands

    def notify(self, text: str, urgent: bool = False) -> None:
        """Show a line to the user."""
        self.do(events.Tell(text, urgent))

    def tell_restarting(self, tasks: Iterable[TaskId], on: bool) -> None:
        """Tell programs that tasks start again (``on``), or do not after all."""
        if attempts := {task: self.records[task].attempt for task in tasks}:
            self.do(events.Restarting(attempts, on))

    def take_commands(self) -> list[Command]:
        """The commands since the last call."""
        commands, self._commands = self._commands, []
        return commands

    # ------------------------------------------------------------------ questions

    def on(self, host: str) -> str:
        """`` on node1``; empty for this machine, and for a container that is named after its task."""
        known = is_loopback(host) or any(record.task.is_own_host(host) for record in self.by_host[host])
        return "" if known else f" on {host}"

    def open_on(self, host: str) -> list[TaskRecord]:
        """The tasks of this host that are not over."""
        return [record for record in self.by_host[host] if record.task in self.open]

    def belongs_to(self, host: str) -> list[TaskRecord]:
        """The tasks of this host, and those that are to move there; without sidecars."""
        moving = () if self.moving is None else self.moving.tasks
        coming = {placed.task for placed in moving if placed.host.name == host}
        coming |= {record.task for record in self.by_host[host]}
        return [record for record in self.records.values() if record.task in coming and not record.sidecar]

    def may_plan(self) -> bool:
        """Whether the tasks start, for the first time or on other hosts, when all hosts hold their ports."""
        return self.placing or (self.phase is Phase.STARTUP and self.failure is None)

    def hosts_of(self, tasks: Collection[TaskId]) -> list[str]:
        """The hosts of these tasks, each once, in the order of the table."""
        return [host for host, own in self.by_host.items() if any(record.task in tasks for record in own)]

    def names(self, tasks: Collection[TaskId]) -> str:
        """The names of these tasks in the order of the table, for a message."""
        return listed([str(task) for task in self.records if task in tasks])

    def alive(self) -> int:
        """The number of tasks that have neither failed nor ended, as far as the launcher knows."""
        records = [self.records[task] for task in self.open]
        return sum(record.state is not TaskState.ENDED and not record.stalled for record in records)

    def done_before(self, at: float) -> bool:
        """Whether the job was done at this time: a task that ends later does not fail the job."""
        return self.done and at >= self._decided_at

    def must_stop(self) -> bool:
        """Whether a failure stops the other tasks: a task has failed, and ``--on-failure`` is ``stop``."""
        return self.failure is not None and self.policy.on_failure is OnFailure.STOP

    def is_done(self) -> bool:
        """Whether all deciding tasks have ended: the others are then stopped, which counts as success."""
        return not self.must_stop() and not self.deciding

    # ------------------------------------------------------------------ changes

    def fail(self, failure: Failure, exit_code: int) -> bool:
        """Record a failure. Returns whether it is the first one by time.

        Events of several hosts arrive in any order. The end of a task has the time when it happened, every
        other failure the time when it was noticed, now: so only the failure of a task can replace another.
        """
        first = self.failure
        if first is not None and (failure.task is None or failure.at >= first.at):
            return False
        self.failure, self.exit_code = failure, exit_code
        return True

    def process_ended(self, task: TaskId, at: float) -> None:
        """Record that the own process of a task has ended, for good unless the task is to start again."""
        if task in self.deciding and task not in self.restarting:
            self.deciding.discard(task)
            self._decided_at = max(at, self._decided_at)

    def drop_task(self, task: TaskId) -> None:
        """Record that a task is gone: no event about it follows, unless it is to start again."""
        self.open.discard(task)
        self.starting.discard(task)
        if task not in self.restarting:
            self.deciding.discard(task)

    def forget_restarts(self, tasks: Iterable[TaskId]) -> None:
        """Do not start these tasks again."""
        forgotten = {task: self.restarting.pop(task) for task in [*tasks] if task in self.restarting}
        self.tell_restarting(forgotten, on=False)
        for task, restart in forgotten.items():
            restart.tasks.discard(task)
            if not restart.tasks:
                self.do(events.CancelTimer(restart.timer))
            if task not in self.open:
                self.deciding.discard(task)
        if not self.restarting:
            self.moving, self.placing = None, False

    def start(self, record: TaskRecord) -> None:
        """Add the command to start a task, whose state is STARTING."""
        plan = self.plans[record.task]
        self.starting.add(record.task)
        process = (plan.argv, plan.env, plan.workdir, self.stop_steps, plan.venv, plan.script)
        completed = (plan.args, plan.flags, plan.templates)
        self.do(events.StartTask(plan.host, record.task, record.attempt, *process, *completed))

    def start_agent(self, host: str) -> None:
        """Add the command to start a new agent on a lost host."""
        self.returning.add(host)
        self.do(events.StartAgent(host))

    def drop_host(self, host: str) -> None:
        """Record that the agent of a host is closed or lost: its later events are ignored."""
        self.agents.pop(host, None)
        self.not_ready.pop(host, None)
        self.checking.discard(host)
        self.unanswered.discard(host)
        self.returning.discard(host)
        self.ready.discard(host)

    # ------------------------------------------------------------------ draining

    def draining(self) -> list[TaskRecord]:
        """Tasks that run, and have time left to finish after the job is done."""
        going = (TaskState.STARTING, TaskState.RUNNING)
        return [task for task in self.records.values() if task.drain > self._drained and task.state in going]

    def tasks_to_keep(self) -> frozenset[TaskId]:
        """The draining tasks and those that serve them: sidecars, and services while another task drains.

        A worker can't end well when its ps is stopped. Empty if no task is draining.
        """
        draining = self.draining()
        works = any(not record.service for record in draining)
        serving = [task for task in self.records.values() if task.sidecar or (works and task.service)]
        return frozenset(record.task for record in (*draining, *serving) if draining)

    def drain_time_up(self) -> None:
        """The drain timer has run out: stop the tasks whose time is over."""
        before = {record.task for record in self.draining()}
        self._drained = self._next_drain
        late = self.names(before - self.tasks_to_keep())
        if late:
            self.notify(f"{late} did not finish within {limit_text(self._drained)} of the job's end: stopped")
        self._drain() if self.draining() else self.stop()

    def _drain(self) -> None:
        self._next_drain = min(record.drain for record in self.draining())
        self.do(events.SetTimer("drain", self._next_drain - self._drained))
        self._stop_tasks(self.tasks_to_keep())

    # ------------------------------------------------------------------ the end

    def continue_or_stop(self) -> None:
        """After the end of a task: continue, drain, or stop the other tasks."""
        if self.phase not in _ACTIVE:
            self._close_if_empty()
        elif self._continues():
            if self.phase is Phase.DRAINING and all(record.service for record in self.draining()):
                self._stop_tasks(self.tasks_to_keep())  # the tasks that needed services have ended
        else:
            now_done = self.phase is Phase.RUNNING and self.is_done()
            self.done = self.done or now_done
            if now_done and self.draining():
                self.phase = Phase.DRAINING
                self.forget_restarts(self.records)
                self.do(NOTICE_TIMER)
                self._drain()
            else:
                self.stop()

    def report_failure(self, text: str, first: bool) -> None:
        """Notify the user that a task failed, unless its failure follows from the stop."""
        others = self.alive()
        if self.phase not in _ACTIVE:
            if first:
                self.notify(f"{text}; this is the first failure")
        elif not others:
            pass  # the failure report follows
        elif self._continues() or (self.is_done() and self.draining()):
            self.notify(f"{text}; {counted(others, 'task')} left")
        else:
            self.notify(f"{text}; stopping the other {'task' if others == 1 else counted(others, 'task')}")

    def stop(self) -> None:
        """Stop every task that runs; cancel those that were not started."""
        self.phase = Phase.STOPPING
        self.forget_restarts(self.records)
        self.do(*map(events.CancelTimer, _BEFORE_STOP))
        for record in self.records.values():
            if record.state is TaskState.PENDING:
                record.move(TaskState.CANCELLED, "the job was over")
                record.reason = Reason.NEVER_STARTED
                self.drop_task(record.task)
        if self.open:
            self.do(NOTICE_TIMER, events.SetTimer("end", longest(self.stop_steps)))
        self._stop_tasks()
        self._close_if_empty()

    def send_stops(self, records: Iterable[TaskRecord], steps: StopSteps) -> None:
        """Add the commands to stop these tasks, one for each host."""
        tasks: dict[str, list[TaskId]] = {}
        for record in records:
            tasks.setdefault(record.host, []).append(record.task)
        self.do(*(events.StopTasks(host, tuple(own), steps) for host, own in tasks.items()))

    def finish_if_closed(self) -> None:
        """Finish the job when every agent is closed or lost."""
        if not self.agents:
            self.phase = Phase.OVER
            self.do(events.Finish(self.exit_code))

    def _continues(self) -> bool:
        """Whether the job runs or drains on: there are tasks to wait for, and no failure stops them."""
        left = self.draining() if self.phase is Phase.DRAINING else self.deciding
        return bool(left) and not self.must_stop()

    def _stop_tasks(self, kept: Collection[TaskId] = ()) -> None:
        """Stop all tasks but ``kept`` ones and those whose own process has ended; each is stopped once."""
        stopped = []
        for record in self.records.values():
            if record.task not in self.open or record.task in kept or record.state is TaskState.ENDED:
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
