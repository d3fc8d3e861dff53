"""Tells which modules belong to the user's program, so tasks on other machines may not have them.

The pickling of rows and functions asks it. Installed packages must never count: tasks import their own.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path


@functools.lru_cache(maxsize=None)
def is_own(name: str) -> bool:
    """Return whether a module belongs to the program: ``__main__``, or a file that nobody has installed.

    A file of Python itself, or of an installed package, does not count.
    """
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if name == "__main__":
        return True
    # A module under another name than its own, such as ``os.path``, counts only under its own. Tasks receive
    # these two packages in any case.
    if name.partition(".")[0] in ("launcher", "cloudpickle") or getattr(module, "__name__", None) != name:
        return False
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    path = Path(file).resolve()
    python_folders = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    is_of_python = bool(python_folders & {*path.parents})
    # `pip install --target` installs into any folder, where it leaves the metadata of the packages.
    is_of_package = bool({"site-packages", "dist-packages"} & {*path.parts})
    return not (is_of_python or is_of_package or any(map(_has_metadata, path.parents)))


@functools.lru_cache(maxsize=None)
def _has_metadata(folder: Path) -> bool:
    """Return whether packages were installed into this folder, by ``pip install --target``."""
    return any(folder.glob("*.dist-info"))
