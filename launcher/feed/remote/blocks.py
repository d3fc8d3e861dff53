"""Blocks: some rows in one piece, as they travel.

A block is a list of rows; or a numpy array with its rows along axis 0; or a tuple or dict of such arrays of
one length, whose rows are tuples or dicts. Arrays stay arrays: no row of theirs ever becomes an object of
Python on the way. numpy is never imported here: data that has arrays in it has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

#: A list, an array, a tuple of arrays, or a dict of arrays.
Block = Any


def imported(module: str, name: str) -> Any:
    """What a module calls so; ``None`` if it is not imported, or another thread is just about to do it."""
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


def lengths(block: Block) -> list[int]:
    """How many rows each column of a block has; one number for what has no columns."""
    if isinstance(block, Mapping):
        return [len(column) for column in block.values()]
    return [len(column) for column in block] if isinstance(block, tuple) else [len(block)]


def size(block: Block) -> int:
    """How many rows a block has."""
    return lengths(block)[0]


def part(block: Block, start: int, stop: int) -> Block:
    """The rows from ``start`` to ``stop``, the latter not included; of arrays a view, nothing is copied."""
    if isinstance(block, Mapping):
        return {name: column[start:stop] for name, column in block.items()}
    if isinstance(block, tuple):
        return tuple(column[start:stop] for column in block)
    return block[start:stop]


def parts(block: Block, rows: int) -> Iterator[Block]:
    """The block in pieces of so many rows; the last one may be shorter."""
    total = size(block)
    return (part(block, start, min(start + rows, total)) for start in range(0, total, rows))


def chunks(rows: Iterable[Any], many: int) -> Iterator[list[Any]]:
    """Rows in lists of so many; the last one may be shorter."""
    iterator = iter(rows)
    while block := list(islice(iterator, many)):
        yield block


def as_rows(block: Block) -> list[Any]:
    """The rows one by one: tuples or dicts where the block has columns."""
    if isinstance(block, Mapping):
        return [dict(zip(block, row, strict=True)) for row in zip(*block.values(), strict=True)]
    return list(zip(*block, strict=True)) if isinstance(block, tuple) else list(block)


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
        return tuple(map(_joined, zip(*blocks, strict=True)))
    return _joined(blocks)


def _joined(blocks: Sequence[Any]) -> Any:
    if is_array(blocks[0]):
        return sys.modules["numpy"].concatenate(blocks)
    return [row for block in blocks for row in block]


def _alike(one: Block, other: Block) -> bool:
    """Whether two blocks can be one without a change of their rows."""
    if isinstance(one, Mapping):
        same = isinstance(other, Mapping) and one.keys() == other.keys()
        return same and all(_alike(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        same = isinstance(other, tuple) and len(one) == len(other)
        return same and all(map(_alike, one, other))
    if is_array(one):
        return is_array(other) and one.dtype == other.dtype and one.shape[1:] == other.shape[1:]
    return isinstance(other, list)
