"""Pieces: what will be the partitions of some data, and the two ways to make them, of rows and of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from launcher.errors import Fault, InputError
from launcher.feed.grouping import groups
from launcher.feed.remote.blocks import Block, lengths, parts, size

#: Pieces that a worker gets of what can be cut anywhere: enough that a fast worker can take more of them.
PIECES_A_WORKER = 4


class Piece(NamedTuple):
    """What will be a partition."""

    #: Gives its rows in blocks of at most so many.
    blocks: Callable[[int], Iterator[Block]]
    #: Whether ``blocks`` gives the same rows again when it is called again.
    repeatable: bool = True
    #: What gives its rows beside the worker, picklable; ``None``: they are read here.
    remote: Callable[[], Iterable[Any]] | None = None


class Source(Protocol):
    """Data of any kind."""

    #: Whether it can be read only once.
    once: bool

    def pieces(self, workers: int) -> Iterator[Piece]:
        """All of it, lazily, for so many workers."""


class Rows:
    """Rows that are iterated: a list is split, anything else grouped as it comes.

    Args:
        data: any iterable of rows.
        per_partition: how many make a partition; default: a list is split evenly, others by their size.
    """

    def __init__(self, data: Iterable[Any], per_partition: int | None = None) -> None:
        self._data = data
        self._many = per_partition
        self.once = is_once(data)

    def pieces(self, workers: int) -> Iterator[Piece]:
        """Cut or grouped."""
        if isinstance(self._data, list | tuple | range):
            many = self._many or _evenly(len(self._data), workers)
            return (of_sequence(self._data, start, many) for start in range(0, len(self._data), many))
        return self._grouped(iter(self._data))

    def _grouped(self, rows: Iterator[Any]) -> Iterator[Piece]:
        many = self._many
        found = groups(rows) if many is None else iter(lambda: list(islice(rows, many)), [])
        return (of_sequence(group, 0, len(group)) for group in found)


class Columns:
    """Arrays of one length: cut into views.

    Raises:
        InputError: they have different lengths.
    """

    once = False

    def __init__(self, block: Block) -> None:
        if len(set(lengths(block))) > 1:
            raise refused(f"its columns have {', '.join(map(str, lengths(block)))} rows", "one length")
        self._block = block

    def pieces(self, workers: int) -> Iterator[Piece]:
        """Cut evenly."""
        return map(of_block, parts(self._block, _evenly(size(self._block), workers)))


def of_sequence(rows: Sequence[Any], start: int, many: int) -> Piece:
    """So many rows of a sequence."""
    stop = min(start + many, len(rows))

    def blocks(most: int) -> Iterator[Block]:
        found = (rows[at : min(at + most, stop)] for at in range(start, stop, most))
        return iter(found) if isinstance(rows, list) else map(list, found)

    return Piece(blocks)


def of_block(block: Block) -> Piece:
    """All of a block."""
    return Piece(lambda rows: parts(block, rows))


def is_once(data: Any) -> bool:
    """Whether iterating uses it up."""
    return isinstance(data, Iterator)


def refused(what: str, expected: str) -> InputError:
    """The error about data that can't be fed."""
    return InputError([Fault("data", what, f"expected {expected}")])


def _evenly(rows: int, workers: int) -> int:
    """How many rows a piece has, if a few of them go to each worker."""
    return max(1, -(-rows // (workers * PIECES_A_WORKER)))
