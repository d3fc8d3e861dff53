"""Pickles that contain the code of functions, by cloudpickle. Tracebacks show file, line and source.

`launcher.api` uses it for the functions that tasks run, and `codec` for rows and results that `pickle` cannot
handle. It imports cloudpickle, so other modules must import it only when they need it.
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

#: The source of a longer file does not travel.
_MAX_SOURCE_CHARACTERS = 1 << 20
#: Held while cloudpickle's list of modules that travel as code is changed. The whole process has only one.
_REGISTRY = threading.RLock()


def dumps(
    value: object,
    protocol: int | None = None,
    keep: Callable[[pickle.PickleBuffer], Any] | None = None,
    *,
    sources: bool = False,
) -> bytes:
    """Pickle a value, with the code of the functions in it that cloudpickle does not pickle by name.

    Args:
        value: The value.
        protocol: The protocol of the pickle, by default cloudpickle's own.
        keep: Called with each buffer, which is then not part of the pickle (``buffer_callback`` of `pickle`).
        sources: Whether the source files of the functions travel, too, because they may not exist where the
            pickle is loaded.

    Raises:
        Exception: Whatever an object of the program raises when it is pickled.
    """
    with io.BytesIO() as file:
        pickler = _SourcePickler(file, protocol, keep, sources)
        pickler.dump(value)
        # It refers to itself, so what it remembers would need memory until the next garbage collection.
        pickler.clear_memo()
        return file.getvalue()


@contextmanager
def by_value() -> Iterator[None]:
    """Let cloudpickle pickle the program's own modules as code within this context.

    Only one thread at a time can be within it, because the whole process has one list of such modules.
    """
    with _REGISTRY:
        # The user may have registered some, which must stay registered.
        registered = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
        loaded = list(sys.modules.items())
        modules = [module for name, module in loaded if name not in registered and is_own(name)]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


class _SourcePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """A pickler that keeps the file names of code, and on request the sources of the files.

    cloudpickle since 3.1.3 replaces all these names by ``<dynamic-code>``. It calls `reducer_override` and
    `_dynamic_function_reduce`, which are its own methods, for each object.

    Args:
        file: Receives the pickle.
        protocol: The protocol of the pickle, or None for cloudpickle's own.
        keep: Called with each buffer, see `dumps`.
        sources: Whether the sources travel, too.
    """

    def __init__(self, file: io.BytesIO, protocol: int | None, keep: Any, sources: bool) -> None:
        """Prepare a pickle in which code objects are stored by `_code`."""
        #: The texts of the source files that travel, by name. None if sources do not travel.
        self._sources: dict[str, str] | None = {} if sources else None
        #: Whether values that are named only by annotations can be pickled, by their `id`.
        self._tried: dict[int, bool] = {}
        table = cloudpickle.Pickler.dispatch_table
        #: cloudpickle's own function that says how a code object is stored.
        self._reduce = table[CodeType]
        self.dispatch_table = table.new_child({CodeType: self._code})  # __init__ reads it
        super().__init__(file, protocol, keep)

    def reducer_override(self, thing: Any) -> Any:
        """Pickle a traced ``tf.function`` as one that was not called yet: its graphs cannot travel."""
        is_tensorflow = type(thing).__module__.startswith("tensorflow.")
        # Only a tf.function has both. `_clone` makes one of the same Python function, without graphs.
        if is_tensorflow and hasattr(thing, "python_function") and hasattr(thing, "_clone"):
            return thing._clone(None).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(thing)

    def _dynamic_function_reduce(self, function: Any) -> Any:
        """Pickle a function with the globals that only its annotations name, too.

        cloudpickle leaves those out. AutoGraph needs them when it compiles the source of the function again.
        """
        reduced = super()._dynamic_function_reduce(function)
        # The third item is the state of the function: its attributes and its slots.
        _, slots = reduced[2]
        pickled, known = slots["__globals__"], function.__globals__
        for name in _annotation_names(function.__code__):
            if name in known and name not in pickled and self._can_travel(known[name]):
                pickled[name] = known[name]
        return reduced

    def _can_travel(self, value: Any) -> bool:
        """Return whether a value can be pickled. A class that is being pickled at this moment can."""
        if id(value) not in self._tried:
            # True holds while its own functions are tried, which may name it in their annotations. The pickle
            # is of no use after that.
            self._tried[id(value)] = True
            pickler = _SourcePickler(io.BytesIO(), protocol=None, keep=None, sources=False)
            pickler._tried = self._tried
            try:
                pickler.dump(value)
            except Exception:  # noqa: BLE001 - objects of the program can raise anything
                self._tried[id(value)] = False
        return self._tried[id(value)]

    def _code(self, code: CodeType) -> Any:
        """Return what pickle stores of a code object: the function `_restore` and its arguments."""
        # cloudpickle's own way: a function that makes the code object, and its arguments.
        make_code, values, *_ = self._reduce(code)
        name = code.co_filename
        return _restore, (make_code, values, name, self._source(name))

    def _source(self, name: str) -> str:
        """Return the text of a file, the same object each time, because pickle writes an object only once."""
        # No sources travel with this pickle.
        if self._sources is None:
            return ""
        if name not in self._sources:
            source = "".join(linecache.getlines(name))
            self._sources[name] = source if len(source) <= _MAX_SOURCE_CHARACTERS else ""
        return self._sources[name]


def _annotation_names(code: CodeType) -> frozenset[str]:
    """Return the names in the annotations of a function, and of the functions in it.

    Returns:
        The names. Empty if the source of the function is not known, or too long.
    """
    source = "".join(linecache.getlines(code.co_filename))
    by_line = _names_by_line(source) if len(source) <= _MAX_SOURCE_CHARACTERS else {}
    return by_line.get(code.co_firstlineno, frozenset())


@functools.lru_cache(maxsize=64)
def _names_by_line(source: str) -> dict[int, frozenset[str]]:
    """Return the names in the annotations of all functions of a source file.

    Returns:
        The names in each function, by the number of its first line. Empty if the source is not Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    names_by_line = {}
    for function in functions:
        # A code object counts the lines of decorators as well.
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        names_by_line[first] = frozenset(_names_in_annotations(function))
    return names_by_line


def _names_in_annotations(tree: ast.AST) -> Iterator[str]:
    """Yield the names in all annotations of a function, for the globals that must travel with its code.

    A name may come twice, or belong to no global. Neither does harm.

    Args:
        tree: The syntax tree of the function.
    """
    for node in ast.walk(tree):
        # Arguments and variables have the first attribute, and functions the second one.
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            for part in () if annotation is None else ast.walk(annotation):
                if isinstance(part, ast.Name):
                    yield part.id
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield from _names_in_text(part.value)


def _names_in_text(text: str) -> list[str]:
    """Return the names in an annotation that is written as a text."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [part.id for part in ast.walk(tree) if isinstance(part, ast.Name)]


def _restore(make_code: Callable[..., CodeType], values: Any, name: str, source: str) -> CodeType:
    """Make a code object again, when a pickle of `_SourcePickler` is loaded.

    If the source has travelled, tracebacks show its lines.

    Args:
        make_code: Makes the code object, as cloudpickle wants it.
        values: The arguments of ``make_code``.
        name: The name of the file of the code.
        source: The text of the file. Empty if it did not travel.
    """
    if source:
        # Without a time of modification linecache does not compare the text with a file of that name.
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return make_code(*values).replace(co_filename=name)
