"""Makes the options of a launch: levels of settings -> settings -> roles -> job -> hosts -> backend.

Each step returns its faults, or adds them to a list, and `JobError` is raised once, with all of them.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from launcher import backends
from launcher.backends.backend import Backend
from launcher.backends.container_rows import ANY_CONTAINERS
from launcher.backends.docker.rows import DOCKER
from launcher.backends.fleet import this_machine
from launcher.backends.kubernetes.rows import KUBERNETES
from launcher.backends.launch_request import Asked
from launcher.common.errors import Fault, InputError, JobError
from launcher.common.record import Record, replace
from launcher.config import table
from launcher.config.defaults import find_defaults
from launcher.config.options import Target, carried_variables, roles_with_drain
from launcher.config.settings import (
    FileContent,
    Given,
    Level,
    Setting,
    Settings,
    SourceKind,
    merge,
)
from launcher.job import (
    OUTPUT_DIR_VARIABLE,
    RELAY_VARIABLE,
    SERVICE_ROLES,
    Host,
    JobSpec,
    OnFailure,
    Policy,
    Program,
    ProgramKind,
    Role,
)
from launcher.launch import option_faults
from launcher.launch.options import COMMAND_LINE as ON_COMMAND_LINE
from launcher.launch.options import LaunchOptions
from launcher.launch.tensorboard import ROLE as TENSORBOARD_ROLE
from launcher.launch.tensorboard import tensorboard_role
from launcher.scheduler.plan import check_descriptors, check_placeholders

#: Role -> the row of its number of tasks.
_COUNTS: Mapping[str, Setting[int | None]] = {
    "chief": table.CHIEF,
    "worker": table.WORKERS,
    "ps": table.PS,
    "evaluator": table.EVALUATOR,
}


class LaunchWords(Record):
    """What a command line says."""

    level: Level
    #: The program and its arguments, or the job file and all that follows it.
    command: Sequence[str]
    job_file: str = ""
    #: The program after a job file, and its arguments.
    program: Sequence[str] = ()
    #: Whether ``--`` is before the program, which may then have any name.
    is_marked: bool = False
    #: Faults of the values of options.
    faults: Sequence[Fault] = ()
    #: The backend that the command itself asks for, unless the user asks for another one.
    engine: str = ""


def build_options(words: LaunchWords, implied: Mapping[str, Given] = {}) -> LaunchOptions:
    """Make the options of a launch.

    Args:
        words: The command line.
        implied: What the command itself gives, as ``launch export slurm`` does.

    Raises:
        InputError: Options are wrong; all faults at once.
    """
    return _Builder(words, implied).build()


class _Builder:
    """Makes the options of one launch: each step below uses what the steps before it have found."""

    def __init__(self, words: LaunchWords, implied: Mapping[str, Given]) -> None:
        self.words = words
        self.faults: list[Fault] = [*words.faults]
        self.notes: list[str] = []
        #: What the command line alone says.
        self.command_line = merge([words.level], backends.rows())[0]
        #: Whether the roles are not made by options.
        self.has_roles = bool(words.job_file) or self.command_line.is_given(table.ROLES_FD)
        self.file = self._job_file() if self.has_roles else FileContent()
        self.project = FileContent() if words.job_file else self._project_file()
        levels = [implied, self.project.level, self.file.level, words.level]
        self.settings, faults = merge(levels, backends.rows())
        self.faults += [*self.file.faults, *self.project.faults, *faults]
        self.notes += self.file.notes
        #: Whether the user names the hosts.
        self.named = self.settings[table.HOSTS] is not None

    def build(self) -> LaunchOptions:
        """Return the options.

        Raises:
            JobError: With all faults.
        """
        settings, words = self.settings, self.words
        program = words.program if words.job_file else words.command
        spec = _job(settings, self._roles(), self.faults, self.notes)
        self.faults += option_faults.done_when_faults(settings, spec.roles)
        hosts = _hosts(settings, self.faults)
        self.faults += check_placeholders(spec, hosts, settings.source(table.ENV))
        self.faults += check_descriptors(spec, hosts, settings.source(table.ENV))
        self.faults += option_faults.path_faults(settings)
        self.faults += option_faults.api_faults(settings, self.words.command)
        self.faults += option_faults.value_as_program_faults(
            settings, program, is_marked=self.words.is_marked
        )
        self.faults += () if self.has_roles else option_faults.job_file_as_program_faults(self.words.command)
        self.faults += option_faults.conflict_faults(settings)
        name, chosen = self._backend(spec)
        backend = backends.backends()[name]
        other_machines = self.named or backend.provides_hosts
        if not other_machines:
            hosts = (this_machine(os.environ),)
        if settings[table.TENSORBOARD] is not None:
            own_container = backend.runs_in_containers and not other_machines
            spec = _with_tensorboard(spec, settings, own_container, self.faults)
        self._check_backends(spec, backend, chosen, other_machines)
        if backend.runs_in_containers:
            self.faults += option_faults.container_faults(
                settings, spec, other_machines or bool(self.words.faults)
            )
        if settings.source_kind(table.SYNC) == SourceKind.JOB_FILE and not other_machines:
            where = settings.source(table.SYNC)
            self.notes.append(f"{where}: sync: is not used: all tasks run on this machine, in its folders")
        if self.faults:
            raise JobError(self.faults)
        if not other_machines:  # nothing is copied
            settings = settings.with_values({table.SYNC: ()})
        return LaunchOptions(settings, spec, hosts, name, chosen, tuple(self.notes))

    # ------------------------------------------------------------------ files

    def _job_file(self) -> FileContent:
        """Read the job file, with the roles of the command line; without one only those of ``--roles-fd``."""
        from launcher.config.jobfile import parse_job, read_job_file

        roles: dict[str, Any] = {name: {"count": n} for name, n in _counts(self.command_line).items()}
        descriptor = self.command_line[table.ROLES_FD]
        if descriptor is not None:
            with open(descriptor, encoding="utf-8") as stream:
                roles.update(json.load(stream))

        def read() -> FileContent:
            if not self.words.job_file:
                return parse_job("", ON_COMMAND_LINE, roles, backends.sections())
            return read_job_file(self.words.job_file, roles, backends.sections(), self._target())

        try:
            file = read()
            unknown = any(fault.problem.startswith("unknown key") for fault in file.faults)
            return read() if unknown and backends.find_installed() else file
        except InputError as error:
            return FileContent(faults=error.faults)

    def _target(self) -> Target:
        """Return what the command line says about a TFJob."""
        variables = carried_variables(self.command_line[table.VARIABLES], os.environ, (), [], [])[0]
        asked = next((row for row in (KUBERNETES, DOCKER) if self.command_line.is_given(row)), None)
        engine = asked.name if asked else self.words.engine
        images = bool(engine) and not (asked and self.command_line[asked])
        return Target(tuple(self.words.program), engine, images, frozenset(variables))

    def _project_file(self) -> FileContent:
        """Read the project file beside a ``.py`` program on this machine, or that of the current folder."""
        if self.command_line[table.NO_DEFAULTS]:
            return FileContent()
        roles = self.file.roles
        program = roles[0].program.name if roles else "".join(self.words.command[:1])
        folder = os.path.expanduser(self.command_line[table.WORKDIR] or ".")
        script = os.path.normpath(os.path.join(folder, program))
        is_script = script.endswith(".py") and os.path.isfile(script)
        try:
            return find_defaults(script if is_script else "", backends.sections())
        except InputError as error:
            return FileContent(faults=error.faults)

    # ------------------------------------------------------------------ roles and backend

    def _roles(self) -> tuple[Role, ...]:
        """Return the roles of the file, or those of options."""
        settings, roles = self.settings, self.file.roles
        if not self.has_roles:
            roles = _roles(settings, self.words, self.faults)
            self.notes += option_faults.misplaced_options(
                settings, self.words.command, is_marked=self.words.is_marked
            )
        roles = tuple(_with_gpus(role, settings[table.GPUS]) for role in roles)
        workdir = settings[table.WORKDIR]
        if workdir is not None and settings.source_kind(table.WORKDIR) == SourceKind.PROJECT_FILE:
            roles = tuple(replace(role, program=_from(workdir, role.program)) for role in roles)
        return roles

    def _backend(self, spec: JobSpec) -> tuple[str, dict[str, Any]]:
        """Return the name of the backend, and the options of all backends that the user asks for."""
        engine = self.words.engine
        asked = Asked(self.settings, self.named, spec)
        found = {
            name: backend.parse(replace(asked, implied=name == engine))
            for name, backend in backends.backends().items()
        }
        name, *others = backends.asked_for(found, engine)
        if others:
            problem = f"{' and '.join([name, *others])} can't start the same tasks"
            self.faults.append(Fault(ON_COMMAND_LINE, problem, "expected one of them"))
        # A backend that only the environment implies is not used if the user asks for another one.
        unused = [
            each for each, options in found.items() if each != name and getattr(options, "implied", False)
        ]
        return name, {**found, **dict.fromkeys(unused)}

    def _check_backends(
        self, spec: JobSpec, backend: Backend, chosen: Mapping[str, Any], other_machines: bool
    ) -> None:
        """Add the faults and notes of all backends: options of one that is not used have no effect."""
        # Faults may hide which hosts and which backends the user asks for.
        in_files = bool(self.file.faults or self.project.faults)
        heads = {section.head.flag for section in backends.sections()}
        hides_backend = in_files or any(fault.where in heads for fault in self.words.faults)
        met = [table.OTHER_MACHINES] if other_machines or in_files or self.words.faults else []
        asked = Asked(self.settings, self.named, spec, in_containers=backend.runs_in_containers)
        for name, each in backends.backends().items():
            if chosen[name] is not None or not hides_backend:
                self.faults += each.faults(asked, chosen[name])
            self.notes += each.notes(asked, chosen[name])
            met += each.meets(chosen[name])
        # Pods are containers, too: their backend refuses what only Docker has.
        met += [ANY_CONTAINERS] if backend.runs_in_containers else []
        if not hides_backend:
            self.faults += option_faults.need_faults(self.settings, met)


# ---------------------------------------------------------------------- the job


def _counts(settings: Settings) -> dict[str, int]:
    """Return the number of tasks of each role that is given."""
    return {name: int(settings[row] or 0) for name, row in _COUNTS.items() if settings.is_given(row)}


def _roles(settings: Settings, words: LaunchWords, faults: list[Fault]) -> tuple[Role, ...]:
    """Return the roles of the command line and the project file."""
    try:
        program = Program.of(words.command)
    except ValueError as error:
        if not words.faults:  # the program may be the value of a wrong option
            faults.append(Fault("", str(error), "launch --help shows how"))
        return ()
    counts = _counts(settings) or {"worker": 1}
    if not any(counts.values()) and not words.faults:
        expected = "expected --workers N, --ps N, --chief or --evaluator"
        faults.append(Fault(ON_COMMAND_LINE, "the job has no tasks", expected))
    roles = []
    for name, count in counts.items():
        in_project = settings.source_kind(_COUNTS[name]) == SourceKind.PROJECT_FILE
        source = settings.source(_COUNTS[name]) if in_project else ON_COMMAND_LINE
        service = name in SERVICE_ROLES
        role = Role(name, count, program, service=service, source=source, program_source=ON_COMMAND_LINE)
        roles += [role] if count else []
    return tuple(roles)


def _with_gpus(role: Role, gpus: int | None) -> Role:
    """Return a role with this number of GPUs for each task; a ps and a sidecar get none."""
    return role if gpus is None or role.name == "ps" or role.sidecar else replace(role, gpus=gpus)


def _from(folder: str, program: Program) -> Program:
    """Return the program of the command line, a path from here, as a path from the folder of the tasks."""
    is_script = program.kind is ProgramKind.SCRIPT
    is_path = is_script or (program.kind is ProgramKind.EXECUTABLE and "/" in program.name)
    if not is_path or program.name.startswith(("/", "~")) or not os.path.exists(program.name):
        return program
    name = os.path.relpath(program.name, os.path.expanduser(folder))
    return replace(program, name=name if is_script else os.path.join(".", name))


def _job(settings: Settings, roles: tuple[Role, ...], faults: list[Fault], notes: list[str]) -> JobSpec:
    """Make the job of the settings."""
    taken = [OUTPUT_DIR_VARIABLE] if settings[table.OUTPUT_DIRS] else []
    taken += [RELAY_VARIABLE] if settings[table.RELAY] else []
    variables, copied = carried_variables(settings[table.VARIABLES], os.environ, taken, faults, notes)
    restart = settings[table.RESTART]
    if not settings[table.RESTARTS]:
        is_for_others = (
            settings.source_kind(table.RESTART) == SourceKind.PROJECT_FILE
        )  # for launches with --restarts
        restart = table.RESTART.default if is_for_others else restart
        without_effect = ["--restart"] if settings.is_given(table.RESTART) and not is_for_others else []
        without_effect += [f"restart: of {role.name}" for role in roles if role.restart]
        without_effect += [f"retryable: of {role.name}" for role in roles if role.retryable is not None]
        notes.extend(f"{option} has no effect without --restarts N" for option in without_effect)
    python, venv = settings[table.PYTHON] or sys.executable, settings[table.VENV]
    hosts = settings[table.HOSTS] or "localhost"
    drain = settings[table.DRAIN]
    return JobSpec(
        roles_with_drain(roles, drain, settings[table.DONE_WHEN], faults, notes) if drain else roles,
        flags=settings[table.FLAGS],
        env=settings[table.ENV],
        option_env=tuple(variables.items()),
        copied=frozenset(copied),
        workdir=_absolute(settings[table.WORKDIR] or "."),
        python=_absolute(python) if "/" in python else python,
        venv=_absolute(venv) if venv and "/" in venv else venv,
        prepare=f"launch prepare --hosts {shlex.quote(hosts) if isinstance(hosts, str) else 'HOSTS'}",
        policy=Policy(
            OnFailure(settings[table.ON_FAILURE]),
            settings[table.GRACE],
            settings[table.TIMEOUT] or None,
            settings.text(table.TIMEOUT) if settings[table.TIMEOUT] else "",
            settings[table.RESTARTS],
            restart,
            settings[table.STALL] or None,
            settings.text(table.STALL),
            settings[table.DONE_WHEN],
        ),
        preload=settings[table.PRELOAD],
        output_dirs=settings[table.OUTPUT_DIRS],
    )


def _with_tensorboard(spec: JobSpec, settings: Settings, own_container: bool, faults: list[Fault]) -> JobSpec:
    """Return the job with TensorBoard as a sidecar; a role of the same name is a fault."""
    source = settings.source(table.TENSORBOARD)
    twin = next((role for role in spec.roles if role.name == TENSORBOARD_ROLE), None)
    if twin is not None:
        problem = f'the job has a role "{TENSORBOARD_ROLE}" of its own'
        faults.append(Fault(source, problem, f"expected one of them: remove the role ({twin.source})"))
        return spec
    return replace(
        spec, roles=(*spec.roles, tensorboard_role(settings[table.TENSORBOARD] or "", own_container, source))
    )


def _absolute(path: str) -> str:
    """Return an absolute path; ``~/`` stays: it is the home on the machine of the task."""
    return path if path.startswith("~") else os.path.abspath(path)


# ---------------------------------------------------------------------- hosts and faults


def _hosts(settings: Settings, faults: list[Fault]) -> tuple[Host, ...]:
    """Return the hosts that the user names."""
    given = settings[table.HOSTS]
    if not isinstance(given, str):
        return given or ()
    from launcher.config.hostfile import read_hosts

    try:
        return read_hosts(given, settings.source(table.HOSTS))
    except InputError as error:
        faults += error.faults
        return ()
