"""The Python environments of a host, where tasks run: those of ``launch prepare``, of venv and of conda.

`prepared` is the folder of those of ``launch prepare``. A name in it is a link to the environment's folder,
which has ``bin/python`` and ``environment.json``. A run sets the time of modification of that file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Dict, List, Mapping, NoReturn

from launcher.common.errors import ProgramError
from launcher.common.trusted_io import read_regular

#: Seconds that the Python of an environment may take to start: a file server may be slow.
START_TIMEOUT_SECONDS = 30.0
#: A pattern for names of environments.
NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
#: Where conda keeps a list of all its environments, a folder a line (conda's own, since 4.4).
_CONDA_LIST = "~/.conda/environments.txt"
#: Installations of conda whose ``envs`` are searched without such a list.
_CONDA_HOMES = ("~/miniforge3", "~/mambaforge", "~/miniconda3", "~/anaconda3", "/opt/conda")


def prepared() -> str:
    """The folder of this user's environments of ``launch prepare``; it may not exist."""
    data = os.environ.get("XDG_DATA_HOME", "")
    data = data if os.path.isabs(data) else os.path.expanduser("~/.local/share")
    return os.path.join(data, "tf-launcher", "environments")


def find(venv: str) -> str:
    """The folder of an environment.

    Args:
        venv: its folder (``~/`` is this user's home); or its name, of ``launch prepare`` or else of conda.

    Raises:
        ProgramError: there is none.
    """
    folder = next((path for path in _folders(venv) if os.path.exists(f"{path}/bin/python")), None)
    if folder is None:
        raise ProgramError(f"there is no environment {venv!r}")
    return folder


def entered(environment: Mapping[str, str], venv: str) -> Dict[str, str]:
    """The variables that ``activate`` of an environment would set.

    Args:
        environment: what the task has so far.
        venv: see `find`.

    Raises:
        ProgramError: there is none.
    """
    folder = find(venv)
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


def mark_used(folder: str) -> None:
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
    return [os.path.realpath(os.path.join(prepared(), venv)), *named]
