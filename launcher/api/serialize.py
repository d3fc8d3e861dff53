"""Everything that a task is sent: pickled functions and arguments, and the modules of ours that it needs.

Functions of the program itself (``__main__``, a notebook's cell), closures and lambdas travel as code, by
cloudpickle. Functions of modules travel as names; modules of the program's own, which are not installed where
the tasks run, travel as code, too.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import io
import marshal
import pkgutil
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from typing import Any

from launcher.api.remote import start
from launcher.errors import Fault, InputError, LaunchError
from launcher.feed.remote import connect
from launcher.feed.remote.codec import by_value
from launcher.feed.remote.frames import check_size

#: Packages whose modules travel, and single modules. cloudpickle: what is pickled by one version can be read
#: only by the same or a later one.
_PACKAGES = ("launcher.feed.remote", "launcher.api.remote", "cloudpickle")
_MODULES = (
    *("launcher", "launcher.api", "launcher.errors", "launcher.feed", "launcher.job", "launcher.report"),
    "launcher.text",
)
#: Before any import: files in the folder where the task runs replace no modules.
_NOT_HERE = ("import sys", "if sys.path[:1] == ['']:", "    del sys.path[0]")
_ADVICE = "make locks, sessions and open files within the function; put what it needs into its arguments"


def dumps(caller: str, name: str, value: object) -> bytes:
    """The bytes of a function, or of its arguments.

    Args:
        caller, name: for the message: ``TFCluster.run``, ``map_fun``.
        value: to be pickled.

    Raises:
        InputError: it can't be pickled.
    """
    import cloudpickle

    try:
        with by_value():
            data: bytes = cloudpickle.dumps(value)
        check_size([data], "it")
    except Exception as error:  # whatever a class of the user's raises there
        text = f"{name} can't be sent to another process: {type(error).__name__}: {error}"
        raise InputError([Fault(caller, text, _ADVICE)]) from error
    return data


@functools.cache
def modules() -> bytes:
    """A zip of the compiled modules of ours that a task needs. (Its Python is of this minor version.)

    Raises:
        LaunchError: a module has no code.
    """
    buffer = io.BytesIO()
    names = list(_MODULES)
    for package in _PACKAGES:
        folders = importlib.import_module(package).__path__
        names += [package, *(f"{package}.{it.name}" for it in pkgutil.iter_modules(folders) if not it.ispkg)]
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in names:
            spec = importlib.util.find_spec(name)
            loader: Any = spec.loader if spec else None
            if spec and spec.origin and spec.origin.endswith(".py"):
                loader = SourceFileLoader(name, spec.origin)  # pytest has a loader of its own
            code = loader.get_code(name) if hasattr(loader, "get_code") else None
            if spec is None or code is None:
                raise LaunchError(f"the module {name} has no code that could be sent to the tasks")
            path = name.replace(".", "/") + ("/__init__.pyc" if spec.submodule_search_locations else ".pyc")
            # The head of a file of compiled code: for any time and size of its source, which is not there.
            archive.writestr(path, importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
    return buffer.getvalue()


@functools.cache
def start_text() -> str:
    """The text that a task runs first, see `launcher.api.remote.start`."""
    ours = ("from launcher.", "from __future__")
    parts = [inspect.getsource(module) for module in (connect, start)]
    call = f"main({tuple(sys.version_info[:2])})\n"
    lines = [line for part in parts for line in part.splitlines() if not line.startswith(ours)]
    return "\n".join(["from __future__ import annotations", *_NOT_HERE, *lines, call])
