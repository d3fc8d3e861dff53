"""The state of one job.

The handlers of events change one `JobState`, and add commands to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import Command, StopSequence
from launcher.common.record import from_attributes
from launcher.common.report import Failure, Reason
from launcher.job import JobSpec, OnFailure, Placement, TaskPlan, is_loopback
from launcher.stop_requests import StopRequests
from launcher.supervisor.records import HostRecord, HostState, HostTable, Restart, TaskRecord, TaskTable
from launcher.supervisor.restart_policy import RestartPolicy

#: Exit codes: the job took longer than its limit; the launcher or a host failed.
TIMED_OUT_EXIT_CODE = 124
HOST_FAULT_EXIT_CODE = 125
#: Why a task can't be started, by the exit code; of other codes: `HOST_FAULT_EXIT_CODE`.
START_REASONS = {127: Reason.NOT_FOUND, 126: Reason.NOT_RUNNABLE}
#: Seconds before the first message about a wait, and between two looks at it; for agents to close.
NOTICE_AFTER_SECONDS = 2.0
NOTICE_REPEAT_SECONDS = 10.0
CLOSE_TIMEOUT_SECONDS = 15.0
NOTICE_TIMER = events.SetTimer("notice", NOTICE_AFTER_SECONDS)
#: Seconds for agents to start and hold their ports; to start a task.
READY_TIMEOUT_SECONDS = 60.0
START_TIMEOUT_SECONDS = 60.0

# Numbers of signal(7) on Linux: the same on every host, whatever its Python.
SIGABRT = 6
SIGKILL = 9
SIGTERM = 15
#: Seconds for a hung program to print its stacks on SIGABRT, at most; after SIGKILL until a process counts
#: as unkillable; that an agent may be late until it counts as lost.
STACKS_SECONDS = 2.0
_KILL_SECONDS = 5.0
_MARGIN_SECONDS = 10.0
IMMEDIATE_STOP_SEQUENCE: StopSequence = ((SIGKILL, _KILL_SECONDS),)


class Phase(enum.Enum):
    """The phase of the job, see `launcher.supervisor.machine`."""

    STARTUP = "startup"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    CLOSING = "closing"
    OVER = "over"


def limit_text(seconds: float, written: str = "") -> str:
    """A time limit as the user wrote it, ``2h``; without a unit in seconds, ``0.5 s``."""
    return written if written[-1:].isalpha() else f"{seconds:.10g}s"


def orderly(grace: float) -> StopSequence:
    """SIGTERM; after ``grace`` seconds SIGABRT, so that Python shows its stacks; then SIGKILL."""
    return (
        ((SIGTERM, grace), (SIGABRT, min(STACKS_SECONDS, grace)), *IMMEDIATE_STOP_SEQUENCE)
        if grace > 0
        else IMMEDIATE_STOP_SEQUENCE
    )


def quick(grace: float, most: float) -> StopSequence:
    """SIGTERM; SIGKILL after ``grace`` seconds, ``most`` at the most."""
    return ((SIGTERM, min(grace, most)), *IMMEDIATE_STOP_SEQUENCE) if grace > 0 else IMMEDIATE_STOP_SEQUENCE


def longest(sequence: StopSequence) -> float:
    """Seconds for an agent to end tasks by this sequence; an agent that takes longer is lost."""
    return sum(seconds for _, seconds in sequence) + _MARGIN_SECONDS


class StallState:
    """What `stalls` knows of the silence of tasks."""

    def __init__(self) -> None:
        #: Looks for silent tasks, and the one from which silence counts; lines about silent tasks.
        self.ticks = self.since = self.lines = 0
        #: Whether the hint about sessions that wait for every task was shown.
        self.filters_told = False


class JobState:
    """The state of one job.

    Args:
        spec: roles and policy.
        placement: the host of each task.
        check: let the hosts connect to each other before the tasks start.
        restarts: the policy of restarts; ``None``: a new one.
        tasks_end: seconds from the loss of a host until its tasks have ended; 0: a new host (container) takes
            its place; ``None``: tasks do not move.
        managed: see `StopRequests`.
    """

    def __init__(
        self,
        spec: JobSpec,
        placement: Placement,
        check: bool = False,
        restarts: RestartPolicy | None = None,
        tasks_end: float | None = None,
        managed: bool = False,
    ) -> None:
        self.policy, self.preload, self.prepare = spec.policy, spec.preload, spec.prepare
        self.placement, self.tasks_end = placement, tasks_end
        self.check = check
        self.restarts = restarts or RestartPolicy(spec, placement)
        self.stop_steps = orderly(spec.policy.grace)
        self.phase = Phase.STARTUP
        self.failure: Failure | None = None
        self.exit_code = 0
        self.tasks = TaskTable(placement, spec.policy.done_when)
        for record in self.tasks.values():
            record.attempt += spec.policy.attempts_before
        self.hosts = HostTable(placement, self.tasks.values())
        #: How the tasks are started.
        self.plans: dict[TaskId, TaskPlan] = {}
        #: The restart in which tasks of lost hosts move; ``None``: there is none. All restarts under way by
        #: their timers; the number of restarts that were begun, and made.
        self.moving: Restart | None = None
        self.under_way: dict[str, Restart] = {}
        self.restarts_begun, self.restarts_made = 0, spec.policy.restarts_before
        #: Whether all deciding tasks have ended.
        self.done = False
        self.silence = StallState()
        #: Number of tasks that ignored SIGTERM.
        self.ignored_sigterm = 0
        #: The user has asked to end the job at once: hosts get little time to answer.
        self.immediate = False
        #: The requests to stop so far.
        self.stop_requests = StopRequests(managed)
        #: Seconds that agents have to answer.
        self.answer_limit = 0.0
        #: The last notice about a wait, and the number of restarts that had begun then.
        self.shown: tuple[str, int] | None = None
        self._commands: list[Command] = []

    # ------------------------------------------------------------------ commands

    def emit(self, *commands: Command) -> None:
        """Add commands."""
        self._commands += commands

    def tell(self, text: str, urgent: bool = False) -> None:
        """Show a line to the user."""
        self.emit(events.Tell(text, urgent))

    def drain_commands(self) -> list[Command]:
        """The commands since the last call; first what has become of tasks."""
        commands, self._commands = [*self.tasks.drain_moves(), *self._commands], []
        return commands

    # ------------------------------------------------------------------ questions

    def name_of_host(self, host: str) -> str:
        """`` on node1``; empty for this machine, and for a container that is named after its task."""
        own = self.hosts[host].tasks
        known = is_loopback(host) or any(record.task.is_own_host(host) for record in own)
        return "" if known else f" on {host}"

    def name_with_node(self, host: str) -> str:
        """Return the name of a host, and if it is a pod or a container, where it runs: ``worker-0 on n2``."""
        nodes = {record.node for record in self.hosts[host].tasks if record.node}
        return " on ".join([host, *sorted(nodes)])

    @property
    def is_placing(self) -> bool:
        """Whether tasks move, and their new hosts hold ports."""
        return self.moving is not None and self.moving.placing

    def may_plan(self) -> bool:
        """Whether the tasks start, for the first time or on other hosts, when all hosts hold their ports."""
        return self.is_placing or (self.phase is Phase.STARTUP and self.failure is None)

    def done_before(self, at: float) -> bool:
        """Whether the job was done at this time: a task that ends later does not fail the job."""
        return self.done and at >= self.tasks.decided_at

    def must_stop(self) -> bool:
        """Whether a failure stops the other tasks: a task has failed, and ``--on-failure`` is ``stop``."""
        return self.failure is not None and self.policy.on_failure is OnFailure.STOP

    def is_done(self) -> bool:
        """Whether all deciding tasks have ended: the others are then stopped, which counts as success."""
        return not self.must_stop() and not self.tasks.deciding

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

    def forget_restarts(self, tasks: Iterable[TaskId]) -> dict[TaskId, Restart]:
        """Do not start these tasks again; not all need be waiting for a restart.

        Returns:
            Those that were to start again, with their restarts.
        """
        waiting = self.tasks.restarting
        forgotten = {task: waiting.pop(task) for task in [*tasks] if task in waiting}
        for task, restart in forgotten.items():
            self.tasks[task].mark_changed()
            restart.tasks.discard(task)
            if not restart.tasks:
                self.end_restart(restart)
            if task not in self.tasks.open:
                self.tasks.deciding.discard(task)
        if not waiting:
            self.withdraw()
            self.moving = None
        return forgotten

    def end_restart(self, restart: Restart) -> None:
        """Record that no task waits for this restart."""
        self.under_way.pop(restart.timer, None)
        self.emit(events.CancelTimer(restart.timer))

    def withdraw(self) -> None:
        """Do not wait for the new hosts of tasks any more."""
        if self.moving is not None and self.moving.placing:
            self.moving.placing = False
            self.emit(events.CancelTimer("ready"), events.CancelTimer("check"))
            for host in self.hosts.values():
                if host.state in (HostState.HOLDING, HostState.TRYING):
                    host.withdraw()

    def start(self, record: TaskRecord) -> None:
        """Add the command to start a task, whose state is STARTING."""
        plan = self.plans[record.task]
        self.tasks.starting.add(record.task)
        attempt, steps = record.attempt, self.stop_steps
        self.emit(from_attributes(events.StartTask, plan, attempt=attempt, steps=steps))

    def start_agent(self, host: HostRecord) -> None:
        """Add the command to start a new agent on a lost host."""
        host.transition_to(HostState.RETURNING, "a new agent")
        self.emit(events.StartAgent(host.name))
