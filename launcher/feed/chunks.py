"""Rows as they travel: a block <-> the buffers of a frame.

Arrays go beside the pickle that names them (protocol 5), so they are copied by nobody on the way out and land
in memory that becomes the array of the task. A list of arrays of one shape goes as one, so do arrays in
tuples. Plain rows (texts, numbers, tuples and lists of them) are pickled without the memo that looks for
shared objects: up to five times as fast. What `pickle` can't take, or lives in the driver's ``__main__``,
cloudpickle takes.
"""

from __future__ import annotations

import io
import pickle
import sys

from launcher.errors import FeedError
from launcher.feed.blocks import is_array
from launcher.model.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from launcher.feed.blocks import Block

    Buffer = bytes | bytearray | memoryview

_PROTOCOL = 5
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
#: How deep, and how far into a row, it is looked whether it is plain.
_DEEP, _FAR = 3, 8
#: What a class of the driver's program looks like in a pickle.
_MAIN = b"__main__"


class Encoded(NamedTuple):
    """Some rows, ready to be sent."""

    #: How many.
    rows: int
    buffers: Sequence[Buffer]

    @property
    def size(self) -> int:
        """Bytes of its buffers."""
        return sum([len(buffer) for buffer in self.buffers])


def encode(block: Block) -> list[Buffer]:
    """The buffers that `decode` makes this block of again.

    A list of arrays that are alike comes out as one array, a list of tuples with such arrays in them as a
    tuple of columns: the same rows (see `blocks.as_rows`), in one piece.

    Raises:
        FeedError: there are rows that can't be sent to another process.
    """
    if isinstance(block, list):
        arrays = _stacked(block)
        if arrays is None:
            arrays = _columns(block)
        if arrays is None:
            return [_pickled(block)]
        block = arrays
    buffers: list[Buffer] = []
    head = pickle.dumps(_contiguous(block), _PROTOCOL, buffer_callback=lambda one: buffers.append(one.raw()))
    return [head, *buffers]


def decode(buffers: Sequence[Buffer]) -> Block:
    """The block; its arrays live in the memory of the buffers.

    Raises:
        FeedError: its rows need something that is not there, say a module.
    """
    try:
        return pickle.loads(buffers[0], buffers=buffers[1:])
    except Exception as error:
        raise FeedError(
            f"rows that came can't be read here ({error}): what they are made of must be there, too; "
            "define it in a module that they can import, or feed plain rows (tuples, lists, dicts, arrays)"
        ) from error


def _stacked(rows: list[Any]) -> Any:
    """One array of these arrays; ``None`` if they are none, or differ."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not rows or type(first := rows[0]) is not numpy.ndarray or first.dtype.hasobject:
        return None
    kind, dtype, shape = numpy.ndarray, first.dtype, first.shape
    for row in rows:
        if type(row) is not kind or row.dtype != dtype or row.shape != shape:
            return None
    return numpy.array(rows) if first.ndim else None


def _columns(rows: list[Any]) -> Any:
    """Tuples with arrays in them, ``(image, label)``, as columns: arrays, and lists of what is none.

    Returns:
        ``None`` if they are no such tuples, or differ.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not rows or type(rows[0]) is not tuple:
        return None
    arrays = [type(cell) is numpy.ndarray for cell in rows[0]]
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


def _pickled(rows: list[Any]) -> Buffer:
    if rows and _is_plain(rows[0], _DEEP):
        return _without_memo(rows)
    try:
        data = pickle.dumps(rows, _PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return by_value(rows, error)
    return by_value(rows) if _MAIN in data else data


def _is_plain(row: Any, deep: int) -> bool:
    """Whether a row has nothing in it that is worth looking for twice, as far as its beginning tells."""
    if type(row) in _PLAIN:
        return True
    return deep > 0 and type(row) in (tuple, list) and all(_is_plain(item, deep - 1) for item in row[:_FAR])


def _without_memo(rows: list[Any]) -> Buffer:
    """Their pickle. Whoever was not plain after all is pickled well, too, unless it contains itself."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, _PROTOCOL)
    pickler.fast = True
    try:
        pickler.dump(rows)
    except (ValueError, RecursionError, pickle.PicklingError, AttributeError, TypeError) as error:
        return by_value(rows, error)
    return file.getbuffer()


def by_value(thing: Any, why: Exception | None = None) -> Buffer:
    """A pickle that carries the code of what it is made of.

    Args:
        why: what `pickle` said, if it was asked.

    Raises:
        FeedError: nothing can pickle it.
    """
    try:
        import cloudpickle

        data: bytes = cloudpickle.dumps(thing, _PROTOCOL)
    except ImportError as error:
        raise FeedError(f"cloudpickle is missing, and {why or 'these rows need it'}") from error
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError) as error:
        shown = f"rows such as {thing[0]!r:.200}" if isinstance(thing, list) else f"{thing!r:.200}"
        raise FeedError(f"{shown} can't be sent to a task: {error}") from (why or error)
    return data
