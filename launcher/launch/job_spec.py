"""The job of a launch, made from its settings: roles, their variables, and what happens when tasks fail.

`launcher.launch.build_options` calls its steps. Each returns what it makes, and the faults and notes that it
has found; none raises a fault, so that the user sees all of them at once.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

from launcher.common.errors import Fault, Note
from launcher.common.record import replace
from launcher.common.text import join_names
from launcher.config import table
from launcher.config.settings import Setting, Settings, SourceKind
from launcher.config.values import env_name
from launcher.job import (
    CHIEF_ROLES,
    OUTPUT_DIR_VARIABLE,
    RELAY_VARIABLE,
    RESERVED_VARIABLES,
    SERVICE_ROLES,
    JobSpec,
    OnFailure,
    Policy,
    Program,
    ProgramKind,
    Role,
    deciding_roles,
)
from launcher.launch.options import ON_COMMAND_LINE
from launcher.launch.tensorboard import ROLE as TENSORBOARD_ROLE
from launcher.launch.tensorboard import tensorboard_role

#: The setting with the number of tasks, by the name of the role.
_COUNTS: Mapping[str, Setting[int | None]] = {
    "chief": table.CHIEF,
    "worker": table.WORKERS,
    "ps": table.PS,
    "evaluator": table.EVALUATOR,
}


# ---------------------------------------------------------------------- roles


def counts_of(settings: Settings) -> dict[str, int]:
    """Return the number of tasks of each role that the settings mention."""
    # ``--chief`` and ``--evaluator`` are switches: one task or none.
    return {name: int(settings[row] or 0) for name, row in _COUNTS.items() if settings.is_given(row)}


def roles_of(settings: Settings, command: Sequence[str]) -> tuple[tuple[Role, ...], list[Fault]]:
    """Make the roles of a launch without a job file.

    Args:
        settings: The settings of the command line and the project file.
        command: The program and its arguments.

    Returns:
        The roles, and the faults. There are no roles if there is a fault.
    """
    try:
        program = Program.of(command)
    except ValueError as error:
        return (), [Fault("", str(error), "launch --help shows how")]
    counts = counts_of(settings) or {"worker": 1}
    if not any(counts.values()):
        expected = "expected --workers N, --ps N, --chief or --evaluator"
        return (), [Fault(ON_COMMAND_LINE, "the job has no tasks", expected)]
    roles = []
    for name, count in counts.items():
        in_project = settings.source_kind(_COUNTS[name]) == SourceKind.PROJECT_FILE
        source = settings.source(_COUNTS[name]) if in_project else ON_COMMAND_LINE
        service = name in SERVICE_ROLES
        role = Role(name, count, program, service=service, source=source, program_source=ON_COMMAND_LINE)
        roles += [role] if count else []  # ``--ps 0`` is no role.
    return tuple(roles), []


def _with_settings(role: Role, settings: Settings) -> Role:
    """Return a role with the number of GPUs of ``--gpus``, and a path that fits the working folder.

    Args:
        role: The role, from a job file or from the command line.
        settings: The settings of the launch.
    """
    gpus, workdir = settings[table.GPUS], settings[table.WORKDIR]
    # A ps or a sidecar, such as TensorBoard, uses a GPU only if its role says so.
    if gpus is not None and role.name != "ps" and not role.sidecar:
        role = replace(role, gpus=gpus)
    # The path of the program is relative to the folder in which it was typed, not to that of a project file.
    if workdir is not None and settings.source_kind(table.WORKDIR) == SourceKind.PROJECT_FILE:
        role = replace(role, program=_from_folder(workdir, role.program))
    return role


def _from_folder(folder: str, program: Program) -> Program:
    """Return a program whose relative path starts at this folder, and not at the current one."""
    is_script = program.kind is ProgramKind.SCRIPT
    is_path = is_script or (program.kind is ProgramKind.EXECUTABLE and "/" in program.name)
    # ``~`` is the home on the task's machine.
    if not is_path or program.name.startswith(("/", "~")) or not os.path.exists(program.name):
        return program
    name = os.path.relpath(program.name, os.path.expanduser(folder))
    # An executable without a slash would be looked up along ``PATH``.
    return replace(program, name=name if is_script else os.path.join(".", name))


# ---------------------------------------------------------------------- variables


def variables_of(
    written: Sequence[str], environ: Mapping[str, str], names_of_options: Collection[str] = ()
) -> tuple[dict[str, str], set[str], list[Fault | Note]]:
    """Return the variables that ``-x`` options set. Their forms are those of Open MPI's ``-x``.

    Args:
        written: The values of the options: ``NAME``, ``NAME=VALUE`` and ``PRE*``.
        environ: The environment of the launcher.
        names_of_options: The names of variables that other options set.

    Returns:
        The variables, the names of the variables that are copied from ``environ``, and faults and notes.
        These never contain a value, as it may be secret.
    """
    variables: dict[str, str] = {}
    copied: set[str] = set()
    found: list[Fault | Note] = []
    for text in written:
        name, equals, value = text.partition("=")
        if name.endswith("*") and not equals:
            matching = {key: environ[key] for key in environ if key.startswith(name[:-1])}
            if not matching:
                found.append(Note(f"-x {name}: no variable of launch has a name with this beginning"))
            # Each task gets values of its own for these variables: PWD always, the others because launch sets
            # them. They are set here if this launch runs in a task of another one.
            never_copied = {*RESERVED_VARIABLES, "PWD"}
            variables.update({key: value for key, value in matching.items() if key not in never_copied})
            copied |= matching.keys() - never_copied
            continue
        try:
            env_name(name)
            if name in names_of_options:
                raise ValueError("expected another name: an option of this launch sets this variable")
            variables[name] = value if equals else environ[name]
            # A later ``-x NAME=VALUE`` replaces the copy of an earlier ``-x NAME``.
            copied = copied - {name} if equals else copied | {name}
        except ValueError as error:
            found.append(Fault(f"-x {name}", f"{name!r} cannot be set", str(error)))
        except KeyError:
            expected = "expected NAME=VALUE, or the name of a variable that is set"
            found.append(Fault(f"-x {name}", f"{name} is not set here", expected))
    return variables, copied, found


# ---------------------------------------------------------------------- the job


def spec_of(settings: Settings, roles: Sequence[Role]) -> tuple[JobSpec, list[Fault | Note]]:
    """Make the job of these roles, and note settings that have no effect.

    Args:
        settings: The settings of the launch.
        roles: The roles of the job.

    Returns:
        The job, and the faults and notes about its variables and restarts.
    """
    # The user may not set a variable that one of these options sets.
    has_output_dirs = settings[table.OUTPUT_DIRS] or settings[table.OUTPUT_TO] is not None
    names_of_options = [OUTPUT_DIR_VARIABLE] if has_output_dirs else []
    names_of_options += [RELAY_VARIABLE] if settings[table.RELAY] else []
    variables, copied, found = variables_of(settings[table.VARIABLES], os.environ, names_of_options)
    found += _restart_notes(settings, roles)
    hosts, python, venv = settings[table.HOSTS] or "localhost", settings[table.PYTHON], settings[table.VENV]
    spec = JobSpec(
        tuple(_with_settings(role, settings) for role in roles),
        flags=settings[table.FLAGS],
        env=settings[table.ENV],
        option_env=tuple(variables.items()),
        copied=frozenset(copied),
        workdir=_absolute(settings[table.WORKDIR] or "."),
        python=_absolute_if_path(python or sys.executable),
        venv=venv and _absolute_if_path(venv),
        # The command that makes environments on these hosts, for messages.
        prepare=f"launch prepare --hosts {shlex.quote(hosts) if isinstance(hosts, str) else 'HOSTS'}",
        policy=_policy(settings),
        preload=settings[table.PRELOAD],
        output_dirs=has_output_dirs,
        output_to=settings[table.OUTPUT_TO] or "",
    )
    return spec, found


def _policy(settings: Settings) -> Policy:
    """Return what happens when tasks fail, hang or take too long, according to the settings."""
    # A time of 0 for ``--timeout`` or ``--stall`` is the same as no limit, which is None in the policy.
    restarts, timeout = settings[table.RESTARTS], settings[table.TIMEOUT]
    return Policy(
        OnFailure(settings[table.ON_FAILURE]),
        grace=settings[table.GRACE],
        timeout=timeout or None,
        timeout_text=settings.text(table.TIMEOUT) if timeout else "",
        restarts=restarts,
        restart=table.RESTART.default if _is_for_other_launches(settings) else settings[table.RESTART],
        stall=settings[table.STALL] or None,
        stall_text=settings.text(table.STALL),
        done_when=settings[table.DONE_WHEN],
    )


def _is_for_other_launches(settings: Settings) -> bool:
    """Return whether ``restart`` of the project file has no effect here, because restarts are not enabled.

    The project file is for many launches, some of which enable them.
    """
    in_project = settings.source_kind(table.RESTART) == SourceKind.PROJECT_FILE
    return in_project and not settings[table.RESTARTS]


def _restart_notes(settings: Settings, roles: Sequence[Role]) -> Iterator[Note]:
    """Yield a note on each option that has no effect without ``--restarts``."""
    if settings[table.RESTARTS]:
        return
    is_written = settings.is_given(table.RESTART) and not _is_for_other_launches(settings)
    without_effect = ["--restart"] if is_written else []
    without_effect += [f"restart: of {role.name}" for role in roles if role.restart]
    without_effect += [f"retryable: of {role.name}" for role in roles if role.retryable is not None]
    for option in without_effect:
        yield Note(f"{option} has no effect without --restarts N")


def with_drain(spec: JobSpec, settings: Settings) -> tuple[JobSpec, list[Fault | Note]]:
    """Check ``--done-when``, and return the job with the times that ``--drain`` allows its tasks.

    ``--done-when`` names the roles whose tasks decide that the job is done. ``--drain ROLE=S`` lets the tasks
    of another role run on for S seconds after that, instead of being stopped at once. ``--drain S`` does so
    for all roles whose tasks may exit by themselves and whose job file says nothing else.

    Args:
        spec: The job. If it has no roles, they have faults.
        settings: The settings of the launch.

    Returns:
        The job, which is unchanged without ``--drain``, and the faults and notes for the user.
    """
    roles, done_when = spec.roles, settings[table.DONE_WHEN]
    found: list[Fault | Note] = []
    deciding = deciding_roles(roles, done_when)  # How many tasks of each role decide that the job is done.
    if roles and not deciding:
        problem = f"there is no role {done_when!r}, so no task decides when the job is done"
        known = dict.fromkeys(["chief", "workers", *(role.name for role in roles if not role.sidecar)])
        found.append(Fault(settings.source(table.DONE_WHEN), problem, f"expected one of {', '.join(known)}"))
    if not settings[table.DRAIN]:
        return spec, found
    times, faults_and_notes = _drain_times(roles, deciding, settings)
    drained = (replace(role, drain=times.get(role.name, role.drain)) for role in roles)
    return replace(spec, roles=tuple(drained)), [*found, *faults_and_notes]


def _drain_times(
    roles: Sequence[Role], deciding: Mapping[str, int], settings: Settings
) -> tuple[dict[str, float], list[Fault | Note]]:
    """Return for how many seconds the tasks of each role may run on after the job is done, by ``--drain``.

    Args:
        roles: The roles of the job. If there are none, they have faults.
        deciding: How many tasks of each role decide that the job is done, see `with_drain`.
        settings: The settings of the launch, with ``--drain``.

    Returns:
        The seconds by the name of the role, without roles for which the option says nothing. Faults, if it
        names roles whose tasks cannot run on, and a note if it has no effect.
    """
    found: list[Fault | Note] = []
    # The job is done only when all tasks of these roles have ended, so they never run on after it. With
    # ``--done-when`` it is a fault to name one of them; without it, only to name a chief.
    awaited = {role.name for role in roles if deciding.get(role.name) == role.count}
    without_drain = {*(awaited if settings[table.DONE_WHEN] else CHIEF_ROLES)}
    without_drain |= {role.name for role in roles if role.sidecar}
    names = sorted({role.name for role in roles} - without_drain)
    # These are the roles whose tasks may exit by themselves. A ps and most other services never do.
    may_exit = {role.name for role in roles if role.name == "evaluator" or not role.service} - without_drain
    with_own_time = {role.name for role in roles if role.drain is not None}
    times: dict[str, float] = {}
    for name, seconds in settings[table.DRAIN]:
        # The name is empty for ``--drain S``, which is for all roles. If the roles have faults, none is known
        # here, so every name is accepted.
        if name in names or not (name and roles):
            times[name] = seconds
        else:
            expected = f"expected ROLE=S with {join_names(names) or 'a worker, or an evaluator'}"
            problem = f"{name!r} cannot run on after the job is done"
            found.append(Fault(f"--drain {name}=", problem, expected))
    # The empty name stands for all roles. A role's own time, and a time for it by name, are stronger.
    if "" in times:
        times = {**dict.fromkeys(may_exit - with_own_time, times[""]), **times}
    if not any(role.name in times and (role.service or role.name not in awaited) for role in roles):
        found.append(Note("--drain has no effect: it is for workers beside a chief, and for an evaluator"))
    return times, found


def with_tensorboard(
    spec: JobSpec, settings: Settings, *, own_container: bool
) -> tuple[JobSpec, list[Fault]]:
    """Return the job with TensorBoard as a sidecar if the user asks for it.

    Args:
        spec: The job. A role of the same name is a fault.
        settings: The settings of the launch.
        own_container: Whether TensorBoard runs in a container on this machine, see `tensorboard_role`.

    Returns:
        The job, and the faults. It is unchanged without ``--tensorboard``, or if there is a fault.
    """
    folder, source = settings[table.TENSORBOARD], settings.source(table.TENSORBOARD)
    if folder is None:
        return spec, []
    for role in spec.roles:
        if role.name == TENSORBOARD_ROLE:
            problem = f'the job has a role "{TENSORBOARD_ROLE}" of its own'
            return spec, [Fault(source, problem, f"expected one of them: remove the role ({role.source})")]
    return replace(spec, roles=(*spec.roles, tensorboard_role(folder, own_container, source))), []


def _absolute(path: str) -> str:
    """Return an absolute path.

    A path that starts with ``~/`` stays, as it means the home on the task's machine.
    """
    return path if path.startswith("~") else os.path.abspath(path)


def _absolute_if_path(name: str) -> str:
    """Return an absolute path, or the bare name of a program, which is looked up along ``PATH``."""
    return _absolute(name) if "/" in name else name
