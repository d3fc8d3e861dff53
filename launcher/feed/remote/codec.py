"""Rows as they travel: blocks, and the buffers of a frame that a block becomes. Both sides call this.

A block is a list of rows, a numpy array with its rows along axis 0, or a tuple or dict of such arrays of one
length, whose rows are tuples or dicts. Arrays stay arrays, so their rows never become Python objects on the
way. numpy and pandas must never be imported here: a program whose data contains arrays has imported them.

Arrays travel beside the pickle that names them (protocol 5). They are not copied on the way out, and are
received into the memory of the task's array. A list of arrays of one shape travels as one array, and so do
arrays in tuples. Plain rows (texts, numbers, tuples and lists of them) are pickled without the memo that
looks for shared objects, which is up to five times as fast. cloudpickle handles what `pickle` cannot, and
also classes and functions of the program's own modules. These are not installed where tasks run, so they
travel as code.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, islice
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
#: How deep the items of a row are nested at most if the row is to count as plain.
_MAX_DEPTH = 3
#: How many items of a row are examined to see whether the row is plain.
_MAX_ITEMS = 8
#: The error about rows that cannot be unpickled. ``{why}`` stands for Python's message.
_UNREADABLE_ROWS = (
    "the rows cannot be read in the task ({why}): the module of their classes must be there too; "
    "define them in a module that the tasks can import, or feed tuples, lists, dicts or arrays"
)


class _OwnCodeError(Exception):
    """A row needs a class or function of the program's own modules, which only cloudpickle can pickle."""


def refused(problem: str, expected: str) -> InputError:
    """Return the error about data that cannot be fed, with what was expected instead."""
    return InputError([Fault("data", problem, f"expected {expected}")])


def imported(module: str, name: str) -> Any:
    """Return an attribute of a module that the program has imported.

    A row is an array of numpy, for example, only if the program has imported numpy. So nothing is imported,
    which may take long, just to ask whether a row is one.

    Returns:
        The attribute. None if the module is not imported, or is being imported.
    """
    return getattr(sys.modules.get(module), name, None)


def is_array(value: object) -> bool:
    """Return whether a value is a numpy array with rows, so not of dimension 0."""
    ndarray = imported("numpy", "ndarray")
    return ndarray is not None and isinstance(value, ndarray) and value.ndim > 0


def columnar(data: Any) -> Block | None:
    """Return data that consists of arrays as a block.

    Args:
        data: Any data of the user: an array, a tuple or dict of arrays, a pandas frame or series, or
            something else.

    Returns:
        The block. A frame becomes a dict of arrays. None if the data is something else.

    Raises:
        InputError: Columns differ in length, or two have the same name.
    """
    if is_array(data):
        return data
    # A tuple or dict may be columns, and any other data may be a frame or a series.
    columns: Sequence[Any] = ()
    if isinstance(data, (tuple, Mapping)):
        columns = data if isinstance(data, tuple) else tuple(data.values())
    # A tuple or dict with anything else in it is a row, not a block.
    if columns and all(map(is_array, columns)):
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            raise refused(f"columns of {', '.join(map(str, lengths))} rows", "one length")
        return data
    # If the program has not imported pandas, the data cannot be a frame.
    frame, series = imported("pandas", "DataFrame"), imported("pandas", "Series")
    if frame is not None and isinstance(data, frame):
        if not data.columns.is_unique:
            raise refused(f"a frame with columns {', '.join(map(str, data.columns))}", "each name once")
        return {str(name): column.to_numpy() for name, column in data.items()}
    return data.to_numpy() if series is not None and isinstance(data, series) else None


def size(block: Block) -> int:
    """Return the number of rows of a block."""
    # The arrays in a dict or a tuple are columns, all of the same length.
    if isinstance(block, Mapping):
        return len(next(iter(block.values())))
    # Any other block is a list of rows or one array, so its length is the number of rows.
    return len(block[0]) if isinstance(block, tuple) else len(block)


def part(block: Block, start: int, stop: int) -> Block:
    """Return the rows of a block from ``start`` to before ``stop``, of arrays as a view."""
    if isinstance(block, Mapping):
        return {name: column[start:stop] for name, column in block.items()}
    if isinstance(block, tuple):
        return _like(block, [column[start:stop] for column in block])
    return block[start:stop]


def _like(block: tuple[Any, ...], columns: Iterable[Any]) -> tuple[Any, ...]:
    """Return columns as a tuple of the same kind as a block. A named tuple keeps its names."""
    return block._make(columns) if hasattr(block, "_make") else tuple(columns)


class RowBlocks:
    """Rows that come in blocks, such as the lines of a file, because single rows would cost more time.

    Args:
        blocks: The blocks.
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        """Keep the blocks, of which nothing is read."""
        self.blocks = blocks

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rows, one by one."""
        return chain.from_iterable(map(as_rows, self.blocks))


def blocks_of(data: Any, rows: Callable[[], int]) -> Iterator[Block]:
    """Yield the rows of a partition in blocks.

    Args:
        data: The partition: arrays, a frame, a list, or any iterable of rows.
        rows: Called before each block. It returns how many rows the block may contain.
    """
    if isinstance(data, RowBlocks):
        for whole in data.blocks:
            yield from blocks_of(whole, rows)
        return
    block = columnar(data)
    if block is None and not isinstance(data, (list, tuple, range)):
        iterator = iter(data)
        while some_rows := list(islice(iterator, rows())):
            yield some_rows
        return
    start, total = 0, len(data) if block is None else size(block)
    while start < total:
        stop = start + rows()
        if block is not None:
            yield part(block, start, stop)
        else:
            # A slice of a tuple would be a block of columns.
            yield list(data[start:stop])
        start = stop


def as_rows(block: Block) -> list[Any]:
    """Return the rows of a block one by one. They are tuples or dicts if the block consists of columns."""
    if isinstance(block, Mapping):
        return [dict(zip(block, row)) for row in zip(*block.values())]
    if isinstance(block, tuple):
        rows = list(zip(*block))
        # Only a named tuple has this method. Its rows are named tuples of the same class.
        return [_like(block, row) for row in rows] if hasattr(block, "_make") else rows
    return block if isinstance(block, list) else list(block)


def join(blocks: Sequence[Block]) -> Block:
    """Return one block with the rows of all blocks. Blocks of different forms become a list of rows.

    A block is a list of rows, an array with the rows along its first dimension, or columns: a tuple or dict
    of such arrays.

    Args:
        blocks: The blocks, at least one.
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if not all(_are_alike(first, other) for other in blocks):
        return [row for block in blocks for row in as_rows(block)]
    # All blocks are alike, so each column of the first one has its like in all others.
    if isinstance(first, Mapping):
        return {name: _joined([block[name] for block in blocks]) for name in first}
    if isinstance(first, tuple):
        return _like(first, map(_joined, zip(*blocks)))
    return _joined(blocks)


def _joined(blocks: Sequence[Any]) -> Any:
    """Return arrays that are alike as one array, or lists of rows as one list."""
    if is_array(blocks[0]):
        # There is an array, so the program has imported NumPy. This module must not import it itself.
        return sys.modules["numpy"].concatenate(blocks)
    return [row for block in blocks for row in block]


def _are_alike(first: Block, other: Block) -> bool:
    """Return whether two blocks can be joined without changing their rows.

    - Columns by name: both have the same names, and columns that are alike.
    - A tuple of columns: both are tuples or the same kind of named tuple, and the columns are alike.
    - Arrays: both have the same type and the same shape of a row.
    - Lists of rows can always be joined.
    """
    if isinstance(first, Mapping):
        has_same_names = isinstance(other, Mapping) and first.keys() == other.keys()
        return has_same_names and all(_are_alike(first[name], other[name]) for name in first)
    if isinstance(first, tuple):
        has_same_length = isinstance(other, tuple) and len(first) == len(other)
        # Only named tuples have this attribute.
        has_same_names = getattr(first, "_fields", None) == getattr(other, "_fields", None)
        return has_same_length and has_same_names and all(map(_are_alike, first, other))
    if is_array(first):
        return is_array(other) and first.dtype == other.dtype and first.shape[1:] == other.shape[1:]
    return isinstance(other, list)


# Blocks <-> buffers.


def encode(block: Block, *, by_name: bool = False) -> list[Buffer]:
    """Return the buffers of a block, from which `decode` makes the block again.

    A list of arrays that are alike becomes one array, and a list of tuples with such arrays becomes a tuple
    of columns. These contain the same rows (see `as_rows`) in one piece.

    Args:
        block: The rows.
        by_name: Whether the program's own modules travel as names, because the receiver has them.

    Returns:
        The pickle, and the memory of each array.

    Raises:
        FeedError: Some rows cannot be sent to another process.
    """
    # A list of other rows stays as it is.
    if isinstance(block, list) and block:
        stacked = _stacked(block)
        block = _columns(block) if stacked is None else stacked
    buffers: list[Buffer] = []

    def on_array(buffer: pickle.PickleBuffer) -> None:
        """Keep the memory of an array, which the pickle then does not contain."""
        buffers.append(buffer.raw())

    # Arrays within rows are small and many, so they stay in the pickle.
    on_buffer = None if isinstance(block, list) else on_array
    block = _contiguous(block)
    file = io.BytesIO()
    pickler = _PlainPickler(file, _PICKLE_PROTOCOL, buffer_callback=on_buffer)
    # This leaves out the memo of objects that occur twice. The first row stands for all.
    pickler.fast = isinstance(block, list) and bool(block) and _is_plain(block[0], _MAX_DEPTH)
    # Own modules are then refused here, so that cloudpickle includes their code below.
    pickler.by_value = not by_name
    try:
        pickler.dump(block)
        head: Buffer = file.getvalue()
    except Exception:  # noqa: BLE001 - cloudpickle may succeed
        buffers.clear()
        head = encode_code(block, by_name=by_name, on_array=on_buffer)
    return [head, *buffers]


def decode(buffers: Sequence[Buffer], unreadable: str = _UNREADABLE_ROWS) -> Block:
    """Return the block that buffers encode. Its arrays live in the memory of the buffers.

    Args:
        buffers: The buffers that `encode` has returned.
        unreadable: The message of the error, with ``{why}`` for Python's message.

    Raises:
        FeedError: The rows cannot be unpickled, for example because a module is missing.
    """
    try:
        return pickle.loads(buffers[0], buffers=buffers[1:])
    except Exception as error:
        raise FeedError(unreadable.replace("{why}", str(error))) from error


def encode_code(content: Any, *, by_name: bool = False, on_array: OnBuffer | None = None) -> Buffer:
    """Return a pickle that contains the code of the program's own functions and classes.

    Args:
        content: The object to pickle.
        by_name: Whether the program's own modules travel as names, see `encode`.
        on_array: Called with each array, which is then not part of the pickle.

    Raises:
        FeedError: cloudpickle cannot pickle it either.
    """
    from launcher.feed.remote import code  # noqa: PLC0415 - cloudpickle: only rows with own classes need it

    try:
        with nullcontext() if by_name else code.by_value():
            data: bytes = code.dumps(content, _PICKLE_PROTOCOL, on_array)
    except Exception as error:
        shown = f"rows such as {content[0]!r:.200}" if isinstance(content, list) else f"{content!r:.200}"
        raise FeedError(f"{shown} cannot be sent to a task: {error}") from error
    return data


class _PlainPickler(pickle.Pickler):
    """Refuses classes and functions of the program's own code, which `pickle` would name but not contain."""

    #: Whether the classes of all the program's own modules are refused, not only those of ``__main__``.
    by_value = False

    def reducer_override(self, thing: Any) -> Any:
        """Refuse classes and functions of the program, and objects of such classes. Pickle others as usual.

        Raises:
            _OwnCodeError: The object cannot be pickled by name.
        """
        kind = thing if isinstance(thing, (type, FunctionType)) else type(thing)
        if kind.__module__ == "__main__" or (self.by_value and is_own(kind.__module__)):
            raise _OwnCodeError(f"{kind.__module__}.{kind.__qualname__} is of the program's own code")
        # Then pickle does what it always does.
        return NotImplemented


# Arrays.


def _stacked(rows: list[Any]) -> Any:
    """Return arrays of one shape and type as one array, in native byte order.

    Returns:
        The array, whose first dimension counts the given ones. None if they are something else, or differ.
    """
    first = rows[0]
    # The memory of an array of Python objects contains only pointers, so it cannot travel.
    if not is_array(first) or first.dtype.hasobject:
        return None
    # There is an array, so the program has imported NumPy.
    numpy = sys.modules["numpy"]
    if {*map(type, rows)} != {numpy.ndarray}:  # a subclass would lose its type
        return None
    stacked = numpy.empty((len(rows), *first.shape), numpy.result_type(first))
    try:
        if {*map(len, rows)} != {len(first)}:
            return None
        # The same memory, in the shape that concatenate fills. Arrays of other types are refused ("equiv"),
        # except for their byte order.
        flat = stacked.reshape(len(rows) * len(first), *first.shape[1:])
        numpy.concatenate(rows, out=flat, casting="equiv")
    except (TypeError, ValueError):  # the types of their elements or their shapes differ
        return None
    return stacked


def _columns(rows: list[Any]) -> Any:
    """Return tuples that contain arrays, such as ``(image, label)``, as columns.

    Returns:
        A tuple of columns: arrays, and lists of other values. The rows themselves if they are something else,
            or differ.
    """
    if type(rows[0]) is not tuple or not any(map(is_array, rows[0])):
        return rows
    # All rows must have the same number of items, and none may be a named tuple.
    if {(type(row), len(row)) for row in rows} != {(tuple, len(rows[0]))}:
        return rows
    lists = [list(column) for column in zip(*rows)]
    columns = tuple([_stacked(column) if is_array(column[0]) else column for column in lists])
    # None stands for arrays that differ.
    return rows if any(column is None for column in columns) else columns


def _contiguous(block: Block) -> Block:
    """Return a block whose arrays have one piece of memory each, and so travel beside the pickle uncopied.

    Only arrays that are views with gaps, such as every second row of another one, are copied.
    """
    if is_array(block):
        # There is an array, so the program has imported NumPy.
        return sys.modules["numpy"].ascontiguousarray(block)
    if isinstance(block, tuple):
        return _like(block, map(_contiguous, block))
    return {name: _contiguous(column) for name, column in block.items()} if isinstance(block, dict) else block


def _is_plain(row: Any, levels: int) -> bool:
    """Return whether a row consists of plain values, as far as its first items show.

    Rows of plain values can be pickled without the memo, which is faster. If other items follow after all,
    they are pickled as well, but an object that occurs twice becomes two. An object that contains itself
    cannot be pickled so, and cloudpickle pickles the block instead.

    Args:
        row: The row, or an item of it.
        levels: How many more levels of nesting may follow.
    """
    if type(row) in _PLAIN_TYPES:
        return True
    if levels == 0 or type(row) not in (tuple, list):
        return False
    return all(_is_plain(item, levels - 1) for item in row[:_MAX_ITEMS])
