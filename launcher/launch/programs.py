"""Checks before the job starts whether folders, programs and Pythons of tasks on this machine exist.

The session calls it, so that a misspelled name is found before anything is started. Agents on other machines
check the same when a task starts, with the same messages and exit codes.
"""

import os
from collections.abc import Collection, Iterator, Sequence

from launcher.agent.lookup import check_script, environment_variables, find_executable
from launcher.common.cluster import TaskId
from launcher.common.errors import Fault, JobError, LaunchError, ProgramError
from launcher.common.record import Record
from launcher.common.text import join_names
from launcher.config.settings import Settings
from launcher.config.table import COLLECT, DRY_RUN, OUTPUT_TO, PYTHON, REPORT, VENV, WORKDIR
from launcher.job import Host, PlacedTask, Placement, ProgramKind, Role
from launcher.launch.options import ON_COMMAND_LINE, LaunchOptions
from launcher.scheduler.plan import DEFAULT_PYTHON, VENV_PYTHON

_THIS_MACHINE = "localhost"


class _Missing(Record):
    """The reason why a task cannot be started."""

    #: ``file:line`` or the option that names the program. Empty if it is on the command line.
    where: str
    #: The first task of its role. Empty if the reason does not depend on the role.
    task: str
    #: The message, as an error whose class determines the exit code.
    error: LaunchError


def check_packages(settings: Settings) -> None:
    """Check that this Python has the packages for the URLs to which files are copied at the end.

    Raises:
        JobError: Packages are missing.
    """
    named = [(settings.source(COLLECT), text) for text in settings[COLLECT]]
    named += [(settings.source(row), settings[row] or "") for row in (OUTPUT_TO, REPORT)]
    faults = []
    for source, text in named:
        if "://" not in text:
            continue
        from launcher.storage.urls import missing_package, shown, split_target  # noqa: PLC0415 - takes 4 ms

        path, url = split_target(text)
        url = url or path  # Only ``--collect PATH:URL`` has a path before the URL.
        if why := missing_package(url):
            faults.append(Fault(source, f"{shown(url)}: {why}"))
    if faults:
        raise JobError(faults)


def check_all_programs_here(options: LaunchOptions) -> None:
    """Check the programs of all tasks as if they ran on this machine, see `check_placed_programs`.

    Raises:
        LaunchError: Something does not exist, as `check_placed_programs` raises it.
    """
    # The first task of a role stands for all.
    roles = [(role, TaskId.of(role.name, 0)) for role in options.spec.roles]
    host = Host(_THIS_MACHINE, venv=options.spec.venv)
    here = Placement(tuple(PlacedTask(task, role, host) for role, task in roles))
    check_placed_programs(options, here, (_THIS_MACHINE,))


def check_placed_programs(options: LaunchOptions, placement: Placement, names: Collection[str]) -> None:
    """Check the folders and the programs of all tasks that run on this machine.

    Args:
        options: The options of the launch.
        placement: The tasks, each with its host.
        names: The names of the hosts that are this machine.

    Raises:
        JobError: Working folders do not exist. It names all of them.
        LaunchError: Programs do not exist (ProgramError) or cannot be run (NotRunnableError). It names all of
            them, and its class is that of the first.
    """
    here = [placed for placed in placement.tasks if placed.host.name in names]
    # `_find_missing` reports a missing environment only then. Otherwise the agents of all hosts do.
    no_agent_checks = options.settings[DRY_RUN] or len(here) == len(placement.tasks)
    # Each working folder once, with the place that names it. Agents start in the current folder.
    folders = dict.fromkeys(_workdir(options, placed) for placed in here)
    if here:
        folders[("", ".")] = None
    faults = [Fault(where, text) for where, folder in folders if (text := _folder_fault(folder))]
    if faults:
        raise JobError(faults)
    differing: dict[tuple[str, Host], PlacedTask] = {}
    for placed in here:  # Tasks of one role on one host do not differ.
        differing.setdefault((placed.role.name, placed.host), placed)
    missing: list[_Missing] = []
    for placed in differing.values():
        missing += _find_missing(options, placed, no_agent_checks)
    if missing:
        raise _joined_error(missing)


def _joined_error(missing: Sequence[_Missing]) -> LaunchError:
    """Return one error with a line for each fault. Roles with the same fault share a line."""
    # The key is the place and the reason. The value is the first task of each role that has this fault.
    first_tasks: dict[tuple[str, str], dict[str, str]] = {}
    for fault in missing:
        role = fault.task.partition("/")[0]
        first_tasks.setdefault((fault.where, str(fault.error)), {}).setdefault(role, fault.task)
    lines = []
    for (where, why), task_by_role in first_tasks.items():
        parts = (where, join_names([*task_by_role.values()]), why)
        lines.append(": ".join(part for part in parts if part))
    return type(missing[0].error)("\n".join(lines))


def _folder_fault(folder: str) -> str:
    """Return why tasks cannot run in this working folder. Empty if they can."""
    if not os.path.isdir(folder):
        return f"there is no working folder {folder!r}"
    if not os.access(folder, os.X_OK):
        return f"the working folder {folder!r} cannot be entered: permission denied"
    return ""


def _workdir(options: LaunchOptions, placed: PlacedTask) -> tuple[str, str]:
    """Return the source of a task's working folder, for messages, and the folder."""
    if placed.role.workdir:
        return placed.role.source, os.path.expanduser(placed.role.workdir)
    if placed.host.workdir:
        return placed.host.source, os.path.expanduser(placed.host.workdir)
    return options.settings.source(WORKDIR), os.path.expanduser(options.spec.workdir or ".")


def _find_missing(options: LaunchOptions, placed: PlacedTask, no_agent_checks: bool) -> Iterator[_Missing]:
    """Yield the faults of a task: its environment, Python or program does not exist or cannot be run.

    Args:
        options: The options of the launch.
        placed: The task and its host.
        no_agent_checks: Whether all tasks run on this machine, or none is started, so a missing
            environment is reported here. Otherwise the agents report it, for all hosts together.
    """
    role, venv, folder = placed.role, placed.host.venv, _workdir(options, placed)[1]
    env = dict(options.spec.env + placed.host.env + role.env + options.spec.option_env)
    path = env.get("PATH", os.environ.get("PATH", os.defpath))
    if venv:
        try:
            path = environment_variables({"PATH": path}, venv)["PATH"]
        except ProgramError as error:
            if no_agent_checks:
                where = options.settings.source(VENV) if venv == options.spec.venv else placed.host.source
                # ``launch prepare`` makes no environment at a path.
                advice = "" if "/" in venv else f"; `{options.spec.prepare} --name {venv}` would make it"
                yield _Missing(where, task="", error=ProgramError(f"{error}{advice}"))
            return  # Without the environment, its Python and its packages cannot be looked for.
    if role.program.kind is not ProgramKind.EXECUTABLE:
        where, python = _python(options, placed)
        try:
            find_executable(python, folder, path)
        except LaunchError as error:
            yield _Missing(where, task="", error=error)
    try:
        if role.program.kind is ProgramKind.EXECUTABLE:
            find_executable(role.program.name, folder, path)
        elif role.program.kind is ProgramKind.SCRIPT:
            check_script(role.program.name, folder)
    except LaunchError as error:
        if role.program_source == ON_COMMAND_LINE:  # All roles have this program.
            yield _Missing(where="", task="", error=error)
            return
        hint = _job_file_hint(role) if isinstance(error, ProgramError) else ""
        where = role.program_source or role.source
        yield _Missing(where, str(placed.task), type(error)(f"{error}{hint}"))


def _python(options: LaunchOptions, placed: PlacedTask) -> tuple[str, str]:
    """Return the source of a task's Python, for messages, and the Python."""
    if placed.host.venv:
        return "", VENV_PYTHON
    if placed.host.python:
        return placed.host.source, placed.host.python
    return options.settings.source(PYTHON), options.spec.python or DEFAULT_PYTHON


def _job_file_hint(role: Role) -> str:
    """Return advice for a program that is in the folder of the job file, but not where the tasks run.

    Returns:
        The advice. Empty if the program is not there either.
    """
    # The source has the form ``file:line``.
    file = (role.program_source or role.source).rpartition(":")[0]
    if not file or not os.path.isfile(os.path.join(os.path.dirname(file), role.program.name)):
        return ""
    return "; it is in the folder of the job file: `workdir: .` in that file makes tasks run there"
