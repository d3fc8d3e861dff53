"""Reads a piece of a data file: called on the driver, or sent to be called beside a worker.

A piece begins and ends where a record does. Files named ``*.gz`` are unpacked; those are one piece.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import IO, Any, NamedTuple, Protocol

from launcher.errors import LaunchError
from launcher.feed.remote.tfrecords import opened, read_records

#: Bytes read at once.
_BITE = 1 << 20
#: What some programs put before a text.
_MARK = b"\xef\xbb\xbf"


class BrokenFile(LaunchError):
    """A data file that does not hold what it should."""


class Span(NamedTuple):
    """A file, or a piece of one."""

    path: str
    #: In bytes, where a record begins.
    start: int = 0
    #: In bytes, where a record begins; ``None``: the end of the file.
    stop: int | None = None


class Reader(Protocol):
    """Reads one piece; picklable."""

    def __call__(self) -> Iterator[Any]:
        """Its records."""


class TextReader(NamedTuple):
    """Lines, without their ends."""

    span: Span
    encoding: str

    def __call__(self) -> Iterator[str]:
        """Read them.

        Raises:
            BrokenFile: bytes that are no text of this encoding.
            OSError: the file can't be read.
        """
        return chain.from_iterable(self._lines())

    def _lines(self) -> Iterator[list[str]]:
        with _text(self.span.path) as file:
            for piece in _pieces(file, self.span):
                lines = decoded(piece, self.encoding, self.span.path).split("\n")
                if not lines[-1]:
                    del lines[-1]
                yield [line.removesuffix("\r") for line in lines] if b"\r" in piece else lines


class CsvReader(NamedTuple):
    """Rows of texts: dicts by the names of the first line, or tuples."""

    span: Span
    encoding: str
    delimiter: str
    #: Whether the first line of the file has the names.
    header: bool
    #: Which columns, in this order: rows are tuples of them. Empty: all.
    columns: tuple[str, ...]

    def __call__(self) -> Iterator[Any]:
        """Read them.

        Raises:
            BrokenFile: a row with more or fewer fields than the one before it, or bytes that are no text.
            OSError: the file can't be read.
        """
        with _text(self.span.path) as file:
            names = next(self._records(iter(file.readline, b"")), []) if self.header else []
            if self.span.start:
                file.seek(self.span.start)
            records = self._records(_lines(file, self.span.stop))
            yield from self._rows(names, self._even(records, len(names)))

    def names(self) -> list[str]:
        """Those of the first line.

        Raises:
            BrokenFile: it is no CSV, or no text.
        """
        with _text(self.span.path) as file:
            return next(self._records(iter(file.readline, b"")), [])

    def _records(self, lines: Iterable[bytes]) -> Iterator[list[str]]:
        texts = (decoded(line, self.encoding, self.span.path) for line in lines)
        try:
            yield from filter(None, csv.reader(texts, delimiter=self.delimiter, strict=True))
        except csv.Error as error:
            raise BrokenFile(f"{self.span.path}: no CSV: {error}") from error

    def _rows(self, names: list[str], records: Iterator[list[str]]) -> Iterator[Any]:
        if self.columns:
            places = [names.index(name) for name in self.columns]
            return (tuple([record[place] for place in places]) for record in records)
        return (dict(zip(names, record, strict=True)) for record in records) if names else map(tuple, records)

    def _even(self, records: Iterator[list[str]], width: int) -> Iterator[list[str]]:
        for record in records:
            width = width or len(record)
            if len(record) != width:
                what = f"a row of {len(record)} fields instead of {width}: {','.join(record)[:80]!r}"
                raise BrokenFile(f"{self.span.path}: {what}; is {self.delimiter!r} what separates them?")
            yield record


class RecordReader(NamedTuple):
    """Records of a TFRecord file, as bytes."""

    span: Span
    check: bool

    def __call__(self) -> Iterator[bytes]:
        """Read them.

        Raises:
            BrokenRecords: the file is damaged.
            OSError: the file can't be read.
        """
        return read_records(*self.span, self.check)


def decoded(data: bytes, encoding: str, path: str) -> str:
    """As text.

    Raises:
        BrokenFile: it is none.
    """
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        bad = data[error.start : error.start + 4]
        raise BrokenFile(f"{path}: {bad!r} is no {encoding}; say encoding=...") from error


def _text(path: str) -> IO[bytes]:
    """A text file, after its byte order mark."""
    file = opened(path)
    if file.read(len(_MARK)) != _MARK:
        file.seek(0)
    return file


def _pieces(file: IO[bytes], span: Span) -> Iterator[bytes]:
    """Whole lines, many at once."""
    if span.start:
        file.seek(span.start)
    left = None if span.stop is None else span.stop - file.tell()
    while piece := file.read(_BITE if left is None else min(left, _BITE)):
        if not piece.endswith(b"\n"):
            piece += file.readline()
        left = None if left is None else max(0, left - len(piece))
        yield piece


def _lines(file: IO[bytes], stop: int | None) -> Iterator[bytes]:
    at = file.tell() if stop is not None else 0
    for line in iter(file.readline, b""):
        if stop is not None and at >= stop:
            return
        at += len(line)
        yield line
