"""The plan: the command and the environment of every task, made when the ports are known.

Nothing in it grows faster than the number of tasks: it has the addresses of all tasks once, and each agent
completes the environments of its own tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from launcher.common.cluster import ClusterSpec, TaskId, complete, misspelt_placeholders
from launcher.common.errors import Fault
from launcher.common.events import Preload
from launcher.common.record import replace
from launcher.common.text import plural
from launcher.job import Host, JobSpec, PlacedTask, Placement, Plan, Program, ProgramKind, TaskPlan

#: The default Python of ``.py`` files, looked up along the task's ``PATH``.
DEFAULT_PYTHON = "python3"
#: Matches the path of an open descriptor, also after an option: ``--config=/dev/fd/63``.
_DESCRIPTOR_PATTERN = r"(?:\S*[=,:@])?(?:/dev|/proc/self)/fd/([0-9]{1,9})"
#: The Python of environments.
VENV_PYTHON = "python"

#: Beginnings of variables that Python, libraries and TensorFlow read while they are loaded.
_EARLY_VARIABLE_PREFIXES = (
    "PYTHON", "LC_", "LANG", "PATH", "HOME", "LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_",
    "OPENBLAS_", "TF_CPP_", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS", "ONEDNN_", "KERAS_",
)  # fmt: skip

#: Size of the longest argument or variable of a program, with its NUL (``MAX_ARG_STRLEN``, execve(2)).
MAX_ARGUMENT_BYTES = 128 * 1024
#: Variables with the addresses of all tasks.
_CLUSTER_VARIABLES = ("TF_CONFIG", "CLUSTER_SPEC")
#: A port with the most digits, for checks of lengths.
_LONGEST_PORT = 65535


def cluster_of(placement: Placement, ports: Mapping[TaskId, int]) -> ClusterSpec:
    """Return the ClusterSpec of a placement.

    Raises:
        KeyError: A task has no port.
    """
    addresses: dict[str, list[str]] = {}
    sidecars = {}
    for placed in placement.tasks:
        addresses.setdefault(placed.task.role, []).append(placed.host.at(ports[placed.task]))
        sidecars[placed.task.role] = placed.role.sidecar
    return ClusterSpec(addresses, [role for role, sidecar in sidecars.items() if sidecar])


def make_plan(spec: JobSpec, placement: Placement, ports: Mapping[TaskId, int]) -> Plan:
    """Return the plan of a job.

    Args:
        spec: The job. `check_texts` must have found no fault.
        placement: Its placement.
        ports: The port that each task's host holds for it.

    Raises:
        KeyError: A task has no port.
    """
    cluster = cluster_of(placement, ports)
    tasks = (_task_plan(spec, placed, ports[placed.task]) for placed in placement.tasks)
    sidecars = tuple(dict.fromkeys(placed.task.role for placed in placement.tasks if placed.role.sidecar))
    return Plan(tuple(tasks), cluster.addresses, sidecars)


def preloads(spec: JobSpec, on_host: Iterable[PlacedTask]) -> Iterator[Preload]:
    """Yield the commands to start the processes of one host that import the modules of ``--preload``.

    Tasks share a process if they have the same Python and venv, and the same values of variables that begin
    with `_EARLY_VARIABLE_PREFIXES`. The process has the variables that all of its tasks have.

    Args:
        spec: The job.
        on_host: All tasks of the host.
    """
    groups: dict[tuple[object, ...], list[TaskPlan]] = {}
    for placed in on_host if spec.preload else ():
        task = _task_plan(spec, placed, _LONGEST_PORT)
        if len(task.argv) > 1:  # else its program is not Python
            early = (
                (name, value) for name, value in task.env.items() if name.startswith(_EARLY_VARIABLE_PREFIXES)
            )
            groups.setdefault((task.argv[0], task.venv, frozenset(early)), []).append(task)
    for tasks in groups.values():
        env = dict(set.intersection(*(set(task.env.items()) for task in tasks)))
        names, python = tuple(task.task for task in tasks), tasks[0].argv[0]
        yield Preload(tasks[0].host, names, python, tasks[0].venv, modules=spec.preload, env=env)


def completed(task: TaskPlan, cluster: ClusterSpec) -> TaskPlan:
    """Return a task as its agent completes it. Its variables may contain the whole ClusterSpec."""
    words, env = complete(cluster, task.task, task.args, task.flags, task.templates)
    return replace(task, argv=task.argv + words, env={**task.env, **env}, args=(), flags=False, templates={})


def _task_plan(spec: JobSpec, placed: PlacedTask, port: int) -> TaskPlan:
    program, host, task = placed.role.program, placed.host, placed.task
    python = VENV_PYTHON if host.venv else host.python or spec.python or DEFAULT_PYTHON
    # A sidecar (TensorBoard) rarely takes the classic flags, so it gets them only by its own ``flags: true``.
    flags = (spec.flags and not placed.role.sidecar) if placed.role.flags is None else placed.role.flags
    env, templates = _environment(spec, placed)
    return TaskPlan(
        task=task,
        host=host.name,
        address=host.at(port),
        port=port,
        argv=_command(program, python),
        env=env,
        workdir=placed.role.workdir or host.workdir or spec.workdir,
        gpus=placed.gpus,
        venv=host.venv,
        script=program.name if program.kind is ProgramKind.SCRIPT else None,
        args=program.args,
        flags=flags,
        templates=templates,
        node=host.node,
    )


def _command(program: Program, python: str) -> tuple[str, ...]:
    """Return the beginning of a program's command line, without the program's arguments."""
    words: dict[ProgramKind, tuple[str, ...]] = {
        ProgramKind.SCRIPT: (python, program.name),
        ProgramKind.MODULE: (python, "-m", program.name),
        ProgramKind.CODE: (python, "-c", program.name),
        ProgramKind.EXECUTABLE: (program.name,),
    }
    return words[program.kind]


def _environment(spec: JobSpec, placed: PlacedTask) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables of a task, without those of its agent's environment and of the ClusterSpec.

    A variable of the job is overridden by that of the host, then of the role, then of the command line. Users
    may override ``CUDA_VISIBLE_DEVICES``, but no other variable that launch sets.

    Returns:
        The variables with a fixed value, and those whose value may have placeholders.
    """
    gpus = {} if placed.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(placed.gpus)}
    users = dict(spec.env + placed.host.env + placed.role.env + spec.option_env)
    own = dict(placed.env)
    fixed = spec.copied | own.keys()
    templates = {name: value for name, value in users.items() if "{" in value and name not in fixed}
    every = {**gpus, **users, **own}
    return {name: value for name, value in every.items() if name not in templates}, templates


def check_texts(spec: JobSpec, hosts: Iterable[Host], env_source: str) -> Iterator[Fault]:
    """Yield the faults of arguments and variables of tasks, before anything is started.

    A name in braces may be a misspelt placeholder. ``<(...)`` of the user's shell makes the path of a
    descriptor, and tasks have those of stdin, stdout and stderr only.

    Args:
        spec: The job. Its programs are checked, too.
        hosts: The hosts of the launch, whose variables are checked, too.
        env_source: Where the user wrote ``spec.env``.
    """
    written = _written(spec, hosts, env_source)
    roles, found = [role.name for role in spec.roles], set()
    for where, label, text in written:
        for name, meant in misspelt_placeholders(text, roles) if "{" in text else ():
            problem = f"{label}: there is no placeholder {{{name}}}"
            if (where, problem) not in found:
                found.add((where, problem))
                expected = f"did you mean {{{meant}}}? ({{{{{name}}}}} becomes the text {{{name}}})"
                yield Fault(where, problem, expected)
    programs = [
        (role.program_source or role.source, f"program {role.program.name!r}", role.program.name)
        for role in spec.roles
    ]
    for where, label, text in dict.fromkeys([*programs, *written]):
        descriptor = re.fullmatch(_DESCRIPTOR_PATTERN, text) if "/fd/" in text else None
        if descriptor and int(descriptor[1]) > 2:
            problem = f"{label} is a descriptor of this shell, as of <(...), which tasks do not have"
            yield Fault(where, problem, "expected the path of a file")


def _written(spec: JobSpec, hosts: Iterable[Host], env_source: str) -> list[tuple[str, str, str]]:
    """Return where each argument and variable of tasks is written, its name for messages, and its text."""
    written = [
        (role.program_source or role.source, f"argument {argument!r}", argument)
        for role in spec.roles
        for argument in role.program.args
    ]
    carried = tuple((name, value) for name, value in spec.option_env if name not in spec.copied)
    variables = [(env_source, spec.env), ("-x", carried)]
    variables += [(role.source, role.env) for role in spec.roles]
    variables += [(host.source, host.env) for host in hosts]
    # Values may be secret: messages do not have them.
    written += [(where, f"variable {name}", value) for where, env in variables for name, value in env]
    return written


def oversized(spec: JobSpec, placement: Placement) -> Iterator[Fault]:
    """Yield the faults of variables and arguments that are too long for the kernel.

    Only the first task of each role is checked. A ClusterSpec of about 6,200 tasks is too long.
    """
    cluster = cluster_of(placement, dict.fromkeys((placed.task for placed in placement.tasks), _LONGEST_PORT))
    tasks = plural(len(placement.tasks), "task")
    found = set()
    for placed in placement.tasks:
        if placed.task.index:
            continue
        plan = completed(_task_plan(spec, placed, _LONGEST_PORT), cluster)
        strings = {name: f"{name}={value}" for name, value in plan.env.items()}
        words = enumerate(plan.argv)
        strings.update((f"argument {number} of {placed.task.role}", word) for number, word in words)
        for label, text in strings.items():
            size = len(text.encode("utf-8", "surrogateescape")) + 1
            if size > MAX_ARGUMENT_BYTES and label not in found:
                found.add(label)
                problem = f"{label} takes {size:,} bytes in a job of {tasks}"
                expected = f"expected at most {MAX_ARGUMENT_BYTES:,}, the limit of Linux"
                if label in _CLUSTER_VARIABLES:
                    expected += "; short `address:` entries of the hosts make it shorter"
                yield Fault("", problem, expected)
