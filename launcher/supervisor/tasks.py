"""The tasks of a job: what is known of each, and which are still waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from launcher.events import StopSteps, StopTasks
from launcher.job import CHIEF_ROLES, Placed, Placement, ProgramKind, TaskId
from launcher.report import ExitStatus, Reason, TaskReport, TaskState

_S = TaskState
#: Every change of a task's state; any other is a fault of the launcher.
TRANSITIONS: frozenset[tuple[TaskState, TaskState]] = frozenset(
    [
        (_S.PENDING, _S.STARTING),
        (_S.PENDING, _S.CANCELLED),
        (_S.PENDING, _S.LOST),
        (_S.STARTING, _S.RUNNING),
        (_S.STARTING, _S.FAILED),
        (_S.STARTING, _S.STOPPING),
        (_S.STARTING, _S.LOST),
        (_S.RUNNING, _S.STOPPING),
        (_S.RUNNING, _S.ENDED),
        (_S.RUNNING, _S.LOST),
        (_S.STOPPING, _S.ENDED),
        (_S.STOPPING, _S.FAILED),  # it could not be started, which became known after the stop
        (_S.STOPPING, _S.STOPPED),  # unkillable: its end will never be seen
        (_S.STOPPING, _S.LOST),
        (_S.ENDED, _S.SUCCEEDED),
        (_S.ENDED, _S.FAILED),
        (_S.ENDED, _S.STOPPED),
        (_S.ENDED, _S.LOST),
    ]
)
SIGKILL = 9
#: Changes that are kept for the message of `InvalidTransition`: more than one attempt makes.
_HISTORY = 32


class InvalidTransition(Exception):
    """A change that no task can make: a fault of the launcher. Has the task's whole history."""


class TaskRecord:
    """What is known of one task.

    Args:
        placed: the task and its host.
    """

    def __init__(self, placed: Placed) -> None:
        self.task = placed.task
        self.host = placed.host.name
        self._address_at = placed.host.at
        self.runs_python = placed.role.program.kind is not ProgramKind.EXECUTABLE
        self.sidecar = placed.role.sidecar
        self.service = placed.role.service or self.sidecar
        #: Seconds to end by itself when the job is done.
        self.drain = 0.0 if self.sidecar else placed.role.drain or 0.0
        self.attempt = 1
        self.state = TaskState.PENDING
        #: Its state once all its processes are gone; set when its own process ends.
        self.outcome = TaskState.STOPPED
        self.reason: Reason | None = None
        self.status = ExitStatus()
        self.detail = ""
        #: A signal of a stop sequence reached it.
        self.signalled = False
        self.address = ""
        self.port: int | None = None
        self.pid: int | None = None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.peak_rss: int | None = None
        self.cpu_s: float | None = None
        self.leftovers = 0
        self.unkillable: tuple[int, ...] = ()
        self._history: deque[tuple[TaskState, TaskState, object]] = deque(maxlen=_HISTORY)

    @property
    def killed_by_us(self) -> bool:
        """Whether our SIGKILL ended it: it could not end its own child processes."""
        return self.signalled and self.status.signal == SIGKILL

    @property
    def reached_at(self) -> str:
        """``host:port`` for other tasks; empty before it has a port."""
        return "" if self.port is None else self._address_at(self.port)

    def move(self, state: TaskState, cause: object) -> None:
        """Change to ``state``.

        Raises:
            InvalidTransition: there is no such change.
        """
        self._history.append((self.state, state, cause))
        if (self.state, state) not in TRANSITIONS:
            history = (f"{old.value} -> {new.value}: {why}" for old, new, why in self._history)
            raise InvalidTransition(f"{self.task}: " + "; ".join(history))
        self.state = state

    def report(self) -> TaskReport:
        """Its part of the report."""
        return TaskReport._make(getattr(self, field) for field in TaskReport._fields)


def deciding_tasks(placement: Placement) -> frozenset[TaskId]:
    """The tasks whose ends end the job: the chief or master; without one, all that are not services.

    A ps or evaluator never ends by itself (``server.join()`` blocks for ever), so the job waits for it only
    if there is nothing else. A sidecar does not count at all.
    """
    tasks = [placed for placed in placement.tasks if not placed.role.sidecar] or placement.tasks
    chief = [placed.task for placed in tasks if placed.role.name in CHIEF_ROLES]
    working = [placed.task for placed in tasks if not placed.role.service]
    return frozenset(chief or working or [placed.task for placed in tasks])


class Tasks:
    """The tasks of a job.

    Args:
        placement: the host of each task.
    """

    def __init__(self, placement: Placement) -> None:
        self.records: dict[TaskId, TaskRecord] = {
            placed.task: TaskRecord(placed) for placed in placement.tasks
        }
        #: Tasks that are not over.
        self.open: set[TaskId] = set(self.records)
        #: Deciding tasks that have not ended.
        self.undecided: set[TaskId] = set(deciding_tasks(placement))
        #: Tasks whose start was commanded and has no answer yet.
        self.starting: set[TaskId] = set()
        self._by_host: dict[str, list[TaskId]] = {}
        for task, record in self.records.items():
            self._by_host.setdefault(record.host, []).append(task)

    def on(self, host: str) -> tuple[TaskId, ...]:
        """The tasks of this host."""
        return tuple(self._by_host[host])

    def open_on(self, host: str) -> tuple[TaskId, ...]:
        """The tasks of this host that are not over."""
        return tuple(task for task in self._by_host[host] if task in self.open)

    def only_sidecars_on(self, host: str) -> bool:
        """Whether the job can go on without this host."""
        return all(self.records[task].sidecar for task in self._by_host[host])

    def hosts_of(self, tasks: Collection[TaskId]) -> tuple[str, ...]:
        """The hosts of these tasks, each once, in the order of the table."""
        return tuple(host for host, own in self._by_host.items() if any(task in tasks for task in own))

    def named(self, tasks: Collection[TaskId]) -> tuple[str, ...]:
        """Their names, in the order of the table."""
        return tuple(str(task) for task in self.records if task in tasks)

    def ended_by_themselves(self) -> list[tuple[str, float]]:
        """Tasks that have ended, services excepted, and after how many seconds."""
        return [
            (str(record.task), record.ended_at - record.started_at)
            for record in self.records.values()
            if not record.service and record.started_at is not None and record.ended_at is not None
        ]

    def succeeded(self) -> dict[str, float]:
        """Tasks that have succeeded, services excepted, and when."""
        return {
            str(record.task): record.ended_at
            for record in self.records.values()
            if not record.service and record.outcome is TaskState.SUCCEEDED and record.ended_at is not None
        }

    def alive(self) -> int:
        """How many have a process of their own, as far as is known."""
        return sum(self.records[task].state is not TaskState.ENDED for task in self.open)

    def over(self, task: TaskId) -> None:
        """Nothing more can happen to it."""
        self.open.discard(task)
        self.undecided.discard(task)
        self.starting.discard(task)

    def to_stop(self, but: Collection[TaskId] = ()) -> None:
        """Mark the tasks as being stopped, and as cancelled if they were not started; ``but`` these."""
        for task, record in self.records.items():
            if task in but:
                continue
            if record.state is TaskState.PENDING:
                record.move(TaskState.CANCELLED, "the job was over")
                record.reason = Reason.NEVER_STARTED
                self.over(record.task)
            elif record.state in (TaskState.STARTING, TaskState.RUNNING):
                record.move(TaskState.STOPPING, "the job is over")

    def stops(self, sequence: StopSteps, ended: bool, but: Collection[TaskId] = ()) -> list[StopTasks]:
        """Commands to stop them, one a host.

        Args:
            sequence: how.
            ended: include tasks whose own process is over; what it left behind is being stopped already.
            but: not these.
        """
        commands = []
        for host in self._by_host:
            tasks = tuple(
                task
                for task in self.open_on(host)
                if task not in but and (ended or self.records[task].state is not TaskState.ENDED)
            )
            if tasks:
                commands.append(StopTasks(host, tasks, sequence))
        return commands
