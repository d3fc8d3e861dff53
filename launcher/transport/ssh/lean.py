"""Imports fabric and paramiko without what they import but do not use here: half of their time.

invoke, below both, imports ``unittest.mock`` (with asyncio) for a class for the tests of others, and a YAML
parser for configuration files that are not read; paramiko imports ``importlib.metadata`` (with email) for its
own version number. Stand-ins take their places for as long as the import lasts, which is 60 ms shorter then.
Versions of these libraries that want more than the stand-ins have are imported whole.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_DIST = ".dist-info"
#: It takes a thirtieth of a second, and nothing of it is looked at by those that import it.
_LAZY = "invoke.vendor.yaml"


def fetch() -> None:
    """Import both, unless they are here."""
    if "paramiko" in sys.modules or "invoke" in sys.modules:
        return
    try:
        with (
            _standing_in("unittest.mock", Mock=_NotHere),
            _standing_in("importlib.metadata", version=_version),
            _found_late(),
        ):
            importlib.import_module("fabric")
    except (ImportError, AttributeError):
        importlib.import_module("fabric")


class _NotHere:
    """What ``invoke.MockContext`` finds instead of a mock: it is for tests, and not to be used here."""


@contextmanager
def _standing_in(name: str, **contents: Any) -> Iterator[None]:
    """Put a module with these contents in the place of a whole one, unless that is imported already."""
    if name in sys.modules:
        yield
        return
    package, _, attribute = name.rpartition(".")
    added = [module for module in (package, name) if module not in sys.modules]
    for module in added:
        sys.modules[module] = ModuleType(module)
    vars(sys.modules[name]).update(contents)
    parent = sys.modules[package]
    setattr(parent, attribute, sys.modules[name])
    try:
        yield
    finally:
        delattr(parent, attribute)
        for module in added:
            del sys.modules[module]


class _Late:
    """A finder on ``sys.meta_path``: what it finds is loaded when something of it is looked at."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """See `importlib.abc.MetaPathFinder`."""
        spec = PathFinder.find_spec(name, path, target) if name == _LAZY else None
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


@contextmanager
def _found_late() -> Iterator[None]:
    sys.meta_path.insert(0, _Late)
    try:
        yield
    finally:
        sys.meta_path.remove(_Late)


def _version(name: str) -> str:
    """What ``importlib.metadata.version`` says: the folder of a distribution has it in its name.

    Raises:
        ModuleNotFoundError: it is not installed as wheels are.
    """
    for folder in filter(os.path.isdir, sys.path):
        for entry in os.listdir(folder):
            dist, _, version = entry.removesuffix(_DIST).partition("-")
            if entry.endswith(_DIST) and dist == name and version:
                return version
    raise ModuleNotFoundError(f"{name}: there is no {name}-VERSION{_DIST} along sys.path")
