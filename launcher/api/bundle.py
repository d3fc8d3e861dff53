"""What a task is given of ours, so that nothing need be installed where it runs: modules, compiled.

cloudpickle is among them: what the driver pickles with it, a task can read only with it, and with no older
one. Compiled code is fit for the driver's minor version of Python only; pickled functions would be for no
other either.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import marshal
import pkgutil
import zlib
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

from launcher.errors import LaunchError
from launcher.feed.remote import arrival as first
from launcher.feed.remote import connect

#: Packages that travel whole, and single modules.
_PACKAGES = ("launcher.model", "launcher.feed", "launcher.feed.remote", "launcher.api", "cloudpickle")
_MODULES = ("launcher", "launcher.errors")
#: Level 1 takes a third of the time of level 6 for a tenth more bytes.
_ZLIB_LEVEL = 1


@functools.cache
def bundle() -> bytes:
    """Compressed and marshalled: ``{name: (is a package, its file here, marshalled code)}``; made once.

    Raises:
        LaunchError: a module has no code of Python's (an odd installation).
    """
    found = {name: _module(name) for name in _names()}
    return zlib.compress(marshal.dumps(found, 2), _ZLIB_LEVEL)


@functools.cache
def arrival() -> str:
    """The text that a task runs first: the modules of ours that it needs to come here, as one program."""
    parts = [inspect.getsource(module) for module in (connect, first)]
    ours = ("from launcher.", "from __future__")
    lines = [line for part in parts for line in part.splitlines() if not line.startswith(ours)]
    return "\n".join(["from __future__ import annotations", *lines, ""])


def _names() -> Iterator[str]:
    yield from _MODULES
    for package in _PACKAGES:
        yield package
        paths = _spec(package).submodule_search_locations or []
        yield from (f"{package}.{module.name}" for module in pkgutil.iter_modules(paths))


def _module(name: str) -> tuple[bool, str, bytes]:
    spec = _spec(name)
    loader: Any = spec.loader
    if spec.origin and spec.origin.endswith(".py"):
        loader = SourceFileLoader(
            name, spec.origin
        )  # whoever has imported it here, and how (pytest has its own way)
    code = loader.get_code(name) if hasattr(loader, "get_code") else None
    if code is None:
        raise LaunchError(f"the module {name} has no code that could be given to the tasks")
    return spec.submodule_search_locations is not None, spec.origin or "", marshal.dumps(code)


def _spec(name: str) -> ModuleSpec:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise LaunchError(f"the module {name} is not installed; pip install tf-launcher brings it")
    return spec
