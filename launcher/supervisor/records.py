"""The records of tasks and hosts, the changes of state that each allows, and the tables of all of them.

Everything that the supervisor knows about one task or one host is here. Whoever changes a state calls
`StateRecord.transition_to`, which refuses a change that is not in the table.

For each question that an event raises there is a set or a counter, so only an event that changes all tasks
iterates over all of them. ``tests/histories/invariants.py`` compares these with the states after every event.
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
    """A state was changed in an impossible way: a bug in launch. The text has the history of states."""


class StateRecord:
    """A record with a state, which is a member of an enumeration.

    Args:
        name: What the record is about, for messages.
        state: The first state.
        transitions: The states that may follow each state.
    """

    def __init__(self, name: str, state: Any, transitions: Mapping[Any, Sequence[Any]]) -> None:
        self._name, self._transitions = name, transitions
        self.state: Any = state
        self._history: deque[tuple[Any, Any, object]] = deque(maxlen=_MAX_HISTORY)

    def transition_to(self, state: Any, cause: object) -> None:
        """Change to another state.

        Args:
            state: The new state.
            cause: What leads to the change. The history shows it.

        Raises:
            InvalidTransitionError: This state may not follow the present one.
        """
        self._history.append((self.state, state, cause))
        if state not in self._transitions.get(self.state, ()):
            changes = [f"{old.value} -> {new.value}: {why}" for old, new, why in self._history]
            raise InvalidTransitionError(f"{self._name}: {'; '.join(changes)}")
        self.state = state


_TASK_TRANSITIONS: dict[TaskState, tuple[TaskState, ...]] = {
    TaskState.PENDING: (TaskState.STARTING, TaskState.CANCELLED, TaskState.LOST),
    TaskState.STARTING: (TaskState.RUNNING, TaskState.FAILED, TaskState.STOPPING, TaskState.LOST),
    TaskState.RUNNING: (TaskState.STOPPING, TaskState.ENDED, TaskState.LOST),
    # FAILED: the start failed, and the launcher learned of it late. STOPPED: SIGKILL did not end it.
    TaskState.STOPPING: (TaskState.ENDED, TaskState.FAILED, TaskState.STOPPED, TaskState.LOST),
    TaskState.ENDED: (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED, TaskState.LOST),
    # The next attempt.
    TaskState.SUCCEEDED: (TaskState.STARTING,),
    TaskState.FAILED: (TaskState.STARTING,),
    TaskState.STOPPED: (TaskState.STARTING,),
    TaskState.LOST: (TaskState.STARTING,),
}


class HostState(enum.Enum):
    """The state of a host: what the launcher waits for there.

    ::

        HOLDING -> READY -> TRYING -> READY     before the first start, and before each one on other hosts
        STARTING -> READY                       without a task
        any of them -> LOST -> RETURNING -> READY
        any of them -> CLOSED                   on command
    """

    STARTING = "starting"  #: its agent starts
    HOLDING = "holding"  #: its agent, which may still start, is to hold a port for each of its tasks
    READY = "ready"
    TRYING = "trying"  #: it tries to connect to other hosts
    ENDING = "ending"  #: its agent was ended from outside, and stops its tasks
    LOST = "lost"
    RETURNING = "returning"  #: it was lost, and a new agent starts there
    CLOSED = "closed"


#: States in which a host has an agent, as far as the launcher knows.
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
    """How far a restart is."""

    ENDING = "ending"  #: its tasks exit by themselves
    WAITING = "waiting"  #: its tasks are stopped, and the pause before the start is not over
    DUE = "due"  #: its tasks start as soon as the last of them is gone


class Restart:
    """Tasks that start again together.

    Args:
        tasks: The tasks that start again.
        includes_succeeded: Whether those of them start again, too, that ended well or do so meanwhile.
        pause_seconds: How long to wait before they start.
        number: The number of this restart among those that count; 0 if it does not count.
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
        #: Its number among all restarts of the job, as a text; empty until it has begun.
        self.key = ""
        #: The failure that led to it; None if the user asked for it, or a host was lost.
        self.cause: Failure | None = None
        #: The message about it, until it is shown. The last output of the failed task is waited for, because
        #: it may tell that a restart is of no use.
        self.unshown_notice = ""
        #: Lost hosts whose tasks start on other hosts with this restart, each with the reason of its loss.
        self.lost_hosts: dict[str, str] = {}
        self.lost_at = 0.0
        #: Whether the other hosts are chosen and hold ports.
        self.is_placing = False
        #: Tasks whose failures may have led to the cause, until the output of the failed task tells.
        self.suspects: set[TaskId] = set()
        #: The names of the tasks whose failures have led to the cause.
        self.caused_by = ""

    @property
    def timer(self) -> Timer:
        """The timer of the present stage."""
        return Timer(TimerKind.RESTART, self.key)


# ---------------------------------------------------------------------- tasks


class TaskAttempt:
    """What the launcher knows about one attempt of a task."""

    def __init__(self) -> None:
        #: The state that it gets when all its processes are gone. It is set when its own process ends.
        self.outcome = TaskState.STOPPED
        self.reason: Reason | None = None
        self.status = ExitStatus()
        self.detail = ""
        #: Whether its agent was told to stop it, and whether a signal of a stop sequence was sent to it.
        self.was_told_to_stop = self.was_signalled = False
        #: Whether it is stopped because it was silent.
        self.has_stalled = False
        #: The numbers of the ticks (see `launcher.supervisor.stalls`) at its start and at its last output.
        self.start_tick = 0
        self.output_tick: int | None = None
        #: The number of ticks between which it had printed something.
        self.ticks_with_output = 0
        #: How many pieces of output in a row said only that TensorFlow waits, and the task that its session
        #: waits for.
        self.waiting_pieces = 0
        self.awaited_task: TaskId | None = None
        self.pid: int | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.peak_rss: int | None = None
        self.cpu_s: float | None = None
        self.leftovers = 0
        self.unkillable: tuple[int, ...] = ()
        #: The end of its output.
        self.tail = b""

    def keep_tail(self, data: bytes) -> None:
        """Keep the end of what it has printed."""
        self.tail = data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self.tail + data)[-_TAIL_BYTES:]


class TaskRecord(StateRecord):
    """What the launcher knows about one task.

    Args:
        placed: The task and its host.
        number: The place of the task in the table.
        changed: The tasks about which an `events.TaskMoved` is due. The record adds itself.
    """

    state: TaskState

    def __init__(self, placed: PlacedTask, number: int, changed: dict[TaskId, TaskRecord]) -> None:
        super().__init__(placed.task, TaskState.PENDING, _TASK_TRANSITIONS)
        self._changed = changed
        self.task, self.number = placed.task, number
        #: The host of this attempt, and that of the next one.
        self.host = self.next_host = placed.host.name
        self.role = placed.role
        self.runs_python = placed.role.program.runs_python
        self.sidecar = placed.role.sidecar
        self.service = placed.role.service or self.sidecar
        #: Seconds that it may still run after the job is done.
        self.drain = 0.0 if self.sidecar else placed.role.drain or 0.0
        self.attempt = 1
        #: What is known about this attempt, and how those before it ended.
        self.current = TaskAttempt()
        self.earlier: tuple[Attempt, ...] = ()
        self.address = self.node = ""
        self.port: int | None = None

    def move_to(self, host: Host) -> None:
        """Let the next attempt run on this host."""
        if host.name != self.next_host:
            self.port = None
        self.next_host = host.name

    def mark_changed(self) -> None:
        """Let an `events.TaskMoved` follow. `transition_to` does so, too."""
        self._changed[self.task] = self

    def transition_to(self, state: TaskState, cause: object) -> None:
        super().transition_to(state, cause)
        self.mark_changed()

    def begin_attempt(self) -> None:
        """Begin the next attempt. No process of the last one may be alive.

        Raises:
            InvalidTransitionError: The last attempt is not over.
        """
        last = from_attributes(Attempt, self, self.current)
        self.transition_to(TaskState.STARTING, "the next attempt")
        self.earlier = (*self.earlier, last)[-_MAX_EARLIER_ATTEMPTS:]
        self.attempt += 1
        self.host = self.next_host
        self.current = TaskAttempt()

    def report(self) -> TaskReport:
        """Return the task's part of the report."""
        return from_attributes(TaskReport, self, self.current)


def deciding_tasks(placement: Placement, done_when: str) -> frozenset[TaskId]:
    """Return the tasks whose ends end the job, see `launcher.job.deciding_roles`."""
    roles = {placed.role.name: placed.role for placed in placement.tasks}
    counts = deciding_roles([*roles.values()], done_when)
    return frozenset(each.task for each in placement.tasks if each.task.index < counts.get(each.role.name, 0))


class Drain:
    """The tasks that may finish after the job is done, each in the time that its role has.

    A worker cannot end well when its ps is stopped, so services run on while another task finishes.
    """

    def __init__(self) -> None:
        #: Seconds from the end of the job to the last time limit that is over, and to the next one.
        self.elapsed_seconds = self.next_seconds = 0.0
        #: The tasks that have time left, and the services that others of them need.
        self.tasks: set[TaskId] = set()
        self.serving: set[TaskId] = set()

    def update(self, records: Collection[TaskRecord]) -> float:
        """Find the tasks that have time left.

        Returns:
            The seconds until the time of the first of them is over.
        """
        running = (TaskState.STARTING, TaskState.RUNNING)
        services = {record.task for record in records if record.service and not record.sidecar}
        found = [
            record for record in records if record.drain > self.elapsed_seconds and record.state in running
        ]
        self.next_seconds = min((record.drain for record in found), default=self.elapsed_seconds)
        self.tasks = {record.task for record in found}
        self.serving = services - self.tasks if self.tasks - services else set()
        return self.next_seconds - self.elapsed_seconds


class TaskTable(dict[TaskId, TaskRecord]):
    """All tasks of a job in the order of the table, and the sets of tasks that the job waits for.

    The sets are kept beside the states, so that no event of one task costs a walk over all of them.

    Args:
        placement: The host of each task.
        done_when: See `launcher.job.deciding_roles`.
    """

    def __init__(self, placement: Placement, done_when: str) -> None:
        #: When the last event happened.
        self.last_event_at = 0.0
        self._changed: dict[TaskId, TaskRecord] = {}
        #: What became of attempts that were followed by another one in the same event.
        self._ended_attempts: list[events.TaskMoved] = []
        tasks = enumerate(placement.tasks)
        super().__init__((placed.task, TaskRecord(placed, number, self._changed)) for number, placed in tasks)
        self.ps = [record for record in self.values() if record.task.role == "ps"]
        #: Tasks that are not gone.
        self.open = set(self)
        #: Tasks that have neither failed nor ended, as far as the launcher knows.
        self.alive = set(self)
        #: Tasks whose agents were told to start them, and have not answered.
        self.starting: set[TaskId] = set()
        #: All tasks whose ends end the job, and those of them that have not ended.
        self.all_deciding = deciding_tasks(placement, done_when)
        self.deciding = set(self.all_deciding)
        #: When the last deciding task ended.
        self.decided_at = 0.0
        self.drain = Drain()
        #: The restart of each task that is to start again.
        self.restarting: dict[TaskId, Restart] = {}
        #: When each task that started again failed last, by a failure of its own.
        self.failed_at: dict[TaskId, float] = {}
        #: Tasks that failed for good, while the job went on.
        self.failed: set[TaskId] = set()

    def in_order(self, tasks: Iterable[TaskId]) -> list[TaskRecord]:
        """Return the records of these tasks in the order of the table."""
        return sorted((self[task] for task in tasks), key=lambda record: record.number)

    def start_order(self, tasks: Iterable[TaskId]) -> list[TaskRecord]:
        """Return the records of these tasks in the order in which they start: every ps first.

        Shell scripts start the ps first, and some programs of TensorFlow 1 hang if a worker was first.
        """
        return sorted(self.in_order(tasks), key=lambda record: record.role.name != "ps")

    def names(self, tasks: Iterable[TaskId]) -> str:
        """Return the names of these tasks in the order of the table, for a message."""
        return join_names([record.task for record in self.in_order(tasks)])

    def names_of(self, records: Iterable[TaskRecord]) -> str:
        """Return the names of the tasks of these records in the order of the table."""
        return self.names(record.task for record in records)

    def begin_attempt(self, record: TaskRecord) -> None:
        """Begin the next attempt of a task that was to start again."""
        if self._changed.pop(record.task, None):
            self._ended_attempts.append(self._as_moved(record))
        del self.restarting[record.task]
        record.begin_attempt()
        self.open.add(record.task)
        self.alive.add(record.task)

    def drain_changes(self) -> list[events.TaskMoved]:
        """Return what has become of tasks since the last call."""
        changes = [*self._ended_attempts, *map(self._as_moved, self._changed.values())]
        self._ended_attempts.clear()
        self._changed.clear()
        return changes

    def _as_moved(self, record: TaskRecord) -> events.TaskMoved:
        """Return the event that tells all that is known about a task now."""
        at, is_restarting = self.last_event_at, record.task in self.restarting
        return from_attributes(events.TaskMoved, record, record.current, at=at, restarting=is_restarting)

    def process_ended(self, task: TaskId, at: float) -> None:
        """Note that the own process of a task has ended, for good unless the task is to start again."""
        self.alive.discard(task)
        self.drain.tasks.discard(task)
        if task in self.deciding and task not in self.restarting:
            self.deciding.discard(task)
            self.decided_at = max(at, self.decided_at)

    def task_gone(self, task: TaskId) -> None:
        """Note that no event about this attempt of a task follows."""
        for tasks in (self.open, self.alive, self.starting):
            tasks.discard(task)
        if task not in self.restarting:
            self.deciding.discard(task)


# ---------------------------------------------------------------------- hosts


class HostRecord(StateRecord):
    """What the launcher knows about one host.

    Args:
        host: The host as the user gave it.
        number: The place of the host in the table.
        counts: The number of hosts in each state. The record keeps it right.
    """

    state: HostState

    def __init__(self, host: Host, number: int, counts: Counter[HostState]) -> None:
        super().__init__(host.name, HostState.STARTING, _HOST_TRANSITIONS)
        self.host, self.name, self.number = host, host.name, number
        self._counts = counts
        counts[self.state] += 1
        #: The tasks of this host; from the moment at which it is to hold ports for them.
        self.tasks: list[TaskRecord] = []
        #: Whether its agent has said that it runs.
        self.has_agent = False
        #: Whether it has not answered yet that it stops its tasks.
        self.owes_answer = False
        #: Lines for the user that its agent sent since it started a task.
        self.notice_count = 0
        #: Why its tasks cannot use their environment; empty if they can, as far as the launcher knows.
        self.environment_error = ""

    @property
    def is_active(self) -> bool:
        """Whether it has an agent, as far as the launcher knows."""
        return self.state in ACTIVE_STATES

    @property
    def is_heard(self) -> bool:
        """Whether its events matter: it is neither lost nor closed, or a new agent starts there."""
        return self.is_active or self.state is HostState.RETURNING

    @property
    def main_tasks(self) -> list[TaskRecord]:
        """Its tasks without the sidecars, on which the job does not depend."""
        return [task for task in self.tasks if not task.sidecar]

    def transition_to(self, state: HostState, cause: object) -> None:
        self._counts[self.state] -= 1
        super().transition_to(state, cause)
        self._counts[state] += 1
        if not self.is_active:
            self.has_agent = self.owes_answer = False

    def hold_ports(self) -> events.HoldPorts:
        """Return the command to hold a port for each of its tasks."""
        return events.HoldPorts(self.name, tuple(record.task for record in self.tasks), self.host.venv)

    def stop_waiting(self) -> None:
        """No longer wait for its answer."""
        self.transition_to(
            HostState.READY if self.has_agent else HostState.STARTING, "its answer is not needed"
        )


class HostTable(dict[str, HostRecord]):
    """All hosts of a job by name, lost ones included, in the order of the table.

    Args:
        placement: The hosts.
        tasks: All tasks of the job.
    """

    def __init__(self, placement: Placement, tasks: Iterable[TaskRecord]) -> None:
        self._counts: Counter[HostState] = Counter()
        hosts = enumerate(placement.agent_hosts())
        super().__init__((host.name, HostRecord(host, number, self._counts)) for number, host in hosts)
        self.assign(tasks)
        for host in self.values():
            if host.tasks:
                host.transition_to(HostState.HOLDING, "the launch")

    def assign(self, tasks: Iterable[TaskRecord]) -> None:
        """Note on which hosts these tasks, all of the job, run from their next start on."""
        for host in self.values():
            host.tasks = []
        for task in tasks:
            self[task.next_host].tasks.append(task)

    def has_any(self, *states: HostState) -> bool:
        """Return whether any host is in one of these states."""
        return any(self._counts[state] for state in states)

    def names(self, *states: HostState) -> list[str]:
        """Return the names of the hosts in these states."""
        return [name for name, host in self.items() if host.state in states]

    def names_of(self, tasks: Iterable[TaskRecord]) -> list[str]:
        """Return the names of the hosts of these tasks, each once."""
        found = {self[task.next_host] for task in tasks}
        return [host.name for host in sorted(found, key=lambda host: host.number)]
