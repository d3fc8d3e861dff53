"""The events that the supervisor receives and the commands that it emits.

Events come from agents, timers and the user. Commands go to agents and to the launcher. Most of these records
are public, because users find them in events.jsonl: names and fields must not change. ``at`` is the time of
an event in seconds since the epoch, by the clock of the machine where it happened. Agents import this module,
so it must run with Python 3.8.
"""

import time
from typing import TYPE_CHECKING, Mapping, Optional, Tuple, Union

from launcher.common.cluster import TaskId
from launcher.common.record import Record

if TYPE_CHECKING:  # Agents do not have this module.
    from launcher.common.report import ExitStatus, Reason, TaskState

_BOOTED_AT = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def now() -> float:
    """Return the time for an event, in seconds since the epoch.

    It is the time of the system's boot, as computed when this module was imported, plus the time since the
    boot. So later changes of the system's clock have no effect on it, and differences are durations.
    """
    return _BOOTED_AT + time.clock_gettime(time.CLOCK_BOOTTIME)


class HostFacts(Record):
    """What an agent knows about its host without running any program."""

    hostname: str
    #: The IP addresses of its interfaces, without loopback.
    addresses: Tuple[str, ...]
    #: How many CPUs the agent may use.
    cpus: int
    #: Bytes of main memory.
    memory: int
    #: The version of the Python that runs the agent, such as ``3.11.7``.
    python: str
    #: The path of this Python.
    executable: str
    #: The numeric id of the user who runs the agent.
    user: int


class HostEvent(Record):
    """The base class of events that happen on a host or to its agent."""

    host: str
    at: float


class AttemptEvent(HostEvent):
    """The base class of events that happen to one attempt of a task."""

    task: TaskId
    #: The number of the attempt, from 1.
    attempt: int


class AgentReady(HostEvent):
    """The agent of a host has started. This is its first event."""

    pid: int
    facts: HostFacts


class HostGpus(HostEvent):
    """The agent has asked ``nvidia-smi`` for the GPUs of its host."""

    #: A line for each GPU: ``index, name, memory``.
    gpus: Tuple[str, ...]


class PortsHeld(HostEvent):
    """The answer to `HoldPorts`: the agent holds one port for each of these tasks."""

    ports: Mapping[TaskId, int]


class PortsRefused(HostEvent):
    """The answer to `HoldPorts` when no task can run on the host."""

    #: The reason, for the user.
    why: str
    #: 125 if no port is free, 127 if the Python environment does not exist, 126 if its Python does not run.
    code: int = 125


class PeersTried(HostEvent):
    """The answer to `TryPeers`: the agent has tried to connect to the ports that other agents hold."""

    #: The reason for each address that it cannot reach.
    unreachable: Mapping[str, str]


class TaskStarted(AttemptEvent):
    """The process of a task exists."""

    pid: int


class TaskNotStarted(AttemptEvent):
    """The process of a task could not be started."""

    #: 127 if the program was not found, 126 if it cannot be run, 125 if the host is at fault.
    code: int
    #: The reason, for the user.
    why: str


class TaskOutput(Record):
    """Raw bytes that a task printed, with stdout and stderr in one stream. They may be cut anywhere."""

    host: str
    task: TaskId
    attempt: int
    data: bytes


class TaskSignalled(AttemptEvent):
    """A step of the stop sequence was done: processes of the task received a signal."""

    signal: int
    #: How many processes received it.
    processes: int


class SignalSent(HostEvent):
    """The answer to `SignalTask`: the signal was sent to processes of the task."""

    task: TaskId
    signal: int
    #: The state of each process afterwards, as ``/proc`` shows it, such as ``SSR``. The first is that of the
    #: main process.
    states: str


class Measured(HostEvent):
    """An answer to `Measure`: what the processes of each task of a host use."""

    #: Their resident bytes. Memory that they share counts for each of them.
    memory: Mapping[TaskId, int]
    #: The CPU seconds that they have used so far, with those of children for which they have waited.
    cpu_s: Mapping[TaskId, float] = {}
    #: How busy the GPUs of a task are in percent, the mean of all. Only tasks with GPUs are named.
    gpu: Mapping[TaskId, float] = {}
    #: Their bytes on GPUs. Only tasks that use a GPU are named.
    gpu_memory: Mapping[TaskId, int] = {}


class TaskExited(AttemptEvent):
    """The main process of a task has exited. Processes that it left behind may still run.

    The exit code of the task comes from this event, but the job waits for `TaskGone`.
    """

    #: The exit code, or None if a signal killed the process.
    code: Optional[int]
    #: The signal that killed the process, or None if it exited.
    signal: Optional[int]
    #: The largest resident size of one of its processes, in bytes.
    peak_rss: int
    #: CPU seconds of the process and of all children for which it waited.
    cpu_s: float
    #: The kernel's message about a kill because memory ran out. It is empty if there is none.
    oom: str = ""


class TaskGone(AttemptEvent):
    """No process of the task is left, and its output is complete."""

    #: How many processes it left behind, which the agent has stopped.
    leftovers: int = 0
    #: Pids of processes that SIGKILL did not kill, because they are in uninterruptible sleep.
    unkillable: Tuple[int, ...] = ()


class HostNotice(HostEvent):
    """The agent tells the user one line."""

    text: str


class AgentLost(HostEvent):
    """The link to an agent is broken for good without `AgentClosed`, so the host counts as lost."""

    #: The reason, for the user.
    why: str
    #: Whether all other hosts are gone, too.
    all_gone: bool = False
    #: Whether a cluster took the host away. The restart after that does not count.
    preempted: bool = False


class AgentClosed(HostEvent):
    """The agent exits as `CloseAgent` told it. No process of its tasks is left."""


class StopAsked(Record):
    """The user, or the system, asks by a signal to stop the job."""

    at: float
    signal: int
    #: Where the request comes from, for messages, such as ``Ctrl-C``.
    who: str
    #: Whether tasks are killed without time to exit, as by ``launch stop --now``.
    at_once: bool = False


class RestartAsked(Record):
    """The user asks to stop these tasks and to start them again."""

    at: float
    tasks: Tuple[TaskId, ...]


class TaskStopAsked(Record):
    """The user asks to stop these tasks for good, while the job goes on without them."""

    at: float
    tasks: Tuple[TaskId, ...]


class OutputDelayed(Record):
    """Output of tasks is delayed, because its reader is slow or the connection to a host is broken.

    Silent tasks do not count as stalled meanwhile.
    """

    at: float


class StepsRead(Record):
    """The logs of tasks were read for their steps, as ``--progress`` describes them."""

    at: float
    #: The tasks whose step has changed, or that have printed their first one, each with its attempt.
    changed: Mapping[TaskId, int]
    #: Whether steps are not read any longer, because the pattern takes too long.
    given_up: bool = False


class TimeUp(Record):
    """A timer of the supervisor has expired."""

    at: float
    #: The text of a `launcher.supervisor.commands.Timer`.
    timer: str


#: Events that agents send.
AgentEvent = Union[
    AgentReady, HostGpus, PortsHeld, PortsRefused, PeersTried, TaskStarted, TaskNotStarted, TaskOutput,
    TaskSignalled, SignalSent, Measured, TaskExited, TaskGone, HostNotice, AgentClosed,
]  # fmt: skip
Event = Union[
    AgentEvent, AgentLost, StopAsked, RestartAsked, TaskStopAsked, OutputDelayed, StepsRead, TimeUp
]  # fmt: skip


#: A stop sequence of ``(signal, seconds)`` steps. Each signal is sent to every process of the task. A process
#: that is still alive after the seconds receives the next signal. After the last step it is reported as
#: unkillable.
StopSequence = Tuple[Tuple[int, float], ...]


class HostCommand(Record):
    """The base class of commands to the agent of a host."""

    host: str


class HoldPorts(HostCommand):
    """Tells an agent to hold one port for each task until `CloseAgent`, so that no other program gets it."""

    tasks: Tuple[TaskId, ...]
    #: The Python environment of the tasks. The agent first tries whether its Python runs.
    venv: Optional[str] = None
    #: The ports to try first for a task, in this order.
    preferred: Mapping[TaskId, Tuple[int, ...]] = {}


class Preload(HostCommand):
    """Tells an agent to start a process that imports modules, from which these tasks will be forked."""

    tasks: Tuple[TaskId, ...]
    #: The Python of the tasks.
    python: str
    #: The Python environment of the tasks, or None.
    venv: Optional[str]
    #: The modules to import.
    modules: Tuple[str, ...]
    #: Variables that are added to the agent's own environment.
    env: Mapping[str, str]


class TryPeers(HostCommand):
    """Tells an agent to try whether it can connect to ports that other agents hold."""

    #: The addresses, each as ``host:port``.
    addresses: Tuple[str, ...]


class SetCluster(HostCommand):
    """Tells an agent the ClusterSpec, by which it completes the commands and environments of its tasks."""

    #: The addresses of the tasks of each role, by index.
    addresses: Mapping[str, Tuple[str, ...]]
    #: The roles that are sidecars.
    sidecars: Tuple[str, ...]


class StartTask(HostCommand):
    """Tells an agent to start a task. Most fields are those of `launcher.job.TaskPlan`."""

    task: TaskId
    #: The number of this attempt, from 1.
    attempt: int
    #: The beginning of the command, without the arguments in ``args``.
    argv: Tuple[str, ...]
    #: Variables that are added to the agent's own environment.
    env: Mapping[str, str]
    #: The working folder. None means the agent's.
    workdir: Optional[str]
    #: The stop sequence for processes that the task leaves behind.
    steps: StopSequence
    #: The Python environment of the task, see `launcher.agent.lookup`.
    venv: Optional[str] = None
    #: The file that its Python runs. The agent checks first whether it exists.
    script: Optional[str] = None
    #: More arguments, in which the agent fills in placeholders.
    args: Tuple[str, ...] = ()
    #: Whether the classic flags follow the arguments.
    flags: bool = False
    #: More variables, in whose values the agent fills in placeholders.
    templates: Mapping[str, str] = {}


class StopTasks(HostCommand):
    """Tells an agent to stop these tasks, all at the same time.

    The command contains the whole stop sequence, so that the agent can continue it if the launcher is killed.
    A later command replaces the sequence.
    """

    tasks: Tuple[TaskId, ...]
    steps: StopSequence


class SignalTask(HostCommand):
    """Tells an agent to send one signal to a task.

    The task does not count as stopped by the launcher, even if it dies of the signal. The answer is
    `SignalSent`, or none if the task has exited.
    """

    task: TaskId
    signal: int
    #: Whether all processes of the task receive the signal, not only its main process.
    all: bool = False


class Measure(HostCommand):
    """Tells an agent to answer with `Measured`: once, or again and again."""

    #: The seconds between two answers. 0 asks for one answer at once.
    every: float = 0.0


class HoldOutput(HostCommand):
    """Tells an agent to hold back the output of tasks, because its reader is slow, or to send it again.

    Events are sent in both cases.
    """

    #: Whether to hold the output back.
    on: bool


class CloseAgent(HostCommand):
    """Tells an agent to kill all tasks and all processes that tasks left behind, and then to exit."""

    #: Whether the agent does not exit yet, but runs remote programs until the next `CloseAgent`.
    stays: bool = False


class Tell(Record):
    """Tells the launcher to show the user one line."""

    text: str
    #: Whether to show it even with ``--quiet``.
    urgent: bool = False


class Noticed(Record):
    """Tells the launcher to show the user what was found in the output or the samples of a task."""

    at: float
    #: What it is: ``nan`` or ``slow`` of a task, or ``progress`` if ``--progress`` was given up.
    kind: str
    task: TaskId
    #: One line, which names the task.
    text: str


class TaskMoved(Record):
    """Tells the launcher that a task has a new state, that its process exists, or that it will start again.

    The console, tmux, JSON, the Python API and the pytest plug-in show the states of tasks from these records
    alone. None of them computes a state from the events of agents.

    The last one for a task contains all that is known about it. The fields are those of
    `launcher.common.report.TaskReport`.
    """

    #: The time of the event that led to it.
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
    #: Whether it will start again after this attempt.
    restarting: bool


class Restarting(Record):
    """Tells the launcher that these tasks are stopped, if they still run, and start again together.

    If one of them does not start again after all, a `TaskMoved` says so.
    """

    #: By task, the number of the attempt before the restart.
    attempts: Mapping[TaskId, int]
    #: Its number among the restarts that count for ``--restarts``. 0 if it does not count.
    number: int = 0


#: Commands that agents accept.
AgentCommand = Union[
    HoldPorts, Preload, TryPeers, SetCluster, StartTask, StopTasks, SignalTask, Measure, HoldOutput,
    CloseAgent,
]  # fmt: skip
