"""What the machine knows of one task, and the moves its state may make."""

from __future__ import annotations

from collections import deque

from launcher.job import Placed
from launcher.report import ExitStatus, Reason, TaskReport, TaskState
from launcher.supervision.stopping import SIGKILL

_S = TaskState
#: Every move a task's state may make; anything else is a fault of ours.
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
        (_S.STOPPING, _S.FAILED),  # it could not be started, and we learn it after the stop
        (_S.STOPPING, _S.STOPPED),  # unkillable: nobody will ever see it end
        (_S.STOPPING, _S.LOST),
        (_S.ENDED, _S.SUCCEEDED),
        (_S.ENDED, _S.FAILED),
        (_S.ENDED, _S.STOPPED),
        (_S.ENDED, _S.LOST),
    ]
)

#: How many moves the story keeps: more than one attempt makes.
_STORY = 32


class InvalidTransition(Exception):
    """A move no task can make: a fault of ours. Carries the task's whole story."""


class Record:
    """One task of the job.

    Args:
        placed: who it is and where it runs.
    """

    def __init__(self, placed: Placed) -> None:
        self.task = placed.task
        self.host = placed.host.name
        self._at = placed.host.at
        self.sidecar = placed.role.sidecar
        self.service = placed.role.service or self.sidecar
        #: Seconds it may take to end by itself when the job is done.
        self.drain = 0.0 if self.sidecar else placed.role.drain or 0.0
        self.attempt = 1
        self.state = TaskState.PENDING
        #: What it will be when it is gone; set when its process ends.
        self.outcome = TaskState.STOPPED
        self.reason: Reason | None = None
        self.status = ExitStatus()
        self.detail = ""
        #: A signal of ours reached it.
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
        self._story: deque[tuple[TaskState, TaskState, object]] = deque(maxlen=_STORY)

    @property
    def killed_by_us(self) -> bool:
        """Whether it could not have ended its own processes: SIGKILL of ours ended it."""
        return self.signalled and self.status.signal == SIGKILL

    @property
    def reached_at(self) -> str:
        """``host:port`` for other tasks; empty before it has a port."""
        return "" if self.port is None else self._at(self.port)

    def move(self, state: TaskState, because: object) -> None:
        """Go to ``state``.

        Raises:
            InvalidTransition: it can't get there from where it is.
        """
        self._story.append((self.state, state, because))
        if (self.state, state) not in TRANSITIONS:
            story = (f"{old.value} -> {new.value}: {why}" for old, new, why in self._story)
            raise InvalidTransition(f"{self.task}: " + "; ".join(story))
        self.state = state

    def report(self) -> TaskReport:
        """What the report says of it."""
        return TaskReport(
            task=self.task,
            host=self.host,
            address=self.address,
            port=self.port,
            state=self.state,
            reason=self.reason,
            status=self.status,
            detail=self.detail,
            attempt=self.attempt,
            pid=self.pid,
            started_at=self.started_at,
            ended_at=self.ended_at,
            peak_rss=self.peak_rss,
            cpu_s=self.cpu_s,
            leftovers=self.leftovers,
            unkillable=self.unkillable,
            sidecar=self.sidecar,
        )
