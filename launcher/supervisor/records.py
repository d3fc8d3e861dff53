"""The records of tasks and hosts, the changes of state that each allows, and the tables of all of them.

They contain everything that the supervisor knows about one task or one host. Whoever changes a state calls
`StateRecord.transition_to`, which refuses a change that is not in the table of transitions.

For each question that an event raises there is a set or a counter, so that only an event that changes all
tasks iterates over all of them. ``tests/histories/invariants.py`` compares these with the states after every
event.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.record import from_attributes
from launcher.common.report import Attempt, ExitStatus, Failure, Reason, TaskReport, TaskState
from launcher.common.text import join_names
from launcher.job import Host, PlacedTask, Placement, deciding_roles
from launcher.supervisor.commands import Timer, TimerKind

_MAX_HISTORY = 100
_TAIL_BYTES = 4000
_MAX_EARLIER_ATTEMPTS = 1000


# ---------------------------------------------------------------------- states


class InvalidTransitionError(Exception):
    """The error that a state was changed in an impossible way, which is a bug in launch.

    Its text is the history.
    """


class StateRecord:
    """A record with a state, which only changes as a table of transitions allows.

    Args:
        name: What the record is about, for error messages.
        state: The first state, a member of an enumeration.
        transitions: The states that may follow each state.
    """

    def __init__(self, name: str, state: Any, transitions: Mapping[Any, Sequence[Any]]) -> None:
        self._name, self._transitions = name, transitions
        self.state: Any = state
        #: The last changes, for error messages. Each is the old state, the new state and the cause.
        self._history: deque[tuple[Any, Any, object]] = deque(maxlen=_MAX_HISTORY)

    def transition_to(self, state: Any, cause: object) -> None:
        """Change to another state.

        Args:
            state: The new state.
            cause: What leads to the change, for the history in error messages: an event or a text.

        Raises:
            InvalidTransitionError: This state may not follow the present one.
        """
        # The refused change is in the history, too, so that the error shows it.
        self._history.append((self.state, state, cause))
        if state not in self._transitions.get(self.state, ()):
            changes = [f"{old.value} -> {new.value}: {why}" for old, new, why in self._history]
            raise InvalidTransitionError(f"{self._name}: {'; '.join(changes)}")
        self.state = state


_TASK_TRANSITIONS: dict[TaskState, tuple[TaskState, ...]] = {
    TaskState.PENDING: (TaskState.STARTING, TaskState.CANCELLED, TaskState.LOST),
    TaskState.STARTING: (TaskState.RUNNING, TaskState.FAILED, TaskState.STOPPING, TaskState.LOST),
    TaskState.RUNNING: (TaskState.STOPPING, TaskState.ENDED, TaskState.LOST),
    # It changes to FAILED if the launcher learns late that the start failed, and to STOPPED if SIGKILL did
    # not end it.
    TaskState.STOPPING: (TaskState.ENDED, TaskState.FAILED, TaskState.STOPPED, TaskState.LOST),
    TaskState.ENDED: (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED, TaskState.LOST),
    # STARTING after one of these states is the next attempt.
    TaskState.SUCCEEDED: (TaskState.STARTING,),
    TaskState.FAILED: (TaskState.STARTING,),
    TaskState.STOPPED: (TaskState.STARTING,),
    TaskState.LOST: (TaskState.STARTING,),
}


class HostState(enum.Enum):
    """The state of a host, which says what the launcher waits for there.

    ::

        HOLDING -> READY -> TRYING -> READY     before the first start, and before each one on other hosts
        STARTING -> READY                       without a task
        any of them -> LOST -> RETURNING -> READY
        any of them -> CLOSED                   on command
    """

    STARTING = "starting"  #: The agent starts, on a host that runs no task yet.
    HOLDING = "holding"  #: The agent, which may still start, is to hold a port for each task of the host.
    READY = "ready"  #: The agent runs and does nothing that the launcher waits for.
    TRYING = "trying"  #: The agent tries to connect to other hosts.
    ENDING = "ending"  #: The agent was stopped from outside, and stops its tasks.
    LOST = "lost"  #: No agent can be reached there.
    RETURNING = "returning"  #: The host was lost, and a new agent starts there.
    CLOSED = "closed"  #: The agent has exited on command.


#: States in which an agent runs or starts on the host, as far as the launcher knows.
ACTIVE_STATES = (HostState.STARTING, HostState.HOLDING, HostState.READY, HostState.TRYING, HostState.ENDING)
_OVER = (HostState.LOST, HostState.CLOSED)
_HOST_TRANSITIONS: dict[HostState, tuple[HostState, ...]] = {
    HostState.STARTING: (HostState.HOLDING, HostState.READY, *_OVER),
    HostState.HOLDING: (HostState.READY, HostState.STARTING, *_OVER),
    HostState.READY: (HostState.HOLDING, HostState.TRYING, HostState.ENDING, *_OVER),
    HostState.TRYING: (HostState.READY, *_OVER),
    HostState.ENDING: _OVER,
    HostState.LOST: (HostState.RETURNING,),
    HostState.RETURNING: (HostState.READY, HostState.LOST),
}


# ---------------------------------------------------------------------- restarts


class Stage(enum.Enum):
    """The stage of a restart: how far it has come."""

    ENDING = "ending"  #: Its tasks still run, and are expected to exit by themselves.
    WAITING = "waiting"  #: Its tasks are being stopped, and the pause before the next start is not over.
    DUE = "due"  #: Its tasks start as soon as the last of them is gone.


class Restart:
    """A group of tasks that are stopped and start again together.

    Args:
        tasks: The tasks that start again.
        includes_succeeded: Whether tasks that have succeeded, or do so meanwhile, start again, too.
        pause_seconds: How long to wait before they start.
        number: The number of this restart among those that count against ``--restarts``. 0 if it does not
            count.
        stage: The first stage. The tasks are stopped at once unless it is ENDING.
    """

    def __init__(
        self,
        tasks: Iterable[TaskId],
        *,
        includes_succeeded: bool,
        pause_seconds: float = 0.0,
        number: int = 0,
        stage: Stage = Stage.WAITING,
    ) -> None:
        self.tasks = {*tasks}
        self.includes_succeeded = includes_succeeded
        self.pause_seconds, self.number, self.stage = pause_seconds, number, stage
        #: Its number among all restarts of the job, as a text. Empty until it has begun.
        self.key = ""
        #: The failure that led to it. None if the user asked for it, or if a host was lost.
        self.cause: Failure | None = None
        #: The message about it, until it is shown. That waits for the last output of the failed task, which
        #: may show that a restart is useless.
        self.unshown_notice = ""
        #: Lost hosts whose tasks start elsewhere with this restart, each with the reason of its loss.
        self.lost_hosts: dict[str, str] = {}
        #: When the last of these hosts was lost.
        self.lost_at = 0.0
        #: Whether the other hosts are chosen and are to hold ports.
        self.is_placing = False
        #: The tasks whose results were copied before they start again, or are being copied now.
        self.saved: set[TaskId] = set()
        #: Whether results are being copied now.
        self.is_saving = False
        #: Tasks whose failures may have caused this one. It is empty once the output of the failed task has
        #: shown whether they did.
        self.suspects: set[TaskId] = set()
        #: The names of the tasks whose failures have caused this one, for the message.
        self.caused_by = ""

    @property
    def timer(self) -> Timer:
        """The timer that ends the present stage."""
        return Timer(TimerKind.RESTART, self.key)


# ---------------------------------------------------------------------- tasks


class TaskAttempt:
    """The knowledge of the launcher about one attempt of a task, from its start to its report."""

    def __init__(self) -> None:
        #: The state that the task gets when all its processes are gone. It is set when its own process ends.
        self.outcome = TaskState.STOPPED
        #: Why it ended or was never started. None as long as that is not known.
        self.reason: Reason | None = None
        #: The exit code or the signal of its own process, unknown until that exits.
        self.status = ExitStatus()
        #: How it ended, for the user. Empty before.
        self.detail = ""
        #: Whether its agent was told to stop it.
        self.was_told_to_stop = False
        #: Whether a signal of a stop sequence was sent to it.
        self.was_signalled = False
        #: Whether it is stopped because it was silent.
        self.has_stalled = False
        #: The tick (see `launcher.supervisor.stalls`) at its start.
        self.start_tick = 0
        #: The tick at its last output. None if it has printed nothing.
        self.output_tick: int | None = None
        #: The tick at which its step was last seen to change. None if it has printed no step, or if nobody
        #: has said how steps look (``--progress``).
        self.step_tick: int | None = None
        #: The number of ticks between which it has printed something.
        self.ticks_with_output = 0
        #: How many pieces of output in a row have said only that TensorFlow waits.
        self.waiting_pieces = 0
        #: The task that its session of TensorFlow 1 waits for, if it says so.
        self.awaited_task: TaskId | None = None
        #: The pid of its own process on its host. None until its agent has said that it runs.
        self.pid: int | None = None
        #: When its own process started, in seconds since the epoch. None if that is not known.
        self.started_at: float | None = None
        #: When its own process ended, or its host was lost. None before, and if it was never started.
        self.ended_at: float | None = None
        #: The largest resident size of one of its processes in bytes. None until its own process has exited.
        self.peak_rss: int | None = None
        #: Its CPU time in seconds. None until its own process has exited.
        self.cpu_s: float | None = None
        #: The number of processes that it left behind.
        self.leftovers = 0
        #: The pids of processes that SIGKILL did not stop.
        self.unkillable: tuple[int, ...] = ()
        #: The last bytes of its output, in which the policy looks for an exception.
        self.tail = b""

    def keep_tail(self, data: bytes) -> None:
        """Keep the last bytes of the output, to which the task has added this data."""
        self.tail = data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self.tail + data)[-_TAIL_BYTES:]


class TaskRecord(StateRecord):
    """The knowledge of the launcher about one task of the job.

    Args:
        placed: The task and its host.
        number: The position of the task in the table.
        changed: The tasks about which an `events.TaskMoved` is due. The record adds itself.
    """

    state: TaskState

    def __init__(self, placed: PlacedTask, number: int, changed: dict[TaskId, TaskRecord]) -> None:
        super().__init__(placed.task, TaskState.PENDING, _TASK_TRANSITIONS)
        self._changed = changed
        self.task, self.number = placed.task, number
        #: The hosts of this attempt and of the next one, which differ while the task moves.
        self.host = self.next_host = placed.host.name
        self.role = placed.role
        self.runs_python = placed.role.program.runs_python
        #: Whether the job does not depend on it, as on TensorBoard.
        self.sidecar = placed.role.sidecar
        #: Whether it never exits by itself, as a ps.
        self.service = placed.role.service or self.sidecar
        #: Whether the user has stopped it (``launch stop RUN TASK``), so the job goes on without it.
        self.is_dismissed = False
        #: How many seconds it may still run after the job is done.
        self.drain = 0.0 if self.sidecar else placed.role.drain or 0.0
        #: The number of this attempt.
        self.attempt = 1
        #: What is known about this attempt.
        self.current = TaskAttempt()
        #: How the attempts before it ended.
        self.earlier: tuple[Attempt, ...] = ()
        #: Where other tasks connect to, and the machine under a host that is a pod. Empty before the plan.
        self.address = self.node = ""
        #: The port that its agent holds. None if it holds none yet.
        self.port: int | None = None

    def move_to(self, host: Host) -> None:
        """Let the next attempt run on this host, which has to choose a new port if it is another host."""
        if host.name != self.next_host:
            self.port = None
        self.next_host = host.name

    def mark_changed(self) -> None:
        """Let an `events.TaskMoved` follow, as after every change of state."""
        self._changed[self.task] = self

    def transition_to(self, state: TaskState, cause: object) -> None:
        """Change the state of the task, and let an `events.TaskMoved` follow."""
        super().transition_to(state, cause)
        self.mark_changed()

    def begin_attempt(self) -> None:
        """Begin the next attempt. No process of the last attempt may be alive.

        Raises:
            InvalidTransitionError: The last attempt is not over.
        """
        # The fields of `Attempt` are attributes of the record or of `current`, which change below.
        ended_attempt = from_attributes(Attempt, self, self.current)
        self.transition_to(TaskState.STARTING, "the next attempt")
        self.earlier = (*self.earlier, ended_attempt)[-_MAX_EARLIER_ATTEMPTS:]
        self.attempt += 1
        self.host = self.next_host
        self.current = TaskAttempt()

    def report(self) -> TaskReport:
        """Return the part of the job's report about this task."""
        return from_attributes(TaskReport, self, self.current, progress=())


def deciding_tasks(placement: Placement, done_when: str) -> frozenset[TaskId]:
    """Return the tasks whose ends decide that the job is done.

    Of each role that decides, these are the tasks with the first indices, see `launcher.job.deciding_roles`.

    Args:
        placement: All tasks of the job.
        done_when: The value of ``--done-when``. Empty without that option.
    """
    roles = {placed.role.name: placed.role for placed in placement.tasks}
    counts = deciding_roles([*roles.values()], done_when)
    return frozenset(each.task for each in placement.tasks if each.task.index < counts.get(each.role.name, 0))


class Drain:
    """The tasks that may finish after the job is done, each within the time of its role (``--drain``).

    A worker cannot end well when its ps is stopped, so services run on while another task finishes.
    """

    def __init__(self) -> None:
        #: Seconds from the end of the job to the last time limit that is over.
        self.elapsed_seconds = 0.0
        #: Seconds from the end of the job to the next time limit.
        self.next_seconds = 0.0
        #: The tasks that have time left.
        self.tasks: set[TaskId] = set()
        #: The services that these tasks need.
        self.serving: set[TaskId] = set()

    def update(self, records: Collection[TaskRecord]) -> float:
        """Find out which tasks still have time to finish.

        Args:
            records: All tasks of the job.

        Returns:
            The seconds until the next time limit of a task. 0 if no task has time left.
        """
        states = (TaskState.STARTING, TaskState.RUNNING)
        services = {record.task for record in records if record.service and not record.sidecar}
        with_time = [each for each in records if each.drain > self.elapsed_seconds and each.state in states]
        self.next_seconds = min((record.drain for record in with_time), default=self.elapsed_seconds)
        self.tasks = {record.task for record in with_time}
        # Services, such as a ps, run on for tasks that use them, and services do not use each other.
        self.serving = services - self.tasks if self.tasks - services else set()
        return self.next_seconds - self.elapsed_seconds


class TaskTable(dict[TaskId, TaskRecord]):
    """The table of all tasks of a job by name, with the sets of tasks that the job waits for.

    The sets are kept beside the states, so that no event of one task costs a walk over all of them. A task
    leaves `alive` when its own process has ended or it has failed, and `not_gone` only when all processes
    that it has left behind have ended, too.

    Args:
        placement: The host of each task. Its order is the order of the table.
        done_when: The value of ``--done-when``, see `launcher.job.deciding_roles`.
    """

    def __init__(self, placement: Placement, done_when: str) -> None:
        """Make a record for each task, none of which has started yet."""
        #: When the last event happened. Changes of tasks are reported with this time.
        self.last_event_at = 0.0
        #: The tasks whose changes since the last `drain_changes` are still to be reported.
        self._changed: dict[TaskId, TaskRecord] = {}
        #: What became of attempts after which the next one began in the same event.
        self._ended_attempts: list[events.TaskMoved] = []
        tasks = enumerate(placement.tasks)
        super().__init__((placed.task, TaskRecord(placed, number, self._changed)) for number, placed in tasks)
        #: The parameter servers, whose failures make other tasks fail.
        self.ps = [record for record in self.values() if record.task.role == "ps"]
        #: Tasks of which some process may still exist, or that are still to start.
        self.not_gone = set(self)
        #: Tasks that have neither failed nor ended, as far as the launcher knows.
        self.alive = set(self)
        #: Tasks whose agents were told to start them, and have not answered.
        self.starting: set[TaskId] = set()
        #: All tasks whose ends decide that the job is done.
        self.all_deciding = deciding_tasks(placement, done_when)
        #: The deciding tasks that have not ended, or are to start again.
        self.deciding = set(self.all_deciding)
        #: When the last deciding task ended.
        self.decided_at = 0.0
        #: The tasks that may still finish after the job is done.
        self.drain = Drain()
        #: The restart of each task that is to start again.
        self.restarting: dict[TaskId, Restart] = {}
        #: When each task that started again last failed by itself, and not because of another task.
        self.failed_at: dict[TaskId, float] = {}
        #: Tasks that failed for good, while the job went on.
        self.failed: set[TaskId] = set()

    def are_deciding_dismissed(self) -> bool:
        """Return whether the user has stopped all tasks whose ends decide that the job is done."""
        return bool(self.all_deciding) and all(self[task].is_dismissed for task in self.all_deciding)

    def in_order(self, tasks: Iterable[TaskId]) -> list[TaskRecord]:
        """Return the records of these tasks in the order of the table."""
        return sorted((self[task] for task in tasks), key=lambda record: record.number)

    def start_order(self, tasks: Iterable[TaskId]) -> list[TaskRecord]:
        """Return the records of these tasks in the order in which they start, with every ps first.

        Shell scripts start the ps first, and some programs of TensorFlow 1 hang if a worker was first.
        """
        return sorted(self.in_order(tasks), key=lambda record: record.role.name != "ps")

    def names(self, tasks: Iterable[TaskId]) -> str:
        """Return the names of these tasks in the order of the table as a text: ``ps/0, worker/1``."""
        return join_names([record.task for record in self.in_order(tasks)])

    def names_of(self, records: Iterable[TaskRecord]) -> str:
        """Return the names of the tasks of these records, as `names` does."""
        return self.names(record.task for record in records)

    def begin_attempt(self, record: TaskRecord) -> None:
        """Begin the next attempt of a task that was to start again. The caller then starts its process."""
        # What became of the last attempt may not have been told yet, and needs an event of its own.
        if self._changed.pop(record.task, None):
            self._ended_attempts.append(self._as_moved(record))
        del self.restarting[record.task]
        record.begin_attempt()
        self.not_gone.add(record.task)
        self.alive.add(record.task)

    def drain_changes(self) -> list[events.TaskMoved]:
        """Return what has become of tasks since the last call, as one event for each attempt that changed."""
        changes = [*self._ended_attempts, *map(self._as_moved, self._changed.values())]
        self._ended_attempts.clear()
        self._changed.clear()
        return changes

    def _as_moved(self, record: TaskRecord) -> events.TaskMoved:
        """Return the event that carries everything that is known about a task now."""
        at, is_restarting = self.last_event_at, record.task in self.restarting
        # The other fields of the event are attributes of the record and of its present attempt.
        return from_attributes(events.TaskMoved, record, record.current, at=at, restarting=is_restarting)

    def process_ended(self, task: TaskId, at: float) -> None:
        """Note that the own process of a task has ended. It ends for good unless the task is to start again.

        Args:
            task: The task.
            at: When it ended, in seconds since the epoch.
        """
        self.alive.discard(task)
        self.drain.tasks.discard(task)
        if task in self.deciding and task not in self.restarting:
            self.deciding.discard(task)
            self.decided_at = max(at, self.decided_at)

    def task_gone(self, task: TaskId) -> None:
        """Note that no process of this attempt of a task is left, so no event about it follows.

        The job no longer waits for the task, unless it is to start again.
        """
        for tasks in (self.not_gone, self.alive, self.starting):
            tasks.discard(task)
        if task not in self.restarting:
            self.deciding.discard(task)


# ---------------------------------------------------------------------- hosts


class HostRecord(StateRecord):
    """The knowledge of the launcher about one host of the job.

    Args:
        host: The host as the user described it.
        number: The position of the host in the table.
        counts: The number of hosts in each state, which the record updates.
    """

    state: HostState

    def __init__(self, host: Host, number: int, counts: Counter[HostState]) -> None:
        super().__init__(host.name, HostState.STARTING, _HOST_TRANSITIONS)
        self.host, self.name, self.number = host, host.name, number
        self._counts = counts
        counts[self.state] += 1
        #: The tasks of this host. Tasks that move here belong to it from the moment at which it is to hold
        #: ports for them.
        self.tasks: list[TaskRecord] = []
        #: Whether the agent of the host has said that it runs.
        self.has_agent = False
        #: Whether the agent has yet to answer that it stops its tasks.
        self.owes_answer = False
        #: The number of messages for the user that the agent has sent since it last started a task.
        self.notice_count = 0
        #: Why tasks of the host cannot use their environment. Empty if they can, as far as is known.
        self.environment_error = ""

    @property
    def is_active(self) -> bool:
        """Whether an agent runs or starts on the host, as far as the launcher knows."""
        return self.state in ACTIVE_STATES

    @property
    def is_heard(self) -> bool:
        """Whether events of the host matter: it is neither lost nor closed, or a new agent starts there."""
        return self.is_active or self.state is HostState.RETURNING

    @property
    def main_tasks(self) -> list[TaskRecord]:
        """The tasks of the host on which the job depends, so without sidecars and those the user stopped."""
        return [task for task in self.tasks if not (task.sidecar or task.is_dismissed)]

    def transition_to(self, state: HostState, cause: object) -> None:
        """Change the state of the host, and note that it has no agent if it is lost or closed now."""
        self._counts[self.state] -= 1
        super().transition_to(state, cause)
        self._counts[state] += 1
        if not self.is_active:
            self.has_agent = self.owes_answer = False

    def hold_ports(self) -> events.HoldPorts:
        """Return the command to the agent to hold a port for each task of the host.

        The agent also tries whether the Python environment of these tasks, if they have one, can be used.
        """
        return events.HoldPorts(self.name, tuple(record.task for record in self.tasks), self.host.venv)

    def stop_waiting(self) -> None:
        """No longer wait for an answer of the agent, because it is not needed."""
        state = HostState.READY if self.has_agent else HostState.STARTING
        self.transition_to(state, "its answer is not needed")


class HostTable(dict[str, HostRecord]):
    """The table of all hosts of a job by name. Lost hosts stay in it.

    Args:
        placement: The hosts. Their order is the order of the table.
        tasks: All tasks of the job.
    """

    def __init__(self, placement: Placement, tasks: Iterable[TaskRecord]) -> None:
        """Make a record for each host. The agents of hosts with tasks are to hold ports for these."""
        #: The number of hosts in each state, which the records of the hosts update.
        self._counts: Counter[HostState] = Counter()
        hosts = enumerate(placement.agent_hosts())
        super().__init__((host.name, HostRecord(host, number, self._counts)) for number, host in hosts)
        self.assign(tasks)
        for host in self.values():
            if host.tasks:  # The others only wait for tasks of lost hosts.
                host.transition_to(HostState.HOLDING, "the launch")

    def assign(self, tasks: Iterable[TaskRecord]) -> None:
        """Assign the tasks to the hosts on which they run from their next start on.

        Args:
            tasks: All tasks of the job.
        """
        for host in self.values():
            host.tasks = []
        for task in tasks:
            self[task.next_host].tasks.append(task)

    def has_any(self, *states: HostState) -> bool:
        """Return whether any host is in one of these states."""
        return any(self._counts[state] for state in states)

    def names(self, *states: HostState) -> list[str]:
        """Return the names of the hosts in these states, in the order of the table."""
        return [name for name, host in self.items() if host.state in states]

    def names_of(self, tasks: Iterable[TaskRecord]) -> list[str]:
        """Return the names of the hosts of these tasks, each once and in the order of the table.

        The host of a task that moves is its new host, as soon as that is chosen.
        """
        hosts = {self[task.next_host] for task in tasks}
        return [host.name for host in sorted(hosts, key=lambda host: host.number)]
