"""Events and commands.

Events come from agents, timers and the user. Commands come from the supervisor. ``at`` is in seconds since
the epoch, by the clock of the machine where the event happened. Hosts with Python 3.8 import this module.
"""

import time
from typing import TYPE_CHECKING, Mapping, Optional, Tuple, Union

from launcher.common.cluster import TaskId
from launcher.common.record import Record

if TYPE_CHECKING:  # agents do not have it
    from launcher.common.report import ExitStatus, Reason, TaskState

_BOOTED_AT = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def now() -> float:
    """The time for an event: seconds since the epoch.

    A later change of the system's clock has no effect, so that differences are durations.
    """
    return _BOOTED_AT + time.clock_gettime(time.CLOCK_BOOTTIME)


class HostFacts(Record):
    """What the kernel of a host says about it, without a delay."""

    hostname: str
    #: IP addresses of its interfaces, loopback left out.
    addresses: Tuple[str, ...]
    #: How many CPUs the agent may use; bytes of main memory.
    cpus: int
    memory: int
    #: Version of the Python that runs the agent, ``3.11.7``; and its path.
    python: str
    executable: str
    #: Numeric user id.
    user: int


class HostEvent(Record):
    """Something happened on a host, or to its agent."""

    host: str
    at: float


class AttemptEvent(HostEvent):
    """Something happened to an attempt of a task."""

    task: TaskId
    attempt: int


class AgentReady(HostEvent):
    """The agent of a host runs."""

    pid: int
    facts: HostFacts


class HostGpus(HostEvent):
    """The output of ``nvidia-smi`` on the host, a line for each GPU: ``index, name, memory``."""

    gpus: Tuple[str, ...]


class PortsHeld(HostEvent):
    """The agent holds one port for each of these tasks."""

    ports: Mapping[TaskId, int]


class PortsRefused(HostEvent):
    """The answer to `HoldPorts`: no task can run here; ``why`` is the reason, for the user.

    ``code`` is 125 (no port is free), 127 (the environment does not exist) or 126 (its Python does not run).
    """

    why: str
    code: int = 125


class PeersTried(HostEvent):
    """The agent has tried to connect to other hosts: the addresses that it can't reach, and the reasons."""

    unreachable: Mapping[str, str]


class TaskStarted(AttemptEvent):
    """The task's process exists."""

    pid: int


class TaskNotStarted(AttemptEvent):
    """The task did not start; ``code`` is 127 (not found), 126 (not runnable) or 125 (fault of the host)."""

    code: int
    why: str


class TaskOutput(Record):
    """Raw bytes that the task printed (stdout and stderr as one stream), cut anywhere."""

    host: str
    task: TaskId
    attempt: int
    data: bytes


class TaskSignalled(AttemptEvent):
    """A step of the stop sequence: this signal was sent to this number of the task's processes."""

    signal: int
    processes: int


class SignalSent(HostEvent):
    """The answer to `SignalTask`: the signal was sent to these processes of the task."""

    task: TaskId
    signal: int
    #: The state of each process afterwards, as ``/proc`` shows it, the main process first: ``SSR``.
    states: str


class Measured(HostEvent):
    """The answer to `Measure`: resident bytes of all processes of each task, each process counted alone."""

    memory: Mapping[TaskId, int]


class TaskExited(AttemptEvent):
    """The task's own process has ended; processes that it left behind may still run.

    The exit code of the task comes from this event. The job waits for `TaskGone`.
    """

    #: Either the exit code or the signal is set.
    code: Optional[int]
    signal: Optional[int]
    #: Largest resident size of one of its processes, in bytes; CPU seconds of all that it waited for.
    peak_rss: int
    cpu_s: float
    #: The kernel's message about an out-of-memory kill; empty: there is none.
    oom: str = ""


class TaskGone(AttemptEvent):
    """Every process of the task has ended, and its output is complete."""

    #: Number of processes that it left behind and the agent ended.
    leftovers: int = 0
    #: Pids that outlived SIGKILL (uninterruptible sleep).
    unkillable: Tuple[int, ...] = ()


class HostNotice(HostEvent):
    """A line of the agent for the user."""

    text: str


class AgentLost(HostEvent):
    """The link to an agent ended without `AgentClosed`; ``why`` is the reason, for the user."""

    why: str
    #: Whether no other host is left, either.
    all_gone: bool = False
    #: The restart after the loss does not count, see `HostPreemptedError` in `launcher.common.errors`.
    preempted: bool = False


class AgentClosed(HostEvent):
    """The agent has ended by `CloseAgent`; no process of its tasks is left."""


class StopAsked(Record):
    """The user asks for the end of the job by a signal; ``who`` is its source for messages: ``Ctrl-C``."""

    at: float
    signal: int
    who: str
    #: Tasks are killed without their grace: ``launch stop --now``.
    at_once: bool = False


class RestartAsked(Record):
    """The user asks to stop these tasks and to start them again."""

    at: float
    tasks: Tuple[TaskId, ...]


class OutputDelayed(Record):
    """Output of tasks may be on its way: its reader is slow, or the connection to a host is broken."""

    at: float


class TimeUp(Record):
    """A timer of the supervisor has run out: the text of a `launcher.supervisor.commands.Timer`."""

    at: float
    timer: str


#: Events that agents send.
AgentEvent = Union[
    AgentReady,
    HostGpus,
    PortsHeld,
    PortsRefused,
    PeersTried,
    TaskStarted,
    TaskNotStarted,
    TaskOutput,
    TaskSignalled,
    SignalSent,
    Measured,
    TaskExited,
    TaskGone,
    HostNotice,
    AgentClosed,
]
Event = Union[AgentEvent, AgentLost, StopAsked, RestartAsked, OutputDelayed, TimeUp]


#: A stop sequence: ``(signal, seconds)`` steps. Each signal is sent to every process of the task. A process
#: that is alive after the seconds gets the next signal; after the last step it is reported as unkillable.
StopSequence = Tuple[Tuple[int, float], ...]


class HostCommand(Record):
    """What the agent of a host is to do."""

    host: str


class HoldPorts(HostCommand):
    """Hold one port for each task, until `CloseAgent`."""

    tasks: Tuple[TaskId, ...]
    #: The environment of the tasks: the agent tries its Python first.
    venv: Optional[str] = None
    #: Ports to try first for a task, in this order.
    preferred: Mapping[TaskId, Tuple[int, ...]] = {}


class Preload(HostCommand):
    """Start a process that imports modules; these tasks are forked from it when they start."""

    tasks: Tuple[TaskId, ...]
    #: The Python of the tasks, and their environment.
    python: str
    venv: Optional[str]
    modules: Tuple[str, ...]
    #: Added to the agent's own environment.
    env: Mapping[str, str]


class TryPeers(HostCommand):
    """Try to connect to these addresses (``host:port``), which other agents hold."""

    addresses: Tuple[str, ...]


class SetCluster(HostCommand):
    """Take the ClusterSpec, and complete the commands and environments of tasks from it."""

    addresses: Mapping[str, Tuple[str, ...]]
    sidecars: Tuple[str, ...]


class StartTask(HostCommand):
    """Start this task."""

    task: TaskId
    attempt: int
    argv: Tuple[str, ...]
    #: Added to the agent's own environment.
    env: Mapping[str, str]
    workdir: Optional[str]
    #: The stop sequence for processes that the task leaves behind.
    steps: StopSequence
    #: The environment that it runs in, see `launcher.agent.lookup`.
    venv: Optional[str] = None
    #: The file that its Python runs: the agent checks first whether it exists.
    script: Optional[str] = None
    #: More arguments, with placeholders that the agent fills in; and whether the classic flags follow.
    args: Tuple[str, ...] = ()
    flags: bool = False
    #: More variables, whose values may have placeholders that the agent fills in.
    templates: Mapping[str, str] = {}


class StopTasks(HostCommand):
    """End these tasks, all at the same time. A later command replaces the stop sequence.

    The whole sequence, signals and seconds, is in the command, so that the agent continues it if the launcher
    is killed.
    """

    tasks: Tuple[TaskId, ...]
    steps: StopSequence


class SignalTask(HostCommand):
    """Send one signal to a task; ``all``: to each of its processes, not only to its main one.

    The task does not count as stopped by the launcher, even if the signal ends it. `SignalSent` is the
    answer, unless the task has ended.
    """

    task: TaskId
    signal: int
    all: bool = False


class Measure(HostCommand):
    """Answer with `Measured`."""


class HoldOutput(HostCommand):
    """Send no output of tasks while ``on`` is true (its reader is slow); events are sent."""

    on: bool


class CloseAgent(HostCommand):
    """End every task and all processes that tasks left behind, then end."""

    #: Do not end yet: run remote commands until the next `CloseAgent`.
    stays: bool = False


class Tell(Record):
    """To the launcher: show the user one line. ``urgent``: even with ``--quiet``."""

    text: str
    urgent: bool = False


class TaskMoved(Record):
    """To the launcher: show that a task has another state, has got its process, or is to start again.

    The last one of a task has all that is known about it. The fields are those of `launcher.common.report`.

    No other event is about the state of a task: the console, tmux, JSON, the Python API and the pytest
    plug-in show it, and none of them works out a state from the events of agents.
    """

    #: When the event happened that led to it.
    at: float
    task: TaskId
    attempt: int
    state: "TaskState"
    host: str
    address: str
    pid: Optional[int]
    status: "ExitStatus"
    reason: "Optional[Reason]"
    detail: str
    peak_rss: Optional[int]
    cpu_s: Optional[float]
    node: str
    #: It is to start again when it is over.
    restarting: bool


class Restarting(Record):
    """To the launcher: tell programs that these tasks are stopped, if they run, and start again together.

    `TaskMoved` tells if one of them does not start again after all.
    """

    #: The number of the present attempt of each task, the one before the restart.
    attempts: Mapping[TaskId, int]


#: Commands that agents take.
AgentCommand = Union[
    HoldPorts,
    Preload,
    TryPeers,
    SetCluster,
    StartTask,
    StopTasks,
    SignalTask,
    Measure,
    HoldOutput,
    CloseAgent,
]
