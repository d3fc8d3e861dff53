"""Finds what a task runs: its program, as execvp(3) and Python do, and its Python environment.

The launcher looks before the job starts, for tasks on its own machine; an agent looks when a task starts.
An error says what the user can do. An environment is one of ``launch prepare``, of venv or of conda. The
folder of `prepared_environments` has a link for each one of ``launch prepare``, by its name; the link leads
to a folder with ``bin/python`` and ``environment.json``, and a run sets the time of modification of that
file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Dict, List, Mapping, NoReturn

from launcher.common.errors import NotRunnableError, ProgramError
from launcher.common.trusted_io import read_regular, similar_file

_QUOTES_ADVICE = " (remove the quotes around the program and its arguments)"


def find_executable(name: str, folder: str, path: str) -> str:
    """Return the file that execvp(3) runs.

    Args:
        name: A path, relative to ``folder``; or a name, looked up along ``path``.
        folder: Where it runs; empty: the current folder.
        path: The task's PATH.

    Raises:
        ProgramError: There is none.
        NotRunnableError: It cannot be run.
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


def is_command(name: str) -> bool:
    """Return whether there is a program of this name along the PATH of this process."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    files = [os.path.join(folder, name) for folder in folders]
    return any(os.path.isfile(file) and os.access(file, os.X_OK) for file in files)


def find_script(name: str, folder: str) -> None:
    """Look for a program that Python reads.

    Args:
        name: Its path, relative to ``folder``.
        folder: Where it runs; empty: the current folder.

    Raises:
        ProgramError: It does not exist.
        NotRunnableError: Python cannot read it.
    """
    script = os.path.join(folder, name)
    if not os.path.exists(script):
        raise _not_there(name, folder)
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise NotRunnableError(f"{name!r} is a folder, not a program")
    if not os.access(script, os.R_OK):
        raise NotRunnableError(f"{name!r} can't be read: permission denied")


def _not_there(name: str, folder: str) -> ProgramError:
    """Return the error for a path without a file."""
    path = os.path.expanduser(name)
    looked = "" if os.path.isabs(path) else f" (looked in {os.path.abspath(folder)!r})"
    first = path.split(" ")[0]
    if first != path and (os.path.exists(os.path.join(folder, first)) or is_command(first)):
        return ProgramError(f"program not found: {name!r}{_QUOTES_ADVICE}")
    guess = os.path.basename(similar_file(os.path.join(folder, path)))
    meant = f"; did you mean {os.path.join(os.path.dirname(name), guess)!r}?" if guess else ""
    return ProgramError(f"program not found: {name!r}{looked}{meant}")


#: Seconds that the Python of an environment may take to start: a file server may be slow.
PYTHON_START_TIMEOUT_SECONDS = 30.0
#: A pattern for names of environments.
ENVIRONMENT_NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
#: Where conda keeps a list of all its environments, a folder a line (conda's own, since 4.4).
_CONDA_LIST = "~/.conda/environments.txt"
#: Installations of conda whose ``envs`` are searched without such a list.
_CONDA_HOMES = ("~/miniforge3", "~/mambaforge", "~/miniconda3", "~/anaconda3", "/opt/conda")


def prepared_environments() -> str:
    """Return the folder of this user's environments of ``launch prepare``; it may not exist."""
    data = os.environ.get("XDG_DATA_HOME", "")
    data = data if os.path.isabs(data) else os.path.expanduser("~/.local/share")
    return os.path.join(data, "tf-launcher", "environments")


def find_environment(venv: str) -> str:
    """Return the folder of an environment.

    Args:
        venv: Its folder (``~/`` is this user's home); or its name, of ``launch prepare`` or else of conda.

    Raises:
        ProgramError: There is none.
    """
    folder = next((path for path in _folders(venv) if os.path.exists(f"{path}/bin/python")), None)
    if folder is None:
        raise ProgramError(f"there is no environment {venv!r}")
    return folder


def environment_variables(environment: Mapping[str, str], venv: str) -> Dict[str, str]:
    """Return the variables that ``activate`` of an environment would set.

    Args:
        environment: What the task has so far.
        venv: See `find_environment`.

    Raises:
        ProgramError: There is none.
    """
    folder = find_environment(venv)
    own = {"PATH": os.path.join(folder, "bin") + os.pathsep + environment.get("PATH", os.defpath)}
    if os.path.isdir(os.path.join(folder, "conda-meta")):
        own.update(CONDA_PREFIX=folder, CONDA_DEFAULT_ENV=os.path.basename(folder))
    else:
        own["VIRTUAL_ENV"] = folder
    return own


def try_python(folder: str) -> NoReturn:
    """In a child: become the Python of an environment, which prints a line if it runs."""
    python = os.path.join(folder, "bin", "python")
    os.execv(python, [python, "-I", "-S", "-c", "print()"])


def mark_environment_used(folder: str) -> None:
    """Record that a run uses an environment, if ``launch prepare`` has made it."""
    with suppress(OSError):  # it is another user's, or of another kind
        os.utime(os.path.join(folder, "environment.json"), follow_symlinks=False)


def _folders(venv: str) -> List[str]:
    """Folders where the environment may be; of conda the listed ones first."""
    if "/" in venv:
        return [os.path.abspath(os.path.expanduser(venv))]
    try:
        text = read_regular(os.path.expanduser(_CONDA_LIST)).decode("utf-8", "surrogateescape")
        listed = [line.strip() for line in text.splitlines()]
    except OSError:
        listed = []
    homes = [os.environ.get("CONDA_PREFIX", ""), *map(os.path.expanduser, _CONDA_HOMES)]
    named = [folder for folder in listed if os.path.basename(folder) == venv]
    named += [os.path.join(home, "envs", venv) for home in homes if home]
    # The link may get another target: a run stays in the environment in which it has begun.
    return [os.path.realpath(os.path.join(prepared_environments(), venv)), *named]
