"""Makes the plan: the command and the environment of every task, when the ports are known.

`launcher.launch` and the supervisor call it. The plan must not grow faster than the number of tasks. So it
contains the addresses of all tasks only once, and each agent completes the environments of its own tasks.
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

#: The Python of ``.py`` files where the user names none, looked up along the task's ``PATH``.
DEFAULT_PYTHON = "python3"
#: Matches the path of an open descriptor, also after an option, as in ``--config=/dev/fd/63``.
_DESCRIPTOR_PATTERN = r"(?:\S*[=,:@])?(?:/dev|/proc/self)/fd/([0-9]{1,9})"
#: The Python in a Python environment.
VENV_PYTHON = "python"

#: The beginnings of names of variables that Python, libraries and TensorFlow read while they are loaded.
_EARLY_PREFIXES = (
    "PYTHON", "LC_", "LANG", "PATH", "HOME", "LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_",
    "OPENBLAS_", "TF_CPP_", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS", "ONEDNN_", "KERAS_",
)  # fmt: skip

#: The kernel's limit for one argument or variable, with its NUL (``MAX_ARG_STRLEN``, execve(2)).
MAX_ARGUMENT_BYTES = 128 * 1024
#: The variables that contain the addresses of all tasks.
_CLUSTER_VARIABLES = ("TF_CONFIG", "CLUSTER_SPEC")
#: A port with the largest number of digits, for checks of lengths before ports are known.
_LONGEST_PORT = 65535


def cluster_of(placement: Placement, ports: Mapping[TaskId, int]) -> ClusterSpec:
    """Return the addresses of all tasks of a placement as a ClusterSpec.

    Args:
        placement: The placement.
        ports: The port of each task.

    Raises:
        KeyError: A task has no port.
    """
    addresses: dict[str, list[str]] = {}
    for placed in placement.tasks:
        addresses.setdefault(placed.task.role, []).append(placed.host.at(ports[placed.task]))
    return ClusterSpec(addresses, _sidecar_roles(placement))


def _sidecar_roles(placement: Placement) -> tuple[str, ...]:
    """Return the names of the roles that only accompany the job, such as that of TensorBoard."""
    return tuple(dict.fromkeys(placed.task.role for placed in placement.tasks if placed.role.sidecar))


def make_plan(spec: JobSpec, placement: Placement, ports: Mapping[TaskId, int]) -> Plan:
    """Return the plan by which agents start the tasks of a job.

    Args:
        spec: The job, in which `check_texts` has found no fault.
        placement: The hosts of its tasks.
        ports: The port that the agent of its host holds for each task.

    Raises:
        KeyError: A task has no port.
    """
    cluster = cluster_of(placement, ports)
    tasks = (_task_plan(spec, placed, ports[placed.task]) for placed in placement.tasks)
    return Plan(tuple(tasks), cluster.addresses, _sidecar_roles(placement))


def preloads(spec: JobSpec, on_host: Iterable[PlacedTask]) -> Iterator[Preload]:
    """Yield the commands that start the processes on a host which import the modules of ``--preload``.

    Tasks are forked from the same process if they have the same Python and Python environment, and the same
    values of all variables that are read during the import (`_EARLY_PREFIXES`). The process has those
    variables on which all its tasks agree.

    Args:
        spec: The job. Without ``--preload`` nothing is yielded.
        on_host: All tasks of the host.
    """
    groups: dict[tuple[object, ...], list[TaskPlan]] = {}
    for placed in on_host if spec.preload else ():
        task = _task_plan(spec, placed, _LONGEST_PORT)  # The ports are not known yet, and do not matter here.
        if len(task.argv) > 1:  # The command of any other program than Python is a single word here.
            early = [(name, value) for name, value in task.env.items() if name.startswith(_EARLY_PREFIXES)]
            groups.setdefault((task.argv[0], task.venv, frozenset(early)), []).append(task)
    for tasks in groups.values():
        first = tasks[0]
        common_env = dict(set.intersection(*(set(task.env.items()) for task in tasks)))
        names, python = tuple(task.task for task in tasks), first.argv[0]
        yield Preload(first.host, names, python, first.venv, modules=spec.preload, env=common_env)


def completed(task: TaskPlan, cluster: ClusterSpec) -> TaskPlan:
    """Return the plan of a task with all arguments and variables, as the agent completes it.

    Args:
        task: The plan of the task, whose arguments and variables may contain placeholders.
        cluster: The addresses of all tasks, or placeholders for them.
    """
    words, env = complete(cluster, task.task, task.args, task.flags, task.templates)
    return replace(task, argv=task.argv + words, env={**task.env, **env}, args=(), flags=False, templates={})


def _task_plan(spec: JobSpec, placed: PlacedTask, port: int) -> TaskPlan:
    """Return how the agent starts one task, from the settings of its job, role and host."""
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
    """Return the command line that runs a program, without the arguments of the program.

    Args:
        program: The program.
        python: The Python for a script, a module or code.
    """
    words: dict[ProgramKind, tuple[str, ...]] = {
        ProgramKind.SCRIPT: (python, program.name),
        ProgramKind.MODULE: (python, "-m", program.name),
        ProgramKind.CODE: (python, "-c", program.name),
        ProgramKind.EXECUTABLE: (program.name,),
    }
    return words[program.kind]


def _environment(spec: JobSpec, placed: PlacedTask) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment variables that are added for a task, without those of the ClusterSpec.

    A variable of the job is overridden by that of the host, then by that of the role, then by that of the
    command line. Users may override ``CUDA_VISIBLE_DEVICES``, but no other variable that launch sets.

    Returns:
        The variables with a fixed value, and those whose value may contain placeholders.
    """
    gpus = {} if placed.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(placed.gpus)}
    of_user = dict(spec.env + placed.host.env + placed.role.env + spec.option_env)
    of_launch = dict(placed.env)  # These are the variables that launch itself sets for the task or its host.
    # What was copied from the environment of launch may contain braces that are no placeholders.
    never_templates = spec.copied | of_launch.keys()
    templates = {name: text for name, text in of_user.items() if "{" in text and name not in never_templates}
    env = {**gpus, **of_user, **of_launch}
    return {name: value for name, value in env.items() if name not in templates}, templates


def check_texts(spec: JobSpec, hosts: Iterable[Host], env_source: str) -> Iterator[Fault]:
    """Yield the faults in programs, arguments and variables of tasks, before anything is started.

    One fault is a misspelt placeholder. The other is the path of a descriptor, which ``<(...)`` in the user's
    shell produces, because tasks have only the descriptors of stdin, stdout and stderr.

    Args:
        spec: The job.
        hosts: The hosts of the launch, whose variables are checked, too.
        env_source: Where the user wrote ``spec.env``, for messages.
    """
    written = _texts_of_user(spec, hosts, env_source)
    # Placeholders contain names of roles. The same mistake in one place is reported once.
    roles, reported = [role.name for role in spec.roles], set()
    for where, label, text in written:
        for name, meant in misspelt_placeholders(text, roles) if "{" in text else ():
            problem = f"{label}: there is no placeholder {{{name}}}"
            if (where, problem) not in reported:
                reported.add((where, problem))
                expected = f"did you mean {{{meant}}}? ({{{{{name}}}}} becomes the text {{{name}}})"
                yield Fault(where, problem, expected)
    programs = [
        (role.program_source or role.source, f"program {role.program.name!r}", role.program.name)
        for role in spec.roles
    ]
    for where, label, text in dict.fromkeys([*programs, *written]):
        match = re.fullmatch(_DESCRIPTOR_PATTERN, text) if "/fd/" in text else None
        if match and int(match[1]) > 2:  # Tasks have descriptors up to that of stderr.
            problem = f"{label} is a descriptor of this shell, as of <(...), which tasks do not have"
            yield Fault(where, problem, "expected the path of a file")


def _texts_of_user(spec: JobSpec, hosts: Iterable[Host], env_source: str) -> list[tuple[str, str, str]]:
    """Return all arguments and variables of tasks that the user wrote, for `check_texts`.

    Each is a tuple of the place where it is written, what messages call it, and its text.

    Args:
        spec: The job.
        hosts: The hosts of the launch.
        env_source: Where the user wrote ``spec.env``.
    """
    written = [
        (role.program_source or role.source, f"argument {argument!r}", argument)
        for role in spec.roles
        for argument in role.program.args
    ]
    # A copied value comes from the environment of launch, and may contain any text.
    option_env = tuple((name, value) for name, value in spec.option_env if name not in spec.copied)
    variables = [(env_source, spec.env), ("-x", option_env)]
    variables += [(role.source, role.env) for role in spec.roles]
    variables += [(host.source, host.env) for host in hosts]
    # Messages contain only the names of variables, because values may be secret.
    written += [(where, f"variable {name}", value) for where, env in variables for name, value in env]
    return written


def oversized(spec: JobSpec, placement: Placement) -> Iterator[Fault]:
    """Yield the faults of variables and arguments that are too long for the kernel.

    The variables with the addresses of all tasks are too long from about 6,200 tasks on. Only the first task
    of each role is checked, because the others differ in few characters.

    Args:
        spec: The job.
        placement: The hosts of its tasks.
    """
    cluster = cluster_of(placement, dict.fromkeys((placed.task for placed in placement.tasks), _LONGEST_PORT))
    tasks = plural(len(placement.tasks), "task")
    reported = set()
    for placed in placement.tasks:
        if placed.task.index:  # It is not the first task of its role.
            continue
        plan = completed(_task_plan(spec, placed, _LONGEST_PORT), cluster)
        # What messages call each variable and each argument, and its text.
        strings = {name: f"{name}={value}" for name, value in plan.env.items()}
        for number, word in enumerate(plan.argv):
            strings[f"argument {number} of {placed.task.role}"] = word
        for label, text in strings.items():
            size = len(text.encode("utf-8", "surrogateescape")) + 1
            if size > MAX_ARGUMENT_BYTES and label not in reported:
                reported.add(label)
                problem = f"{label} takes {size:,} bytes in a job of {tasks}"
                expected = f"expected at most {MAX_ARGUMENT_BYTES:,}, the limit of Linux"
                if label in _CLUSTER_VARIABLES:
                    expected += "; short `address:` entries of the hosts make it shorter"
                yield Fault("", problem, expected)
