"""A job: tasks, hosts, what the user asked for, and where each task was placed."""

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.task_id import TASK_MARK
from launcher.task_id import TENSORFLOW_ROLES as TENSORFLOW_ROLES
from launcher.task_id import TaskId as TaskId

#: The variable with the output folder of a task, if it has one.
OUTPUT_DIR = "OUTPUT_DIR"
#: The variable with the ``host:port`` on a task's host that leads to a socket on the launcher's machine.
RELAY = "LAUNCH_RELAY"
#: Variables that each task gets from the launcher; users can't set them.
RESERVED_VARIABLES = ("TF_CONFIG", "JOB_NAME", "TASK_INDEX", "CLUSTER_SPEC", "TASK_ADDRESS", TASK_MARK)


class Host(NamedTuple):
    """One machine of the inventory, as the user wrote it.

    ``None`` (or an empty tuple) always means "not given", never "none".
    """

    #: How to reach it: the name or address exactly as written.
    name: str
    #: The address that other tasks connect to; ``None``: the name.
    address: str | None = None
    #: Login user and port of its ssh server.
    user: str | None = None
    port: int | None = None
    #: How many tasks fit before other hosts are used, and how many fit at all.
    slots: int | None = None
    max_slots: int | None = None
    #: Ids of the GPUs that may be given out, as ``CUDA_VISIBLE_DEVICES`` takes them;
    #: ``()``: it has none.
    gpus: tuple[str, ...] | None = None
    #: Only tasks of these roles run here; empty: any.
    roles: tuple[str, ...] = ()
    #: The Python that runs ``.py`` programs here.
    python: str | None = None
    #: The virtual or conda environment that tasks run in: its folder, or the name of one of conda's.
    venv: str | None = None
    #: Where tasks run.
    workdir: str | None = None
    #: Environment of every task here, ``(name, value)`` pairs in the order written.
    env: tuple[tuple[str, str], ...] = ()
    #: Words to select hosts by: ``fast`` or ``zone=a``.
    labels: tuple[str, ...] = ()
    #: ``file:line`` where it was written, for messages; empty if nowhere.
    source: str = ""

    @property
    def shown_address(self) -> str:
        """The address other tasks use for it: ``address``, else the name as written."""
        return self.name if self.address is None else self.address

    def at(self, port: int) -> str:
        """``host:port`` as other tasks connect to it, an IPv6 address in brackets (RFC 3986, 3.2.2)."""
        name = self.shown_address
        return f"[{name}]:{port}" if ":" in name and not name.startswith("[") else f"{name}:{port}"


#: Names that mean the machine itself, on each machine.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def is_loopback(name: str) -> bool:
    """Whether ``name`` means "this machine" on every machine (``localhost``, ``127.x.y.z``, ``::1``)."""
    return name in LOOPBACK_NAMES or (name.startswith("127.") and name.replace(".", "").isdigit())


#: Roles that never end by themselves: we stop them when the job is done.
SERVICE_ROLES = ("ps", "evaluator")

#: Roles whose end is the end of the job. ``master`` is the chief of TensorFlow 1.
CHIEF_ROLES = ("chief", "master")

#: Roles of which TensorFlow accepts one task at most.
SINGLE_ROLES = (*CHIEF_ROLES, "evaluator")

#: Tasks that one role may have.
MOST_TASKS = 10_000


class ProgramKind(enum.Enum):
    """How a program is started."""

    SCRIPT = "script"  #: a ``.py`` file, run with the task's Python
    MODULE = "module"  #: ``python -m NAME``
    CODE = "code"  #: ``python -c NAME``: the name is the code itself
    EXECUTABLE = "executable"  #: anything else, found along ``PATH``


#: Programs that a Python's own options start, and what follows those.
_OF_PYTHON = {
    "-m": (ProgramKind.MODULE, "the name of a module"),
    "-c": (ProgramKind.CODE, "Python code"),
}


class Program(NamedTuple):
    """What a task runs: ``name`` is a script, module, executable or code; ``args`` may hold ``{words}``."""

    kind: ProgramKind
    name: str
    args: tuple[str, ...] = ()

    @classmethod
    def of(cls, command: Sequence[str]) -> "Program":
        """The program that these words of a command line mean.

        Args:
            command: ``["train.py", ...]``, ``["-m", "MODULE", ...]``, ``["-c", "CODE", ...]`` or
                ``["EXECUTABLE", ...]``.

        Raises:
            ValueError: no program is named; the message says what was expected.
        """
        if not command or not command[0]:
            raise ValueError("expected a program: FILE.py, -m MODULE, -c CODE or an executable")
        if command[0] not in _OF_PYTHON:
            kind = ProgramKind.SCRIPT if command[0].endswith(".py") else ProgramKind.EXECUTABLE
            return cls(kind, command[0], tuple(command[1:]))
        kind, expected = _OF_PYTHON[command[0]]
        if len(command) < 2 or not command[1].strip():
            raise ValueError(f"{command[0]}: expected {expected}")
        return cls(kind, command[1], tuple(command[2:]))


class Role(NamedTuple):
    """A group of equal tasks: ``ps``, ``worker``, ``chief``, ``evaluator`` or a name of the user's."""

    name: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed
    program: Program
    #: ``(name, value)`` pairs added to the environment of its tasks.
    env: tuple[tuple[str, str], ...] = ()
    #: GPUs a task needs for itself; ``None``: an even share of what its host has.
    gpus: int | None = None
    #: It may run only on these hosts (names) and on hosts with all these labels.
    hosts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    #: It never ends by itself: stopped, and counted as a success, when the job is done.
    service: bool = False
    #: Seconds it may take to end by itself when the job is done, before it is stopped; ``None``: not given.
    drain: float | None = None
    #: It serves the job (TensorBoard): a service whose own end, however it comes, is none of the job's.
    sidecar: bool = False
    #: Where its tasks run; ``None``: the host's or the job's.
    workdir: str | None = None
    #: Append the classic flags to its arguments; ``None``: as the job says, but not for a sidecar.
    flags: bool | None = None
    #: ``file:line`` where it was written, for messages; and where its program was.
    source: str = ""
    program_source: str = ""


class OnFailure(enum.Enum):
    """What one failed task means for the others."""

    STOP = "stop"  #: all others are stopped at once
    CONTINUE = "continue"  #: they go on; the job still counts as failed


class Policy(NamedTuple):
    """How the job ends."""

    on_failure: OnFailure = OnFailure.STOP
    #: Seconds between SIGTERM and the harder signals.
    grace: float = 10.0
    #: Seconds the whole job may take; ``None``: no limit.
    timeout: float | None = None
    #: The same as it was written, ``2h``; empty: it was not.
    timeout_text: str = ""


class JobSpec(NamedTuple):
    """Everything asked of a launch except the hosts."""

    roles: tuple[Role, ...]
    #: Append the classic ``--ps_hosts= --worker_hosts= --job_name= --task_index=``.
    flags: bool = False
    #: ``(name, value)`` pairs for every task.
    env: tuple[tuple[str, str], ...] = ()
    #: The same from the command line: stronger than what files say of hosts and roles.
    option_env: tuple[tuple[str, str], ...] = ()
    #: Where tasks run unless role or host say otherwise; ``None``: the agent's own folder.
    workdir: str | None = None
    #: The Python of ``.py`` programs unless the host says otherwise; ``None``: the agent's choice.
    python: str | None = None
    policy: Policy = Policy()
    #: Every task is given a folder for what it makes, and all of them are in the run's folder at the end.
    output_dirs: bool = False


class Placed(NamedTuple):
    """One task and the host it was given."""

    task: TaskId
    role: Role
    host: Host
    #: Ids of the GPUs that are this task's alone; ``()``: it must see none;
    #: ``None``: ``CUDA_VISIBLE_DEVICES`` is not touched.
    gpus: tuple[str, ...] | None = None
    #: Variables of ours that are this task's, or its host's: not for the user to overrule.
    env: tuple[tuple[str, str], ...] = ()


class Placement(NamedTuple):
    """All tasks in the order of the table (chief, worker, ps, evaluator, others), and notes."""

    tasks: tuple[Placed, ...]
    notes: tuple[str, ...] = ()

    def with_env(self, variables: Mapping[TaskId, Mapping[str, str]]) -> "Placement":
        """The same, with more of our variables for some tasks."""
        more = ((placed, tuple(variables.get(placed.task, {}).items())) for placed in self.tasks)
        return self._replace(tasks=tuple(placed._replace(env=placed.env + new) for placed, new in more))

    def hosts(self) -> tuple[Host, ...]:
        """The hosts in use, in the order their first task is listed."""
        return tuple({placed.host.name: placed.host for placed in self.tasks}.values())


class TaskPlan(NamedTuple):
    """Everything an agent needs to start one task."""

    task: TaskId
    host: str
    #: ``host:port`` that other tasks connect to, brackets around an IPv6 address.
    address: str
    port: int
    #: The command; ``argv[0]`` may be a bare name, looked up along the task's ``PATH``. Its agent adds what
    #: the ClusterSpec fills in: ``args``, and the classic flags.
    argv: tuple[str, ...]
    #: What is added to the agent's own environment; its agent adds ``TF_CONFIG`` and what else is of the
    #: cluster.
    env: Mapping[str, str]
    #: Where it runs; ``None``: where the agent runs.
    workdir: str | None = None
    gpus: tuple[str, ...] | None = None
    #: The virtual or conda environment it runs in: a folder, or the name of one of conda's.
    venv: str | None = None
    #: The file that its Python runs, if that is what it does.
    script: str | None = None
    #: Arguments of the program, which may hold ``{words}``, and whether the classic flags follow them.
    args: tuple[str, ...] = ()
    flags: bool = False


class Plan(NamedTuple):
    """What will be started: one entry a task, and the whole ClusterSpec as ``role -> addresses``."""

    tasks: tuple[TaskPlan, ...]
    cluster: Mapping[str, tuple[str, ...]]
    #: The roles that are sidecars.
    sidecars: tuple[str, ...] = ()


class RunPaths(NamedTuple):
    """The files of one run, below ``root`` (a path without a slash at its end)."""

    root: str

    @property
    def plan(self) -> str:
        """The plan as it was started: hosts, ports, commands; environment values only where they are ours."""
        return f"{self.root}/plan.json"

    @property
    def events(self) -> str:
        """One JSON object a line: every event but output, every note, in the order they came."""
        return f"{self.root}/events.jsonl"

    @property
    def report(self) -> str:
        """How it ended; there only when it has ended."""
        return f"{self.root}/report.json"

    @property
    def owner(self) -> str:
        """Which launcher process runs it: pid, its start time, the boot it belongs to."""
        return f"{self.root}/launcher.json"

    @property
    def logs(self) -> str:
        """The folder of the logs."""
        return f"{self.root}/logs"

    def output(self, task: TaskId) -> str:
        """The folder for what a task makes, if it was given one."""
        return f"{self.root}/output/{task.file_stem}"

    def log(self, task: TaskId) -> str:
        """The raw bytes a task printed."""
        return f"{self.root}/logs/{task.file_stem}.log"
