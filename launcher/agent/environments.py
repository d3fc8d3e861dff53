"""The Python environment of a task: a virtual one, or one of conda's, entered as their ``activate`` does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Dict, List, Mapping

#: Where conda keeps a list of all its environments, a folder a line (conda's own, since 4.4).
_CONDA_LIST = "~/.conda/environments.txt"
#: Installations of conda whose ``envs`` are looked through where there is no such list.
_CONDA_HOMES = ("~/miniforge3", "~/mambaforge", "~/miniconda3", "~/anaconda3", "/opt/conda")


def entered(environment: Mapping[str, str], venv: str) -> Dict[str, str]:
    """The variables that ``activate`` would set on top of these.

    Args:
        environment: what the task has so far.
        venv: the environment's folder (``~/`` is this user's home), or the name of one of conda's.

    Raises:
        FileNotFoundError: there is none.
    """
    folder = _folder(venv)
    own = {"PATH": os.path.join(folder, "bin") + os.pathsep + environment.get("PATH", os.defpath)}
    if os.path.isdir(os.path.join(folder, "conda-meta")):
        own.update(CONDA_PREFIX=folder, CONDA_DEFAULT_ENV=os.path.basename(folder))
    else:
        own["VIRTUAL_ENV"] = folder
    return own


def _folder(venv: str) -> str:
    folders = [os.path.expanduser(venv)] if "/" in venv else _called(venv)
    for folder in folders:
        if os.path.exists(os.path.join(folder, "bin", "python")):
            return os.path.abspath(folder)
    raise FileNotFoundError(2, "no such environment", venv)


def _called(name: str) -> List[str]:
    """Folders of conda environments of this name, the listed ones first."""
    listed = [folder for folder in _listed() if os.path.basename(folder) == name]
    homes = [os.environ.get("CONDA_PREFIX", ""), *map(os.path.expanduser, _CONDA_HOMES)]
    return listed + [os.path.join(home, "envs", name) for home in homes if home]


def _listed() -> List[str]:
    try:
        with open(os.path.expanduser(_CONDA_LIST), encoding="utf-8", errors="surrogateescape") as file:
            return [line.strip() for line in file]
    except OSError:
        return []
