"""Our code as bytes: the modules an errand needs, as code objects, or as source for another Python.

Compiled code is taken from ``__pycache__`` where that is fresh, so a bundle costs reading a few files and
no parsing; and what was made of them is kept there too. It is understood by every Python with the same magic
number (3.11.2 and 3.11.9 have the same); another one asks for the source.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import sys
import zlib
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import NamedTuple

from launcher.errors import TransportError
from launcher.transport.kept import keep, recall

_PACKAGE = "launcher"
_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Before the source form, where the other has the magic number of its Python; no Python has this one.
SOURCE_FORM = b"\0\0\0\0"
#: Of a ``.pyc`` file: magic number, flags, time and size of the source, four bytes each.
_HEAD_SIZE = 16
#: Level 1 takes a third of the time of level 6 for a tenth more bytes.
_ZLIB_LEVEL = 1


class Bundle(NamedTuple):
    """The modules for one entry, in both forms."""

    #: ``MAGIC_NUMBER``, then the compressed, marshalled ``{name: (is a package, marshalled code)}``.
    compiled: bytes
    #: Names of the modules.
    names: tuple[str, ...]

    def source(self) -> bytes:
        """`SOURCE_FORM`, then the compressed, marshalled ``{name: (is a package, source)}``."""
        return SOURCE_FORM + _pack({name: (_is_package(name), _source(name)) for name in self.names})


class _Module(NamedTuple):
    code: CodeType
    marshalled: bytes


@functools.cache
def bundle(entry: str) -> Bundle:
    """What travels for ``entry`` (``module:function``), made once, or by an earlier launch.

    Raises:
        TransportError: there is no such module.
    """
    module = entry.partition(":")[0]
    if _file(module) is None:
        raise TransportError(f"{entry}: no such module of ours")
    place = os.path.join(_FOLDER, "__pycache__", f"{module}.{sys.implementation.cache_tag}.bundle")
    kept = recall(place, _FOLDER)
    if kept is not None:
        return Bundle(*kept)
    made = _made(module)
    keep(place, _FOLDER, made.compiled, made.names, (_file(name) or "" for name in made.names))
    return made


def _made(module: str) -> Bundle:
    found: dict[str, _Module] = {}
    _collect(module, found)
    modules = {name: (_is_package(name), module.marshalled) for name, module in found.items()}
    return Bundle(importlib.util.MAGIC_NUMBER + _pack(modules), tuple(found))


def _pack(modules: dict[str, tuple[bool, bytes]]) -> bytes:
    return zlib.compress(marshal.dumps(modules, 2), _ZLIB_LEVEL)


def _collect(module: str, found: dict[str, _Module]) -> None:
    """Add ``module``, the packages it is in, and whatever these import."""
    if module in found:
        return
    package = module.rpartition(".")[0]
    if package:
        _collect(package, found)
    found[module] = loaded = _load(module)
    for name in _imported(loaded.code):
        if _file(name) is not None:
            _collect(name, found)


def _imported(code: CodeType) -> Iterator[str]:
    """Names of ours that this code may import: only an import has a dotted name, or a name of the package."""
    for name in code.co_names:
        if name.partition(".")[0] == _PACKAGE and _file(name) is not None:
            yield name
            if _is_package(name):
                yield from (f"{name}.{other}" for other in code.co_names if "." not in other)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imported(constant)


def _load(module: str) -> _Module:
    """The code of a module. The outermost package is empty: its front door is for the launcher's machine."""
    if module == _PACKAGE:
        code = compile("", f"{_PACKAGE}/__init__.py", "exec")
        return _Module(code, marshal.dumps(code))
    path = _file(module) or ""
    cached = _cached(path)
    try:
        return _Module(marshal.loads(cached), cached)
    except (EOFError, ValueError, TypeError):  # there is none, or it is damaged
        pass
    code = _compile(module, path)
    return _Module(code, marshal.dumps(code))


def _compile(module: str, path: str) -> CodeType:
    """As an import would, which also notes it for the next launch: most of this is never imported here."""
    loader = SourceFileLoader(module, path)
    try:
        code = loader.get_code(module)
    except (EOFError, ValueError, TypeError):  # what is noted is damaged
        code = None
    return code or loader.source_to_code(loader.get_data(path), path)


def _cached(path: str) -> bytes:
    """The marshalled code of the source at ``path``; empty unless compiled since it was last written."""
    try:
        with open(importlib.util.cache_from_source(path), "rb") as file:
            head, code = file.read(_HEAD_SIZE), file.read()
        status = os.stat(path)
    except OSError:
        return b""
    fields = [int.from_bytes(head[at : at + 4], "little") for at in (4, 8, 12)]
    fresh = [0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF]
    return code if head[:4] == importlib.util.MAGIC_NUMBER and fields == fresh else b""


def _source(module: str) -> bytes:
    if module == _PACKAGE:
        return b""
    with open(_file(module) or "", "rb") as file:
        return file.read()


def _is_package(module: str) -> bool:
    return os.path.basename(_file(module) or "") == "__init__.py"


@functools.cache
def _file(module: str) -> str | None:
    """Where a module of ours is; ``None``: there is none of this name."""
    parts = module.split(".")
    if parts[0] != _PACKAGE or not all(parts):
        return None
    folder = os.path.join(_FOLDER, *parts[1:-1])
    if len(parts) == 1:
        return os.path.join(_FOLDER, "__init__.py")
    if parts[-1] in _listed(folder) and "__init__.py" in _listed(os.path.join(folder, parts[-1])):
        return os.path.join(folder, parts[-1], "__init__.py")
    return os.path.join(folder, f"{parts[-1]}.py") if f"{parts[-1]}.py" in _listed(folder) else None


@functools.cache
def _listed(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:  # a file, or nothing: no module is in there
        return frozenset()
