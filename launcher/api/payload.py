"""A function and its arguments as bytes, for tasks that have none of the user's files.

What comes from the program itself (``__main__``, a notebook's cell), a closure or a lambda travels as code;
cloudpickle does that. What comes from a module travels as its name, and a module of the user's own, that is
not installed, would not be
there: so such modules travel as code, too.
"""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import cloudpickle

from launcher.errors import LaunchError


def dumps(value: object, what: str) -> bytes:
    """The bytes of a function, or of arguments.

    Args:
        what: it is, for the message.

    Raises:
        LaunchError: it can't be carried to another process.
    """
    with by_value():
        return plain(value, what)


def plain(value: object, what: str) -> bytes:
    """The same of what goes back, to a program that has the modules itself: they are only named.

    Raises:
        LaunchError: it can't be carried to another process.
    """
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:
        text = f"{what} can't be carried to another process: {type(error).__name__}: {error}"
        advice = (
            "make locks, sessions and open files within the function; put what it needs into its arguments"
        )
        raise LaunchError(f"{text}; {advice}") from error


@contextmanager
def by_value() -> Iterator[None]:
    """Modules of the user's own travel as code, as long as this lasts."""
    known = cloudpickle.list_registry_pickle_by_value()
    ours = [module for module in own_modules() if module.__name__ not in known]
    for module in ours:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in ours:
            cloudpickle.unregister_pickle_by_value(module)


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
    return os.path.realpath(file).startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    """Where Python and what is installed are, each with a slash at its end."""
    paths = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    paths -= {sysconfig.get_path("data"), sysconfig.get_path("scripts")}
    return tuple(os.path.realpath(path) + os.sep for path in paths if path)
