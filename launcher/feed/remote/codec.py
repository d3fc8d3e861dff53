"""Rows as they travel: a block <-> the buffers of a frame.

Arrays go beside the pickle that names them (protocol 5), so they are copied by nobody on the way out and land
in memory that becomes the array of the task. A list of arrays of one shape goes as one, so do arrays in
tuples. Plain rows (texts, numbers, tuples and lists of them) are pickled without the memo that looks for
shared objects: up to five times as fast. What `pickle` can't take, or lives in the driver's ``__main__`` or
in a module of the user's own, cloudpickle takes.
"""

from __future__ import annotations

import io
import pickle
import sys
from contextlib import nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import FeedError
from launcher.feed.remote.blocks import imported, is_array
from launcher.feed.remote.own_modules import by_value as own_by_value
from launcher.feed.remote.own_modules import class_bytes, own_class, own_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from launcher.feed.remote.blocks import Block

    Buffer = bytes | bytearray | memoryview

_PROTOCOL = 5
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
#: How deep, and how far into a row, it is looked whether it is plain.
_DEEP, _FAR = 3, 8
#: Where a program's own classes are.
_MAIN = frozenset(["__main__"])


class Encoded(NamedTuple):
    """Some rows, ready to be sent."""

    #: How many.
    rows: int
    buffers: Sequence[Buffer]

    @property
    def size(self) -> int:
        """Bytes of its buffers."""
        return sum([len(buffer) for buffer in self.buffers])


def encode(block: Block, named: bool = False) -> list[Buffer]:
    """The buffers that `decode` makes this block of again.

    A list of arrays that are alike comes out as one array, a list of tuples with such arrays in them as a
    tuple of columns: the same rows (see `blocks.as_rows`), in one piece.

    Args:
        named: modules of the user's own are only named: whoever gets the block has them.

    Raises:
        FeedError: there are rows that can't be sent to another process.
    """
    if isinstance(block, list):
        arrays = _stacked(block)
        if arrays is None:
            arrays = _columns(block)
        if arrays is None:
            return [_pickled(block, named)]
        block = arrays
    buffers: list[Buffer] = []
    block = _contiguous(block)
    keep = lambda one: buffers.append(one.raw())  # noqa: E731
    try:
        head: Buffer = _dumped(block, named, keep=keep)
    except _NOT_PLAIN as error:
        buffers.clear()
        head = by_value(block, error, named, keep)
    return [head, *buffers]


#: What is said of rows that can't be read where they came; ``{why}`` is Python's word.
_UNREADABLE = (
    "rows that came can't be read here ({why}): what they are made of must be there, too; "
    "define it in a module that they can import, or feed plain rows (tuples, lists, dicts, arrays)"
)


def decode(buffers: Sequence[Buffer], unreadable: str = _UNREADABLE) -> Block:
    """The block; its arrays live in the memory of the buffers.

    Args:
        unreadable: the message, if they can't be read.

    Raises:
        FeedError: its rows need something that is not there, say a module.
    """
    try:
        return pickle.loads(buffers[0], buffers=buffers[1:])
    except Exception as error:
        raise FeedError(unreadable.replace("{why}", str(error))) from error


def _stacked(rows: list[Any]) -> Any:
    """One array of these arrays; ``None`` if they are none, or differ."""
    kind = imported("numpy", "ndarray")
    if kind is None or not rows or type(first := rows[0]) is not kind or first.dtype.hasobject:
        return None
    dtype, shape = first.dtype, first.shape
    for row in rows:
        if type(row) is not kind or row.dtype != dtype or row.shape != shape:
            return None
    return sys.modules["numpy"].array(rows) if first.ndim else None


def _columns(rows: list[Any]) -> Any:
    """Tuples with arrays in them, ``(image, label)``, as columns: arrays, and lists of what is none.

    Returns:
        ``None`` if they are no such tuples, or differ.
    """
    kind = imported("numpy", "ndarray")
    if kind is None or not rows or type(rows[0]) is not tuple:
        return None
    arrays = [type(cell) is kind for cell in rows[0]]
    if not any(arrays) or {(type(row), len(row)) for row in rows} != {(tuple, len(arrays))}:
        return None
    columns = [list(column) for column in zip(*rows, strict=True)]
    found = tuple(_stacked(one) if array else one for one, array in zip(columns, arrays, strict=True))
    return None if any(one is None for one in found) else found


def _contiguous(block: Block) -> Block:
    """The same with each array in one piece of memory: only then it goes without a copy into the pickle."""
    if is_array(block):
        return sys.modules["numpy"].ascontiguousarray(block)
    if isinstance(block, tuple):
        return tuple(map(_contiguous, block))
    return {name: _contiguous(column) for name, column in block.items()} if isinstance(block, dict) else block


class _Foreign(Exception):
    """There is something of the user's own program that only cloudpickle can carry."""


#: What `pickle` says of things that cloudpickle may know how to carry.
_NOT_PLAIN = (_Foreign, ValueError, RecursionError, pickle.PicklingError, AttributeError, TypeError)


class _Pickler(pickle.Pickler):
    """Carries classes of the program's own as code. It is not asked of texts, numbers, tuples and the like.

    Attributes:
        foreign: names of modules that are not there where the pickle goes.
        named: see `encode`.
    """

    foreign: frozenset[str] = _MAIN
    named = False

    def reducer_override(self, thing: Any) -> Any:
        """See `pickle.Pickler`."""
        kind = thing if isinstance(thing, (type, FunctionType)) else type(thing)
        if kind.__module__ not in self.foreign:
            return NotImplemented
        if self.fast or isinstance(thing, FunctionType):  # without a memo the class would come with each row
            raise _Foreign(f"{kind.__module__}.{kind.__qualname__} is of the program's own")
        if isinstance(thing, type):
            return own_class, (thing.__module__, thing.__qualname__, class_bytes(thing, self.named))
        return NotImplemented


def _dumped(
    thing: Any, named: bool, memo: bool = True, keep: Callable[[pickle.PickleBuffer], Any] | None = None
) -> bytes:
    file = io.BytesIO()
    pickler = _Pickler(file, _PROTOCOL, buffer_callback=keep)
    pickler.fast = not memo
    if not named:
        pickler.foreign = own_names()
    pickler.named = named
    pickler.dump(thing)
    return file.getvalue()


def _pickled(rows: list[Any], named: bool) -> Buffer:
    """Their pickle. Whoever was not plain after all is pickled well, too, unless it contains itself."""
    plain = bool(rows) and _is_plain(rows[0], _DEEP)
    try:
        try:
            return _dumped(rows, named, memo=not plain)
        except _Foreign:
            return _dumped(rows, named)
    except _NOT_PLAIN as error:
        return by_value(rows, error, named)


def _is_plain(row: Any, deep: int) -> bool:
    """Whether a row has nothing in it that is worth looking for twice, as far as its beginning tells."""
    if type(row) in _PLAIN:
        return True
    return deep > 0 and type(row) in (tuple, list) and all(_is_plain(item, deep - 1) for item in row[:_FAR])


def by_value(
    thing: Any,
    why: Exception | None = None,
    named: bool = False,
    keep: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> Buffer:
    """A pickle that carries the code of what it is made of.

    Args:
        why: what `pickle` said, if it was asked.
        named: see `encode`.
        keep: takes the arrays, which then are no part of it.

    Raises:
        FeedError: nothing can pickle it.
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
            error if isinstance(why, _Foreign) else why or error
        )
    return data
