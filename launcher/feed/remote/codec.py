"""Rows as they travel: a block <-> the buffers of a frame.

Arrays travel beside the pickle that names them (protocol 5): they are not copied on the way out, and are
received into the memory of the task's array. A list of arrays of one shape travels as one array, and so do
arrays in tuples. Plain rows (texts, numbers, tuples and lists of them) are pickled without the memo that
looks for shared objects: up to five times as fast. cloudpickle takes what `pickle` cannot, and code of the
program.
"""

from __future__ import annotations

import io
import pickle
import sys
from contextlib import nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, Union

from launcher.errors import FeedError
from launcher.feed.remote.blocks import imported, is_array
from launcher.feed.remote.own_modules import by_value as own_by_value
from launcher.feed.remote.own_modules import own_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from launcher.feed.remote.blocks import Block

Buffer = Union[bytes, bytearray, memoryview]

_PROTOCOL = 5
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
#: How deep, and how many items of a row, are looked at to tell whether it is plain.
_DEEP, _FAR = 3, 8
#: The error about rows that cannot be unpickled; ``{why}`` is Python's message.
_UNREADABLE = (
    "the rows cannot be read in the task ({why}): the module of their classes must be there too; "
    "define them in a module that the tasks can import, or feed tuples, lists, dicts or arrays"
)


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
        if arrays is None:
            arrays = _columns(block)
        if arrays is None:
            try:
                return [_dumped(block, named, memo=not (block and _is_plain(block[0], _DEEP)))]
            except _NOT_PLAIN as error:
                return [by_value(block, error, named)]
        block = arrays
    buffers: list[Buffer] = []
    block = _contiguous(block)

    def keep(buffer: pickle.PickleBuffer) -> None:
        buffers.append(buffer.raw())

    try:
        head: Buffer = _dumped(block, named, keep=keep)
    except _NOT_PLAIN as error:
        buffers.clear()
        head = by_value(block, error, named, keep)
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


def by_value(
    thing: Any,
    why: Exception | None = None,
    named: bool = False,
    keep: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> Buffer:
    """A pickle that has the code of the program's own functions and classes in it.

    Args:
        why: the error of `pickle`, if it was tried.
        named: see `encode`.
        keep: takes the arrays, which are not part of the pickle then.

    Raises:
        FeedError: cloudpickle cannot pickle it either.
    """
    try:
        import cloudpickle

        with nullcontext() if named else own_by_value():
            data: bytes = cloudpickle.dumps(thing, _PROTOCOL, keep)
    except ImportError as error:
        raise FeedError(f"cloudpickle is missing, and {why or 'these rows need it'}") from error
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError) as error:
        shown = f"rows such as {thing[0]!r:.200}" if isinstance(thing, list) else f"{thing!r:.200}"
        raise FeedError(f"{shown} can't be sent to a task: {error}") from (
            error if isinstance(why, _OfProgram) else why or error
        )
    return data


def _stacked(rows: list[Any]) -> Any:
    """One array of these arrays; ``None`` if they are other things, or differ."""
    kind = imported("numpy", "ndarray")
    if kind is None or not rows or type(first := rows[0]) is not kind or first.dtype.hasobject:
        return None
    dtype, shape = first.dtype, first.shape
    for row in rows:
        if type(row) is not kind or row.dtype != dtype or row.shape != shape:
            return None
    return sys.modules["numpy"].array(rows) if first.ndim else None


def _columns(rows: list[Any]) -> Any:
    """Tuples with arrays in them, ``(image, label)``, as columns: arrays, and lists of other values.

    Returns:
        ``None`` if the rows are something else, or differ.
    """
    kind = imported("numpy", "ndarray")
    if kind is None or not rows or type(rows[0]) is not tuple:
        return None
    arrays = [type(cell) is kind for cell in rows[0]]
    if not any(arrays) or {(type(row), len(row)) for row in rows} != {(tuple, len(arrays))}:
        return None
    columns = [list(column) for column in zip(*rows)]
    found = tuple([_stacked(one) if array else one for one, array in zip(columns, arrays)])
    return None if any(one is None for one in found) else found


def _contiguous(block: Block) -> Block:
    """The same with each array in one piece of memory: only then it travels beside the pickle uncopied."""
    if is_array(block):
        return sys.modules["numpy"].ascontiguousarray(block)
    if isinstance(block, tuple):
        return tuple(map(_contiguous, block))
    return {name: _contiguous(column) for name, column in block.items()} if isinstance(block, dict) else block


class _OfProgram(Exception):
    """Something of the program's own code, which only cloudpickle can carry."""


#: Errors of `pickle` about things that cloudpickle may be able to pickle.
_NOT_PLAIN = (_OfProgram, ValueError, RecursionError, pickle.PicklingError, AttributeError, TypeError)


class _Pickler(pickle.Pickler):
    """Refuses the program's own classes and functions; not called for texts, numbers, tuples and so on."""

    #: Modules that are missing where the pickle goes.
    missing = frozenset(["__main__"])

    def reducer_override(self, thing: Any) -> Any:
        """See `pickle.Pickler`."""
        kind = thing if isinstance(thing, (type, FunctionType)) else type(thing)
        if kind.__module__ in self.missing:
            raise _OfProgram(f"{kind.__module__}.{kind.__qualname__} is of the program's own code")
        return NotImplemented


def _dumped(
    thing: Any, named: bool, memo: bool = True, keep: Callable[[pickle.PickleBuffer], Any] | None = None
) -> bytes:
    file = io.BytesIO()
    pickler = _Pickler(file, _PROTOCOL, buffer_callback=keep)
    pickler.fast = not memo
    if not named:
        pickler.missing = own_names()
    pickler.dump(thing)
    return file.getvalue()


def _is_plain(row: Any, deep: int) -> bool:
    """Whether a row consists of plain values, as far as its first items tell."""
    if type(row) in _PLAIN:
        return True
    return deep > 0 and type(row) in (tuple, list) and all(_is_plain(item, deep - 1) for item in row[:_FAR])
