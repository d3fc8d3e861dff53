"""Pickles functions together with what their annotations name.

cloudpickle brings only those globals that a function's code uses. But annotations are looked at, too: by
``typing.get_type_hints``, and by AutoGraph, which writes a function of TensorFlow's anew from its source.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import IO, Any

import cloudpickle


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, for annotated functions."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        #: Of values of globals, by their identity, whether they can be carried.
        self._known: dict[int, bool] = {}

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`."""
        how = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and isinstance(how, tuple):
            carried = how[2][1]["__globals__"]
            for name in _names(obj) & obj.__globals__.keys() - carried.keys():
                if self._travels(obj.__globals__[name]):
                    carried[name] = obj.__globals__[name]
        return how

    def _travels(self, value: Any) -> bool:
        if id(value) not in self._known:
            self._known[id(value)] = _travels(value)
        return self._known[id(value)]


def _travels(value: Any) -> bool:
    """Whether it can be carried: what only an annotation needs is no reason to fail."""
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever pickling it raises: it can't be
        return False
    return True


def _names(function: FunctionType) -> set[str]:
    """What the annotations of a function, and of those within it, name."""
    notes = list(function.__annotations__.values())
    texts = [note for note in notes if isinstance(note, str)]
    names = set(_words([*texts, *_within(function.__code__)]))
    return names if len(texts) == len(notes) else names | _of_source(function)


def _within(code: CodeType) -> Iterator[str]:
    """Annotations of the functions within a function that are kept as texts (`from __future__`).

    They are tuples among its constants: names of parameters and annotations in turn.
    """
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    parameters = {"return", *(name for one in inner for name in one.co_varnames)}
    for one in code.co_consts:
        texts = isinstance(one, tuple) and len(one) % 2 == 0 and all(isinstance(text, str) for text in one)
        if texts and parameters.issuperset(one[::2]):
            yield from one[1::2]
    for each in inner:
        yield from _within(each)


def _words(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        try:
            tree = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError, RecursionError):  # it is no annotation
            continue
        yield from _named(tree)


def _named(tree: ast.AST) -> Iterator[str]:
    """The names in an expression, and in texts within it: those are annotations, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _words([node.value])


def _of_source(function: FunctionType) -> set[str]:
    """The same from its source, if there is one: annotations that were evaluated have lost their names."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return set()
    notes = [node.annotation for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation]
    notes += [
        node.returns
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns
    ]
    return {name for note in notes for name in _named(note)}
