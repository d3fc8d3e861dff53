"""The states a task and a job go through, and how something ended."""

from __future__ import annotations

import enum

from launcher.model.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Optional


class TaskState(enum.Enum):
    """Where a task is in its life.

    ::

        PENDING -> STARTING -> RUNNING -> ENDED -> SUCCEEDED | FAILED
                       |          |                (by itself)
                       |          +-> STOPPING --> STOPPED   (by us)
                       +-> FAILED (could not be started)
        any of them -> LOST (its host is gone), PENDING -> CANCELLED (never started)

    ENDED: the process itself is over, what it left behind is being ended and its last
    output read.
    """

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether nothing more can happen to the task."""
        return self in _OVER


_OVER = frozenset(
    (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED, TaskState.LOST, TaskState.CANCELLED)
)


class Reason(enum.Enum):
    """Why a task, or the job, ended as it did."""

    EXIT = "exit"  #: it exited by itself
    SIGNAL = "signal"  #: a signal that was not ours
    OUT_OF_MEMORY = "out of memory"  #: SIGKILL, and the kernel says it ran out of memory
    NOT_FOUND = "not found"  #: the program does not exist
    NOT_RUNNABLE = "not runnable"  #: it exists and cannot be run
    HOST_LOST = "host lost"  #: its host or agent is gone
    STOPPED = "stopped"  #: we ended it
    NEVER_STARTED = "never started"  #: the job was over before its turn came
    TIMEOUT = "timeout"  #: the job took longer than ``--timeout``
    INTERRUPTED = "interrupted"  #: the user or the system asked us to stop
    LAUNCHER = "launcher"  #: something of ours failed


class ExitStatus(NamedTuple):
    """How a process ended: ``code`` (0..255) or ``signal`` (number); both ``None`` if nobody saw it."""

    code: Optional[int] = None
    signal: Optional[int] = None

    @property
    def shell(self) -> int:
        """The number a shell would show: the code, or 128 + signal; 125 where there is neither."""
        if self.code is not None:
            return self.code
        return 125 if self.signal is None else 128 + self.signal

    @property
    def known(self) -> bool:
        """Whether anybody saw the end."""
        return self.code is not None or self.signal is not None

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.code == 0
