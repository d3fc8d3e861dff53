"""Finds the program of a task as execvp(3) and Python do; the error says what the user can do.

The launcher looks before the job starts, for tasks on its own machine; an agent looks when a task starts.
"""

import os

from launcher.common.errors import NotRunnableError, ProgramError
from launcher.common.trusted_io import similar_file

_QUOTES_ADVICE = " (remove the quotes around the program and its arguments)"


def find_executable(name: str, folder: str, path: str) -> str:
    """The file that execvp(3) runs.

    Args:
        name: a path, relative to ``folder``; or a name, looked up along ``path``.
        folder: where it runs; empty: the current folder.
        path: the task's PATH.

    Raises:
        ProgramError: there is none.
        NotRunnableError: it can't be run.
    """
    if "/" in name:
        file = os.path.join(folder, os.path.expanduser(name))
        if not os.path.exists(file):
            raise _not_there(name, folder)
        if os.path.isdir(file):
            raise NotRunnableError(f"{name!r} is a folder, not a program")
        if not os.access(file, os.X_OK):
            raise NotRunnableError(f"{name!r} is not executable: chmod +x would make it so")
        return file
    files = [os.path.join(folder, entry, name) for entry in path.split(os.pathsep)]
    found = [file for file in files if os.path.isfile(file)]
    for file in found:
        if os.access(file, os.X_OK):
            return file
    if found:
        raise NotRunnableError(f"{found[0]!r} is not executable")
    hint = ""
    if os.path.isfile(os.path.join(folder, name)):
        hint = " (a file of that name is in the working folder: write ./ before it)"
    elif any(os.path.exists(os.path.join(folder, file.split(" ")[0])) for file in (name, *files)):
        hint = _QUOTES_ADVICE
    elif name == "=":
        hint = "; -x NAME=VALUE has no blanks around the ="
    elif name.isdigit():
        hint = "; --chief and --evaluator take no number"
    raise ProgramError(f"program not found: {name!r} is nowhere along PATH{hint}")


def find_script(name: str, folder: str) -> None:
    """Look for a program that Python reads.

    Args:
        name: its path, relative to ``folder``.
        folder: where it runs; empty: the current folder.

    Raises:
        ProgramError: it does not exist.
        NotRunnableError: Python can't read it.
    """
    script = os.path.join(folder, name)
    if not os.path.exists(script):
        raise _not_there(name, folder)
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise NotRunnableError(f"{name!r} is a folder, not a program")
    if not os.access(script, os.R_OK):
        raise NotRunnableError(f"{name!r} can't be read: permission denied")


def _not_there(name: str, folder: str) -> ProgramError:
    """The error for a path without a file."""
    import shutil  # 4 ms, needed only for a fault

    path = os.path.expanduser(name)
    looked = "" if os.path.isabs(path) else f" (looked in {os.path.abspath(folder)!r})"
    first = path.split(" ")[0]
    if first != path and (os.path.exists(os.path.join(folder, first)) or shutil.which(first)):
        return ProgramError(f"program not found: {name!r}{_QUOTES_ADVICE}")
    guess = os.path.basename(similar_file(os.path.join(folder, path)))
    meant = f"; did you mean {os.path.join(os.path.dirname(name), guess)!r}?" if guess else ""
    return ProgramError(f"program not found: {name!r}{looked}{meant}")
