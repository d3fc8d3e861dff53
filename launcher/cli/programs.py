"""What the tasks need of this machine, looked for before anything is started: folders, programs, Pythons.

What is missing is found once, not by each of the tasks, with the words and the exit codes that the agent
would have for it. What is on other machines only their agents can tell.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.cli.options import COMMAND_LINE
from launcher.cli.places import is_here
from launcher.errors import Fault, JobError, LaunchError, NotRunnableError, ProgramError
from launcher.model.job import ProgramKind
from launcher.model.records import TYPE_CHECKING
from launcher.planning.assembly import DEFAULT_PYTHON, VENV_PYTHON

if TYPE_CHECKING:
    from launcher.cli.request import Request
    from launcher.model.plan import Placed, Placement


def check_programs(wanted: Request, placement: Placement) -> None:
    """See whether every task can be started, as far as files tell.

    Raises:
        JobError: working folders that are not there, all of them.
        ProgramError, NotRunnableError: the first program that is not there, or can't be run.
    """
    here = [placed for placed in placement.tasks if is_here(placed.host)]
    _check_folders(wanted, here)
    seen = set()
    for placed in here:
        alike = (placed.role.name, placed.host)  # hundreds of tasks, few that differ
        if alike not in seen:
            seen.add(alike)
            _check_task(wanted, placed)


def _check_folders(wanted: Request, here: Sequence[Placed]) -> None:
    folders = dict.fromkeys(_folder(wanted, placed) for placed in here)
    absent = [(where, folder) for where, folder in folders if not os.path.isdir(folder)]
    if absent:
        raise JobError([Fault(where, f"there is no working folder {folder!r}") for where, folder in absent])


def _folder(wanted: Request, placed: Placed) -> tuple[str, str]:
    """Who says where a task runs, and where that is."""
    if placed.role.workdir:
        return placed.role.source, os.path.expanduser(placed.role.workdir)
    if placed.host.workdir:
        return placed.host.source, os.path.expanduser(placed.host.workdir)
    return wanted.workdir_source, os.path.expanduser(wanted.job.workdir or ".")


def _check_task(wanted: Request, placed: Placed) -> None:
    """Look for what the words of a task's command name."""
    role, folder = placed.role, _folder(wanted, placed)[1]
    path = dict(wanted.job.env + placed.host.env + role.env + wanted.job.said_env).get(
        "PATH", os.environ.get("PATH", os.defpath)
    )
    name = role.program.name
    by_hand = role.source == COMMAND_LINE
    whose = "" if by_hand else f"{role.source}: {placed.task}: "
    if role.program.kind is ProgramKind.EXECUTABLE:
        _check_runnable(whose, name, folder, path, by_hand)
        return
    where, python = _python(wanted, placed)
    _check_runnable(f"{where}: " if where else "", python, folder, path, False)
    if role.program.kind is ProgramKind.SCRIPT and not os.path.exists(os.path.join(folder, name)):
        raise ProgramError(f"{whose}{_not_in(name, folder)}")


def _python(wanted: Request, placed: Placed) -> tuple[str, str]:
    """Who says which Python a task has, and which one."""
    if placed.host.python:
        return placed.host.source, placed.host.python
    if placed.host.venv and "/" in placed.host.venv:
        return placed.host.source, os.path.join(os.path.expanduser(placed.host.venv), "bin", VENV_PYTHON)
    return wanted.python_source, wanted.job.python or DEFAULT_PYTHON


def _check_runnable(whose: str, name: str, folder: str, path: str, by_hand: bool) -> None:
    """Find an executable as execvp(3) does.

    Args:
        whose: what an error begins with.
        name: a path, relative to ``folder``; or a name, looked up along ``path``.
        by_hand: it is the first word of a command line, so it may have been meant for a command of ours.
    """
    why = _fault_of_path(name, folder) if "/" in name else _fault_along(name, folder, path, by_hand)
    if why is not None:
        raise type(why)(f"{whose}{why}")


def _fault_of_path(name: str, folder: str) -> LaunchError | None:
    file = os.path.join(folder, os.path.expanduser(name))
    if not os.path.exists(file):
        return ProgramError(_not_in(name, folder))
    if os.path.isdir(file):
        return NotRunnableError(f"{name!r} is a folder, not a program")
    if not os.access(file, os.X_OK):
        return NotRunnableError(f"{name!r} is not executable: chmod +x would make it so")
    return None


def _fault_along(name: str, folder: str, path: str, by_hand: bool) -> LaunchError | None:
    files = (os.path.join(folder, entry, name) for entry in path.split(os.pathsep))
    found = [file for file in files if os.path.isfile(file)]
    if any(os.access(file, os.X_OK) for file in found):
        return None
    if found:
        return NotRunnableError(f"{found[0]!r} is not executable")
    hint = ""
    if os.path.exists(os.path.join(folder, name)):
        hint = " (a file of that name is in the working folder: write ./ before it)"
    elif by_hand:
        hint = _meant(name)
    return ProgramError(f"program not found: {name!r} is nowhere along PATH{hint}")


def _not_in(name: str, folder: str) -> str:
    return f"program not found: {name!r} (looked in {os.path.abspath(folder)!r})"


def _meant(name: str) -> str:
    from launcher.cli.commands import meant_command

    meant = meant_command(name)
    return f"; did you mean {meant}?" if meant else ""
