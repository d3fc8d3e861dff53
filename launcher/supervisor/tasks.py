"""The record of one task, and the changes of its state that are possible."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.job import CHIEF_ROLES, Placed, Placement, ProgramKind
from launcher.report import Attempt, ExitStatus, Reason, TaskReport, TaskState
from launcher.task_id import TaskId

_S = TaskState
#: Every change of the state of an attempt; any other is a fault of the launcher.
TRANSITIONS: dict[TaskState, tuple[TaskState, ...]] = {
    _S.PENDING: (_S.STARTING, _S.CANCELLED, _S.LOST),
    _S.STARTING: (_S.RUNNING, _S.FAILED, _S.STOPPING, _S.LOST),
    _S.RUNNING: (_S.STOPPING, _S.ENDED, _S.LOST),
    # FAILED: the start failed, and the launcher learned of it after the stop. STOPPED: unkillable.
    _S.STOPPING: (_S.ENDED, _S.FAILED, _S.STOPPED, _S.LOST),
    _S.ENDED: (_S.SUCCEEDED, _S.FAILED, _S.STOPPED, _S.LOST),
}
#: States in which the next attempt can begin.
_OVER = (_S.SUCCEEDED, _S.FAILED, _S.STOPPED, _S.LOST)
SIGKILL = 9
#: Bytes of the last output, earlier attempts, and changes of the state that are kept.
_TAIL, _MOST_EARLIER, _MOST_CHANGES = 4000, 1000, 100


class InvalidTransition(Exception):
    """An impossible change of a task's state: a fault of the launcher. The text has the task's history."""


class TaskRecord:
    """The record of one task.

    Args:
        placed: the task and its host.
    """

    def __init__(self, placed: Placed) -> None:
        self.task = placed.task
        self.host = self._next_host = placed.host.name
        self.role = placed.role
        self.runs_python = placed.role.program.kind is not ProgramKind.EXECUTABLE
        self.sidecar = placed.role.sidecar
        self.service = placed.role.service or self.sidecar
        #: Seconds that it has to finish after the job is done.
        self.drain = 0.0 if self.sidecar else placed.role.drain or 0.0
        self.attempt = 1
        #: How the attempts before this one ended.
        self.earlier: tuple[Attempt, ...] = ()
        self.state = TaskState.PENDING
        self.address = ""
        self.port: int | None = None
        self._history: list[str] = []
        self._begin_attempt()

    def _begin_attempt(self) -> None:
        #: Its state once all its processes are gone; set when its own process ends.
        self.outcome = TaskState.STOPPED
        self.reason: Reason | None = None
        self.status = ExitStatus()
        self.detail = ""
        #: Whether a command to stop it was given; whether a signal of a stop sequence was sent to it.
        self.stop_sent = self.signalled = False
        #: Whether it is ended because of its silence; the looks (`stalls`) at its start and last output.
        self.stalled = False
        self.first_look = 0
        self.output_look: int | None = None
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

    def move(self, state: TaskState, cause: object) -> None:
        """Change to ``state``.

        Raises:
            InvalidTransition: there is no such change.
        """
        self._move(state, TRANSITIONS.get(self.state, ()), cause)

    def _move(self, state: TaskState, possible: Sequence[TaskState], cause: object) -> None:
        self._history = [*self._history[-_MOST_CHANGES:], f"{self.state.value} -> {state.value}: {cause}"]
        if state not in possible:
            raise InvalidTransition(f"{self.task}: {'; '.join(self._history)}")
        self.state = state

    def printed(self, data: bytes) -> None:
        """Keep the end of its output."""
        self.tail = data[-_TAIL:] if len(data) >= _TAIL else (self.tail + data)[-_TAIL:]

    def place(self, placed: Placed) -> None:
        """Run the next attempt on this host."""
        if placed.host.name != self._next_host:
            self.port = None
        self._next_host = placed.host.name

    def start_again(self) -> None:
        """Begin the next attempt; all processes of the last one have ended.

        Raises:
            InvalidTransition: the last one is not over.
        """
        last = Attempt._make(getattr(self, field) for field in Attempt._fields)
        self._move(
            TaskState.STARTING, (TaskState.STARTING,) if self.state in _OVER else (), "the next attempt"
        )
        self.earlier = (*self.earlier, last)[-_MOST_EARLIER:]
        self.attempt += 1
        self.host = self._next_host
        self._begin_attempt()

    def report(self) -> TaskReport:
        """Its part of the report."""
        return TaskReport._make(getattr(self, field) for field in TaskReport._fields)


def deciding_tasks(placement: Placement) -> frozenset[TaskId]:
    """The tasks whose ends end the job: the chief or master; without a chief, all that are not services.

    A ps or evaluator never exits (``server.join()`` blocks for ever), so it decides only in a job of
    services alone. A sidecar decides only in a job of sidecars alone.
    """
    tasks = [placed for placed in placement.tasks if not placed.role.sidecar] or placement.tasks
    chief = [placed.task for placed in tasks if placed.role.name in CHIEF_ROLES]
    working = [placed.task for placed in tasks if not placed.role.service]
    return frozenset(chief or working or [placed.task for placed in tasks])
