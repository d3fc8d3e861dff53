"""Modules of the user's own, that are not installed where tasks run: what is made of them travels as code."""

from __future__ import annotations

import functools
import glob
import os
import pickle
import sys
import sysconfig
import threading
import weakref
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping
    from typing import Any

#: cloudpickle's list of such modules is one for the whole process: who changes it is alone.
_ALONE = threading.RLock()
#: The code of classes, and classes by their code.
_BYTES: MutableMapping[type, bytes] = weakref.WeakKeyDictionary()
_MADE: dict[bytes, Any] = {}
#: How many modules there were when they were looked through last, and the names found.
_seen: tuple[int, frozenset[str]] = (0, frozenset())


@contextmanager
def by_value() -> Iterator[None]:
    """cloudpickle carries modules of the user's own as code, as long as this lasts; for one thread at a
    time."""
    import cloudpickle

    with _ALONE:
        known = cloudpickle.list_registry_pickle_by_value()
        ours = [module for module in own_modules() if module.__name__ not in known]
        for module in ours:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in ours:
                cloudpickle.unregister_pickle_by_value(module)


def class_bytes(kind: type, named: bool) -> bytes:
    """The code of a class, for `own_class`; made once.

    Args:
        named: other modules of the user's own are only named.
    """
    import cloudpickle

    if (data := _BYTES.get(kind)) is None:
        with nullcontext() if named else by_value():
            data = _BYTES[kind] = bytes(cloudpickle.dumps(kind))
    return data


def own_class(module: str, name: str, data: bytes) -> Any:
    """A class of a module of the user's own where it arrives; always the same.

    It is that of the module if it is imported there, so that a function which has imported it knows its rows;
    else what has come as code.

    Args:
        name: within the module; may have dots.
    """
    if data not in _MADE:
        found = _imported(module, name)
        _MADE[data] = found if isinstance(found, type) else pickle.loads(data)
    return _MADE[data]


def _imported(module: str, name: str) -> object:
    found: object = None if module == "__main__" else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def own_names() -> frozenset[str]:
    """The names of those modules, and of the program itself; looked for again when modules have come."""
    global _seen
    count, names = _seen
    if count != len(sys.modules):
        count = len(sys.modules)
        names = frozenset(["__main__", *(module.__name__ for module in own_modules())])
        _seen = count, names
    return names


def own_modules() -> list[ModuleType]:
    """Those that were imported from files that are no part of Python and of nothing installed."""
    found = [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)]
    return [module for name, module in found if module.__name__ == name and _is_own(name, module)]


def _is_own(name: str, module: ModuleType) -> bool:
    if name == "__main__" or name.partition(".")[0] in ("launcher", "cloudpickle"):
        return False
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(".py") and not _is_installed(file)


@functools.cache
def _is_installed(file: str) -> bool:
    """Whether this is a file of Python, or of a package that pip or the system has installed anywhere."""
    path = os.path.realpath(file)
    if path.startswith(_python()):
        return True
    parts = path.split(os.sep)
    return "site-packages" in parts or "dist-packages" in parts or _has_metadata(os.path.dirname(path))


@functools.cache
def _has_metadata(folder: str) -> bool:
    """Whether this or a folder above it is one that ``pip install --target`` has filled."""
    while not glob.glob(os.path.join(glob.escape(folder), "*.dist-info")):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return False
    return True


@functools.cache
def _python() -> tuple[str, ...]:
    """Where Python's own modules are, each with a slash at its end."""
    paths = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return tuple(os.path.realpath(path) + os.sep for path in paths)
