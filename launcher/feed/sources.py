"""What a program may give as data, and how it is told apart.

The type decides, never the values, and what can be read in two ways is refused with the words that make it
clear:

====================================================  ====================================================
given                                                 taken as
====================================================  ====================================================
numpy array; tuple or dict of arrays of one length;   columns, cut into partitions: views, no copies
pandas frame or series
`TextFiles`, `CsvFiles`, `TFRecordFiles`              what is in the files
list or tuple of rows                                 split into partitions
anything else that is iterated, and gives rows        rows, grouped into partitions as they come
anything that is iterated, and gives partitions       those partitions, taken lazily
``rows(...)``, ``partitions(...)``                    what the word says
====================================================  ====================================================

The first item says whether they are rows or partitions. Numbers, texts, bytes, tuples and dicts are rows.
What can only be many rows is a partition: iterators and generators, ranges, sets, frames, files, and
callables, which are called beside the worker and return the rows. A list or an array can be either: what a
generator gives is a partition then, and so are lists of tuples, dicts or lists within a list; a list of lists
of numbers or texts, and a list of arrays, are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

from launcher.errors import Fault, InputError
from launcher.feed.blocks import Block, chunks, is_array, is_columns, lengths, parts, size

#: Pieces that a worker gets of what can be cut anywhere: enough that a fast worker can take more of them.
PIECES_A_WORKER = 4
#: Bytes, as far as the first row tells, and rows of a partition made of rows that come one by one.
_GROUP_BYTES, _MOST_ROWS, _FEWEST_ROWS = 2 << 20, 16384, 64


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
        self.once = _once(data)

    def pieces(self, workers: int) -> Iterator[Piece]:
        """Cut or grouped."""
        if isinstance(self._data, list | tuple | range):
            many = self._many or evenly(len(self._data), workers)
            return (_of_sequence(self._data, start, many) for start in range(0, len(self._data), many))
        return self._grouped(iter(self._data))

    def _grouped(self, rows: Iterator[Any]) -> Iterator[Piece]:
        for first in rows:
            groups = chunks(chain([first], rows), self._many or fitting(first))
            yield from (_of_sequence(group, 0, len(group)) for group in groups)


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
        many = evenly(size(self._block), workers)
        return (_of_block(block) for block in parts(self._block, many))


class Partitions:
    """Partitions that are iterated, lazily."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data
        self.once = _once(data) or (isinstance(data, list | tuple) and any(map(_once, data)))

    def pieces(self, workers: int) -> Iterator[Piece]:
        """Each as it comes."""
        for item in self._data:
            yield from (item.pieces(workers) if is_source(item) else [piece_of(item)])


class Mixed:
    """What is iterated and was not looked at yet: the first item tells, when it is asked for."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data
        self.once = _once(data)

    def pieces(self, workers: int) -> Iterator[Piece]:
        """As rows or as partitions."""
        iterator = iter(self._data)
        for first in iterator:
            again = chain([first], iterator)
            return (Rows(again) if is_row(first) else Partitions(again)).pieces(workers)
        return iter(())


def source_of(data: Any) -> Source:
    """What this is.

    Raises:
        InputError: it is nothing that has rows, or could be read in two ways.
    """
    if is_source(data):
        return data  # type: ignore[no-any-return]
    if (block := _columnar(data)) is not None:
        return Columns(block)
    if callable(data):
        return Partitions([data])
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        raise refused(f"{_shown(data)} has no rows", "a list, arrays, files, or partitions; a dict of arrays")
    if isinstance(data, list | tuple):
        return _listed(data)
    return Rows(data) if isinstance(data, range) else Mixed(data)


def piece_of(item: Any) -> Piece:
    """One partition, of what was given as one.

    Raises:
        InputError: it is nothing that has rows.
    """
    if (block := _columnar(item)) is not None:
        Columns(block)
        return _of_block(block)
    if callable(item):
        return Piece(lambda rows: blocks_of(item(), rows), True, item)
    if isinstance(item, list | tuple | range):
        return _of_sequence(item, 0, len(item))
    if isinstance(item, str | bytes | Mapping) or not isinstance(item, Iterable):
        raise refused(f"{_shown(item)} as a partition", "rows that are iterated, arrays, or a callable")
    return Piece(lambda rows: chunks(item, rows), not _once(item))


def blocks_of(data: Any, rows: int) -> Iterator[Block]:
    """What a callable returned, in blocks of at most so many rows."""
    pieces = data.pieces(1) if is_source(data) else [piece_of(data)]
    return chain.from_iterable(piece.blocks(rows) for piece in pieces)


def is_source(value: Any) -> bool:
    """Whether this is data that says itself what its pieces are."""
    return hasattr(value, "pieces") and hasattr(value, "once") and not isinstance(value, type)


def is_row(item: Any) -> bool:
    """Whether this is a row wherever it comes from; if not it can be a partition."""
    many = isinstance(item, Iterable) or callable(item) or is_source(item)
    return isinstance(item, str | bytes | tuple | Mapping) or not many


def evenly(rows: int, workers: int) -> int:
    """How many rows a piece has, if a few of them go to each worker."""
    return max(1, -(-rows // (workers * PIECES_A_WORKER)))


def fitting(row: Any) -> int:
    """How many rows like this one make a partition of moderate size."""
    import pickle

    try:
        weight = len(pickle.dumps(row, pickle.HIGHEST_PROTOCOL))
    except (pickle.PicklingError, TypeError, AttributeError):  # of no use to a task: the sending says so
        weight = _GROUP_BYTES
    return max(_FEWEST_ROWS, min(_MOST_ROWS, _GROUP_BYTES // max(1, weight)))


def refused(what: str, expected: str) -> InputError:
    """The error about data that can't be fed."""
    return InputError([Fault("data", what, f"expected {expected}")])


def _listed(data: Sequence[Any]) -> Source:
    """A list: of rows, of partitions, or of what could be both."""
    if not data or is_row(data[0]):
        return Rows(data)
    first = data[0]
    if is_array(first) or (isinstance(first, list) and (not first or _plain(first[0]))):
        kind = "arrays" if is_array(first) else "lists"
        raise refused(
            f"a list of {kind} can be rows, each a list or array, or partitions, each of many rows",
            "launcher.rows(data) or launcher.partitions(data)",
        )
    return Partitions(data)


def _plain(value: Any) -> bool:
    """What stands in a row, or is a row itself."""
    return isinstance(value, str | bytes) or is_array(value) or not isinstance(value, Iterable)


def _columnar(data: Any) -> Block | None:
    """Arrays in one of their forms; of a frame its columns, by name."""
    if is_array(data) or is_columns(data):
        return data
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return None
    if isinstance(data, pandas.DataFrame):
        return {str(name): column.to_numpy() for name, column in data.items()}
    return data.to_numpy() if isinstance(data, pandas.Series) else None


def _of_sequence(rows: Sequence[Any], start: int, many: int) -> Piece:
    stop = min(start + many, len(rows))

    def blocks(most: int) -> Iterator[Block]:
        return (list(rows[at : min(at + most, stop)]) for at in range(start, stop, most))

    return Piece(blocks)


def _of_block(block: Block) -> Piece:
    return Piece(lambda rows: parts(block, rows))


def _once(data: Any) -> bool:
    """Whether iterating uses it up."""
    return isinstance(data, Iterator)


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
