"""Reads files of a store: ``storage.py WAY KIND PATTERN``, in a bare loop or by a feed of so many workers.

It prints the number of rows and the seconds that they took. The bare loop reads them with the same library,
through a buffer. What is imported and connected before does not count.
"""

from __future__ import annotations

import csv
import io
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

_BUFFER_BYTES = 4 << 20
_BATCH = 1000
Loop = Callable[[IO[bytes]], Iterator[Any]]


def text(file: IO[bytes]) -> Iterator[str]:
    """The lines of a file. A `io.TextIOWrapper` would read 8 KiB at once, past the buffer."""
    for line in file:
        yield line.decode().rstrip("\n")


def table(file: IO[bytes]) -> Iterator[tuple[str, ...]]:
    """The rows of a CSV file."""
    rows = csv.reader(map(bytes.decode, file))
    next(rows)
    yield from map(tuple, rows)


def tfrecord(file: IO[bytes]) -> Iterator[bytes]:
    """The records of a TFRecord file, checked."""
    import google_crc32c

    checksum = google_crc32c.value
    while head := file.read(12):
        (size,) = struct.unpack("<Q", head[:8])
        content = file.read(size)
        for data, masked in ((head[:8], head[8:]), (content, file.read(4))):
            crc = checksum(data)
            if struct.unpack("<I", masked)[0] != ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF:
                raise ValueError("wrong checksum")
        yield content


def parquet(file: IO[bytes]) -> Iterator[tuple[Any, ...]]:
    """The rows of a Parquet file."""
    from pyarrow.parquet import ParquetFile

    for batch in ParquetFile(file).iter_batches(batch_size=4096):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


LOOPS: dict[str, Loop] = {"text": text, "csv": table, "tfrecord": tfrecord, "parquet": parquet}


class _Raw(io.RawIOBase):
    """A file of fsspec with the methods that a buffer needs."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def bare(kind: str, pattern: str) -> tuple[int, float]:
    """Read all files, one after another, in batches."""
    import fsspec

    store, path = fsspec.url_to_fs(pattern)
    names = store.glob(path)
    since, rows = time.monotonic(), 0
    for name in names:
        batch: list[Any] = []
        for row in LOOPS[kind](io.BufferedReader(_Raw(store.open(name, "rb")), _BUFFER_BYTES)):
            batch.append(row)
            if len(batch) == _BATCH:
                rows += len(batch)
                batch = []
        rows += len(batch)
    return rows, time.monotonic() - since


def count(kind: str, ctx: Any) -> None:
    """What a worker does: read batches until there are no more."""
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(_BATCH)


def fed(kind: str, pattern: str, workers: int) -> float:
    """Feed all files to workers. They have read one file before, which imports and connects."""
    from launcher import CsvFiles, InputMode, ParquetFiles, TextFiles, TFCluster, TFRecordFiles

    sources: dict[str, Callable[[str], Any]] = {
        "text": TextFiles, "tfrecord": TFRecordFiles,
        "csv": lambda name: CsvFiles(name, multiline=False, columns=["n", "text"]),
        "parquet": lambda name: ParquetFiles(name, columns=["n", "text"]),
    }  # fmt: skip
    with TFCluster.run(count, kind, workers, input_mode=InputMode.FEED, quiet=True) as cluster:
        cluster.train(sources[kind](pattern.replace("part-*", "first")), num_epochs=4)
        since = time.monotonic()
        cluster.train(sources[kind](pattern))
        return time.monotonic() - since


if __name__ == "__main__":
    way, kind, pattern = sys.argv[1:]
    print(*(bare(kind, pattern) if way == "bare" else (0, fed(kind, pattern, int(way)))))
