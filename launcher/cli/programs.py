"""What the tasks need of this machine, looked for before anything is started: folders, programs, Pythons.

What is missing is found once, not by each of the tasks, with the words and the exit codes that the agent
would have for it. What is on other machines only their agents can tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.cli.options import COMMAND_LINE
from launcher.cli.places import is_here
from launcher.errors import Fault, JobError, LaunchError, NotRunnableError, ProgramError
from launcher.job import ProgramKind
from launcher.scheduler.plan import DEFAULT_PYTHON, VENV_PYTHON

if TYPE_CHECKING:
    from launcher.cli.request import Request
    from launcher.job import Host, Placed, Placement, Program


def check_programs(wanted: Request, placement: Placement) -> None:
    """See whether every task can be started, as far as files tell.

    Raises:
        JobError: working folders that are not there, all of them.
        ProgramError, NotRunnableError: programs that are not there, or can't be run: all of them, in the
            class of the first.
    """
    here = [placed for placed in placement.tasks if is_here(placed.host)]
    _check_folders(wanted, here)
    differing: dict[tuple[str, Host], Placed] = {}
    for placed in here:  # hundreds of tasks, few that differ
        differing.setdefault((placed.role.name, placed.host), placed)
    found = [trouble for placed in differing.values() for trouble in _troubles(wanted, placed)]
    if found:
        from launcher.cli.missing import Trouble, all_of

        raise all_of([Trouble(*trouble) for trouble in found])


def _check_folders(wanted: Request, here: Sequence[Placed]) -> None:
    folders = dict.fromkeys([*(_folder(wanted, placed) for placed in here), *([("", ".")] if here else [])])
    faults = [Fault(where, text) for where, folder in folders if (text := _fault_of(folder))]
    if faults:
        raise JobError(faults)


def _fault_of(folder: str) -> str:
    """Why no task can work in it; empty: they can."""
    if not os.path.isdir(folder):
        return f"there is no working folder {folder!r}"
    if not os.access(folder, os.X_OK):
        return f"the working folder {folder!r} can't be entered: permission denied"
    return ""


def _folder(wanted: Request, placed: Placed) -> tuple[str, str]:
    """Who says where a task runs, and where that is."""
    if placed.role.workdir:
        return placed.role.source, os.path.expanduser(placed.role.workdir)
    if placed.host.workdir:
        return placed.host.source, os.path.expanduser(placed.host.workdir)
    return wanted.workdir_source, os.path.expanduser(wanted.job.workdir or ".")


def _troubles(wanted: Request, placed: Placed) -> Iterator[tuple[str, str, LaunchError]]:
    """Look for what the words of a task's command name.

    Yields:
        Who names it, the task if it is only its role's, and what is wrong.
    """
    role, folder = placed.role, _folder(wanted, placed)[1]
    path = dict(wanted.job.env + placed.host.env + role.env + wanted.job.said_env).get(
        "PATH", os.environ.get("PATH", os.defpath)
    )
    by_hand = role.source == COMMAND_LINE
    if role.program.kind is ProgramKind.EXECUTABLE:
        wrong = _fault_of_runnable(role.program.name, folder, path, by_hand)
    else:
        where, python = _python(wanted, placed)
        unable = _fault_of_runnable(python, folder, path, False)
        if unable is not None:
            yield where, "", unable
        wrong = _fault_of_script(role.program, folder)
    if wrong is not None:
        whose = ("", "") if by_hand else (role.program_source or role.source, str(placed.task))
        yield (*whose, wrong if by_hand else _advised(wrong, wanted, placed, folder))


def _advised(wrong: LaunchError, wanted: Request, placed: Placed, folder: str) -> LaunchError:
    from launcher.cli.missing import beside_the_file

    advice = beside_the_file(wanted, placed, folder) if isinstance(wrong, ProgramError) else ""
    return type(wrong)(f"{wrong}{advice}")


def _fault_of_script(program: Program, folder: str) -> LaunchError | None:
    if program.kind is not ProgramKind.SCRIPT or os.path.exists(os.path.join(folder, program.name)):
        return None
    return _not_in(program.name, folder)


def _python(wanted: Request, placed: Placed) -> tuple[str, str]:
    """Who says which Python a task has, and which one."""
    if placed.host.python:
        return placed.host.source, placed.host.python
    if placed.host.venv and "/" in placed.host.venv:
        return placed.host.source, os.path.join(os.path.expanduser(placed.host.venv), "bin", VENV_PYTHON)
    return wanted.python_source, wanted.job.python or DEFAULT_PYTHON


def _fault_of_runnable(name: str, folder: str, path: str, by_hand: bool) -> LaunchError | None:
    """Find an executable as execvp(3) does.

    Args:
        name: a path, relative to ``folder``; or a name, looked up along ``path``.
        by_hand: it is the first word of a command line, so it may have been meant for a command of ours.
    """
    return _fault_of_path(name, folder) if "/" in name else _fault_along(name, folder, path, by_hand)


def _fault_of_path(name: str, folder: str) -> LaunchError | None:
    file = os.path.join(folder, os.path.expanduser(name))
    if not os.path.exists(file):
        return _not_in(name, folder)
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
    from launcher.cli.missing import nowhere

    return ProgramError(nowhere(name, folder, by_hand))


def _not_in(name: str, folder: str) -> ProgramError:
    from launcher.cli.missing import not_in

    return ProgramError(not_in(name, folder))
