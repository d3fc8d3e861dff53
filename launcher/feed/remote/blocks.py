"""Blocks: some rows in one piece, as they travel.

A block is a list of rows; or a numpy array with its rows along axis 0; or a tuple or dict of such arrays of
one length, whose rows are tuples or dicts. Arrays stay arrays: their rows never become Python objects on the
way. numpy and pandas are never imported here: data that has arrays has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from launcher.errors import Fault, InputError

#: A list, an array, a tuple of arrays, or a dict of arrays.
Block = Any


def refused(what: str, expected: str) -> InputError:
    """The error about data that can't be fed."""
    return InputError([Fault("data", what, f"expected {expected}")])


def imported(module: str, name: str) -> Any:
    """An attribute of a module; ``None`` if the module is not imported (or is being imported)."""
    return getattr(sys.modules.get(module), name, None)


def is_array(value: object) -> bool:
    """Whether this is a numpy array that has rows."""
    ndarray = imported("numpy", "ndarray")
    return ndarray is not None and isinstance(value, ndarray) and value.ndim > 0


def is_columns(value: object) -> bool:
    """Whether this is a tuple of arrays, or a dict of arrays; they may differ in length."""
    if isinstance(value, Mapping):
        return bool(value) and all(map(is_array, value.values()))
    return isinstance(value, tuple) and bool(value) and all(map(is_array, value))


def columnar(data: Any) -> Block | None:
    """Arrays in one of their forms, pandas frames and series as arrays; ``None``: it is neither.

    Raises:
        InputError: columns of different length, or two of one name.
    """
    if is_array(data):
        return data
    if is_columns(data):
        columns = list(data.values() if isinstance(data, Mapping) else data)
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
    """The number of rows."""
    if isinstance(block, Mapping):
        return len(next(iter(block.values())))
    return len(block[0]) if isinstance(block, tuple) else len(block)


def part(block: Block, start: int, stop: int) -> Block:
    """The rows from ``start`` to before ``stop``; of arrays a view, nothing is copied."""
    if isinstance(block, Mapping):
        return {name: column[start:stop] for name, column in block.items()}
    if isinstance(block, tuple):
        return tuple(column[start:stop] for column in block)
    return block[start:stop]


def blocks_of(data: Any, rows: Callable[[], int], start: int = 0, stop: int | None = None) -> Iterator[Block]:
    """One partition (arrays, a frame, a list, any iterable of rows) in blocks.

    Args:
        rows: called for each block: how many rows it has at most.
        start, stop: the rows of a sequence or of arrays; default: all.
    """
    block = columnar(data)
    if block is None and not isinstance(data, (list, tuple, range)):
        iterator = iter(data)
        while found := list(islice(iterator, rows())):
            yield found
        return
    stop = (len(data) if block is None else size(block)) if stop is None else stop
    while start < stop:
        end = min(start + rows(), stop)
        if block is not None:
            yield part(block, start, end)
        else:
            yield data[start:end] if isinstance(data, list) else list(data[start:end])
        start = end


def as_rows(block: Block) -> list[Any]:
    """The rows one by one: tuples or dicts where the block has columns."""
    if isinstance(block, Mapping):
        return [dict(zip(block, row)) for row in zip(*block.values())]
    if isinstance(block, tuple):
        return list(zip(*block))
    return block if isinstance(block, list) else list(block)


def join(blocks: Sequence[Block]) -> Block:
    """One block of all these rows; blocks of different forms become a list of rows.

    Args:
        blocks: at least one.
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if not all(_alike(first, other) for other in blocks):
        return [row for block in blocks for row in as_rows(block)]
    if isinstance(first, Mapping):
        return {name: _joined([block[name] for block in blocks]) for name in first}
    if isinstance(first, tuple):
        return tuple(map(_joined, zip(*blocks)))
    return _joined(blocks)


def _joined(blocks: Sequence[Any]) -> Any:
    if is_array(blocks[0]):
        return sys.modules["numpy"].concatenate(blocks)
    return [row for block in blocks for row in block]


def _alike(one: Block, other: Block) -> bool:
    """Whether two blocks can be joined without a change of their rows."""
    if isinstance(one, Mapping):
        same = isinstance(other, Mapping) and one.keys() == other.keys()
        return same and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_alike, one, other))
    if is_array(one):
        return is_array(other) and one.dtype == other.dtype and one.shape[1:] == other.shape[1:]
    return isinstance(other, list)
