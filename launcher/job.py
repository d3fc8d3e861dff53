"""The records that describe a job: its hosts, roles and policy, the placement, the plan and the run's files.

`launcher.config` reads them from the user's input, `launcher.scheduler` computes placement and plan, and all
other packages of the launcher use them. Agents do not have this module. It is pure: it opens no file.
"""

import enum
import re
from collections.abc import Mapping, Sequence

from launcher.common.cluster import TASK_MARK, TaskId
from launcher.common.record import Record, replace

#: The environment variable with the output folder of a task, if it has one.
OUTPUT_DIR_VARIABLE = "OUTPUT_DIR"
#: The environment variable with the ``host:port`` on a task's host that leads to a socket on the launcher's
#: machine.
RELAY_VARIABLE = "LAUNCH_RELAY"
#: The environment variable by which a launcher that a cluster's queue has started knows the folder of its
#: run.
RUN_FOLDER_VARIABLE = "LAUNCH_RUN_FOLDER"
#: What the user types for the newest run that is running, or else the newest one.
LATEST = "latest"
#: Environment variables whose value launch sets for each task. Users cannot set them.
RESERVED_VARIABLES = (
    "TF_CONFIG", "JOB_NAME", "TASK_INDEX", "CLUSTER_SPEC", "TASK_ADDRESS", "LAUNCH_ATTEMPT", TASK_MARK,
)  # fmt: skip


class Host(Record):
    """A machine, container or pod on which tasks can run, as the user or the backend named it.

    None, and an empty tuple of roles, variables or labels, mean that the user set none.
    """

    #: The name or address to which the launcher connects, as the user wrote it.
    name: str
    #: The address to which other tasks connect, or None if that is the name.
    address: str | None = None
    #: The user to log in as.
    user: str | None = None
    #: The port of its ssh server.
    port: int | None = None
    #: How many tasks it accepts before other hosts are used.
    slots: int | None = None
    #: How many tasks it accepts at most.
    max_slots: int | None = None
    #: Ids of the GPUs that tasks may use, as in ``CUDA_VISIBLE_DEVICES``. An empty tuple means no GPU.
    gpus: tuple[str, ...] | None = None
    #: The roles whose tasks may run on it. Empty means all roles.
    roles: tuple[str, ...] = ()
    #: The Python that runs ``.py`` programs on it.
    python: str | None = None
    #: The Python environment of its tasks: a folder, or a name that `launcher.agent.lookup` finds.
    venv: str | None = None
    #: The working folder of its tasks.
    workdir: str | None = None
    #: Environment variables of all its tasks as ``(name, value)`` pairs, in the order in which they were
    #: written.
    env: tuple[tuple[str, str], ...] = ()
    #: Labels by which roles select hosts, such as ``fast`` or ``zone=a``.
    labels: tuple[str, ...] = ()
    #: Whether it runs no tasks until another host is lost, and then those of the lost host.
    spare: bool = False
    #: The machine under a host that is a pod. It is empty if it is unknown, or if the host is a machine
    #: itself.
    node: str = ""
    #: ``file:line`` where the user wrote it, for messages. It is empty for hosts from no file.
    source: str = ""

    @property
    def shown_address(self) -> str:
        """The address to which other tasks connect: ``address`` if the user set one, else the name."""
        return self.name if self.address is None else self.address

    def at(self, port: int) -> str:
        """Return ``host:port`` for other tasks, with an IPv6 address in brackets (RFC 3986, 3.2.2)."""
        name = self.shown_address
        return f"[{name}]:{port}" if ":" in name and not name.startswith("[") else f"{name}:{port}"


#: Names and addresses by which every machine means itself.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def is_loopback(name: str) -> bool:
    """Return whether every machine means itself by a name: ``localhost``, ``127.x.y.z`` or ``::1``."""
    return name in LOOPBACK_NAMES or (name.startswith("127.") and name.replace(".", "").isdigit())


#: Roles whose tasks never exit by themselves. launch stops them when the job is done.
SERVICE_ROLES = ("ps", "evaluator")

#: Roles with which the job is done when they exit. ``master`` is the chief of TensorFlow 1.
CHIEF_ROLES = ("chief", "master")

#: Roles for which TensorFlow accepts at most one task.
SINGLE_ROLES = (*CHIEF_ROLES, "evaluator")

#: The largest number of tasks in a role.
MAX_TASKS = 10_000


class ProgramKind(enum.Enum):
    """The way in which a program is started."""

    SCRIPT = "script"  #: A ``.py`` file, which the task's Python runs.
    MODULE = "module"  #: ``python -m NAME``.
    CODE = "code"  #: ``python -c NAME``, where the name is the code itself.
    EXECUTABLE = "executable"  #: Any other program, looked up along ``PATH``.


#: By the option of Python: the kind of program, and what messages call the argument that follows.
_PYTHON_OPTIONS = {
    "-m": (ProgramKind.MODULE, "the name of a module"),
    "-c": (ProgramKind.CODE, "Python code"),
}


#: Matches an argument that names a Python interpreter or a script, also inside a command of a shell.
_PYTHON_WORD = r"(?:^|[\s/;&|(])(?:python[\d.]*|[\w./-]+\.py)(?:$|[\s;&|)])"


class Program(Record):
    """The program that a task runs, with its arguments."""

    kind: ProgramKind
    #: The path of the script or executable, the name of the module, or the code.
    name: str
    #: The arguments, which may contain placeholders such as ``{task_index}``.
    args: tuple[str, ...] = ()

    @property
    def runs_python(self) -> bool:
        """Whether the command line shows that it runs Python, as ``sh -c 'exec python train.py'`` does."""
        if self.kind is not ProgramKind.EXECUTABLE:
            return True
        return any(re.search(_PYTHON_WORD, word) for word in (self.name, *self.args))

    @classmethod
    def of(cls, command: Sequence[str]) -> "Program":
        """Return the program that a user wrote as a command line.

        Args:
            command: ``["train.py", ...]``, ``["-m", "MODULE", ...]``, ``["-c", "CODE", ...]`` or
                ``["EXECUTABLE", ...]``.

        Raises:
            ValueError: The command names no program. The text says what was expected.
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
    """A group of tasks that run the same program, such as ``ps``, ``worker`` or ``chief``.

    Where a field is None, the setting of the whole job applies.
    """

    name: str
    #: The number of tasks.
    count: int
    program: Program
    #: Environment variables of its tasks as ``(name, value)`` pairs.
    env: tuple[tuple[str, str], ...] = ()
    #: The number of GPUs for each task. With None the tasks of a host share its GPUs equally.
    gpus: int | None = None
    #: Names of the hosts on which its tasks may run. Empty means any host.
    hosts: tuple[str, ...] = ()
    #: Labels that a host must have to run its tasks.
    labels: tuple[str, ...] = ()
    #: Whether its tasks never exit by themselves. They are stopped when the job is done, which is a success.
    service: bool = False
    #: How many seconds its tasks may still run after the job is done. None means that the user set no time.
    drain: float | None = None
    #: Whether it only accompanies the job, as TensorBoard does. Its failures have no effect on the job.
    sidecar: bool = False
    #: The working folder of its tasks. With None it is that of the host or of the job.
    workdir: str | None = None
    #: What starts again when one of its tasks fails: ``never``, ``task`` or ``job``.
    restart: str | None = None
    #: Exit codes after which its tasks start again, where a signal N counts as 128 + N. None means all codes.
    retryable: tuple[range, ...] | None = None
    #: Whether the classic flags are appended to its arguments. With None a sidecar never gets them.
    flags: bool | None = None
    #: The container image of its tasks.
    image: str | None = None
    #: The number of CPUs that the container of a task may use.
    cpus: float | None = None
    #: The bytes of memory that the container of a task may use.
    memory: int | None = None
    #: ``file:line`` where the user wrote the role, for messages.
    source: str = ""
    #: ``file:line`` where the user wrote its program, for messages.
    program_source: str = ""


def deciding_roles(roles: Sequence[Role], done_when: str = "") -> dict[str, int]:
    """Return the roles whose tasks decide when the job is done.

    By default that is the chief or master, and without one all roles that are not services. A ps or evaluator
    is a service: it never exits (``server.join()`` never returns), so it decides only in a job of nothing but
    services. A sidecar, such as TensorBoard, decides only in a job of nothing but sidecars.

    Args:
        roles: The roles of the job.
        done_when: The value of ``--done-when``: the name of a role, ``workers`` for the chief and all
            workers, ``chief`` for the chief or, in a job without one, worker 0, or empty for the default.

    Returns:
        How many tasks of each role decide, counted from index 0. It is empty if the job has no such role.
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
    elif done_when not in ("", "chief"):  # It names a role that the job does not have.
        return {}
    deciding = {name: counts[name] for name in names if name in counts}
    # Only ``chief`` in a job without one leads to no role here. Then worker 0 is the chief for TensorFlow.
    return deciding or ({"worker": 1} if "worker" in counts else {})


class OnFailure(enum.Enum):
    """What happens to the other tasks when a task fails."""

    STOP = "stop"  #: They are stopped at once.
    CONTINUE = "continue"  #: They continue, and the job still fails when they have exited.


#: Values of ``--restart``, see `launcher.supervisor.restart_policy`.
RESTART_CHOICES = ("auto", "task", "job")
#: Values of ``restart:`` in a role of a job file.
ROLE_RESTART_CHOICES = ("never", "task", "job")


class Policy(Record):
    """The user's rules about failures, restarts, time limits and the end of a job."""

    on_failure: OnFailure = OnFailure.STOP
    #: Seconds from SIGTERM to SIGABRT. SIGKILL follows.
    grace: float = 10.0
    #: How many seconds the job may run. None means no limit.
    timeout: float | None = None
    #: The time limit as the user wrote it, such as ``2h``. It is empty if there is none.
    timeout_text: str = ""
    #: The largest number of restarts after failures.
    restarts: int = 0
    #: What starts again after a failure: ``auto``, ``task`` or ``job``, see
    #: `launcher.supervisor.restart_policy`.
    restart: str = "auto"
    #: After how many seconds without output a task counts as failed. None means never.
    stall: float | None = None
    #: The same as the user wrote it.
    stall_text: str = ""
    #: The value of ``--done-when``, see `deciding_roles`. Empty means the default.
    done_when: str = ""
    #: How many attempts of the tasks were made by earlier launchers of the run, which a queue has started
    #: again.
    attempts_before: int = 0
    #: How many restarts were made by those launchers.
    restarts_before: int = 0


class JobSpec(Record):
    """What the user wants to run: roles, policy and variables, without the hosts."""

    roles: tuple[Role, ...]
    #: Whether ``--ps_hosts= --worker_hosts= --job_name= --task_index=`` are appended to the arguments.
    flags: bool = False
    #: Environment variables of every task as ``(name, value)`` pairs.
    env: tuple[tuple[str, str], ...] = ()
    #: Environment variables from the command line, which override those of the job, the hosts and the roles.
    option_env: tuple[tuple[str, str], ...] = ()
    #: Names in ``option_env`` whose values were copied from the environment of launch. They contain no
    #: placeholders.
    copied: frozenset[str] = frozenset()
    #: The working folder where neither role nor host sets one. None means the agent's own folder.
    workdir: str | None = None
    #: The Python of ``.py`` programs where the host sets none. None means ``python3``.
    python: str | None = None
    #: The Python environment of tasks where the host sets none, see `Host`.
    venv: str | None = None
    #: The command that makes environments on the hosts, without their names, for messages.
    prepare: str = "launch prepare --hosts HOSTS"
    policy: Policy = Policy()
    #: Modules that one process on each host imports, from which the tasks are then forked.
    preload: tuple[str, ...] = ()
    #: Whether each task gets a folder for its results, which launch copies to the run's folder at the end.
    output_dirs: bool = False
    #: The URL to which these results are copied. Empty if they stay on this machine.
    output_to: str = ""


class PlacedTask(Record):
    """A task together with the host on which it will run."""

    task: TaskId
    role: Role
    host: Host
    #: Ids of the GPUs of this task. With an empty tuple it sees no GPU. With None launch does not set
    #: ``CUDA_VISIBLE_DEVICES``.
    gpus: tuple[str, ...] | None = None
    #: Environment variables that launch sets for this task or its host. The user cannot override them.
    env: tuple[tuple[str, str], ...] = ()


class Placement(Record):
    """All tasks of a job with their hosts, and the hosts that wait for tasks."""

    #: The tasks in the order of the table for users: chief, worker, ps, evaluator, other roles.
    tasks: tuple[PlacedTask, ...]
    #: Messages for the user.
    notes: tuple[str, ...] = ()
    #: Hosts without a task, which can replace a lost host. Spares come first.
    standby: tuple[Host, ...] = ()

    def with_env(self, variables: Mapping[TaskId, Mapping[str, str]]) -> "Placement":
        """Return the placement with more environment variables of launch's own.

        Args:
            variables: The new variables of each task that gets some.
        """
        with_new = ((placed, tuple(variables.get(placed.task, {}).items())) for placed in self.tasks)
        return replace(self, tasks=tuple(replace(placed, env=placed.env + new) for placed, new in with_new))

    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts with at least one task, in the order of their first tasks."""
        return tuple({placed.host.name: placed.host for placed in self.tasks}.values())

    def by_host(self) -> dict[str, list[PlacedTask]]:
        """Return the tasks by the name of their host."""
        tasks: dict[str, list[PlacedTask]] = {}
        for placed in self.tasks:
            tasks.setdefault(placed.host.name, []).append(placed)
        return tasks

    def agent_hosts(self) -> tuple[Host, ...]:
        """Return the hosts on which an agent runs: those with tasks, then those that can replace one."""
        return (*self.hosts(), *self.standby)


class TaskPlan(Record):
    """All that the agent of a host needs to start one task."""

    task: TaskId
    #: The name of the host.
    host: str
    #: The ``host:port`` to which other tasks connect, with an IPv6 address in brackets.
    address: str
    port: int
    #: The beginning of the command. Its first word may be a bare name, looked up along the task's ``PATH``.
    #: The agent appends ``args``, with placeholders filled in, and the classic flags.
    argv: tuple[str, ...]
    #: Variables that are added to the agent's own environment. The agent adds ``TF_CONFIG`` and the other
    #: variables with the addresses of all tasks.
    env: Mapping[str, str]
    #: The working folder. None means the agent's.
    workdir: str | None = None
    #: Ids of the GPUs, see `PlacedTask`.
    gpus: tuple[str, ...] | None = None
    #: The Python environment of the task, see `Host`.
    venv: str | None = None
    #: The file that the task's Python runs, or None if it runs no file.
    script: str | None = None
    #: The arguments of the program, which may contain placeholders.
    args: tuple[str, ...] = ()
    #: Whether the classic flags follow the arguments.
    flags: bool = False
    #: More environment variables, in whose values the agent fills in the placeholders.
    templates: Mapping[str, str] = {}
    #: The machine under a host that is a pod, see `Host`.
    node: str = ""


class Plan(Record):
    """How every task of a job is started, with the ClusterSpec. It is the content of plan.json."""

    tasks: tuple[TaskPlan, ...]
    #: The addresses of the tasks of each role, by index.
    cluster: Mapping[str, tuple[str, ...]]
    #: The roles that are sidecars.
    sidecars: tuple[str, ...] = ()
    #: The URL of TensorBoard, or None if the job has none.
    tensorboard: str | None = None


#: The content of `RunPaths.stop_asked` after ``launch stop --now``.
STOP_NOW_MARK = b"now"


class _RunFile:
    """An attribute of `RunPaths` that is the path of one file or folder of the run.

    Args:
        name: The name of the file in the folder of the run.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: "RunPaths", _: object) -> str:
        """Return the path of the file for one run, as ``paths.report`` reads it."""
        return f"{paths.root}/{self._name}"


class RunPaths(Record):
    """The paths of the files in the folder of one run."""

    #: The folder, without a slash at its end.
    root: str

    #: The plan: hosts, ports, commands, and the environment variables that launch sets.
    plan = _RunFile("plan.json")
    #: All events but output, and all messages to the user, in the order of their arrival. Each line is a JSON
    #: object.
    events = _RunFile("events.jsonl")
    #: The report. It exists only when the run has ended.
    report = _RunFile("report.json")
    #: The record of the run: its name, the pid, start time and boot id of its launcher, what the user typed.
    record = _RunFile("launcher.json")
    #: The report of the earlier launcher, if a queue has started the run again.
    earlier = _RunFile("earlier.json")
    #: The file that ``launch stop`` writes before it sends SIGTERM. With ``--now`` it contains
    #: `STOP_NOW_MARK`.
    stop_asked = _RunFile("stop-asked")
    #: The command of ``--on-end``, until a process runs it.
    on_end = _RunFile("on-end.json")
    #: Leads the browser of this user to the page, as long as that is served.
    page = _RunFile("page.html")
    #: The messages of a launcher in the background (``--detach``), with the failure report and the table.
    messages = _RunFile("launcher.log")
    #: What tasks have used, and how far they were, at many moments: see `launcher.runs.samples`.
    samples = _RunFile("samples.jsonl")
    #: The folder of the logs.
    logs = _RunFile("logs")

    def output(self, task: TaskId) -> str:
        """Return the folder for the results of a task (`JobSpec.output_dirs`)."""
        return f"{self.root}/output/{task.file_stem}"

    def log(self, task: TaskId) -> str:
        """Return the file with the raw bytes that a task printed."""
        return f"{self.logs}/{task.file_stem}.log"
