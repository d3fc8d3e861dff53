"""Records of a job: its roles, tasks and hosts, the placement and the plan."""

import enum
import re
from collections.abc import Mapping, Sequence

from launcher.common.cluster import TASK_MARK, TaskId
from launcher.common.record import Record, replace

#: The variable with the output folder of a task, if it has one.
OUTPUT_DIR_VARIABLE = "OUTPUT_DIR"
#: The variable with the ``host:port`` on a task's host that leads to a socket on the launcher's machine.
RELAY_VARIABLE = "LAUNCH_RELAY"
#: The variable by which a launcher in the job of a cluster's queue knows the folder of its run.
RUN_FOLDER_VARIABLE = "LAUNCH_RUN_FOLDER"
#: Variables with a value of its own for each task; users can't set them.
RESERVED_VARIABLES = (
    "TF_CONFIG", "JOB_NAME", "TASK_INDEX", "CLUSTER_SPEC", "TASK_ADDRESS", "LAUNCH_ATTEMPT", TASK_MARK,
)  # fmt: skip


class Host(Record):
    """One machine of the inventory, as the user wrote it.

    ``None``, and an empty tuple of roles, variables or labels, mean that the user gave none.
    """

    #: The name or address to connect to, as written.
    name: str
    #: The address that other tasks connect to; ``None``: the name.
    address: str | None = None
    #: Login user and port of its ssh server.
    user: str | None = None
    port: int | None = None
    #: Number of tasks that it takes before other hosts are used; number of tasks that it takes at most.
    slots: int | None = None
    max_slots: int | None = None
    #: Ids of the GPUs that tasks may use, as in ``CUDA_VISIBLE_DEVICES``; ``()``: the host has no GPU.
    gpus: tuple[str, ...] | None = None
    #: Only tasks of these roles run here; empty: any.
    roles: tuple[str, ...] = ()
    #: The Python that runs ``.py`` programs here.
    python: str | None = None
    #: The environment of the tasks: its folder, or its name, see `launcher.agent.lookup`.
    venv: str | None = None
    #: The folder that tasks run in.
    workdir: str | None = None
    #: Environment of every task here, ``(name, value)`` pairs in the order written.
    env: tuple[tuple[str, str], ...] = ()
    #: Labels by which roles select hosts: ``fast`` or ``zone=a``.
    labels: tuple[str, ...] = ()
    #: Only tasks of a lost host run here.
    spare: bool = False
    #: The machine that the host is on, a pod of a cluster; empty: it is a machine, or it is not known.
    node: str = ""
    #: ``file:line`` where the user wrote it, for messages; empty: in no file.
    source: str = ""

    @property
    def shown_address(self) -> str:
        """The address that other tasks connect to: ``address``, else the name."""
        return self.name if self.address is None else self.address

    def at(self, port: int) -> str:
        """``host:port`` for other tasks, an IPv6 address in brackets (RFC 3986, 3.2.2)."""
        name = self.shown_address
        return f"[{name}]:{port}" if ":" in name and not name.startswith("[") else f"{name}:{port}"


#: Names and addresses that mean the machine itself on every machine.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def is_loopback(name: str) -> bool:
    """Whether ``name`` means "this machine" on every machine (``localhost``, ``127.x.y.z``, ``::1``)."""
    return name in LOOPBACK_NAMES or (name.startswith("127.") and name.replace(".", "").isdigit())


#: Roles that never exit: launch stops them when the job is done.
SERVICE_ROLES = ("ps", "evaluator")

#: Roles whose end ends the job. ``master`` is the chief of TensorFlow 1.
CHIEF_ROLES = ("chief", "master")

#: Roles of which TensorFlow accepts at most one task.
SINGLE_ROLES = (*CHIEF_ROLES, "evaluator")

#: Largest number of tasks of a role.
MAX_TASKS = 10_000


class ProgramKind(enum.Enum):
    """How a program is started."""

    SCRIPT = "script"  #: a ``.py`` file, run with the task's Python
    MODULE = "module"  #: ``python -m NAME``
    CODE = "code"  #: ``python -c NAME``: the name is the code
    EXECUTABLE = "executable"  #: any other program, looked up along ``PATH``


#: Options of Python -> the kind of program, and the argument that follows, for messages.
_PYTHON_OPTIONS = {
    "-m": (ProgramKind.MODULE, "the name of a module"),
    "-c": (ProgramKind.CODE, "Python code"),
}


#: A word of a command that runs Python: the interpreter, or a script. A module of its own name is none.
_PYTHON_WORD = r"(?:^|[\s/;&|(])(?:python[\d.]*|[\w./-]+\.py)(?:$|[\s;&|)])"


class Program(Record):
    """A task's program: ``name`` is a script, module, executable or code; ``args`` may have placeholders."""

    kind: ProgramKind
    name: str
    args: tuple[str, ...] = ()

    @property
    def runs_python(self) -> bool:
        """Whether its words say that it runs Python: ``sh -c 'exec python train.py'`` does, too."""
        if self.kind is not ProgramKind.EXECUTABLE:
            return True
        return any(re.search(_PYTHON_WORD, word) for word in (self.name, *self.args))

    @classmethod
    def of(cls, command: Sequence[str]) -> "Program":
        """The program of a command line.

        Args:
            command: ``["train.py", ...]``, ``["-m", "MODULE", ...]``, ``["-c", "CODE", ...]`` or
                ``["EXECUTABLE", ...]``.

        Raises:
            ValueError: it names no program; the text is ``expected ...``.
        """
        if not command or not command[0]:
            raise ValueError("expected a program: FILE.py, -m MODULE, -c CODE or an executable")
        if command[0] not in _PYTHON_OPTIONS:
            kind = ProgramKind.SCRIPT if command[0].endswith(".py") else ProgramKind.EXECUTABLE
            return cls(kind, command[0], tuple(command[1:]))
        kind, expected = _PYTHON_OPTIONS[command[0]]
        if len(command) < 2 or not command[1].strip():
            raise ValueError(f"{command[0]}: expected {expected}")
        return cls(kind, command[1], tuple(command[2:]))


class Role(Record):
    """A group of equal tasks: ``ps``, ``worker``, ``chief``, ``evaluator`` or a name of the user's."""

    name: str
    count: int
    program: Program
    #: ``(name, value)`` pairs added to the environment of its tasks.
    env: tuple[tuple[str, str], ...] = ()
    #: GPUs for each task; ``None``: an equal share of the host's GPUs.
    gpus: int | None = None
    #: Names of the hosts that its tasks may run on, and labels that such a host must have; empty: any.
    hosts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    #: Its tasks never exit: they are stopped, and succeed, when the job is done.
    service: bool = False
    #: Seconds that its tasks have to finish after the job is done; ``None``: not given.
    drain: float | None = None
    #: It serves the job (TensorBoard): a service whose end, also a failure, has no effect on the job.
    sidecar: bool = False
    #: The folder that its tasks run in; ``None``: the host's or the job's.
    workdir: str | None = None
    #: What starts again when one of its tasks fails: ``never``, ``task``, ``job``; ``None``: as for the job.
    restart: str | None = None
    #: Exit codes after which its tasks start again; a signal N counts as 128 + N. ``None``: all.
    retryable: tuple[range, ...] | None = None
    #: Append the classic flags to its arguments; ``None``: as for the job, but not for a sidecar.
    flags: bool | None = None
    #: The image of the containers of its tasks; ``None``: as for the job.
    image: str | None = None
    #: Limits of each task, for containers: CPUs, and bytes of memory; ``None``: as for the job.
    cpus: float | None = None
    memory: int | None = None
    #: ``file:line`` of the role and of its program, for messages.
    source: str = ""
    program_source: str = ""


def deciding_roles(roles: Sequence[Role], done_when: str = "") -> dict[str, int]:
    """The roles whose tasks decide when the job is done, each with the number of its tasks, from index 0.

    By default the chief or master; without a chief, all roles that are not services. A ps or evaluator never
    exits (``server.join()`` blocks for ever), so it decides only in a job of services alone. A sidecar
    decides only in a job of sidecars alone.

    Args:
        roles: of the job.
        done_when: a role; ``workers``: chief and all workers; ``chief``: without a chief, worker 0.

    Returns:
        Empty: the job has no such role.
    """
    counts = {role.name: role.count for role in roles if not role.sidecar}
    counts = counts or {role.name: role.count for role in roles}
    names: Sequence[str] = CHIEF_ROLES
    if done_when in counts:
        names = (done_when,)
    elif done_when == "workers":
        names = (*CHIEF_ROLES, "worker")
    elif not done_when and not counts.keys() & {*CHIEF_ROLES}:
        names = [role.name for role in roles if not role.service] or [*counts]
    elif done_when not in ("", "chief"):
        return {}
    found = {name: counts[name] for name in names if name in counts}
    return found or ({"worker": 1} if "worker" in counts else {})


class OnFailure(enum.Enum):
    """The effect of a failed task on the others."""

    STOP = "stop"  #: the others are stopped at once
    CONTINUE = "continue"  #: the others continue; the job still fails


#: Values of ``--restart``, and of ``restart:`` in a role: see `launcher.supervisor.restart_policy`.
RESTART_CHOICES = ("auto", "task", "job")
ROLE_RESTART_CHOICES = ("never", "task", "job")


class Policy(Record):
    """How the job ends."""

    on_failure: OnFailure = OnFailure.STOP
    #: Seconds from SIGTERM to SIGABRT, which SIGKILL follows.
    grace: float = 10.0
    #: Seconds that the job may take; ``None``: no limit.
    timeout: float | None = None
    #: The limit as the user wrote it, ``2h``; empty: no limit.
    timeout_text: str = ""
    #: Largest number of restarts after failures.
    restarts: int = 0
    #: What starts again after a failure, see `launcher.supervisor.restart_policy`: ``auto``, ``task`` or
    #: ``job``.
    restart: str = "auto"
    #: Seconds after which a silent task counts as failed, and as the user wrote it; ``None``: never.
    stall: float | None = None
    stall_text: str = ""
    #: ``--done-when``, see `deciding_roles`; empty: the default.
    done_when: str = ""
    #: Attempts of the tasks, and restarts, of launchers before this one: a queue has started the run again.
    attempts_before: int = 0
    restarts_before: int = 0


class JobSpec(Record):
    """The job of a launch, without its hosts."""

    roles: tuple[Role, ...]
    #: Append the classic ``--ps_hosts= --worker_hosts= --job_name= --task_index=``.
    flags: bool = False
    #: ``(name, value)`` pairs for every task.
    env: tuple[tuple[str, str], ...] = ()
    #: The same from the command line: these override the variables of hosts and roles.
    option_env: tuple[tuple[str, str], ...] = ()
    #: Names of those in ``option_env`` that are copies of launch's own: they have no placeholders.
    copied: frozenset[str] = frozenset()
    #: The folder of tasks whose role and host name none; ``None``: the agent's own folder.
    workdir: str | None = None
    #: The Python of ``.py`` programs on hosts that name none; ``None``: ``python3``.
    python: str | None = None
    #: The environment of tasks on hosts that name none, see `Host`.
    venv: str | None = None
    #: The command that makes environments on the hosts, without their names, for messages.
    prepare: str = "launch prepare --hosts HOSTS"
    policy: Policy = Policy()
    #: Modules that a process on each host imports; tasks are forked from it.
    preload: tuple[str, ...] = ()
    #: Each task gets a folder for results, which is in the run's folder when the job has ended.
    output_dirs: bool = False


class PlacedTask(Record):
    """One task and its host."""

    task: TaskId
    role: Role
    host: Host
    #: Ids of the GPUs of this task only; ``()``: it sees no GPU; ``None``: launch does not set
    #: ``CUDA_VISIBLE_DEVICES``.
    gpus: tuple[str, ...] | None = None
    #: Variables that launch sets for this task or its host; the user can't override them.
    env: tuple[tuple[str, str], ...] = ()


class Placement(Record):
    """All tasks in the order of the table (chief, worker, ps, evaluator, others), and notes for the user."""

    tasks: tuple[PlacedTask, ...]
    notes: tuple[str, ...] = ()
    #: Hosts without a task that take those of a lost host; spares first.
    standby: tuple[Host, ...] = ()

    def with_env(self, variables: Mapping[TaskId, Mapping[str, str]]) -> "Placement":
        """The placement with more of launch's variables for some tasks."""
        more = ((placed, tuple(variables.get(placed.task, {}).items())) for placed in self.tasks)
        return replace(self, tasks=tuple(replace(placed, env=placed.env + new) for placed, new in more))

    def hosts(self) -> tuple[Host, ...]:
        """The hosts in use, in the order of their first tasks."""
        return tuple({placed.host.name: placed.host for placed in self.tasks}.values())

    def by_host(self) -> dict[str, list[PlacedTask]]:
        """The tasks of each host in use."""
        found: dict[str, list[PlacedTask]] = {}
        for placed in self.tasks:
            found.setdefault(placed.host.name, []).append(placed)
        return found

    def agent_hosts(self) -> tuple[Host, ...]:
        """The hosts that have an agent: those in use, then those on standby."""
        return (*self.hosts(), *self.standby)


class TaskPlan(Record):
    """How an agent starts one task."""

    task: TaskId
    host: str
    #: ``host:port`` that other tasks connect to, an IPv6 address in brackets.
    address: str
    port: int
    #: The command; ``argv[0]`` may be a bare name, looked up along the task's ``PATH``. The agent appends
    #: ``args``, with placeholders filled in, and the classic flags.
    argv: tuple[str, ...]
    #: Added to the agent's own environment. The agent adds ``TF_CONFIG`` and the other variables of the
    #: ClusterSpec.
    env: Mapping[str, str]
    #: The folder that it runs in; ``None``: the agent's.
    workdir: str | None = None
    gpus: tuple[str, ...] | None = None
    #: The environment that it runs in, as of `Host`.
    venv: str | None = None
    #: The file that its Python runs; ``None``: it runs no file.
    script: str | None = None
    #: Arguments of the program, perhaps with placeholders; and whether the classic flags follow them.
    args: tuple[str, ...] = ()
    flags: bool = False
    #: More variables, whose values may have placeholders; the agent adds them with these filled in.
    templates: Mapping[str, str] = {}
    #: See `Host`.
    node: str = ""


class Plan(Record):
    """The plan of a job: an entry for each task, and the ClusterSpec as ``role -> addresses``."""

    tasks: tuple[TaskPlan, ...]
    cluster: Mapping[str, tuple[str, ...]]
    #: The roles that are sidecars.
    sidecars: tuple[str, ...] = ()
    #: The URL of TensorBoard; ``None``: there is none.
    tensorboard: str | None = None


#: See `RunPaths.stop_asked`.
STOP_NOW_MARK = b"now"


class _RunFile:
    """A file or a folder of a run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: "RunPaths", _: object) -> str:
        return f"{paths.root}/{self._name}"


class RunPaths(Record):
    """The files of one run, below ``root`` (a path without a slash at its end)."""

    root: str

    #: The plan: hosts, ports, commands, and those environment variables that launch sets.
    plan = _RunFile("plan.json")
    #: Every event but output, and every notice, in the order they came; a JSON object for each line.
    events = _RunFile("events.jsonl")
    #: The report; it exists only when the run has ended.
    report = _RunFile("report.json")
    #: The identity of the launcher process: pid, start time, boot id.
    owner = _RunFile("launcher.json")
    #: The report of the launcher before this one, if a queue has started the run again.
    earlier = _RunFile("earlier.json")
    #: The file that ``launch stop`` makes before SIGTERM; with ``--now`` it has `STOP_NOW_MARK`.
    stop_asked = _RunFile("stop-asked")
    #: The messages of a launcher of ``--detach``, the failure report and the table among them.
    messages = _RunFile("launcher.log")
    #: The folder of the logs.
    logs = _RunFile("logs")

    def output(self, task: TaskId) -> str:
        """The folder for the results of a task, see `JobSpec.output_dirs`."""
        return f"{self.root}/output/{task.file_stem}"

    def log(self, task: TaskId) -> str:
        """The file with the raw bytes that a task printed."""
        return f"{self.logs}/{task.file_stem}.log"
