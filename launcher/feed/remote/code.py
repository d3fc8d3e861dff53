"""Pickles that contain the code of functions, by cloudpickle. Tracebacks show file, line and source.

Rows and results use it where `pickle` does not suffice, and so do the functions that tasks run. It imports
cloudpickle, so other modules import it only when they need it.
"""

from __future__ import annotations

import ast
import functools
import io
import linecache
import pickle
import sys
import threading
from contextlib import contextmanager
from types import CodeType
from typing import Any, Callable, Iterator

import cloudpickle

from launcher.feed.remote.own_modules import is_own

#: Characters of a source file; the source of a longer one does not travel.
_MAX_SOURCE_CHARACTERS = 1 << 20
#: cloudpickle has one list of modules that travel as code for the whole process; held while it is changed.
_REGISTRY = threading.RLock()


def dumps(
    value: object,
    protocol: int | None = None,
    keep: Callable[[pickle.PickleBuffer], Any] | None = None,
    *,
    sources: bool = False,
) -> bytes:
    """Pickle a value.

    Args:
        keep: Takes the buffers, which are not part of the pickle then (``buffer_callback`` of `pickle`).
        sources: The source files of the functions travel, too: they may not exist where the pickle is loaded.

    Raises:
        Exception: Whatever an object of the program raises when it is pickled.
    """
    with io.BytesIO() as file:
        _SourcePickler(file, protocol, keep, sources).dump(value)
        return file.getvalue()


@contextmanager
def by_value() -> Iterator[None]:
    """Let cloudpickle carry the program's own modules as code within this context, one thread at a time."""
    with _REGISTRY:
        known = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
        own = [it for name, it in list(sys.modules.items()) if name not in known and is_own(name)]
        for module in own:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in own:
                cloudpickle.unregister_pickle_by_value(module)


class _SourcePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """cloudpickle since 3.1.3 replaces the file name of all code by ``<dynamic-code>``; this one keeps it."""

    def __init__(self, file: io.BytesIO, protocol: int | None, keep: Any, sources: bool) -> None:
        self._sources: dict[str, str] | None = {} if sources else None
        #: Whether values that only annotations name can be pickled, by their `id`.
        self._tried: dict[int, bool] = {}
        table = cloudpickle.Pickler.dispatch_table
        self._reduce = table[CodeType]
        self.dispatch_table = table.new_child({CodeType: self._code})  # before __init__, which reads it
        super().__init__(file, protocol, keep)

    def reducer_override(self, thing: Any) -> Any:
        """See `pickle.Pickler`. A traced ``tf.function`` travels as one that was not called yet."""
        is_tensorflow = type(thing).__module__.startswith("tensorflow.")
        if is_tensorflow and hasattr(thing, "python_function") and hasattr(thing, "_clone"):
            return thing._clone(None).__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # its graphs can't be pickled
        return super().reducer_override(thing)

    def _dynamic_function_reduce(self, function: Any) -> Any:
        """Add the globals that only annotations name: AutoGraph compiles the source of a function again."""
        reduced = super()._dynamic_function_reduce(function)
        found, known = reduced[2][1]["__globals__"], function.__globals__
        for name in _annotation_names(function.__code__):
            if name in known and name not in found and self._can_travel(known[name]):
                found[name] = known[name]
        return reduced

    def _can_travel(self, value: Any) -> bool:
        """Return whether a value can be pickled. A class that is being pickled just now can."""
        if id(value) not in self._tried:
            self._tried[id(value)] = True
            pickler = _SourcePickler(io.BytesIO(), None, None, False)
            pickler._tried = self._tried
            try:
                pickler.dump(value)
            except Exception:  # noqa: BLE001 - whatever an object of the program raises
                self._tried[id(value)] = False
        return self._tried[id(value)]

    def _code(self, code: CodeType) -> Any:
        name = code.co_filename
        return _restore, (*self._reduce(code)[:2], name, self._source(name))

    def _source(self, name: str) -> str:
        """Return the text of a file, the same object each time: pickle writes an object once."""
        if self._sources is None:
            return ""
        if name not in self._sources:
            source = "".join(linecache.getlines(name))
            self._sources[name] = source if len(source) <= _MAX_SOURCE_CHARACTERS else ""
        return self._sources[name]


def _annotation_names(code: CodeType) -> frozenset[str]:
    """Return the names in the annotations of a function, and of the functions in it.

    Returns:
        No names if its source is not known, or too long.
    """
    source = "".join(linecache.getlines(code.co_filename))
    by_line = _names_by_line(source) if len(source) <= _MAX_SOURCE_CHARACTERS else {}
    return by_line.get(code.co_firstlineno, frozenset())


@functools.lru_cache(maxsize=64)
def _names_by_line(source: str) -> dict[int, frozenset[str]]:
    """Return the names in the annotations of each function of a source, by the first line of the function.

    Returns:
        An empty dict if the source is not Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    found = {}
    for function in functions:
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        found[first] = frozenset(_names_of(function))
    return found


def _names_of(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        for name in ("annotation", "returns"):
            annotation = getattr(node, name, None)
            for part in () if annotation is None else ast.walk(annotation):
                if isinstance(part, ast.Name):
                    yield part.id
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield from _names_in_text(part.value)


def _names_in_text(text: str) -> list[str]:
    """Return the names in an annotation that is a text."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [part.id for part in ast.walk(tree) if isinstance(part, ast.Name)]


def _restore(kind: Callable[..., CodeType], values: Any, name: str, source: str) -> CodeType:
    """Make a code object of what cloudpickle wrote of it, with the name and the source of its file."""
    if source:
        # No time of modification: linecache does not compare it with a file of that name.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return kind(*values).replace(co_filename=name)
