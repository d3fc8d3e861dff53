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
anything else that is iterated, and gives rows        rows, grouped into partitions as they come: some
                                                      megabytes, or what comes within a second
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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from launcher.feed.pieces import Columns, Piece, Rows, Source, is_once, of_block, of_sequence, refused
from launcher.feed.remote.blocks import Block, chunks, imported, is_array, is_columns

#: What to give instead.
_HINTS: dict[type, str] = {
    str: "TextFiles(...) or its like for files; a list, arrays, or partitions",
    dict: "a dict of arrays, or a list of dicts",
}


class Partitions:
    """Partitions that are iterated, lazily."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data
        self.once = is_once(data) or (isinstance(data, list | tuple) and any(map(is_once, data)))

    def pieces(self, workers: int) -> Iterator[Piece]:
        """Each as it comes."""
        for item in self._data:
            yield from (item.pieces(workers) if is_source(item) else [piece_of(item)])


class Mixed:
    """What is iterated and was not looked at yet: the first item tells, when it is asked for."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data
        self.once = is_once(data)

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
    if not is_many(data):
        raise refused(
            f"{_shown(data)} has no rows", _HINTS.get(type(data), "a list, arrays, files, or partitions")
        )
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
        return of_block(block)
    if callable(item):
        return Piece(lambda rows: blocks_of(item(), rows), True, item)
    if isinstance(item, list | tuple | range):
        return of_sequence(item, 0, len(item))
    if not is_many(item):
        raise refused(f"{_shown(item)} as a partition", "rows that are iterated, arrays, or a callable")
    return Piece(lambda rows: chunks(item, rows), not is_once(item))


def blocks_of(data: Any, rows: int) -> Iterator[Block]:
    """What a callable returned, in blocks of at most so many rows."""
    pieces = data.pieces(1) if is_source(data) else [piece_of(data)]
    return chain.from_iterable(piece.blocks(rows) for piece in pieces)


def is_source(value: Any) -> bool:
    """Whether this is data that says itself what its pieces are."""
    return callable(getattr(type(value), "pieces", None)) and hasattr(value, "once")


def is_many(value: Any) -> bool:
    """Whether this is iterated, and no row itself."""
    return _is_iterated(value) and not isinstance(value, str | bytes | Mapping)


def is_row(item: Any) -> bool:
    """Whether this is a row wherever it comes from; if not it can be a partition."""
    many = _is_iterated(item) or callable(item) or is_source(item)
    return isinstance(item, str | bytes | tuple | Mapping) or not many


def _is_iterated(value: Any) -> bool:
    """Whether it can be iterated; an array of no dimensions, which is one number, only looks like it."""
    return isinstance(value, Iterable) and getattr(value, "shape", None) != ()


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
    return isinstance(value, str | bytes) or is_array(value) or not _is_iterated(value)


def _columnar(data: Any) -> Block | None:
    """Arrays in one of their forms; of a frame its columns, by name."""
    if is_array(data) or is_columns(data):
        return data
    frame, series = imported("pandas", "DataFrame"), imported("pandas", "Series")
    if frame is None or series is None:
        return None
    if isinstance(data, frame):
        if not data.columns.is_unique:
            raise refused(f"a frame with columns {', '.join(map(str, data.columns))}", "each name once")
        return {str(name): column.to_numpy() for name, column in data.items()}
    return data.to_numpy() if isinstance(data, series) else None


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
