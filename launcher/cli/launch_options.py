"""Makes the options of a launch from the command line and the job file."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher import backends
from launcher.backends.fleet import this_machine
from launcher.backends.launch_request import Asked
from launcher.cli.connecting import check_current_folder, reaching
from launcher.common.errors import Fault, InputError, JobError, LaunchError
from launcher.common.text import join_names
from launcher.common.trusted_io import open_regular
from launcher.config.defaults import Defaults, find_defaults
from launcher.config.options import JobFile, Target, carried_variables, roles_with_drain
from launcher.config.values import JOB_FILE_ENDINGS, duration
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
    deciding_roles,
)
from launcher.launch.notices import print_notice
from launcher.launch.options import COMMAND_LINE, LaunchOptions, Sources
from launcher.launch.tensorboard import ROLE as TENSORBOARD
from launcher.launch.tensorboard import tensorboard_role
from launcher.scheduler.plan import check_descriptors, check_placeholders

#: Options that are also keys of job files; the command line overrides the file.
_FILE_KEYS = (
    "collect", "done_when", "flags", "grace", "hosts", "on_failure", "output_dirs", "preload", "python",
    "restart", "restarts", "run_dir", "stall", "sync", "tensorboard", "timeout", "venv", "workdir",
)  # fmt: skip
#: Role -> its option.
_COUNT_OPTIONS = {"chief": "chief", "worker": "workers", "ps": "ps", "evaluator": "evaluator"}
#: Options that need no check.
_UNCHECKED = (
    "commands_fd", "detach", "dry_run", "events_fd", "fold", "json", "quiet", "relay", "report", "show",
    "timestamps", "tmux", "verbose",
)  # fmt: skip
#: Options that few programs have: a note warns if they come after the program.
_LAUNCH_OPTIONS = (
    "--ps", "--workers", "--chief", "--evaluator", "--hosts", "--docker", "--restarts", "--timeout", "--sync",
    "--detach", "--dry-run",
)  # fmt: skip
#: Bytes of a file that show what it is.
_FILE_START_BYTES = 1 << 16
#: Options about other machines. Not ``--relay``: the Python API always gives it, and does not know whether a
#: job file names hosts.
_HOST_OPTIONS = ("sync", "lease", "fanout", "connect_timeout", "accept_new_host_keys", "no_check")


def read_options(
    args: argparse.Namespace, command: Sequence[str], job_file: str, program: Sequence[str] = ()
) -> LaunchOptions:
    """Make the options of a launch.

    Args:
        args: the parsed command line.
        command: the program and its arguments; or the job file and options, which ``args`` includes.
        job_file: the path of the job file; empty: there is none.
        program: that follows the job file, and its arguments.

    Raises:
        InputError: options are wrong; all faults at once.
    """
    check_current_folder()
    faults: list[Fault] = list(args.faults)
    notes: list[str] = []
    own_roles = bool(job_file) or args.roles_fd is not None
    file = _job_file(job_file, args, program) if own_roles else JobFile()
    faults += file.faults
    notes += file.notes
    name = file.roles[0].program.name if file.roles else "".join(command[:1])
    defaults = Defaults() if job_file else _defaults(args, name)
    faults += defaults.file.faults
    if own_roles:
        roles = file.roles
    else:
        roles = _roles(args, command, defaults.file, faults)
        notes += _misplaced(args, command)
    gpus = defaults.file.settings.get("gpus") if args.gpus is None else args.gpus
    if gpus is not None:
        without = {"ps", *(role.name for role in roles if role.sidecar)}
        roles = tuple(r if r.name in without else r._replace(gpus=gpus) for r in roles)
    given = {name: getattr(args, name) for name in _FILE_KEYS if _is_given(args, name)}
    where = {
        **defaults.file.sources,
        **file.sources,
        **{name: f"--{name.replace('_', '-')}" for name in given},
    }
    settings: dict[str, Any] = {}
    for level in (defaults.file.settings, file.settings, given):
        for name, other in (("python", "venv"), ("venv", "python")):
            if name in level:
                settings.pop(other, None)
        settings.update(level)
    if not settings.get("restarts") and where.get("restart") == defaults.file.sources.get("restart"):
        settings.pop("restart", None)  # it is for launches with --restarts
    if "workdir" in defaults.file.settings and "workdir" not in given:
        roles = tuple(role._replace(program=_from(settings["workdir"], role.program)) for role in roles)
    if "python" in settings and "venv" in settings:
        problem = f"{where['python']} names the Python of the tasks, too"
        faults.append(Fault(where["venv"], problem, "expected one of them"))
    spec = _job(args, roles, settings, faults, notes)
    if roles and not deciding_roles(roles, spec.policy.done_when):
        problem = f"there is no role {spec.policy.done_when!r}, so no task decides when the job is done"
        names = dict.fromkeys(["chief", "workers", *(role.name for role in roles if not role.sidecar)])
        expected = f"expected one of {', '.join(names)}"
        faults.append(Fault(where["done_when"], problem, expected))
    named = settings.get("hosts") is not None
    hosts = _hosts(settings.get("hosts"), where.get("hosts", ""), faults)
    faults += check_placeholders(spec, hosts, where.get("env", ""))
    faults += check_descriptors(spec, hosts, where.get("env", ""))
    faults += _path_faults(args)
    faults += _api_faults(args, command)
    faults += _value_as_program(args, program if job_file else command)
    faults += () if own_roles else _job_file_as_program(command)
    sections = {**defaults.file.sections, **file.sections}
    folder = defaults.folder or os.path.dirname(os.path.abspath(job_file))
    asked = {
        name: Asked(args, sections.get(name), folder, named, spec, implied=name == args.engine)
        for name in backends.backends()
    }
    chosen = {name: backend.settings(asked[name]) for name, backend in backends.backends().items()}
    name, *others = backends.asked_for(chosen, args.engine)
    if others:
        problem = f"{' and '.join([name, *others])} can't start the same tasks"
        faults.append(Fault(COMMAND_LINE, problem, "expected one of them"))
    # A transport that only the environment implies is not used if the user asks for another one.
    chosen = {
        each: None if getattr(found, "implied", False) and each != name else found
        for each, found in chosen.items()
    }
    backend = backends.backends()[name]
    other_machines = named or backend.provides_hosts
    if not other_machines:
        hosts = (this_machine(os.environ, print_notice),)
    faults += _conflicts(args, other_machines or bool(file.faults or defaults.file.faults or args.faults))
    logdir = settings.get("tensorboard")
    if logdir is not None:
        own_container = backend.runs_in_containers and not other_machines
        spec = _with_tensorboard(spec, logdir, own_container, where["tensorboard"], faults)
    unknown = _may_be_asked_for((file, defaults.file), args)
    for each, found in backends.backends().items():
        asked_now = asked[each]._replace(spec=spec, in_containers=backend.runs_in_containers)
        if chosen[each] is not None or not unknown:
            faults += found.faults(asked_now, chosen[each])
        notes += found.notes(asked[each], chosen[each])
    if backend.runs_in_containers and not other_machines and "collect" in settings and not args.faults:
        problem = "the option is about other machines, and none is named"
        faults.append(Fault(where["collect"], problem, "expected --hosts, or --output-dirs"))
    if backend.runs_in_containers and spec.venv:
        problem = f"containers do not have the environment {spec.venv!r}"
        faults.append(Fault(where["venv"], problem, "expected an image with its packages"))
    if "sync" in file.settings and "sync" not in given and not other_machines:
        notes.append(f"{where['sync']}: sync: is not used: all tasks run on this machine, in its folders")
    if faults:
        raise JobError(faults)
    return LaunchOptions(
        spec,
        hosts,
        hosts_text=args.hosts,
        hosts_named=named,
        backend_name=name,
        settings=chosen,
        connect_settings=reaching(args),
        check=not args.no_check,
        tensorboard=logdir,
        sync=tuple(settings.get("sync", ())) if other_machines else (),
        collect=tuple(settings.get("collect", ())),
        run_dir=settings.get("run_dir"),
        last_lines=not args.no_last_lines,
        sources=Sources(*(where.get(name, "") for name in Sources._fields)),
        notes=tuple(notes),
        defaults=tuple(_defaults_in_effect(args, defaults.shown)),
        **{name: getattr(args, name) for name in _UNCHECKED},
    )


def program_command(args: argparse.Namespace) -> list[str]:
    """The program and its arguments."""
    if args.module is not None:
        return ["-m", *args.module, *args.program]  # argparse ends args.module at a "--"
    if args.code is not None:
        return ["-c", *args.code, *args.program]
    command: list[str] = args.program
    return command[1:] if command[:1] == ["--"] else command


def _is_given(args: argparse.Namespace, name: str) -> bool:
    """Whether the command line has an option; its value may be 0."""
    value = getattr(args, name)
    return value is not None and value is not False and value != []


def _misplaced(args: argparse.Namespace, command: Sequence[str]) -> Iterator[str]:
    """Notes on an empty program, and on its arguments that look like options of launch.

    ``--`` before the program prevents them: the program may have options of the same names.
    """
    if args.program[:1] == ["--"] or not command:
        return
    program = command[0] if args.code is None else "the code"
    if args.module is not None:
        program = " ".join(command[:2])
    elif program.endswith(".py") and os.path.isfile(program) and not os.path.getsize(program):
        yield f"{program} is empty: its tasks do nothing"
    for argument in command[1:]:
        option = argument.partition("=")[0]
        if option in _LAUNCH_OPTIONS and not getattr(args, option[2:].replace("-", "_")):
            yield f"{option} is an argument of {program}: the options of launch come before the program"


# ---------------------------------------------------------------------- the job


def _counts(args: argparse.Namespace, defaults: Mapping[str, Any] = {}) -> dict[str, int]:
    """The number of tasks of each role that the command line, or else a default, names."""
    counts = {}
    for role, option in _COUNT_OPTIONS.items():
        count = getattr(args, option) if _is_given(args, option) else defaults.get(option)
        if count is not None:
            counts[role] = int(count)
    return counts


def _defaults(args: argparse.Namespace, program: str) -> Defaults:
    """The defaults beside a ``.py`` program on this machine; without any, those of the current folder."""
    if args.no_defaults:
        return Defaults()
    script = os.path.normpath(os.path.join(os.path.expanduser(args.workdir or "."), program))
    is_script = script.endswith(".py") and os.path.isfile(script)
    try:
        return find_defaults(script if is_script else "", backends.sections)
    except InputError as error:
        return Defaults(JobFile(faults=error.faults))


def _defaults_in_effect(args: argparse.Namespace, shown: Mapping[str, str]) -> Iterator[str]:
    """The defaults that no option replaces, for the user."""
    for key, text in shown.items():
        replaceable = key in (*_COUNT_OPTIONS.values(), "gpus", *_FILE_KEYS)
        if not replaceable or not _is_given(args, key):
            yield text


def _from(folder: str, program: Program) -> Program:
    """The program of the command line, a path from here, as a path from the folder that tasks run in."""
    is_script = program.kind is ProgramKind.SCRIPT
    is_path = is_script or (program.kind is ProgramKind.EXECUTABLE and "/" in program.name)
    if not is_path or program.name.startswith(("/", "~")) or not os.path.exists(program.name):
        return program
    name = os.path.relpath(program.name, os.path.expanduser(folder))
    return program._replace(name=name if is_script else os.path.join(".", name))


def _job_file(path: str, args: argparse.Namespace, program: Sequence[str]) -> JobFile:
    """The job file, with the roles of the command line; an empty path: only the roles of ``--roles-fd``."""
    from launcher.config.jobfile import parse_job, read_job_file

    roles: dict[str, Any] = {name: {"count": count} for name, count in _counts(args).items()}
    if args.roles_fd is not None:
        with open(args.roles_fd, encoding="utf-8") as stream:
            roles.update(json.load(stream))

    def read() -> JobFile:
        sections = backends.sections()
        if not path:
            return parse_job("", COMMAND_LINE, roles, sections)
        variables = carried_variables(args.env, os.environ, (), [], [])[0]
        asked = (name for name in ("kubernetes", "docker") if getattr(args, name) is not None)
        engine = next(asked, args.engine)
        images = bool(engine) and not getattr(args, engine)
        target = Target(tuple(program), engine, images, frozenset(variables))
        return read_job_file(path, roles, sections, target)

    try:
        file = read()
        unknown = any(fault.problem.startswith("unknown key") for fault in file.faults)
        return read() if unknown and add_installed(argparse.ArgumentParser(), args) else file
    except InputError as error:
        return JobFile(faults=error.faults)


def add_installed(parser: argparse.ArgumentParser, args: argparse.Namespace | None = None) -> bool:
    """Add the options of transports of installed packages.

    Args:
        parser: gets the options.
        args: gets the defaults of the options.

    Returns:
        Whether there are such transports.

    Raises:
        LaunchError: one can't be used.
    """
    found = backends.find_installed()
    parser.conflict_handler = "error"
    for name, backend in found.items():
        try:
            backend.add_options(parser)
        except argparse.ArgumentError as error:
            raise LaunchError(
                f"the transport {name!r} has an option that launch has already: {error}"
            ) from error
    if args is not None:
        parser.parse_args([], args)
    return bool(found)


def _roles(
    args: argparse.Namespace, command: Sequence[str], defaults: JobFile, faults: list[Fault]
) -> tuple[Role, ...]:
    """The roles of the command line."""
    try:
        program = Program.of(command)
    except ValueError as error:
        if not args.faults:  # the program may be the value of a wrong option
            faults.append(Fault("", str(error), "launch --help shows how"))
        return ()
    counts = _counts(args, defaults.settings) or {"worker": 1}
    if not any(counts.values()) and not args.faults:
        expected = "expected --workers N, --ps N, --chief or --evaluator"
        faults.append(Fault(COMMAND_LINE, "the job has no tasks", expected))
    found = []
    for name, count in counts.items():
        option = _COUNT_OPTIONS[name]
        source = COMMAND_LINE
        if not _is_given(args, option):
            source = defaults.sources.get(option, source)
        service = name in SERVICE_ROLES
        if count:
            found.append(
                Role(name, count, program, service=service, source=source, program_source=COMMAND_LINE)
            )
    return tuple(found)


def _job(
    args: argparse.Namespace,
    roles: tuple[Role, ...],
    settings: Mapping[str, Any],
    faults: list[Fault],
    notes: list[str],
) -> JobSpec:
    """Make the job from the options and from ``settings``, which merge the job file and the command line."""
    output_dirs = settings.get("output_dirs", False)
    taken = [
        name for name, given in ((OUTPUT_DIR_VARIABLE, output_dirs), (RELAY_VARIABLE, args.relay)) if given
    ]
    variables, copied = carried_variables(args.env, os.environ, taken, faults, notes)
    times = {"grace": 10.0, "timeout": 0.0, "stall": 0.0}
    for name in times.keys() & settings.keys():
        try:
            times[name] = duration(settings[name])
        except ValueError as error:
            faults.append(Fault(f"--{name}", f"{settings[name]!r} is not a duration", str(error)))
    if not settings.get("restarts"):
        without_effect = ["--restart"] if "restart" in settings else []
        without_effect += [f"restart: of {role.name}" for role in roles if role.restart]
        without_effect += [f"retryable: of {role.name}" for role in roles if role.retryable is not None]
        notes.extend(f"{option} has no effect without --restarts N" for option in without_effect)
    python, venv = settings.get("python", sys.executable), settings.get("venv")
    hosts, done_when = settings.get("hosts", "localhost"), settings.get("done_when", "")
    return JobSpec(
        roles_with_drain(roles, args.drain, done_when, faults, notes) if args.drain else roles,
        flags=settings.get("flags", False),
        env=settings.get("env", ()),
        option_env=tuple(variables.items()),
        copied=frozenset(copied),
        workdir=_absolute(settings.get("workdir") or "."),
        python=_absolute(python) if "/" in python else python,
        venv=_absolute(venv) if venv and "/" in venv else venv,
        prepare=f"launch prepare --hosts {shlex.quote(hosts) if isinstance(hosts, str) else 'HOSTS'}",
        policy=Policy(
            OnFailure(settings.get("on_failure", "stop")),
            times["grace"],
            times["timeout"] or None,
            settings["timeout"] if times["timeout"] else "",
            settings.get("restarts", 0),
            settings.get("restart", "auto"),
            times["stall"] or None,
            settings.get("stall", ""),
            done_when,
        ),
        preload=settings.get("preload", ()),
        output_dirs=output_dirs,
    )


def _with_tensorboard(
    spec: JobSpec, logdir: str, own_container: bool, source: str, faults: list[Fault]
) -> JobSpec:
    """The job with TensorBoard as a sidecar; a role of the same name is a fault."""
    twin = next((role for role in spec.roles if role.name == TENSORBOARD), None)
    if twin is not None:
        problem = f'the job has a role "{TENSORBOARD}" of its own'
        faults.append(Fault(source, problem, f"expected one of them: remove the role ({twin.source})"))
        return spec
    return spec._replace(roles=(*spec.roles, tensorboard_role(logdir, own_container, source)))


def _absolute(path: str) -> str:
    """An absolute path; ``~/`` stays: it is the home on the machine of the task."""
    return path if path.startswith("~") else os.path.abspath(path)


# ---------------------------------------------------------------------- hosts and faults


def _hosts(given: Sequence[Host] | str | None, source: str, faults: list[Fault]) -> tuple[Host, ...]:
    """The hosts that the user names.

    Args:
        given: hosts, a hostfile or a list; ``None``: none.
        source: the option or ``file:line`` of it.
        faults: new faults are appended.
    """
    if not isinstance(given, str):
        return tuple(given or ())
    from launcher.config.hostfile import read_hosts

    try:
        return read_hosts(given, source)
    except InputError as error:
        faults += error.faults
        return ()


def _may_be_asked_for(files: Sequence[JobFile], args: argparse.Namespace) -> bool:
    """Return whether faults of options or files hide which transports the user asks for."""
    texts = " ".join(map(str, args.faults))
    return any(file.faults for file in files) or any(f"--{name}" in texts for name in backends.backends())


def _path_faults(args: argparse.Namespace) -> Iterator[Fault]:
    """Faults of the paths of ``--relay`` and ``--report``, before the job starts."""
    relay, report = args.relay, args.report
    if relay is not None and not (os.path.exists(relay) and stat.S_ISSOCK(os.stat(relay).st_mode)):
        expected = "expected the path of a unix socket that a process listens on"
        yield Fault("--relay", f"{relay!r} is not a socket", expected)
    if report is None:
        return
    if not report or os.path.isdir(report):
        yield Fault("--report", f"{report!r} is not the name of a file")
    elif not os.path.isdir(os.path.dirname(os.path.abspath(report))):
        yield Fault("--report", f"{report!r}: its folder does not exist", "expected a folder that exists")


def _api_faults(args: argparse.Namespace, command: Sequence[str]) -> Iterator[Fault]:
    """Yield the fault that ``options=`` of the Python API contain a program, which would run instead.

    The API gives its own options after those of the user. So they are words of that program.
    """
    if args.events_fd is not None and args.commands_fd is None and "--commands-fd" in command:
        word = "--" if not command or command[0] == "--commands-fd" else command[0]
        expected = "expected options of launch only: the program is an argument of its own"
        yield Fault("options", f"{word!r} ends the options", expected)


def _value_as_program(args: argparse.Namespace, command: Sequence[str]) -> Iterator[Fault]:
    """Yield the fault that a value is the program: ``--tensorboard logs train.py``, ``--hosts a b train.py``.

    ``--`` before the program prevents it: the program may be in an image, or on other machines.
    """
    lacks_folder = args.tensorboard == ""
    if not lacks_folder and args.hosts is None:
        return
    if args.program[:1] == ["--"] or len(command) < 2 or command[0][:1] in ("", "-"):
        return
    import shutil  # 4 ms, needed only with these options

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
        yield Fault("--hosts", problem, f"for several hosts use --hosts {args.hosts},{name}")


def _job_file_as_program(command: Sequence[str]) -> Iterator[Fault]:
    """Yield the fault that the program is a job file whose name does not say so."""
    name = command[0] if command else ""
    if name.startswith("-") or name.endswith(".py") or not os.path.isfile(name):
        return
    import shutil  # 4 ms, needed only if there is such a file here

    if "/" not in name and shutil.which(name):
        return
    try:
        with open_regular(name) as file:
            start = file.read(_FILE_START_BYTES)
    except OSError:
        return
    is_json = start.lstrip().startswith(b"{")
    pattern = rb'"(roles|apiVersion)"\s*:' if is_json else rb"(?m)^(roles|apiVersion)[ \t]*:"
    if re.search(pattern, start) and b"\0" not in start and not start.startswith(b"#!"):
        expected = f"expected a name that ends with one of {join_names(JOB_FILE_ENDINGS)}"
        yield Fault(name, "this is a job file", expected)


def _conflicts(args: argparse.Namespace, other_machines: bool) -> Iterator[Fault]:
    """Faults of options that contradict each other, or have no effect."""
    for name in ("fold", "quiet", "show", "timestamps", "tmux"):
        if args.json and getattr(args, name) and not args.dry_run:
            expected = "expected one of them: --json prints everything as JSON"
            yield Fault(COMMAND_LINE, f"--json and --{name} both", expected)
    for name in ("tmux", "json", "fold", "show", "timestamps", "events_fd"):
        if args.detach and getattr(args, name) not in (None, False):
            expected = "expected one of them: launch attach and launch logs show the output of tasks"
            yield Fault(COMMAND_LINE, f"--detach and --{name.replace('_', '-')} both", expected)
    for name in _HOST_OPTIONS:
        if not other_machines and getattr(args, name):
            option = f"--{name.replace('_', '-')}"
            yield Fault(option, "the option is about other machines, and none is named", "expected --hosts")
