"""Makes the options of a launch: levels of settings -> settings -> roles -> job -> hosts -> backend.

Each step returns its faults, or adds them to a list, and `JobError` is raised once, with all of them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence

from launcher import backends
from launcher.backends import from_settings
from launcher.backends.docker.rows import DOCKER
from launcher.backends.fleet import this_machine
from launcher.backends.kubernetes.rows import KUBERNETES
from launcher.backends.launch_request import ConnectSettings
from launcher.common.errors import Fault, InputError, JobError
from launcher.common.record import Record
from launcher.common.text import join_names
from launcher.common.trusted_io import open_regular
from launcher.config import table
from launcher.config.options import Target, carried_variables, roles_with_drain
from launcher.config.project import find_project_file
from launcher.config.settings import (
    COMMAND_LINE,
    FileContent,
    Given,
    Level,
    Setting,
    Settings,
    SourceKind,
    merge,
)
from launcher.config.values import JOB_FILE_ENDINGS
from launcher.job import (
    OUTPUT_DIR_VARIABLE,
    SERVICE_ROLES,
    Host,
    JobSpec,
    OnFailure,
    Policy,
    Program,
    ProgramKind,
    Role,
    deciding_roles,
)
from launcher.job import RELAY_VARIABLE as RELAY_VARIABLE
from launcher.launch.notices import print_notice
from launcher.launch.options import COMMAND_LINE as ON_COMMAND_LINE
from launcher.launch.options import LaunchOptions, Sources
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
#: Options that few programs have: a note warns if they come after the program.
_LAUNCH_OPTIONS = (
    "--ps", "--workers", "--chief", "--evaluator", "--hosts", "--docker", "--restarts", "--timeout", "--sync",
    "--detach", "--dry-run",
)  # fmt: skip
#: Bytes of a file that show what it is.
_START_OF_FILE = 1 << 16
_SHOW_OUTPUT = (table.FOLD, table.SHOW, table.TIMESTAMPS, table.TMUX)
#: A setting, those that contradict it, and why.
_CONFLICTS: tuple[tuple[Setting[bool], tuple[Setting[object], ...], str], ...] = (
    (table.JSON, (table.QUIET, *_SHOW_OUTPUT), "--json prints everything as JSON"),
    (
        table.DETACH,
        (table.JSON, table.EVENTS_FD, *_SHOW_OUTPUT),
        "launch attach and launch logs show the output of tasks",
    ),
)


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
    faults: list[Fault] = [*words.faults]
    notes: list[str] = []
    rows = from_settings.all_rows()
    command_line, _ = merge([words.level], rows)
    own_roles = bool(words.job_file) or command_line.is_given(table.ROLES_FD)
    file = _job_file(words, command_line) if own_roles else FileContent()
    name = file.roles[0].program.name if file.roles else "".join(words.command[:1])
    project = FileContent() if words.job_file else _project_file(command_line, name)
    faults += [*file.faults, *project.faults]
    notes += file.notes
    levels = [implied, project.level, file.level, words.level]
    settings, more = merge(levels, rows)
    faults += more
    if own_roles:
        roles = file.roles
    else:
        roles = _roles(settings, words, faults)
        notes += _misplaced(settings, words)
    roles = tuple(_with_gpus(role, settings[table.GPUS]) for role in roles)
    workdir = settings[table.WORKDIR]
    if workdir is not None and settings.source_kind(table.WORKDIR) == SourceKind.PROJECT_FILE:
        roles = tuple(role._replace(program=_from(workdir, role.program)) for role in roles)
    spec = _job(settings, roles, faults, notes)
    faults += _done_when_faults(settings, roles)
    named = settings[table.HOSTS] is not None
    hosts = _hosts(settings, faults)
    faults += check_placeholders(spec, hosts, settings.source(table.ENV))
    faults += check_descriptors(spec, hosts, settings.source(table.ENV))
    faults += _path_faults(settings)
    faults += _api_faults(settings, words.command)
    faults += _value_as_program(settings, words)
    faults += () if own_roles else _job_file_as_program(words.command)
    chosen = from_settings.parse_backends(settings, spec, named, words.engine)
    name, *others = backends.asked_for(chosen, words.engine)
    if others:
        problem = f"{' and '.join([name, *others])} can't start the same tasks"
        faults.append(Fault(ON_COMMAND_LINE, problem, "expected one of them"))
    # A backend that only the environment implies is not used if the user asks for another one.
    chosen = {
        each: None if getattr(found, "implied", False) and each != name else found
        for each, found in chosen.items()
    }
    backend = backends.backends()[name]
    other_machines = named or backend.provides_hosts
    if not other_machines:
        hosts = (this_machine(os.environ, print_notice),)
    faults += _conflicts(settings)
    logdir = settings[table.TENSORBOARD]
    if logdir is not None:
        own_container = backend.runs_in_containers and not other_machines
        spec = _with_tensorboard(spec, logdir, own_container, settings.source(table.TENSORBOARD), faults)
    # Faults may hide which hosts and backends the user asks for.
    hides_hosts = bool(file.faults or project.faults or words.faults)
    wrong = {fault.where for fault in words.faults}
    hides_backend = bool(file.faults or project.faults or wrong & {DOCKER.flag, KUBERNETES.flag})
    met = from_settings.met_needs(chosen, backend.runs_in_containers, other_machines or hides_hosts)
    faults += () if hides_backend else from_settings.need_faults(settings, met)
    for each in chosen:
        if chosen[each] is not None or not hides_backend:
            faults += from_settings.backend_faults(
                each, settings, spec, chosen, named, backend.runs_in_containers
            )
    notes += from_settings.backend_notes(chosen["slurm"], named)
    if (
        backend.runs_in_containers
        and not other_machines
        and settings.is_given(table.COLLECT)
        and not words.faults
    ):
        problem = "the option is about other machines, and none is named"
        faults.append(Fault(settings.source(table.COLLECT), problem, "expected --hosts, or --output-dirs"))
    if backend.runs_in_containers and spec.venv:
        problem = f"containers do not have the environment {spec.venv!r}"
        faults.append(Fault(settings.source(table.VENV), problem, "expected an image with its packages"))
    if settings.source_kind(table.SYNC) == SourceKind.JOB_FILE and not other_machines:
        notes.append(
            f"{settings.source(table.SYNC)}: sync: is not used: all tasks run on this machine, in its folders"
        )
    if faults:
        raise JobError(faults)
    return LaunchOptions(
        spec,
        hosts,
        hosts_text=command_line[table.HOSTS],  # type: ignore[arg-type]
        hosts_named=named,
        backend_name=name,
        settings=chosen,
        connect_settings=ConnectSettings(
            settings[table.CONNECT_TIMEOUT], settings[table.FANOUT], settings[table.LEASE]
        ),
        check=not settings[table.NO_CHECK],
        tensorboard=logdir,
        relay=settings[table.RELAY],
        sync=settings[table.SYNC] if other_machines else (),
        collect=settings[table.COLLECT],
        run_dir=settings[table.RUN_DIR],
        report=settings[table.REPORT],
        show=settings[table.SHOW],
        fold=settings[table.FOLD],
        verbose=settings[table.VERBOSE],
        timestamps=settings[table.TIMESTAMPS],
        quiet=settings[table.QUIET],
        json=settings[table.JSON],
        tmux=settings[table.TMUX],
        detach=settings[table.DETACH],
        last_lines=not settings[table.NO_LAST_LINES],
        dry_run=settings[table.DRY_RUN],
        events_fd=settings[table.EVENTS_FD],
        commands_fd=settings[table.COMMANDS_FD],
        sources=Sources(
            workdir=settings.source(table.WORKDIR),
            python=settings.source(table.PYTHON),
            venv=settings.source(table.VENV),
            run_dir=settings.source(table.RUN_DIR),
            sync=settings.source(table.SYNC),
            collect=settings.source(table.COLLECT),
        ),
        notes=tuple(notes),
        defaults=tuple(_defaults_in_effect(settings, project.level, rows)),
    )


def _defaults_in_effect(settings: Settings, project: Level, rows: Sequence[Setting[object]]) -> Iterator[str]:
    """Yield the settings of a project file that nothing replaces, for the user: a section as one."""
    by_name = {row.name: row for row in rows}
    keys = {section.head.name: section.name for section in from_settings.SECTIONS}
    below = {row.name for section in from_settings.SECTIONS for row in section.rows} - keys.keys()
    for name, given in project.items():
        if name not in below and given in settings.parts(by_name[name]):
            yield f"{keys.get(name, by_name[name].key)}={given.text} ({given.source})"


# ---------------------------------------------------------------------- files


def _job_file(words: LaunchWords, settings: Settings) -> FileContent:
    """Read the job file, with the roles of the command line; without one only the roles of ``--roles-fd``."""
    from launcher.config import levels, schema

    roles: dict[str, object] = {name: {"count": count} for name, count in _counts(settings).items()}
    if (descriptor := settings[table.ROLES_FD]) is not None:
        with open(descriptor, encoding="utf-8") as stream:
            roles.update(json.load(stream))
    rows, sections = from_settings.launch_rows(), from_settings.SECTIONS
    path = words.job_file
    try:
        if not path:
            return levels.read_job("", ON_COMMAND_LINE, rows, sections, roles)
        text = schema.read_text(path, "job file", JobError)
        folder = os.path.dirname(os.path.abspath(path))
        return levels.read_job(text, path, rows, sections, roles, folder, _target(words, settings))
    except InputError as error:
        return FileContent(faults=error.faults)


def _target(words: LaunchWords, settings: Settings) -> Target:
    """Return what the command line says about a TFJob."""
    variables = carried_variables(settings[table.VARIABLES], os.environ, (), [], [])[0]
    asked = [row for row in (KUBERNETES, DOCKER) if settings.is_given(row)]
    engine = asked[0].name if asked else words.engine
    images = bool(engine) and not any(settings[row] for row in asked[:1])
    return Target(tuple(words.program), engine, images, frozenset(variables))


def _project_file(settings: Settings, program: str) -> FileContent:
    """Read the project file beside a ``.py`` program on this machine, or that of the current folder."""
    if settings[table.NO_DEFAULTS]:
        return FileContent()
    script = os.path.normpath(os.path.join(os.path.expanduser(settings[table.WORKDIR] or "."), program))
    is_script = script.endswith(".py") and os.path.isfile(script)
    try:
        return find_project_file(
            script if is_script else "", from_settings.launch_rows(), from_settings.SECTIONS
        )
    except InputError as error:
        return FileContent(faults=error.faults)


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
    return role if gpus is None or role.name == "ps" or role.sidecar else role._replace(gpus=gpus)


def _from(folder: str, program: Program) -> Program:
    """Return the program of the command line, a path from here, as a path from the folder of the tasks."""
    is_script = program.kind is ProgramKind.SCRIPT
    is_path = is_script or (program.kind is ProgramKind.EXECUTABLE and "/" in program.name)
    if not is_path or program.name.startswith(("/", "~")) or not os.path.exists(program.name):
        return program
    name = os.path.relpath(program.name, os.path.expanduser(folder))
    return program._replace(name=name if is_script else os.path.join(".", name))


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
    drain = [f"{role}={seconds}" if role else f"{seconds}" for role, seconds in settings[table.DRAIN]]
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


def _with_tensorboard(
    spec: JobSpec, logdir: str, own_container: bool, source: str, faults: list[Fault]
) -> JobSpec:
    """Return the job with TensorBoard as a sidecar; a role of the same name is a fault."""
    twin = next((role for role in spec.roles if role.name == TENSORBOARD_ROLE), None)
    if twin is not None:
        problem = f'the job has a role "{TENSORBOARD_ROLE}" of its own'
        faults.append(Fault(source, problem, f"expected one of them: remove the role ({twin.source})"))
        return spec
    return spec._replace(roles=(*spec.roles, tensorboard_role(logdir, own_container, source)))


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


def _done_when_faults(settings: Settings, roles: Sequence[Role]) -> Iterator[Fault]:
    done_when = settings[table.DONE_WHEN]
    if roles and not deciding_roles(roles, done_when):
        problem = f"there is no role {done_when!r}, so no task decides when the job is done"
        names = dict.fromkeys(["chief", "workers", *(role.name for role in roles if not role.sidecar)])
        yield Fault(settings.source(table.DONE_WHEN), problem, f"expected one of {', '.join(names)}")


def _misplaced(settings: Settings, words: LaunchWords) -> Iterator[str]:
    """Yield notes on an empty program, and on its arguments that look like options of launch.

    ``--`` before the program prevents them: the program may have options of the same names.
    """
    command = words.command
    if words.is_marked or not command:
        return
    program = command[0] if command[0] != "-c" else "the code"
    if command[0] == "-m":
        program = " ".join(command[:2])
    elif program.endswith(".py") and os.path.isfile(program) and not os.path.getsize(program):
        yield f"{program} is empty: its tasks do nothing"
    given = {row.flag for row in from_settings.all_rows() if settings.source_kind(row) == COMMAND_LINE}
    for argument in command[1:]:
        option = argument.partition("=")[0]
        if option in _LAUNCH_OPTIONS and option not in given:
            yield f"{option} is an argument of {program}: the options of launch come before the program"


def _path_faults(settings: Settings) -> Iterator[Fault]:
    """Yield faults of the paths of ``--relay`` and ``--report``, before the job starts."""
    relay, report = settings[table.RELAY], settings[table.REPORT]
    if relay is not None and not (os.path.exists(relay) and stat.S_ISSOCK(os.stat(relay).st_mode)):
        expected = "expected the path of a unix socket that a process listens on"
        yield Fault("--relay", f"{relay!r} is not a socket", expected)
    if report is None:
        return
    if not report or os.path.isdir(report):
        yield Fault("--report", f"{report!r} is not the name of a file")
    elif not os.path.isdir(os.path.dirname(os.path.abspath(report))):
        yield Fault("--report", f"{report!r}: its folder does not exist", "expected a folder that exists")


def _api_faults(settings: Settings, command: Sequence[str]) -> Iterator[Fault]:
    """Yield the fault that ``options=`` of the Python API contain a program, which would run instead.

    The API gives its own options after those of the user. So they are words of that program.
    """
    if (
        settings.is_given(table.EVENTS_FD)
        and not settings.is_given(table.COMMANDS_FD)
        and "--commands-fd" in command
    ):
        word = "--" if not command or command[0] == "--commands-fd" else command[0]
        expected = "expected options of launch only: the program is an argument of its own"
        yield Fault("options", f"{word!r} ends the options", expected)


def _value_as_program(settings: Settings, words: LaunchWords) -> Iterator[Fault]:
    """Yield the fault that a value is the program: ``--tensorboard logs train.py``, ``--hosts a b train.py``.

    ``--`` before the program prevents it: the program may be in an image, or on other machines.
    """
    command = words.program if words.job_file else words.command
    lacks_folder = (
        settings[table.TENSORBOARD] == "" and settings.source_kind(table.TENSORBOARD) == COMMAND_LINE
    )
    names_hosts = settings.source_kind(table.HOSTS) == COMMAND_LINE
    if not lacks_folder and not names_hosts:
        return
    if words.is_marked or len(command) < 2 or command[0][:1] in ("", "-"):
        return
    name, following = command[:2]
    if name.endswith(".py") or os.path.isfile(name) or shutil.which(name):
        return
    begins = following.partition("=")[0] in (*_LAUNCH_OPTIONS, "--", "-m", "-c")
    if not begins and not following.endswith((".py", *JOB_FILE_ENDINGS)) and not shutil.which(following):
        return
    problem = f"{name!r} would be the program, and {following!r} its argument"
    if lacks_folder:
        expected = f"use --tensorboard={name} for a folder, or -- before a program"
        yield Fault("--tensorboard", problem, expected)
    elif re.fullmatch(r"[\w.:@\[\]-]+", name):
        yield Fault("--hosts", problem, f"for several hosts use --hosts {settings[table.HOSTS]},{name}")


def _job_file_as_program(command: Sequence[str]) -> Iterator[Fault]:
    """Yield the fault that the program is a job file whose name does not say so."""
    name = command[0] if command else ""
    if name.startswith("-") or name.endswith(".py") or not os.path.isfile(name):
        return
    if "/" not in name and shutil.which(name):
        return
    try:
        with open_regular(name) as file:
            start = file.read(_START_OF_FILE)
    except OSError:
        return
    is_json = start.lstrip().startswith(b"{")
    pattern = rb'"(roles|apiVersion)"\s*:' if is_json else rb"(?m)^(roles|apiVersion)[ \t]*:"
    if re.search(pattern, start) and b"\0" not in start and not start.startswith(b"#!"):
        expected = f"expected a name that ends with one of {join_names(JOB_FILE_ENDINGS)}"
        yield Fault(name, "this is a job file", expected)


def _conflicts(settings: Settings) -> Iterator[Fault]:
    """Yield faults of options that contradict each other."""
    for row, others, why in _CONFLICTS:
        if not settings[row] or (row is table.JSON and settings[table.DRY_RUN]):
            continue
        for other in filter(settings.is_given, others):
            problem = f"{row.flag} and {other.flag} both"
            yield Fault(ON_COMMAND_LINE, problem, f"expected one of them: {why}")
