"""Makes the options of a launch from its settings, the files of the user and the named hosts.

The command line and the Python API call `build_options` before anything is started. Its steps are: levels of
settings -> settings -> roles -> job -> hosts -> backend. Each returns what it makes, and the faults and notes
for the user that it has found. All faults are raised at once, so no step may stop at the first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher import backends
from launcher.backends.backend import LaunchRequest
from launcher.backends.containers import ANY_CONTAINERS
from launcher.backends.docker.rows import DOCKER
from launcher.backends.kubernetes.rows import KUBERNETES
from launcher.common.errors import Fault, InputError, JobError, Note
from launcher.common.record import replace
from launcher.config import table
from launcher.config.defaults import find_defaults
from launcher.config.documents import Target
from launcher.config.hostfile import read_hosts
from launcher.config.jobfile import parse_job, read_job_file
from launcher.config.settings import FileContent, Given, Settings, SourceKind, merge
from launcher.job import Host, JobSpec, Role
from launcher.launch import option_faults
from launcher.launch.job_spec import counts_of, roles_of, spec_of, variables_of, with_drain, with_tensorboard
from launcher.launch.options import ON_COMMAND_LINE, LaunchOptions, LaunchWords
from launcher.runs.run import Origin
from launcher.scheduler.plan import check_texts


def build_options(words: LaunchWords, engine: str = "", implied: Mapping[str, Given] = {}) -> LaunchOptions:
    """Make the options of a launch.

    Args:
        words: The command line.
        engine: The name of the backend that the command itself asks for, unless the user asks for another
            one. Empty if it asks for none.
        implied: Settings that the command itself implies, by their names, as ``launch export slurm`` does.

    Raises:
        InputError: Options are wrong. It contains all faults.
    """
    file, project = _read_files(words, engine)
    # The levels of settings, the weakest first. Settings of one level may exclude each other.
    settings, excluded = merge([implied, project.level, file.level, words.level], backends.rows())
    # Faults are collected until all checks are made, so that the user sees all of them at once.
    found: list[Fault | Note] = [*words.faults, *file.faults, *project.faults, *excluded]
    found += map(Note, file.notes)
    spec, hosts, faults_and_notes = _job_and_hosts(words, settings, file.roles)
    found += faults_and_notes

    request = LaunchRequest(run_name="", spec=spec, settings=settings, named_hosts=hosts)
    choice = backends.choose(settings, spec, hosts_named=request.hosts_named, engine=engine)
    in_containers = choice.backend.runs_in_containers
    other_machines = request.hosts_named or choice.backend.provides_hosts
    # Where TensorBoard runs depends on the backend. The request, which the backends check, contains its task.
    spec, faults = with_tensorboard(spec, settings, own_container=in_containers and not other_machines)
    found += [*choice.faults(), *faults]
    request, are_files_right = replace(request, spec=spec), not (file.faults or project.faults)
    found += _check_backends(request, choice, are_files_right=are_files_right, wrong=words.faults)
    if in_containers:
        # An option with a fault may have been meant to name other machines.
        found += option_faults.container_faults(settings, spec, other_machines or bool(words.faults))

    faults = [each for each in found if isinstance(each, Fault)]
    if faults:
        raise JobError(faults)
    if not other_machines:
        settings = settings.with_values({table.SYNC: ()})  # The tasks run in the folders of this machine.
    notes = tuple(each.text for each in found if isinstance(each, Note))
    return LaunchOptions(
        settings,
        spec=spec,
        hosts=hosts,
        backend=choice.backend,
        backend_options=choice.options[choice.name],
        notes=notes,
        origin=_origin_of(words, settings),
    )


def _job_and_hosts(
    words: LaunchWords, settings: Settings, roles: Sequence[Role]
) -> tuple[JobSpec, tuple[Host, ...], list[Fault | Note]]:
    """Return the job of a launch, the hosts that the user names, and the faults and notes about both.

    Args:
        words: The command line.
        settings: The settings of the launch.
        roles: The roles that files or ``--roles-fd`` describe.
    """
    found: list[Fault | Note] = []
    try:
        hosts = read_hosts(settings[table.HOSTS], settings.source(table.HOSTS))
    except InputError as error:
        hosts = ()
        found += error.faults
    if not words.has_roles:  # No file describes the roles, so options such as ``--workers`` do.
        roles, faults = roles_of(settings, words.command)
        found += () if words.faults else faults  # The program may be the value of a wrong option.
    spec, faults_and_notes = spec_of(settings, roles)
    found += [*faults_and_notes, *option_faults.program_faults(settings, words)]
    found += option_faults.name_faults(settings, roles)
    spec, faults_and_notes = with_drain(spec, settings)
    found += [*faults_and_notes, *check_texts(spec, hosts, settings.source(table.ENV))]
    return spec, hosts, found


def _origin_of(words: LaunchWords, settings: Settings) -> Origin:
    """Return what the folder of the run says about its start."""
    mark = ["--"] if words.is_marked else []
    program = [words.job_file, *mark, *words.program] if words.job_file else words.command
    return Origin(
        name=settings[table.NAME] or "",
        note=settings[table.NOTE] or "",
        folder=os.getcwd(),
        options=words.options,
        program=tuple(program),
        driver=settings[table.DRIVER] or "",
    )


def _read_files(words: LaunchWords, engine: str) -> tuple[FileContent, FileContent]:
    """Read the job file, or the project file (``launch.toml``, the defaults of a project) without a job file.

    Roles of the command line, and of ``--roles-fd``, replace those of the job file. The project file is
    beside a ``.py`` program on this machine, or in the current folder.

    Args:
        words: The command line.
        engine: The name of the backend that the command itself asks for, or empty.

    Returns:
        The contents of the job file and of the project file. A file that was not read has no content.
    """
    options, file = words.settings, FileContent()
    roles: dict[str, Any] = {name: {"count": count} for name, count in counts_of(options).items()}
    # A program that starts launch, such as the Python API, passes the roles as JSON in a file without a name.
    descriptor = options[table.ROLES_FD]
    if descriptor is not None:
        with open(descriptor, encoding="utf-8") as stream:
            roles.update(json.load(stream))
    if words.job_file:
        return _read_job_file(words, roles, engine), FileContent()
    if words.has_roles:  # Roles without a job file are checked as if they were in one.
        file = parse_job("", ON_COMMAND_LINE, roles, backends.sections())
    if options[table.NO_DEFAULTS]:
        return file, FileContent()
    # Without roles the first word after the options is the program. It is empty if there is none.
    program = file.roles[0].program.name if file.roles else "".join(words.command[:1])
    folder = os.path.expanduser(options[table.WORKDIR] or ".")
    script = os.path.normpath(os.path.join(folder, program))
    is_script = script.endswith(".py") and os.path.isfile(script)
    return file, find_defaults(script if is_script else "", backends.sections())


def _read_job_file(words: LaunchWords, roles: Mapping[str, Any], engine: str) -> FileContent:
    """Read the job file of a command line.

    Args:
        words: The command line.
        roles: The roles of the command line, which replace those of the file.
        engine: The name of the backend that the command itself asks for, or empty.
    """
    options = words.settings
    # A TFJob (a job file of Kubernetes) says neither which backend runs it nor whether its images are used:
    # the command line does.
    asked = next((row for row in (KUBERNETES, DOCKER) if options.is_given(row)), None)
    engine = asked.name if asked else engine
    # ``--docker IMAGE`` replaces the images of the file.
    has_images = bool(engine) and not (asked and options[asked])
    names = frozenset(variables_of(options[table.VARIABLES], os.environ)[0])
    target = Target(tuple(words.program), engine=engine, images=has_images, variables=names)
    file = read_job_file(words.job_file, roles, backends.sections(), target)
    # To look for backends of other packages takes time, so it is done only if a key may be one of theirs.
    has_unknown_key = any(fault.problem.startswith("unknown key") for fault in file.faults)
    if has_unknown_key and backends.find_installed():
        file = read_job_file(words.job_file, roles, backends.sections(), target)
    return file


def _check_backends(
    request: LaunchRequest, choice: backends.Choice, *, are_files_right: bool, wrong: Sequence[Fault]
) -> Iterator[Fault | Note]:
    """Yield what all backends find, because options of a backend that is not used have no effect.

    Args:
        request: The launch.
        choice: The backend that is used.
        are_files_right: Whether the files have no faults, which would hide what the user asks for.
        wrong: The faults of the command line.
    """
    settings, backend = request.settings, choice.backend
    other_machines = request.hosts_named or backend.provides_hosts
    heads = {section.head.flag for section in backends.sections()}
    # With a fault in a file or in ``--docker`` and its like, nobody knows which backend the user asks for.
    is_backend_known = are_files_right and not any(fault.where in heads for fault in wrong)
    # A fault may hide that the user names other machines. Then no option is refused because there are none.
    met_needs = [table.OTHER_MACHINES] if other_machines or wrong or not are_files_right else []
    # Pods are containers, too. Their backend refuses what is for Docker only.
    met_needs += [ANY_CONTAINERS] if backend.runs_in_containers else []
    for name, each in backends.backends().items():
        options = choice.options[name]  # None if this backend is not used.
        for found in each.check(options, request, backend):
            if options is not None or is_backend_known or isinstance(found, Note):
                yield found
        met_needs += each.met_needs(options)
    if is_backend_known:
        yield from option_faults.need_faults(settings, met_needs)
    if settings.source_kind(table.SYNC) == SourceKind.JOB_FILE and not other_machines:
        where = settings.source(table.SYNC)
        yield Note(f"{where}: sync: is not used: all tasks run on this machine, in its folders")
