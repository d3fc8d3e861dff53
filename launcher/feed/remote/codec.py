"""Rows as they travel: blocks, and the buffers of a frame that a block becomes.

A block is a list of rows; or a numpy array with its rows along axis 0; or a tuple or dict of such arrays of
one length, whose rows are tuples or dicts. Arrays stay arrays: their rows never become Python objects on the
way. numpy and pandas are never imported here: data that has arrays has imported them.

Arrays travel beside the pickle that names them (protocol 5): they are not copied on the way out, and are
received into the memory of the task's array. A list of arrays of one shape travels as one array, and so do
arrays in tuples. Plain rows (texts, numbers, tuples and lists of them) are pickled without the memo that
looks for shared objects: up to five times as fast. cloudpickle takes what `pickle` cannot, and classes and
functions of the program's own modules, which are not installed where tasks run: they travel as code.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from types import FunctionType
from typing import Any, Callable, Union

from launcher.common.errors import Fault, FeedError, InputError
from launcher.feed.remote.own_modules import is_own

#: A list, an array, a tuple of arrays, or a dict of arrays.
Block = Any
Buffer = Union[bytes, bytearray, memoryview]
OnBuffer = Callable[[pickle.PickleBuffer], Any]

_PICKLE_PROTOCOL = 5
_PLAIN_TYPES = frozenset({str, bytes, int, float, bool, type(None)})
#: How deep, and how many items of a row, are looked at to see whether it is plain.
_MAX_DEPTH = 3
_MAX_ITEMS = 8
#: The error about rows that cannot be unpickled; ``{why}`` is Python's message.
_UNREADABLE_ROWS = (
    "the rows cannot be read in the task ({why}): the module of their classes must be there too; "
    "define them in a module that the tasks can import, or feed tuples, lists, dicts or arrays"
)


class _OwnCodeError(Exception):
    """A class or function of the program's own modules, which only cloudpickle can carry."""


def refused(problem: str, expected: str) -> InputError:
    """Return the error about data that cannot be fed."""
    return InputError([Fault("data", problem, f"expected {expected}")])


def imported(module: str, name: str) -> Any:
    """Return an attribute of a module; ``None`` if the module is not imported (or is being imported)."""
    return getattr(sys.modules.get(module), name, None)


def is_array(value: object) -> bool:
    """Return whether this is a numpy array that has rows."""
    ndarray = imported("numpy", "ndarray")
    return ndarray is not None and isinstance(value, ndarray) and value.ndim > 0


def columnar(data: Any) -> Block | None:
    """Arrays in one of their forms, pandas frames and series as arrays, or None if it is neither.

    Raises:
        InputError: Columns of different length, or two of one name.
    """
    if is_array(data):
        return data
    columns = data if isinstance(data, tuple) else tuple(data.values()) if isinstance(data, Mapping) else ()
    if columns and all(map(is_array, columns)):
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            raise refused(f"columns of {', '.join(map(str, lengths))} rows", "one length")
        return data
    frame, series = imported("pandas", "DataFrame"), imported("pandas", "Series")
    if frame is not None and isinstance(data, frame):
        if not data.columns.is_unique:
            raise refused(f"a frame with columns {', '.join(map(str, data.columns))}", "each name once")
        return {str(name): column.to_numpy() for name, column in data.items()}
    return data.to_numpy() if series is not None and isinstance(data, series) else None


def size(block: Block) -> int:
    """Return the number of rows."""
    if isinstance(block, Mapping):
        return len(next(iter(block.values())))
    return len(block[0]) if isinstance(block, tuple) else len(block)


def part(block: Block, start: int, stop: int) -> Block:
    """Return the rows from ``start`` to before ``stop``; of arrays a view, nothing is copied."""
    if isinstance(block, Mapping):
        return {name: column[start:stop] for name, column in block.items()}
    if isinstance(block, tuple):
        return _like(block, [column[start:stop] for column in block])
    return block[start:stop]


def _like(block: tuple[Any, ...], columns: Iterable[Any]) -> tuple[Any, ...]:
    """Return other columns in the form of a block. A named tuple keeps its names."""
    return block._make(columns) if hasattr(block, "_make") else tuple(columns)


def blocks_of(data: Any, rows: Callable[[], int]) -> Iterator[Block]:
    """Yield a partition (arrays, a frame, a list, any iterable of rows) in blocks.

    Args:
        rows: Called for each block: how many rows it has at most.
    """
    block = columnar(data)
    if block is None and not isinstance(data, (list, tuple, range)):
        iterator = iter(data)
        while found := list(islice(iterator, rows())):
            yield found
        return
    start, stop = 0, len(data) if block is None else size(block)
    while start < stop:
        end = start + rows()
        if block is not None:
            yield part(block, start, end)
        else:
            yield data[start:end] if isinstance(data, list) else list(data[start:end])
        start = end


def as_rows(block: Block) -> list[Any]:
    """Return the rows one by one: tuples or dicts where the block has columns."""
    if isinstance(block, Mapping):
        return [dict(zip(block, row)) for row in zip(*block.values())]
    if isinstance(block, tuple):
        return [_like(block, row) for row in zip(*block)] if hasattr(block, "_make") else list(zip(*block))
    return block if isinstance(block, list) else list(block)


def join(blocks: Sequence[Block]) -> Block:
    """Return one block of all these rows; blocks of different forms become a list of rows.

    Args:
        blocks: At least one.
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if not all(_are_alike(first, other) for other in blocks):
        return [row for block in blocks for row in as_rows(block)]
    if isinstance(first, Mapping):
        return {name: _joined([block[name] for block in blocks]) for name in first}
    if isinstance(first, tuple):
        return _like(first, map(_joined, zip(*blocks)))
    return _joined(blocks)


def _joined(blocks: Sequence[Any]) -> Any:
    if is_array(blocks[0]):
        return sys.modules["numpy"].concatenate(blocks)
    return [row for block in blocks for row in block]


def _are_alike(first: Block, other: Block) -> bool:
    """Return whether two blocks can be joined without a change of their rows."""
    if isinstance(first, Mapping):
        same = isinstance(other, Mapping) and first.keys() == other.keys()
        return same and all(_are_alike(first[name], other[name]) for name in first)
    if isinstance(first, tuple):
        same = isinstance(other, tuple) and len(first) == len(other)
        names = getattr(first, "_fields", None) == getattr(other, "_fields", None)
        return same and names and all(map(_are_alike, first, other))
    if is_array(first):
        return is_array(other) and first.dtype == other.dtype and first.shape[1:] == other.shape[1:]
    return isinstance(other, list)


# Blocks <-> buffers.


def encode(block: Block, *, by_name: bool = False) -> list[Buffer]:
    """Return the buffers that `decode` makes this block of again.

    A list of arrays that are alike becomes one array, a list of tuples with such arrays in them a tuple of
    columns: the same rows (see `as_rows`), in one piece.

    Args:
        block: The rows.
        by_name: Whether the program's own modules travel as names, because the receiver has them.

    Raises:
        FeedError: Some rows cannot be sent to another process.
    """
    if isinstance(block, list) and block:
        arrays = _stacked(block)
        block = _columns(block) if arrays is None else arrays
    buffers: list[Buffer] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        buffers.append(buffer.raw())

    on_array = None if isinstance(block, list) else keep
    block = _contiguous(block)
    file = io.BytesIO()
    pickler = _PlainPickler(file, _PICKLE_PROTOCOL, buffer_callback=on_array)
    pickler.fast = isinstance(block, list) and bool(block) and _is_plain(block[0], _MAX_DEPTH)
    pickler.by_value = not by_name
    try:
        pickler.dump(block)
        head: Buffer = file.getvalue()
    except Exception:  # noqa: BLE001 - cloudpickle may take it
        buffers.clear()
        head = encode_code(block, by_name=by_name, on_array=on_array)
    return [head, *buffers]


def decode(buffers: Sequence[Buffer], unreadable: str = _UNREADABLE_ROWS) -> Block:
    """Return the block that buffers encode. Its arrays live in the memory of the buffers.

    Args:
        buffers: What `encode` has returned.
        unreadable: The message if they cannot be unpickled.

    Raises:
        FeedError: The rows need something that is not here, a module for example.
    """
    try:
        return pickle.loads(buffers[0], buffers=buffers[1:])
    except Exception as error:
        raise FeedError(unreadable.replace("{why}", str(error))) from error


def encode_code(content: Any, *, by_name: bool = False, on_array: OnBuffer | None = None) -> Buffer:
    """Return a pickle that has the code of the program's own functions and classes in it.

    Args:
        content: What to pickle.
        by_name: Whether the program's own modules travel as names, see `encode`.
        on_array: Called with each array, which is not part of the pickle then.

    Raises:
        FeedError: cloudpickle cannot pickle it either.
    """
    from launcher.feed.remote import code  # noqa: PLC0415 - cloudpickle: only rows with own classes need it

    try:
        with nullcontext() if by_name else code.by_value():
            data: bytes = code.dumps(content, _PICKLE_PROTOCOL, on_array)
    except Exception as error:
        shown = f"rows such as {content[0]!r:.200}" if isinstance(content, list) else f"{content!r:.200}"
        raise FeedError(f"{shown} can't be sent to a task: {error}") from error
    return data


class _PlainPickler(pickle.Pickler):
    """Refuses the program's own classes and functions; not called for texts, numbers, tuples and so on."""

    #: Whether those of all its modules are refused, not only those of ``__main__``.
    by_value = False

    def reducer_override(self, thing: Any) -> Any:
        kind = thing if isinstance(thing, (type, FunctionType)) else type(thing)
        if kind.__module__ == "__main__" or (self.by_value and is_own(kind.__module__)):
            raise _OwnCodeError(f"{kind.__module__}.{kind.__qualname__} is of the program's own code")
        return NotImplemented


# Arrays.


def _stacked(rows: list[Any]) -> Any:
    """Return one array of these arrays, in native byte order. None if they are other things, or differ."""
    first = rows[0]
    if not is_array(first) or first.dtype.hasobject:
        return None
    numpy = sys.modules["numpy"]
    if {*map(type, rows)} != {numpy.ndarray}:  # no subclass
        return None
    joined = numpy.empty((len(rows), *first.shape), numpy.result_type(first))
    try:
        if {*map(len, rows)} != {len(first)}:
            return None
        numpy.concatenate(rows, out=joined.reshape(len(rows) * len(first), *first.shape[1:]), casting="equiv")
    except (TypeError, ValueError):  # they have other types of elements, or other dimensions
        return None
    return joined


def _columns(rows: list[Any]) -> Any:
    """Tuples with arrays in them, ``(image, label)``, as columns: arrays, and lists of other values.

    Returns:
        The rows themselves if they are something else, or differ.
    """
    if type(rows[0]) is not tuple or not any(map(is_array, rows[0])):
        return rows
    if {(type(row), len(row)) for row in rows} != {(tuple, len(rows[0]))}:
        return rows
    columns = [list(column) for column in zip(*rows)]
    found = tuple([_stacked(column) if is_array(column[0]) else column for column in columns])
    return rows if any(column is None for column in found) else found


def _contiguous(block: Block) -> Block:
    """Return a block whose arrays have one piece of memory each, and so travel beside the pickle uncopied."""
    if is_array(block):
        return sys.modules["numpy"].ascontiguousarray(block)
    if isinstance(block, tuple):
        return _like(block, map(_contiguous, block))
    return {name: _contiguous(column) for name, column in block.items()} if isinstance(block, dict) else block


def _is_plain(row: Any, deep: int) -> bool:
    """Return whether a row consists of plain values, as far as its first items show."""
    if type(row) in _PLAIN_TYPES:
        return True
    if deep == 0 or type(row) not in (tuple, list):
        return False
    return all(_is_plain(item, deep - 1) for item in row[:_MAX_ITEMS])
