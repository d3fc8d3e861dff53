"""Facts: what happened, in the past tense. Agents, the clock and the user report them.

``at`` is in seconds since the epoch, by the clock of whoever saw it.
"""

from __future__ import annotations

from launcher.model.records import TYPE_CHECKING, NamedTuple
from launcher.model.task import TaskId

if TYPE_CHECKING:
    from typing import Any, Mapping, Optional, Tuple, Union


class AgentReady(NamedTuple):
    """The agent of a host runs; ``facts`` tells about the host (see ``launcher.agent.hostfacts``)."""

    host: str
    at: float
    pid: int
    facts: Mapping[str, Any]


class HostGpus(NamedTuple):
    """What ``nvidia-smi`` says of the host, a line a GPU: ``index, name, memory``; comes when it is done."""

    host: str
    at: float
    gpus: Tuple[str, ...]


class PortsHeld(NamedTuple):
    """The agent holds one port for each of these tasks."""

    host: str
    at: float
    ports: Mapping[TaskId, int]


class PortsRefused(NamedTuple):
    """The host has no port to give; ``why`` is for the user."""

    host: str
    at: float
    why: str


class PeersTried(NamedTuple):
    """The agent has tried to reach other hosts: the addresses that it can't reach, and why."""

    host: str
    at: float
    unreachable: Mapping[str, str]


class TaskStarted(NamedTuple):
    """The task's process exists."""

    host: str
    at: float
    task: TaskId
    attempt: int
    pid: int


class TaskNotStarted(NamedTuple):
    """It could not be started: ``code`` is 127 (not found), 126 (not runnable) or 125 (the host's fault)."""

    host: str
    at: float
    task: TaskId
    attempt: int
    code: int
    why: str


class TaskOutput(NamedTuple):
    """Raw bytes the task printed (stdout and stderr as one stream), cut anywhere."""

    host: str
    task: TaskId
    attempt: int
    data: bytes


class TaskSignalled(NamedTuple):
    """A rung of the stop ladder: this signal went to so many processes of the task."""

    host: str
    at: float
    task: TaskId
    attempt: int
    signal: int
    processes: int


class TaskExited(NamedTuple):
    """The task's own process is over; what it left behind may not be yet."""

    host: str
    at: float
    task: TaskId
    attempt: int
    #: One of the two is set.
    code: Optional[int]
    signal: Optional[int]
    #: Largest resident size of one of its processes, in bytes, and CPU seconds of all that it waited for.
    peak_rss: int
    cpu_s: float
    #: What the kernel says of an out-of-memory kill; empty: nothing.
    oom: str = ""


class TaskGone(NamedTuple):
    """Every process of the task is over and its output complete; its port is free again."""

    host: str
    at: float
    task: TaskId
    attempt: int
    #: How many processes it had left behind that we ended.
    leftovers: int = 0
    #: Pids that outlived SIGKILL (uninterruptible sleep).
    unkillable: Tuple[int, ...] = ()


class AgentLost(NamedTuple):
    """The link to an agent ended without its saying so; ``why`` is for the user."""

    host: str
    at: float
    why: str


class AgentClosed(NamedTuple):
    """The agent was told to close, left nothing behind and ended."""

    host: str
    at: float


class StopAsked(NamedTuple):
    """Somebody wants the job to end: ``signal`` is what they sent, ``who`` how to name it."""

    at: float
    signal: int
    who: str


class TimeUp(NamedTuple):
    """A timer that was set has run out."""

    at: float
    timer: str


if TYPE_CHECKING:
    Fact = Union[
        AgentReady,
        HostGpus,
        PortsHeld,
        PortsRefused,
        PeersTried,
        TaskStarted,
        TaskNotStarted,
        TaskOutput,
        TaskSignalled,
        TaskExited,
        TaskGone,
        AgentLost,
        AgentClosed,
        StopAsked,
        TimeUp,
    ]
else:
    Fact = object  # only annotations say it
