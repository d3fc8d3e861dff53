"""Where a file can be cut: after about so many bytes, where a record begins. Nothing is held but the cuts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from launcher.feed.remote.tfrecords import offsets


def of_lines(path: str, many: int) -> list[int]:
    """Of a text file, into at most so many pieces: offsets in bytes, without its beginning and end."""
    size, cuts = os.path.getsize(path), []
    with open(path, "rb") as file:
        for wanted in _wanted(size, many):
            file.seek(wanted - 1)
            file.readline()
            cuts.append(file.tell())
    return _between(cuts, size)


def of_csv(path: str, many: int) -> list[int]:
    """Of a CSV file: read once, as a line that begins within quotes can't be told by itself."""
    starts = _row_starts(path)
    first = next(starts)  # what follows may be the names, which are no piece of their own
    return [cut for cut in _nearest(starts, os.path.getsize(path), many) if cut > first]


def of_records(path: str, many: int) -> list[int]:
    """Of a TFRecord file: the lengths are read once.

    Raises:
        BrokenRecords: the file is damaged.
    """
    return _nearest(offsets(path), os.path.getsize(path), many)


def _row_starts(path: str) -> Iterator[int]:
    """Where each row but the first begins: an odd number of quotes in a line opens or closes a field."""
    with open(path, "rb") as file:
        at, within = 0, False
        for line in file:
            at += len(line)
            within ^= bool(line.count(b'"') & 1)
            if not within:
                yield at
    yield at


def _wanted(size: int, many: int) -> Iterable[int]:
    return (position for n in range(1, many) if (position := size * n // many) > 0)


def _nearest(starts: Iterator[int], size: int, many: int) -> list[int]:
    """The first start at or after each place that is wanted."""
    cuts, at = [], 0
    for wanted in _wanted(size, many):
        while at < wanted:
            at = next(starts, size)
        cuts.append(at)
    return _between(cuts, size)


def _between(cuts: Iterable[int], size: int) -> list[int]:
    return [cut for cut in dict.fromkeys(cuts) if 0 < cut < size]
