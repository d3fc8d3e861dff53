"""Tells which modules are the program's own: those that tasks on other machines may not have."""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path


@functools.lru_cache(maxsize=None)
def is_own(name: str) -> bool:
    """Return whether a module is ``__main__``, or from a file of neither Python nor an installed package."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if name == "__main__":
        return True
    if name.partition(".")[0] in ("launcher", "cloudpickle") or getattr(module, "__name__", None) != name:
        return False
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    path = Path(file).resolve()
    python = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    if python & {*path.parents} or {"site-packages", "dist-packages"} & {*path.parts}:
        return False
    return not any(map(_has_metadata, path.parents))


@functools.lru_cache(maxsize=None)
def _has_metadata(folder: Path) -> bool:
    """Return whether ``pip install --target`` has filled this folder."""
    return any(folder.glob("*.dist-info"))
