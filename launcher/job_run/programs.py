"""Checks before the job starts whether folders, programs and Pythons of tasks on this machine exist.

Agents on other machines check them when a task starts, with the same messages and exit codes.
"""

import os
from collections.abc import Collection, Iterator, Sequence

from launcher.errors import Fault, JobError, LaunchError, NotRunnableError, ProgramError
from launcher.job import Host, Placed, Placement, ProgramKind, Role
from launcher.job_run.options import COMMAND_LINE, Options
from launcher.record import Record
from launcher.scheduler.plan import DEFAULT_PYTHON, VENV_PYTHON
from launcher.text import listed

_QUOTED = " (remove the quotes around the program and its arguments)"


class _Missing(Record):
    """The reason why a task can't be started."""

    #: ``file:line`` or the option that names the program; empty: the command line.
    where: str
    #: The first task of its role; empty: the reason does not depend on the role.
    task: str
    #: The message; its class gives the exit code.
    error: LaunchError


def check_programs(options: Options, placement: Placement, names: Collection[str]) -> None:
    """Check the folders and the programs of all tasks on this machine.

    Args:
        options: of the launch.
        placement: the tasks, each with its host.
        names: of the hosts that are this machine.

    Raises:
        JobError: working folders do not exist; it names all of them.
        ProgramError, NotRunnableError: programs do not exist, or can't be run; it names all of them, and has
            the class of the first.
    """
    here = [placed for placed in placement.tasks if placed.host.name in names]
    folders = dict.fromkeys(_workdir(options, placed) for placed in here)
    if here:
        folders[("", ".")] = None
    faults = [Fault(where, text) for where, folder in folders if (text := _folder_fault(folder))]
    if faults:
        raise JobError(faults)
    differing: dict[tuple[str, Host], Placed] = {}
    for placed in here:  # tasks of one role and host do not differ
        differing.setdefault((placed.role.name, placed.host), placed)
    missing = [fault for placed in differing.values() for fault in _missing(options, placed)]
    if missing:
        raise _joined_error(missing)


def _joined_error(missing: Sequence[_Missing]) -> LaunchError:
    """One error with a line for each fault; roles with the same fault share a line."""
    roles: dict[tuple[str, str], dict[str, str]] = {}
    for fault in missing:
        role = fault.task.partition("/")[0]
        roles.setdefault((fault.where, str(fault.error)), {}).setdefault(role, fault.task)
    lines = [
        ": ".join(filter(None, (where, listed([*tasks.values()]), why)))
        for (where, why), tasks in roles.items()
    ]
    return type(missing[0].error)("\n".join(lines))


def _folder_fault(folder: str) -> str:
    if not os.path.isdir(folder):
        return f"there is no working folder {folder!r}"
    if not os.access(folder, os.X_OK):
        return f"the working folder {folder!r} can't be entered: permission denied"
    return ""


def _workdir(options: Options, placed: Placed) -> tuple[str, str]:
    """The source of a task's working folder, and the folder."""
    if placed.role.workdir:
        return placed.role.source, os.path.expanduser(placed.role.workdir)
    if placed.host.workdir:
        return placed.host.source, os.path.expanduser(placed.host.workdir)
    return options.sources.workdir, os.path.expanduser(options.job.workdir or ".")


def _missing(options: Options, placed: Placed) -> Iterator[_Missing]:
    """The faults of a task: its Python or its program does not exist, or can't be run."""
    role, folder = placed.role, _workdir(options, placed)[1]
    env = dict(options.job.env + placed.host.env + role.env + options.job.option_env)
    path = env.get("PATH", os.environ.get("PATH", os.defpath))
    error: LaunchError | None = None
    if role.program.kind is ProgramKind.EXECUTABLE:
        error = _executable_error(role.program.name, folder, path)
    else:
        where, python = _python(options, placed)
        unusable = _executable_error(python, folder, path)
        if unusable is not None:
            yield _Missing(where, "", unusable)
        if role.program.kind is ProgramKind.SCRIPT:
            error = _script_error(role.program.name, folder)
    if error is None:
        return
    if role.program_source == COMMAND_LINE:
        yield _Missing("", "", error)
        return
    if isinstance(error, ProgramError):
        error = ProgramError(f"{error}{_job_file_hint(role)}")
    yield _Missing(role.program_source or role.source, str(placed.task), error)


def _python(options: Options, placed: Placed) -> tuple[str, str]:
    """The source of a task's Python, and the Python."""
    if placed.host.python:
        return placed.host.source, placed.host.python
    if placed.host.venv and "/" in placed.host.venv:
        return placed.host.source, os.path.join(os.path.expanduser(placed.host.venv), "bin", VENV_PYTHON)
    return options.sources.python, options.job.python or DEFAULT_PYTHON


def _script_error(name: str, folder: str) -> LaunchError | None:
    """Look for a script, which Python reads.

    Args:
        name: its path, relative to ``folder``.
    """
    script = os.path.join(folder, name)
    if not os.path.exists(script):
        return _not_there(name, folder)
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        return NotRunnableError(f"{name!r} is a folder, not a program")
    if not os.access(script, os.R_OK):
        return NotRunnableError(f"{name!r} can't be read: permission denied")
    return None


def _executable_error(name: str, folder: str, path: str) -> LaunchError | None:
    """Look for an executable as execvp(3) does.

    Args:
        name: a path, relative to ``folder``; or a name, looked up along ``path``.
    """
    if "/" in name:
        file = os.path.join(folder, os.path.expanduser(name))
        if not os.path.exists(file):
            return _not_there(name, folder)
        if os.path.isdir(file):
            return NotRunnableError(f"{name!r} is a folder, not a program")
        if not os.access(file, os.X_OK):
            return NotRunnableError(f"{name!r} is not executable: chmod +x would make it so")
        return None
    files = [os.path.join(folder, entry, name) for entry in path.split(os.pathsep)]
    found = [file for file in files if os.path.isfile(file)]
    if any(os.access(file, os.X_OK) for file in found):
        return None
    if found:
        return NotRunnableError(f"{found[0]!r} is not executable")
    hint = ""
    if os.path.isfile(os.path.join(folder, name)):
        hint = " (a file of that name is in the working folder: write ./ before it)"
    elif any(os.path.exists(os.path.join(folder, file.split(" ")[0])) for file in (name, *files)):
        hint = _QUOTED
    elif name == "=":
        hint = "; -x NAME=VALUE has no blanks around the ="
    elif name.isdigit():
        hint = "; --chief and --evaluator take no number"
    return ProgramError(f"program not found: {name!r} is nowhere along PATH{hint}")


def _not_there(name: str, folder: str) -> ProgramError:
    """The error for a path without a file."""
    path = os.path.expanduser(name)
    looked = "" if os.path.isabs(path) else f" (looked in {os.path.abspath(folder)!r})"
    import shutil  # 4 ms, needed only for a fault

    from launcher.config.schema import similar_file

    first = path.split(" ")[0]
    if first != path and (os.path.exists(os.path.join(folder, first)) or shutil.which(first)):
        return ProgramError(f"program not found: {name!r}{_QUOTED}")
    guess = os.path.basename(similar_file(os.path.join(folder, path)))
    meant = f"; did you mean {os.path.join(os.path.dirname(name), guess)!r}?" if guess else ""
    return ProgramError(f"program not found: {name!r}{looked}{meant}")


def _job_file_hint(role: Role) -> str:
    """Advice if the program is in the folder of the job file, and the tasks run in another folder."""
    file = (role.program_source or role.source).rpartition(":")[0]
    if not file or not os.path.isfile(os.path.join(os.path.dirname(file), role.program.name)):
        return ""
    return "; it is in the folder of the job file: `workdir: .` in that file makes tasks run there"
