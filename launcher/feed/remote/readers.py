"""Readers of a piece of a data file: called in the driver, or sent to a task and called there.

A piece begins and ends where a record does. Files named ``*.gz`` are unpacked; each is one piece.
"""

from __future__ import annotations

import csv
from itertools import chain
from typing import IO, TYPE_CHECKING, NamedTuple

from launcher.errors import LaunchError
from launcher.feed.remote.records import opened, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

#: Bytes read at once.
_READ = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BrokenFile(LaunchError):
    """A data file that is damaged, or of another format."""


class Span(NamedTuple):
    """A file, or a piece of one."""

    path: str
    #: Offsets in bytes at which a record begins; ``None``: the end of the file.
    start: int = 0
    stop: int | None = None


class TextReader(NamedTuple):
    """Lines, without their ends.

    Raises:
        BrokenFile: bytes that are not text of this encoding.
        OSError: the file cannot be read.
    """

    span: Span
    encoding: str

    def __call__(self) -> Iterator[str]:
        """Read them."""
        return chain.from_iterable(self._lines())

    def _lines(self) -> Iterator[list[str]]:
        with _text(self.span.path) as file:
            for piece in _pieces(file, self.span):
                lines = _decoded(piece, self.encoding, self.span.path).split("\n")
                if not lines[-1]:
                    del lines[-1]
                if b"\r" in piece:
                    lines = [line[:-1] if line.endswith("\r") else line for line in lines]
                yield lines


class CsvReader(NamedTuple):
    """Rows of texts: dicts by the names of the first line, or tuples.

    Raises:
        BrokenFile: a row with more or fewer fields than the one before it, or bytes that are not text.
        OSError: the file cannot be read.
    """

    span: Span
    encoding: str
    delimiter: str
    #: Whether the first line of the file has the names.
    header: bool
    #: Which columns, in this order: rows are tuples of them. Empty: all.
    columns: tuple[str, ...]

    def __call__(self) -> Iterator[Any]:
        """Read them."""
        with _text(self.span.path) as file:
            names = next(self._records(iter(file.readline, b"")), []) if self.header else []
            if self.span.start:
                file.seek(self.span.start)
            records = self._even(self._records(_lines(file, self.span.stop)), len(names))
            if self.columns:
                places = [names.index(name) for name in self.columns]
                yield from (tuple([record[place] for place in places]) for record in records)
            else:
                yield from (dict(zip(names, record)) if names else tuple(record) for record in records)

    def names(self) -> list[str]:
        """Those of the first line."""
        with _text(self.span.path) as file:
            return next(self._records(iter(file.readline, b"")), [])

    def _records(self, lines: Iterable[bytes]) -> Iterator[list[str]]:
        texts = (_decoded(line, self.encoding, self.span.path) for line in lines)
        try:
            yield from filter(None, csv.reader(texts, delimiter=self.delimiter, strict=True))
        except csv.Error as error:
            raise BrokenFile(f"{self.span.path}: not CSV: {error}") from error

    def _even(self, records: Iterator[list[str]], width: int) -> Iterator[list[str]]:
        for record in records:
            width = width or len(record)
            if len(record) != width:
                row = f"a row of {len(record)} fields instead of {width}: {','.join(record)[:80]!r}"
                raise BrokenFile(f"{self.span.path}: {row}; is {self.delimiter!r} the delimiter?")
            yield record


class RecordReader(NamedTuple):
    """Records of a TFRecord file, as bytes; raises as `read_records` does."""

    span: Span
    check: bool

    def __call__(self) -> Iterator[bytes]:
        """Read them."""
        return read_records(*self.span, check=self.check)


def _decoded(data: bytes, encoding: str, path: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        bad = data[error.start : error.start + 4]
        raise BrokenFile(f"{path}: {bad!r} is not {encoding}; set encoding=...") from error


def _text(path: str) -> IO[bytes]:
    """A text file, after its byte order mark."""
    file = opened(path)
    if file.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
        file.seek(0)
    return file


def _pieces(file: IO[bytes], span: Span) -> Iterator[bytes]:
    """Whole lines, many at once."""
    if span.start:
        file.seek(span.start)
    left = None if span.stop is None else span.stop - file.tell()
    while piece := file.read(_READ if left is None else min(left, _READ)):
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
