"""Rows as they travel: a block <-> the buffers of a frame.

Arrays travel beside the pickle that names them (protocol 5): they are not copied on the way out, and are
received into the memory of the task's array. A list of arrays of one shape travels as one array, and so do
arrays in tuples. Plain rows (texts, numbers, tuples and lists of them) are pickled without the memo that
looks for shared objects: up to five times as fast. cloudpickle takes what `pickle` cannot, and classes and
functions of the program's own modules, which are not installed where tasks run: they travel as code.
"""

from __future__ import annotations

import functools
import glob
import io
import os
import pickle
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FunctionType, ModuleType
from typing import Any, Union

from launcher.errors import FeedError
from launcher.feed.remote.blocks import Block, imported, is_array

Buffer = Union[bytes, bytearray, memoryview]

_PROTOCOL = 5
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
#: How deep, and how many items of a row, are looked at to see whether it is plain.
_DEEP, _FAR = 3, 8
#: The error about rows that cannot be unpickled; ``{why}`` is Python's message.
_UNREADABLE = (
    "the rows cannot be read in the task ({why}): the module of their classes must be there too; "
    "define them in a module that the tasks can import, or feed tuples, lists, dicts or arrays"
)
#: cloudpickle has one list of modules that travel as code for the whole process; held while it is changed.
_REGISTRY = threading.RLock()
#: The number of modules when they were searched last, and the names found.
_seen: tuple[int, frozenset[str]] = (0, frozenset())


class _OwnCodeError(Exception):
    """A class or function of the program's own modules, which only cloudpickle can carry."""


#: Errors of `pickle` about things that cloudpickle may be able to pickle.
_NOT_PLAIN = (_OwnCodeError, ValueError, RecursionError, pickle.PicklingError, AttributeError, TypeError)


def encode(block: Block, named: bool = False) -> list[Buffer]:
    """The buffers that `decode` makes this block of again.

    A list of arrays that are alike becomes one array, a list of tuples with such arrays in them a tuple of
    columns: the same rows (see `blocks.as_rows`), in one piece.

    Args:
        named: the program's own modules travel as names: the receiver has them.

    Raises:
        FeedError: some rows cannot be sent to another process.
    """
    if isinstance(block, list):
        arrays = _stacked(block)
        block = _columns(block) if arrays is None else arrays
    buffers: list[Buffer] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        buffers.append(buffer.raw())

    callback = None if isinstance(block, list) else keep
    block = _contiguous(block)
    file = io.BytesIO()
    pickler = _Pickler(file, _PROTOCOL, buffer_callback=callback)
    pickler.fast = isinstance(block, list) and bool(block) and _is_plain(block[0], _DEEP)
    if not named:
        pickler.own = _own_names()
    try:
        pickler.dump(block)
        head: Buffer = file.getvalue()
    except _NOT_PLAIN as error:
        buffers.clear()
        head = encode_code(block, error, named, callback)
    return [head, *buffers]


def decode(buffers: Sequence[Buffer], unreadable: str = _UNREADABLE) -> Block:
    """The block; its arrays live in the memory of the buffers.

    Args:
        unreadable: the message if they cannot be unpickled.

    Raises:
        FeedError: the rows need something that is not here, a module for example.
    """
    try:
        return pickle.loads(buffers[0], buffers=buffers[1:])
    except Exception as error:
        raise FeedError(unreadable.replace("{why}", str(error))) from error


def encode_code(
    content: Any,
    reason: Exception | None = None,
    named: bool = False,
    keep: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> Buffer:
    """A pickle that has the code of the program's own functions and classes in it.

    Args:
        reason: the error of `pickle`, if it was tried.
        named: see `encode`.
        keep: takes the arrays, which are not part of the pickle then.

    Raises:
        FeedError: cloudpickle cannot pickle it either.
    """
    try:
        import cloudpickle

        with nullcontext() if named else by_value():
            data: bytes = cloudpickle.dumps(content, _PROTOCOL, keep)
    except ImportError as error:
        raise FeedError(f"cloudpickle is missing, and {reason or 'these rows need it'}") from error
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError) as error:
        shown = f"rows such as {content[0]!r:.200}" if isinstance(content, list) else f"{content!r:.200}"
        cause = error if isinstance(reason, _OwnCodeError) else reason or error
        raise FeedError(f"{shown} can't be sent to a task: {error}") from cause
    return data


@contextmanager
def by_value() -> Iterator[None]:
    """cloudpickle carries the program's own modules as code within this context; one thread at a time."""
    import cloudpickle

    with _REGISTRY:
        known = cloudpickle.list_registry_pickle_by_value()
        own = [module for module in _own_modules() if module.__name__ not in known]
        for module in own:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in own:
                cloudpickle.unregister_pickle_by_value(module)


class _Pickler(pickle.Pickler):
    """Refuses the program's own classes and functions; not called for texts, numbers, tuples and so on."""

    #: Names of modules whose contents travel as code.
    own = frozenset(["__main__"])

    def reducer_override(self, thing: Any) -> Any:
        """See `pickle.Pickler`."""
        kind = thing if isinstance(thing, (type, FunctionType)) else type(thing)
        if kind.__module__ in self.own:
            raise _OwnCodeError(f"{kind.__module__}.{kind.__qualname__} is of the program's own code")
        return NotImplemented


# Arrays.


def _stacked(rows: list[Any]) -> Any:
    """One array of these arrays; ``None`` if they are other things, or differ."""
    kind = imported("numpy", "ndarray")
    if kind is None or not rows or type(first := rows[0]) is not kind or first.dtype.hasobject:
        return None
    dtype, shape = first.dtype, first.shape
    if any(type(row) is not kind or row.dtype != dtype or row.shape != shape for row in rows):
        return None
    return sys.modules["numpy"].array(rows) if first.ndim else None


def _columns(rows: list[Any]) -> Any:
    """Tuples with arrays in them, ``(image, label)``, as columns: arrays, and lists of other values.

    Returns:
        The rows themselves if they are something else, or differ.
    """
    kind = imported("numpy", "ndarray")
    if kind is None or not rows or type(rows[0]) is not tuple:
        return rows
    arrays = [type(cell) is kind for cell in rows[0]]
    if not any(arrays) or {(type(row), len(row)) for row in rows} != {(tuple, len(arrays))}:
        return rows
    columns = [list(column) for column in zip(*rows)]
    found = tuple([_stacked(column) if array else column for column, array in zip(columns, arrays)])
    return rows if any(column is None for column in found) else found


def _contiguous(block: Block) -> Block:
    """The same with each array in one piece of memory: only then it travels beside the pickle uncopied."""
    if is_array(block):
        return sys.modules["numpy"].ascontiguousarray(block)
    if isinstance(block, tuple):
        return tuple(map(_contiguous, block))
    return {name: _contiguous(column) for name, column in block.items()} if isinstance(block, dict) else block


def _is_plain(row: Any, deep: int) -> bool:
    """Whether a row consists of plain values, as far as its first items show."""
    if type(row) in _PLAIN:
        return True
    return deep > 0 and type(row) in (tuple, list) and all(_is_plain(item, deep - 1) for item in row[:_FAR])


# The program's own modules.


def _own_names() -> frozenset[str]:
    """The names of those modules, and of ``__main__``; searched again when the number of modules changes."""
    global _seen
    count, names = _seen
    if count != len(sys.modules):
        count = len(sys.modules)
        names = frozenset(["__main__", *(module.__name__ for module in _own_modules())])
        _seen = count, names
    return names


def _own_modules() -> list[ModuleType]:
    """Modules imported from files that belong neither to Python nor to an installed package."""
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType)
        and module.__name__ == name
        and name != "__main__"
        and name.partition(".")[0] not in ("launcher", "cloudpickle")
        and isinstance(file := getattr(module, "__file__", None), str)
        and file.endswith(".py")
        and not _is_installed(file)
    ]


@functools.lru_cache(maxsize=None)
def _is_installed(file: str) -> bool:
    """Whether this is a file of Python, or of a package that pip or the system has installed anywhere."""
    path = os.path.realpath(file)
    stdlib = {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")}
    if path.startswith(tuple(stdlib)) or {"site-packages", "dist-packages"} & {*path.split(os.sep)}:
        return True
    return _has_metadata(os.path.dirname(path))


@functools.lru_cache(maxsize=None)
def _has_metadata(folder: str) -> bool:
    """Whether this or a folder above it is one that ``pip install --target`` has filled."""
    if glob.glob(os.path.join(glob.escape(folder), "*.dist-info")):
        return True
    return folder != os.path.dirname(folder) and _has_metadata(os.path.dirname(folder))
