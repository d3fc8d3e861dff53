"""The records of tasks and hosts, the changes of their states that are possible, and the tables of all."""

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

#: Changes of a state that are kept.
_MAX_HISTORY = 100


class InvalidTransitionError(Exception):
    """An impossible change of a state: a fault of the launcher. The text has the history of the record."""


class StateRecord:
    """A record with a state, which is a member of an enumeration.

    Args:
        name: of what it is the record, for messages.
        state: the first one.
        transitions: every possible change of the state; any other is a fault of the launcher.
    """

    def __init__(self, name: str, state: Any, transitions: Mapping[Any, Sequence[Any]]) -> None:
        self._name, self._transitions = name, transitions
        self.state: Any = state
        self._history: deque[tuple[Any, Any, object]] = deque(maxlen=_MAX_HISTORY)

    def transition_to(self, state: Any, cause: object) -> None:
        """Change to ``state``.

        Raises:
            InvalidTransitionError: there is no such change.
        """
        self._history.append((self.state, state, cause))
        if state not in self._transitions.get(self.state, ()):
            changes = [f"{old.value} -> {new.value}: {why}" for old, new, why in self._history]
            raise InvalidTransitionError(f"{self._name}: {'; '.join(changes)}")
        self.state = state


#: Every change of the state of a task; any other is a fault of the launcher.
_TASK_TRANSITIONS: dict[TaskState, tuple[TaskState, ...]] = {
    TaskState.PENDING: (TaskState.STARTING, TaskState.CANCELLED, TaskState.LOST),
    TaskState.STARTING: (TaskState.RUNNING, TaskState.FAILED, TaskState.STOPPING, TaskState.LOST),
    TaskState.RUNNING: (TaskState.STOPPING, TaskState.ENDED, TaskState.LOST),
    # FAILED: the start failed, and the launcher learned of it after the stop. STOPPED: unkillable.
    TaskState.STOPPING: (TaskState.ENDED, TaskState.FAILED, TaskState.STOPPED, TaskState.LOST),
    TaskState.ENDED: (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED, TaskState.LOST),
    **dict.fromkeys(
        (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED, TaskState.LOST), (TaskState.STARTING,)
    ),  # the next attempt
}
#: Bytes of the last output, and earlier attempts, that are kept.
_TAIL_BYTES = 4000
_MAX_EARLIER_ATTEMPTS = 1000


class Stage(enum.Enum):
    """The stage of a restart."""

    ENDING = "ending"  #: its tasks exit by themselves
    WAITING = "waiting"  #: its tasks are stopped, and the time until the start is not over
    DUE = "due"  #: its tasks start when the last of them is gone


class Restart:
    """Tasks that start again together.

    Args:
        tasks: that start again.
        all: those of them start again, too, that ended well, or do so meanwhile.
        wait: seconds until they start.
        number: of this restart among those that count; 0: it does not count.
        ending: the tasks exit by themselves: they are not stopped at once.
    """

    def __init__(
        self, tasks: Iterable[TaskId], all: bool, wait: float = 0.0, number: int = 0, ending: bool = False
    ) -> None:
        self.tasks = {*tasks}
        self.all, self.wait, self.number = all, wait, number
        self.stage = Stage.ENDING if ending else Stage.WAITING
        self.timer = ""
        #: The failure that led to it; ``None``: there is none.
        self.cause: Failure | None = None
        #: The message about it that is not shown yet: the last output of the task comes first, because it may
        #: show that a restart is of no use. Empty: it was shown.
        self.notice = ""
        #: Lost hosts whose tasks move to others, or to new containers, and that count as this restart, each
        #: with the reason; when the last of them was lost; whether the new hosts are chosen, and hold ports.
        self.lost_hosts: dict[str, str] = {}
        self.lost_at = 0.0
        self.placing = False
        #: Tasks whose failures may have led to the cause, as long as that is not known.
        self.suspects: set[TaskId] = set()
        #: Tasks whose failures have led to it, for messages.
        self.follows = ""


class TaskRecord(StateRecord):
    """The record of one task.

    Args:
        placed: the task and its host.
        number: its place in the table.
        moved: gets the record when a `events.TaskMoved` is to follow.
    """

    state: TaskState

    def __init__(self, placed: PlacedTask, number: int, moved: dict[TaskId, TaskRecord]) -> None:
        super().__init__(placed.task, TaskState.PENDING, _TASK_TRANSITIONS)
        self._moved = moved
        self.task, self.number = placed.task, number
        #: The host of this attempt, and that of the next one.
        self.host = self.next_host = placed.host.name
        self.role = placed.role
        self.runs_python = placed.role.program.runs_python
        self.sidecar = placed.role.sidecar
        self.service = placed.role.service or self.sidecar
        #: Seconds that it has to finish after the job is done.
        self.drain = 0.0 if self.sidecar else placed.role.drain or 0.0
        self.attempt = 1
        #: How the attempts before this one ended.
        self.earlier: tuple[Attempt, ...] = ()
        self.address = self.node = ""
        self.port: int | None = None
        self._reset_attempt()

    def _reset_attempt(self) -> None:
        #: Its state once all its processes are gone; set when its own process ends.
        self.outcome = TaskState.STOPPED
        self.reason: Reason | None = None
        self.status = ExitStatus()
        self.detail = ""
        #: Whether a command to stop it was given; whether a signal of a stop sequence was sent to it.
        self.stop_sent = self.signalled = False
        #: Whether it is ended because of its silence.
        self.stalled = False
        #: The numbers of the looks (`stalls`) at its start and at its last output.
        self.first_tick = 0
        self.output_tick: int | None = None
        #: The number of looks in which it had printed something.
        self.ticks_with_output = 0
        #: Pieces of output in a row that say only that TensorFlow waits; the task that its session waits for.
        self.waits = 0
        self.awaited: TaskId | None = None
        self.pid: int | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.peak_rss: int | None = None
        self.cpu_s: float | None = None
        self.leftovers = 0
        self.unkillable: tuple[int, ...] = ()
        #: The end of its output.
        self.tail = b""

    def printed(self, data: bytes) -> None:
        """Keep the end of its output."""
        self.tail = data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self.tail + data)[-_TAIL_BYTES:]

    def place(self, placed: PlacedTask) -> None:
        """Run the next attempt on this host."""
        if placed.host.name != self.next_host:
            self.port = None
        self.next_host = placed.host.name

    def mark_changed(self) -> None:
        """Let a `events.TaskMoved` follow; after a change of the state it does so anyway."""
        self._moved[self.task] = self

    def transition_to(self, state: TaskState, cause: object) -> None:
        """Change to ``state``.

        Raises:
            InvalidTransitionError: there is no such change.
        """
        super().transition_to(state, cause)
        self.mark_changed()

    def begin_attempt(self) -> None:
        """Begin the next attempt; all processes of the last one have ended.

        Raises:
            InvalidTransitionError: the last one is not over.
        """
        last = from_attributes(Attempt, self)
        self.transition_to(TaskState.STARTING, "the next attempt")
        self.earlier = (*self.earlier, last)[-_MAX_EARLIER_ATTEMPTS:]
        self.attempt += 1
        self.host = self.next_host
        self._reset_attempt()

    def report(self) -> TaskReport:
        """Its part of the report."""
        return from_attributes(TaskReport, self)


def deciding_tasks(placement: Placement, done_when: str) -> frozenset[TaskId]:
    """The tasks whose ends end the job, see `launcher.job.deciding_roles`."""
    roles = {placed.role.name: placed.role for placed in placement.tasks}
    counts = deciding_roles([*roles.values()], done_when)
    return frozenset(each.task for each in placement.tasks if each.task.index < counts.get(each.role.name, 0))


class Drain:
    """The tasks that finish after the job is done, each in the time that its role has.

    A worker can't end well when its ps is stopped: services run on while another task finishes.
    """

    def __init__(self) -> None:
        #: Seconds after the end of the job: of the last timer that ran out, and of the next one.
        self.over = self.next = 0.0
        #: The tasks that have time left; services that serve others of them.
        self.tasks: set[TaskId] = set()
        self.serving: set[TaskId] = set()

    def begin(self, records: Collection[TaskRecord]) -> float:
        """Find the tasks that have time left. Returns the seconds until the time of the first is over."""
        running = (TaskState.STARTING, TaskState.RUNNING)
        services = {record.task for record in records if record.service and not record.sidecar}
        found = [record for record in records if record.drain > self.over and record.state in running]
        self.next = min((record.drain for record in found), default=self.over)
        self.tasks = {record.task for record in found}
        self.serving = services - self.tasks if self.tasks - services else set()
        return self.next - self.over


class TaskTable(dict[TaskId, TaskRecord]):
    """All tasks of a job in the order of the table, and what the job waits for.

    Args:
        placement: the host of each task.
        done_when: see `launcher.job.deciding_roles`.
    """

    def __init__(self, placement: Placement, done_when: str) -> None:
        #: When the last event happened; the tasks that have moved since then, and moves of those of them that
        #: have started again.
        self.at = 0.0
        self._moved: dict[TaskId, TaskRecord] = {}
        self._moves: list[events.TaskMoved] = []
        tasks = enumerate(placement.tasks)
        super().__init__((placed.task, TaskRecord(placed, number, self._moved)) for number, placed in tasks)
        self.ps = [record for record in self.values() if record.task.role == "ps"]
        #: Tasks that are not gone; those that have neither failed nor ended, as far as the launcher knows;
        #: those that were commanded to start, without an answer.
        self.open = set(self)
        self.alive = set(self)
        self.starting: set[TaskId] = set()
        #: Tasks whose ends decide the end of the job: all, and those that have not ended; when the last of
        #: the others ended.
        self.all_deciding = deciding_tasks(placement, done_when)
        self.deciding = set(self.all_deciding)
        self.decided_at = 0.0
        self.drain = Drain()
        #: Tasks that are to start again.
        self.restarting: dict[TaskId, Restart] = {}
        #: When each task that started again had its last failure of its own, in seconds since the epoch.
        self.failed_at: dict[TaskId, float] = {}
        #: Tasks that failed for good: `--on-failure` is `continue`.
        self.failed: set[TaskId] = set()

    def in_order(self, tasks: Iterable[TaskId]) -> list[TaskRecord]:
        """The records of these tasks in the order of the table."""
        return sorted((self[task] for task in tasks), key=lambda record: record.number)

    def start_order(self, tasks: Iterable[TaskId]) -> list[TaskRecord]:
        """Return the records of these tasks in the order in which they start: every ps first.

        Shell scripts start the ps first, and some programs of TensorFlow 1 hang if a worker was first.
        """
        return sorted(self.in_order(tasks), key=lambda record: record.role.name != "ps")

    def names(self, tasks: Iterable[TaskId]) -> str:
        """The names of these tasks in the order of the table, for a message."""
        return join_names([record.task for record in self.in_order(tasks)])

    def begin_attempt(self, record: TaskRecord) -> None:
        """Begin the next attempt of a task."""
        if self._moved.pop(record.task, None):
            self._moves.append(self._move_of(record))
        del self.restarting[record.task]
        record.begin_attempt()
        self.open.add(record.task)
        self.alive.add(record.task)

    def drain_moves(self) -> list[events.TaskMoved]:
        """What has moved since the last call."""
        moves = [*self._moves, *map(self._move_of, self._moved.values())]
        self._moves.clear()
        self._moved.clear()
        return moves

    def _move_of(self, record: TaskRecord) -> events.TaskMoved:
        restarting = record.task in self.restarting
        return from_attributes(events.TaskMoved, record, at=self.at, restarting=restarting)

    def process_ended(self, task: TaskId, at: float) -> None:
        """Record that the own process of a task has ended, for good unless the task is to start again."""
        self.alive.discard(task)
        self.drain.tasks.discard(task)
        if task in self.deciding and task not in self.restarting:
            self.deciding.discard(task)
            self.decided_at = max(at, self.decided_at)

    def drop(self, task: TaskId) -> None:
        """Record that a task is gone: no event about it follows, unless it is to start again."""
        for tasks in (self.open, self.alive, self.starting):
            tasks.discard(task)
        if task not in self.restarting:
            self.deciding.discard(task)


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


#: States in which there is an agent, as far as the launcher knows.
ACTIVE_STATES = (HostState.STARTING, HostState.HOLDING, HostState.READY, HostState.TRYING, HostState.ENDING)
#: Every change of the state of a host; any other is a fault of the launcher.
_HOST_TRANSITIONS: dict[HostState, tuple[HostState, ...]] = {
    HostState.STARTING: (HostState.HOLDING, HostState.READY, HostState.LOST, HostState.CLOSED),
    HostState.HOLDING: (HostState.READY, HostState.STARTING, HostState.LOST, HostState.CLOSED),
    HostState.READY: (
        HostState.HOLDING,
        HostState.TRYING,
        HostState.ENDING,
        HostState.LOST,
        HostState.CLOSED,
    ),
    HostState.TRYING: (HostState.READY, HostState.LOST, HostState.CLOSED),
    HostState.ENDING: (HostState.LOST, HostState.CLOSED),
    HostState.LOST: (HostState.RETURNING,),
    HostState.RETURNING: (HostState.READY, HostState.LOST),
}


class HostRecord(StateRecord):
    """The record of one host.

    Args:
        host: as the user wrote it.
        number: its place in the table.
        counts: the number of hosts in each state.
    """

    state: HostState

    def __init__(self, host: Host, number: int, counts: Counter[HostState]) -> None:
        super().__init__(host.name, HostState.STARTING, _HOST_TRANSITIONS)
        self.host, self.name, self.number = host, host.name, number
        self._counts = counts
        counts[self.state] += 1
        #: Its tasks; from the moment at which it holds ports for them.
        self.tasks: list[TaskRecord] = []
        #: Whether its agent has said that it runs; whether it has not answered yet a request to end tasks.
        self.ready = self.unanswered = False
        #: Notices since it started a task.
        self.notices = 0
        #: Why its tasks can't use their environment; empty: they can, as far as the launcher knows.
        self.no_environment = ""

    @property
    def is_active(self) -> bool:
        """Whether it has an agent, as far as the launcher knows: events of other hosts are ignored."""
        return self.state in ACTIVE_STATES

    @property
    def own(self) -> list[TaskRecord]:
        """Its tasks without sidecars."""
        return [task for task in self.tasks if not task.sidecar]

    def transition_to(self, state: HostState, cause: object) -> None:
        """Change to ``state``.

        Raises:
            InvalidTransitionError: there is no such change.
        """
        self._counts[self.state] -= 1
        super().transition_to(state, cause)
        self._counts[state] += 1
        if not self.is_active:
            self.ready = self.unanswered = False

    def hold_ports(self) -> events.HoldPorts:
        """The command to hold ports for its tasks."""
        return events.HoldPorts(self.name, tuple(record.task for record in self.tasks), self.host.venv)

    def withdraw(self) -> None:
        """Do not wait for its answer any more."""
        self.transition_to(HostState.READY if self.ready else HostState.STARTING, "its answer is not needed")


class HostTable(dict[str, HostRecord]):
    """All hosts by their names, in the order of the table; also lost ones.

    Args:
        placement: of the job.
        tasks: of the job.
    """

    def __init__(self, placement: Placement, tasks: Iterable[TaskRecord]) -> None:
        self._counts: Counter[HostState] = Counter()
        hosts = enumerate(placement.agent_hosts())
        super().__init__((host.name, HostRecord(host, number, self._counts)) for number, host in hosts)
        self.place(tasks)
        for host in self.values():
            if host.tasks:
                host.transition_to(HostState.HOLDING, "the launch")

    def place(self, tasks: Iterable[TaskRecord]) -> None:
        """Record where these tasks, all of the job, run from their next start on."""
        for host in self.values():
            host.tasks = []
        for task in tasks:
            self[task.next_host].tasks.append(task)

    def have(self, *states: HostState) -> bool:
        """Whether a host is in one of these states."""
        return any(self._counts[state] for state in states)

    def names(self, *states: HostState) -> list[str]:
        """The hosts in these states."""
        return [name for name, host in self.items() if host.state in states]

    def of(self, tasks: Iterable[TaskRecord]) -> list[str]:
        """The hosts of these tasks, each once."""
        found = {self[task.next_host] for task in tasks}
        return [host.name for host in sorted(found, key=lambda host: host.number)]
