"""The program's own modules, which are not installed where tasks run: their classes travel as code."""

from __future__ import annotations

import functools
import glob
import os
import sys
import sysconfig
import threading
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: cloudpickle has one list of such modules for the whole process; held while it is changed.
_REGISTRY = threading.RLock()
#: The number of modules when they were searched last, and the names found.
_seen: tuple[int, frozenset[str]] = (0, frozenset())


@contextmanager
def by_value() -> Iterator[None]:
    """cloudpickle carries the program's own modules as code within this context; one thread at a time."""
    import cloudpickle

    with _REGISTRY:
        known = cloudpickle.list_registry_pickle_by_value()
        ours = [module for module in own_modules() if module.__name__ not in known]
        for module in ours:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in ours:
                cloudpickle.unregister_pickle_by_value(module)


def own_names() -> frozenset[str]:
    """The names of those modules, and of ``__main__``; searched again when the number of modules changes."""
    global _seen
    count, names = _seen
    if count != len(sys.modules):
        count = len(sys.modules)
        names = frozenset(["__main__", *(module.__name__ for module in own_modules())])
        _seen = count, names
    return names


def own_modules() -> list[ModuleType]:
    """Modules imported from files that belong neither to Python nor to an installed package."""
    found = [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)]
    return [module for name, module in found if module.__name__ == name and _is_own(name, module)]


def _is_own(name: str, module: ModuleType) -> bool:
    if name == "__main__" or name.partition(".")[0] in ("launcher", "cloudpickle"):
        return False
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(".py") and not _is_installed(file)


@functools.lru_cache(maxsize=None)
def _is_installed(file: str) -> bool:
    """Whether this is a file of Python, or of a package that pip or the system has installed anywhere."""
    path = os.path.realpath(file)
    if path.startswith(_python()):
        return True
    parts = path.split(os.sep)
    return "site-packages" in parts or "dist-packages" in parts or _has_metadata(os.path.dirname(path))


@functools.lru_cache(maxsize=None)
def _has_metadata(folder: str) -> bool:
    """Whether this or a folder above it is one that ``pip install --target`` has filled."""
    while not glob.glob(os.path.join(glob.escape(folder), "*.dist-info")):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return False
    return True


@functools.lru_cache(maxsize=None)
def _python() -> tuple[str, ...]:
    """Where Python's own modules are, each with a slash at its end."""
    paths = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return tuple(os.path.realpath(path) + os.sep for path in paths)
