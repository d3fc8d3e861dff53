"""The state of one job, which the handlers of events change.

The machine makes one `JobState` for a job and passes it to every handler. A handler changes it, and adds the
commands that follow. `JobState.drain_commands` returns these. Nothing here reads a clock or touches a
process.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import StopSequence
from launcher.common.record import from_attributes
from launcher.common.report import Failure, Reason
from launcher.job import JobSpec, OnFailure, Placement, TaskPlan
from launcher.stop_requests import StopRequests
from launcher.supervisor.commands import CancelTimer, Command, SetTimer, StartAgent, Timer, TimerKind
from launcher.supervisor.records import HostRecord, HostState, HostTable, Restart, TaskRecord, TaskTable
from launcher.supervisor.restart_policy import RestartPolicy

HOST_FAULT_EXIT_CODE = 125
#: Why a task cannot be started, by the exit code that its agent reports. With any other code the host is at
#: fault.
START_REASONS = {127: Reason.NOT_FOUND, 126: Reason.NOT_RUNNABLE}

#: The durations of the timers that always run equally long.
TIMER_SECONDS = {
    # What takes no longer than this needs no message.
    TimerKind.NOTICE: 2.0,
    TimerKind.READY: 60.0,
    TimerKind.OTHER_HOSTS: 10.0,
    TimerKind.CHECK: 12.0,
    TimerKind.START: 60.0,
    # Hosts that are lost by one cause are lost within about this time.
    TimerKind.PLACE: 1.0,
    TimerKind.CLOSE: 15.0,
}
#: While the job waits for something, it is checked this often whether it now waits for something else.
NOTICE_REPEAT_SECONDS = 10.0

# The numbers of signal(7) on Linux, which are the same on every host.
SIGABRT = 6
SIGKILL = 9
SIGTERM = 15
#: How long a hung program may take to print its stacks after SIGABRT.
STACKS_SECONDS = 2.0
#: How long after SIGKILL a process counts as unkillable.
_KILL_SECONDS = 5.0
#: How much longer than its stop sequence an agent may take before it counts as lost.
_AGENT_MARGIN_SECONDS = 10.0
IMMEDIATE_STOP_SEQUENCE: StopSequence = ((SIGKILL, _KILL_SECONDS),)


class Phase(enum.Enum):
    """The phase of a job, see `launcher.supervisor.machine` for what each one means."""

    STARTUP = "startup"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    CLOSING = "closing"
    OVER = "over"


def orderly_stop_sequence(grace: float) -> StopSequence:
    """Return the signals that stop a task in order: SIGTERM, then SIGABRT, then SIGKILL.

    SIGABRT follows after the time of ``--grace``, because Python then shows the stacks of a program that
    hangs.

    Args:
        grace: Seconds that a task may take to exit after SIGTERM. Without any, the tasks are killed at once.
    """
    if grace <= 0:
        return IMMEDIATE_STOP_SEQUENCE
    return ((SIGTERM, grace), (SIGABRT, min(STACKS_SECONDS, grace)), *IMMEDIATE_STOP_SEQUENCE)


def quick_stop_sequence(grace: float, max_seconds: float) -> StopSequence:
    """Return the signals that stop a task quickly: SIGTERM, and SIGKILL after `grace` or `max_seconds`.

    Args:
        grace: Seconds that a task may take to exit after SIGTERM. Without any, the tasks are killed at once.
        max_seconds: The longest time between the two signals.
    """
    if grace <= 0:
        return IMMEDIATE_STOP_SEQUENCE
    return ((SIGTERM, min(grace, max_seconds)), *IMMEDIATE_STOP_SEQUENCE)


def longest_stop(sequence: StopSequence) -> float:
    """Return the seconds that an agent may take to stop tasks by this sequence of signals.

    If it takes longer, its host counts as lost.
    """
    return sum(seconds for _, seconds in sequence) + _AGENT_MARGIN_SECONDS


class StallState:
    """The knowledge about the silence of tasks.

    `launcher.supervisor.stalls` counts silence in ticks of one timer, and not in seconds.
    """

    def __init__(self) -> None:
        #: The number of ticks so far.
        self.ticks = 0
        #: The tick from which the silence of all tasks counts.
        self.since = 0
        #: The tick at which the logs were last read for steps. None if they are not read.
        self.steps_read_tick: int | None = None
        #: The number of messages about silent tasks.
        self.line_count = 0
        #: Whether the advice about sessions that wait for every task was shown.
        self.has_advised_filters = False
        #: The Python stacks of tasks that the present timer stops because they hang. Empty if not known.
        self.stacks = ""


class JobState:
    """The state of one job, which the handlers of events change and read.

    Args:
        spec: The roles and the policy of the job.
        placement: The host of each task.
        checks_network: Whether the hosts try to connect to each other before the tasks start.
        restart_policy: Decides about restarts. None makes one from the job. Only tests pass one, without
            randomness.
        seconds_until_tasks_ended: How long after the loss of a host a task of it may still be alive. 0 if a
            new host takes the place of the lost one, None if its tasks cannot start again.
        managed: Whether Slurm or Kubernetes may signal the launcher, see `StopRequests`.
    """

    def __init__(
        self,
        spec: JobSpec,
        placement: Placement,
        *,
        checks_network: bool = False,
        restart_policy: RestartPolicy | None = None,
        seconds_until_tasks_ended: float | None = None,
        managed: bool = False,
    ) -> None:
        self.spec, self.policy, self.placement = spec, spec.policy, placement
        self.checks_network = checks_network
        self.restart_policy = restart_policy or RestartPolicy(spec, placement)
        self.seconds_until_tasks_ended = seconds_until_tasks_ended
        #: The signals by which a task is stopped unless it must end sooner.
        self.stop_sequence = orderly_stop_sequence(spec.policy.grace)
        self.phase = Phase.STARTUP
        #: The first failure by time. None without one.
        self.failure: Failure | None = None
        #: The exit code of the job to which this failure leads. 0 without one.
        self.exit_code = 0
        self.tasks = TaskTable(placement, spec.policy.done_when)
        # A queue may have started an earlier launcher of this run, whose attempts are counted on.
        for record in self.tasks.values():
            record.attempt += spec.policy.attempts_before
        self.hosts = HostTable(placement, self.tasks.values())
        #: How each task is to be started. Empty until the plan is made.
        self.plans: dict[TaskId, TaskPlan] = {}
        #: All restarts under way, by their keys.
        self.restarts: dict[str, Restart] = {}
        #: The restart in which tasks of lost hosts start elsewhere, if there is one.
        self.moving_restart: Restart | None = None
        #: How many restarts this launcher has begun. Their keys are numbers of this count.
        self.started_restarts = 0
        #: How many restarts have started their tasks, for the report. Those of earlier launchers count, too.
        self.completed_restarts = spec.policy.restarts_before
        #: Whether the job was done at some time: all deciding tasks had ended, and no failure stopped it.
        self.was_done = False
        self.stalls = StallState()
        #: The number of tasks that ignored SIGTERM.
        self.ignored_sigterm_count = 0
        #: Whether the user has asked to end the job at once: hosts get little time to answer.
        self.is_immediate = False
        self.stop_requests = StopRequests(managed)
        #: How long hosts may take to answer that they stop their tasks. 0 if none was asked.
        self.answer_seconds = 0.0
        #: The last message about what the job waits for, and the number of restarts that had begun by then.
        self.last_wait: tuple[str, int] | None = None
        #: The commands since the last `drain_commands`.
        self._commands: list[Command] = []

    # ------------------------------------------------------------------ commands

    def emit(self, *commands: Command) -> None:
        """Add commands for the launcher, which `drain_commands` returns."""
        self._commands += commands

    def tell(self, text: str, *, urgent: bool = False) -> None:
        """Tell the user something.

        Args:
            text: The message.
            urgent: Whether a user who wants no messages (``--quiet``) is told, too.
        """
        self.emit(events.Tell(text, urgent))

    def set_timer(self, kind: TimerKind, seconds: float | None = None, key: str = "") -> None:
        """Set a timer. It replaces an earlier timer of the same kind and key.

        Args:
            kind: What the timer is for.
            seconds: When it fires, in seconds from now. None if `TIMER_SECONDS` contains that.
            key: Tells timers of one kind apart.
        """
        self.emit(SetTimer(Timer(kind, key), TIMER_SECONDS[kind] if seconds is None else seconds))

    def cancel_timers(self, *kinds: TimerKind) -> None:
        """Cancel the timers of these kinds, of which each job sets only one."""
        self.emit(*(CancelTimer(Timer(kind)) for kind in kinds))

    def start(self, record: TaskRecord) -> None:
        """Tell the agent of its host to start a task, whose state is STARTING already."""
        plan = self.plans[record.task]
        self.tasks.starting.add(record.task)
        # With these signals the agent stops processes that the task leaves behind when it ends.
        attempt, steps = record.attempt, self.stop_sequence
        # The other fields of the command are attributes of the plan.
        self.emit(from_attributes(events.StartTask, plan, attempt=attempt, steps=steps))

    def start_agent(self, host: HostRecord) -> None:
        """Let the launcher start a new agent on a lost host."""
        host.transition_to(HostState.RETURNING, "a new agent")
        self.emit(StartAgent(host.name))

    def drain_commands(self) -> list[Command]:
        """Return the commands since the last call. What has become of tasks comes first."""
        commands, self._commands = [*self.tasks.drain_changes(), *self._commands], []
        return commands

    # ------------------------------------------------------------------ questions

    @property
    def replaces_hosts(self) -> bool:
        """Whether a new host takes the place of a lost one: containers are made again."""
        return self.seconds_until_tasks_ended == 0

    @property
    def moves_tasks(self) -> bool:
        """Whether the tasks of a lost host move to other hosts, after they have certainly ended there."""
        return bool(self.seconds_until_tasks_ended)

    @property
    def is_placing(self) -> bool:
        """Whether new hosts were chosen for the tasks of lost hosts, and all hosts are to hold ports now."""
        return self.moving_restart is not None and self.moving_restart.is_placing

    def can_plan(self) -> bool:
        """Return whether the plan is to be made as soon as all hosts hold their ports, which it contains.

        That is so before the first start of the tasks, unless something has failed and so ends the job. It is
        so again when tasks start on other hosts, where they get other ports.
        """
        return self.is_placing or (self.phase is Phase.STARTUP and self.failure is None)

    def was_done_before(self, at: float) -> bool:
        """Return whether the job was done at this time, so a task that ends later does not fail it.

        Args:
            at: The time in seconds since the epoch.
        """
        return self.was_done and at >= self.tasks.decided_at

    def must_stop(self) -> bool:
        """Return whether a failure stops the other tasks, which ``--on-failure stop`` asks for."""
        return self.failure is not None and self.policy.on_failure is OnFailure.STOP

    def is_done(self) -> bool:
        """Return whether all deciding tasks have ended.

        The other tasks are then stopped, and the job succeeds.
        """
        return not self.must_stop() and not self.tasks.deciding

    # ------------------------------------------------------------------ changes

    def fail(self, failure: Failure, exit_code: int) -> bool:
        """Record a failure of the job, unless an earlier one is known.

        Events of several hosts arrive in any order. The end of a task carries the time at which it happened,
        every other failure the time at which it was noticed, which is now. So only the failure of a task can
        be earlier than one that is known.

        Args:
            failure: The failure.
            exit_code: The exit code of the job if this is its first failure.

        Returns:
            Whether it is the first failure by time.
        """
        known = self.failure
        if known is not None and (failure.task is None or failure.at >= known.at):
            return False
        self.failure, self.exit_code = failure, exit_code
        return True

    def cancel_restarts(self, tasks: Iterable[TaskId]) -> dict[TaskId, Restart]:
        """Do not start these tasks again. Not all of them need to be waiting for a restart.

        Returns:
            The tasks that were to start again, with their restarts.
        """
        restarting = self.tasks.restarting
        # The tasks may be this very table, which changes here, so they are copied.
        cancelled = {task: restarting.pop(task) for task in [*tasks] if task in restarting}
        for task, restart in cancelled.items():
            self.tasks[task].mark_changed()  # An event tells that the task does not start again after all.
            restart.tasks.discard(task)
            if not restart.tasks:
                self.end_restart(restart)
            if task not in self.tasks.not_gone:  # It has ended for good, so the job no longer waits for it.
                self.tasks.deciding.discard(task)
        if not restarting:  # No task is left that could move to another host.
            self.stop_placing()
            self.moving_restart = None
        return cancelled

    def end_restart(self, restart: Restart) -> None:
        """Note that no task waits for this restart any longer."""
        self.restarts.pop(restart.key, None)
        self.emit(CancelTimer(restart.timer))

    def stop_placing(self) -> None:
        """No longer wait for the new hosts of tasks that move: these are chosen again or not needed."""
        if self.moving_restart is not None and self.moving_restart.is_placing:
            self.moving_restart.is_placing = False
            self.cancel_timers(TimerKind.READY, TimerKind.CHECK)
            for host in self.hosts.values():
                if host.state in (HostState.HOLDING, HostState.TRYING):
                    host.stop_waiting()
