"""Where a file can be cut: after about so many bytes, where a record begins."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from launcher.feed.tfrecords import offsets


def of_lines(path: str, many: int) -> list[int]:
    """Of a text file, into at most so many pieces: offsets in bytes, without its beginning and end."""
    size, cuts = os.path.getsize(path), []
    with open(path, "rb") as file:
        for wanted in _wanted(size, many):
            file.seek(wanted - 1)
            file.readline()
            cuts.append(file.tell())
    return _between(0, cuts, size)


def of_csv(path: str, many: int) -> list[int]:
    """Of a CSV file: read once, as a line that begins within quotes can't be told by itself."""
    starts = list(_row_starts(path))
    return _nearest(starts[1:], starts[-1], many)  # not before the first row: that may be the names


def of_records(path: str, many: int) -> list[int]:
    """Of a TFRecord file: the lengths are read once.

    Raises:
        BrokenRecords: the file is damaged.
    """
    starts = list(offsets(path))
    return _nearest(starts, starts[-1], many)


def _row_starts(path: str) -> Iterator[int]:
    """Where each row begins, then the end of the file: an odd number of quotes opens or closes a field."""
    with open(path, "rb") as file:
        at, within = 0, False
        yield at
        for line in file:
            at += len(line)
            within ^= bool(line.count(b'"') & 1)
            if not within:
                yield at
    if within:
        yield at


def _wanted(size: int, many: int) -> Iterable[int]:
    return (position for n in range(1, many) if (position := size * n // many) > 0)


def _nearest(starts: list[int], size: int, many: int) -> list[int]:
    """The first start at or after each place that is wanted."""
    return _between(0, [starts[bisect_left(starts, wanted)] for wanted in _wanted(size, many)], size)


def _between(low: int, cuts: Iterable[int], high: int) -> list[int]:
    return [cut for cut in dict.fromkeys(cuts) if low < cut < high]
