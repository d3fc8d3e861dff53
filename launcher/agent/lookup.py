"""Finds what a task runs: its program, as execvp(3) and Python do, and its Python environment.

The launcher calls this before a job starts, for tasks on its own machine. An agent calls it when a task
starts. An error must say what the user can do.

An environment was made by ``launch prepare``, venv or conda. The folder `prepared_environments` contains a
link for each one of ``launch prepare``. The link leads to a folder with ``bin/python`` and
``environment.json``. A run sets the modification time of that file, which shows when the environment was used
last.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Dict, List, Mapping, NoReturn

from launcher.common.errors import NotRunnableError, ProgramError
from launcher.common.trusted_io import read_regular, similar_file

_QUOTES_ADVICE = " (remove the quotes around the program and its arguments)"


def find_executable(name: str, folder: str, path: str) -> str:
    """Return the file that execvp(3) would run for the program of a task.

    The error for a missing program guesses what the user has meant: a whole command line in quotes, a file of
    the working folder without ``./``, or a value of an option that has become the program.

    Args:
        name: A path relative to ``folder``, or a name that is looked up along ``path``.
        folder: The folder in which the program runs. If it is empty, that is the current folder.
        path: The PATH of the task.

    Raises:
        ProgramError: There is no such file.
        NotRunnableError: There is one, but it cannot be run.
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
    # An entry of the PATH may be relative, or empty, which stands for the folder.
    files = [os.path.join(folder, entry, name) for entry in path.split(os.pathsep)]
    existing = [file for file in files if os.path.isfile(file)]
    for file in existing:
        if os.access(file, os.X_OK):
            return file
    if existing:
        raise NotRunnableError(f"{existing[0]!r} is not executable")
    # There is no such file anywhere. A hint follows in the message if the reason can be guessed.
    hint = ""
    # If the name contains blanks, what is before the first one may be the program.
    first_words = [file.split(" ")[0] for file in (name, *files)]
    if os.path.isfile(os.path.join(folder, name)):
        hint = " (a file of that name is in the working folder: write ./ before it)"
    elif any(os.path.exists(os.path.join(folder, word)) for word in first_words):
        # The user has quoted a whole command line, so it is a single word.
        hint = _QUOTES_ADVICE
    # A part of an option may have become the program, as in -x NAME = VALUE or --chief 1.
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


def check_script(name: str, folder: str) -> None:
    """Check that Python can run a script.

    Args:
        name: The path of the script, relative to ``folder``.
        folder: The folder in which the script runs. If it is empty, that is the current folder.

    Raises:
        ProgramError: The script does not exist.
        NotRunnableError: Python cannot read the script.
    """
    script = os.path.join(folder, name)
    if not os.path.exists(script):
        raise _not_there(name, folder)
    # Python runs a folder that contains a __main__.py.
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise NotRunnableError(f"{name!r} is a folder, not a program")
    if not os.access(script, os.R_OK):
        raise NotRunnableError(f"{name!r} cannot be read: permission denied")


def _not_there(name: str, folder: str) -> ProgramError:
    """Return the error for a program or script that does not exist, with a guess what the user meant.

    Args:
        name: The path of the program, as the user wrote it.
        folder: The folder that the path is relative to. If it is empty, that is the current folder.
    """
    path = os.path.expanduser(name)
    looked = "" if os.path.isabs(path) else f" (looked in {os.path.abspath(folder)!r})"
    # If the first word alone is a program, the user has quoted a whole command line.
    first_word = path.split(" ")[0]
    is_program = os.path.exists(os.path.join(folder, first_word)) or is_command(first_word)
    if first_word != path and is_program:
        return ProgramError(f"program not found: {name!r}{_QUOTES_ADVICE}")
    # It is empty if no file in the same folder has a similar name.
    guess = os.path.basename(similar_file(os.path.join(folder, path)))
    meant = f"; did you mean {os.path.join(os.path.dirname(name), guess)!r}?" if guess else ""
    return ProgramError(f"program not found: {name!r}{looked}{meant}")


#: The Python of an environment may start slowly if it is on a file server.
PYTHON_START_TIMEOUT_SECONDS = 30.0
#: What the names of environments of ``launch prepare`` look like.
ENVIRONMENT_NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
#: The file in which conda, since 4.4, lists the folders of all its environments, one on each line.
_CONDA_LIST = "~/.conda/environments.txt"
#: The usual places of conda. Their ``envs`` are searched, too, because the list may be missing.
_CONDA_HOMES = ("~/miniforge3", "~/mambaforge", "~/miniconda3", "~/anaconda3", "/opt/conda")


def prepared_environments() -> str:
    """Return the folder of the environments that this user made by ``launch prepare``. It may not exist."""
    data = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification says that a relative path must be ignored.
    data = data if os.path.isabs(data) else os.path.expanduser("~/.local/share")
    return os.path.join(data, "tf-launcher", "environments")


def find_environment(venv: str) -> str:
    """Return the folder of a Python environment.

    Args:
        venv: The folder of the environment, which may begin with ``~/``, or its name. A name is looked up
            among the environments of ``launch prepare`` first, then among those of conda.

    Raises:
        ProgramError: There is no such environment.
    """
    for folder in _folders(venv):
        if os.path.exists(f"{folder}/bin/python"):
            return folder
    raise ProgramError(f"there is no environment {venv!r}")


def environment_variables(environment: Mapping[str, str], venv: str) -> Dict[str, str]:
    """Return the variables that the ``activate`` script of a Python environment would set.

    Args:
        environment: The variables that the task has so far.
        venv: The environment, see `find_environment`.

    Raises:
        ProgramError: There is no such environment.
    """
    folder = find_environment(venv)
    # Its programs are found before all others of the same name.
    path = environment.get("PATH", os.defpath)
    variables = {"PATH": os.path.join(folder, "bin") + os.pathsep + path}
    # Only an environment of conda has this folder.
    if os.path.isdir(os.path.join(folder, "conda-meta")):
        variables.update(CONDA_PREFIX=folder, CONDA_DEFAULT_ENV=os.path.basename(folder))
    else:
        variables["VIRTUAL_ENV"] = folder
    return variables


def try_python(folder: str) -> NoReturn:
    """Replace this process, a child of the agent, by the Python of an environment.

    The Python prints a line, which shows that it runs.

    Args:
        folder: The folder of the environment.
    """
    python = os.path.join(folder, "bin", "python")
    # -I and -S leave out the user's settings and packages, which could make it fail or slow.
    os.execv(python, [python, "-I", "-S", "-c", "print()"])


def mark_environment_used(folder: str) -> None:
    """Record the time at which a run uses an environment, if ``launch prepare`` has made it.

    The time is that of the modification of a file in the environment.

    Args:
        folder: The folder of the environment.
    """
    # It may belong to another user, or be one of venv or conda.
    with suppress(OSError):
        os.utime(os.path.join(folder, "environment.json"), follow_symlinks=False)


def _folders(venv: str) -> List[str]:
    """Return the folders that may be the environment of this name, the most likely one first.

    Args:
        venv: The name of an environment, or its folder.
    """
    if "/" in venv:
        return [os.path.abspath(os.path.expanduser(venv))]
    try:
        text = read_regular(os.path.expanduser(_CONDA_LIST)).decode("utf-8", "surrogateescape")
        listed = [line.strip() for line in text.splitlines()]
    except OSError:
        # Most users have no such list.
        listed = []
    # With an active base environment of conda, CONDA_PREFIX is the place of conda itself.
    homes = [os.environ.get("CONDA_PREFIX", ""), *map(os.path.expanduser, _CONDA_HOMES)]
    of_conda = [folder for folder in listed if os.path.basename(folder) == venv]
    of_conda += [os.path.join(home, "envs", venv) for home in homes if home]
    # The link is resolved, because it may get another target while a run uses the environment.
    return [os.path.realpath(os.path.join(prepared_environments(), venv)), *of_conda]
