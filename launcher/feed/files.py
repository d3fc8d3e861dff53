"""Data files by name or pattern: text, CSV, TFRecord.

Where there are more files than workers each file is a partition; else files are cut, where a record begins,
so that every worker gets several pieces. Packed files are one piece. Files are read in the driver; with
``read_on_worker=True`` (or ``beside=True``) each piece is read in the task that gets it, for file systems
that all hosts share (the driver still finds and cuts the files).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from launcher.errors import Fault, InputError
from launcher.feed.remote.blocks import Block, blocks_of
from launcher.feed.remote.readers import CsvReader, RecordReader, Span, TextReader
from launcher.feed.remote.records import offsets
from launcher.feed.sources import PIECES_PER_WORKER, Piece

#: One name or pattern, or several.
Names = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Reader(Protocol):
    """Reads one piece; picklable."""

    def __call__(self) -> Iterator[Any]:
        """Its records."""


class DataFiles:
    """Some files, and how to read them: the base of the three kinds."""

    once = False

    def __init__(self, names: Names, beside: bool) -> None:
        self.paths = found(names)
        self._beside = beside
        self._cut: dict[int, list[Span]] = {}

    def pieces(self, workers: int) -> Iterator[Piece]:
        """The pieces for so many workers."""
        if workers not in self._cut:
            self._cut[workers] = list(self._spans(workers))
        for span in self._cut[workers]:
            reader = self.reader(span)
            yield Piece(partial(_read, reader), True, reader if self._beside else None)

    def reader(self, span: Span) -> Reader:
        """A reader of this piece."""
        raise NotImplementedError

    def cuts(self, path: str, many: int) -> list[int]:
        """Where to cut a file into about so many pieces: offsets in bytes at which a record begins."""
        raise NotImplementedError

    def _spans(self, workers: int) -> Iterator[Span]:
        if len(self.paths) > workers:
            yield from map(Span, self.paths)
            return
        sizes = {path: os.path.getsize(path) for path in self.paths}
        for path, size in sizes.items():
            many = round(workers * PIECES_PER_WORKER * size / max(1, sum(sizes.values())))
            cuts = [] if path.endswith(".gz") or many < 2 else self.cuts(path, many)
            cuts = [cut for cut in dict.fromkeys(cuts) if 0 < cut < size]
            for start, stop in zip([0, *cuts], [*cuts, None], strict=True):
                yield Span(path, start, stop)


class TextFiles(DataFiles):
    """Lines of text files: each row is a line, without its end.

    Args:
        names: a name, a pattern (``data/*.txt``, ``**`` for any folders, ``~`` for the home), or several.
        beside, read_on_worker: whether the lines are read in the tasks.
        encoding: of the text.

    Raises:
        InputError: no file has such a name, or it cannot be read.
    """

    def __init__(
        self, names: Names, *, beside: bool = False, encoding: str = "utf-8", read_on_worker: bool = False
    ) -> None:
        super().__init__(names, beside or read_on_worker)
        self._encoding = cuttable(encoding)

    def reader(self, span: Span) -> Reader:
        """Lines."""
        return TextReader(span, self._encoding)

    def cuts(self, path: str, many: int) -> list[int]:
        """After the end of a line."""
        cuts = []
        with open(path, "rb") as file:
            for position in _positions(path, many):
                file.seek(position - 1)
                file.readline()
                cuts.append(file.tell())
        return cuts


class CsvFiles(DataFiles):
    """Rows of CSV files; all values are texts.

    Each row is a dict by the names of the first line; with ``columns`` a tuple of those, in that order; with
    ``header=False`` a tuple of all.

    Args:
        names: a name, a pattern, or several.
        beside, read_on_worker: whether the rows are read in the tasks.
        columns: which columns to take.
        header: whether the first line of each file has the names.
        delimiter: between the fields.
        encoding: of the text.

    Raises:
        InputError: no file has such a name, it cannot be read, or has no such columns.
    """

    def __init__(
        self,
        names: Names,
        *,
        beside: bool = False,
        columns: Sequence[str] = (),
        header: bool = True,
        delimiter: str = ",",
        encoding: str = "utf-8",
        read_on_worker: bool = False,
    ) -> None:
        super().__init__(names, beside or read_on_worker)
        self._form = (cuttable(encoding), delimiter, header, tuple(columns))
        if columns:
            self._check_columns(columns)

    def reader(self, span: Span) -> Reader:
        """Rows."""
        return CsvReader(span, *self._form)

    def cuts(self, path: str, many: int) -> list[int]:
        """After the end of a row; the file is read once, to know which line ends are within quotes."""
        starts = _row_starts(path)
        first = next(starts)  # the row before it may be the names, which are not a piece of their own
        return [cut for cut in _nearest(starts, path, many) if cut > first]

    def _check_columns(self, columns: Sequence[str]) -> None:
        faults = []
        for path in self.paths:
            names = CsvReader(Span(path), *self._form).names() if self._form[2] else []
            missing = [name for name in columns if name not in names]
            if missing:
                has = f"it has {', '.join(names)}" if names else "columns have names only with header=True"
                faults.append(Fault(path, f"no column {', '.join(missing)}", has))
        if faults:
            raise InputError(faults)


class TFRecordFiles(DataFiles):
    """Records of TFRecord files: each row is the bytes of one, as ``tf.io.parse_single_example`` takes them.

    TensorFlow is not needed to read them. If the tasks read the records and TensorFlow parses them,
    ``tf.data.TFRecordDataset`` in the function is faster.

    Args:
        names: a name, a pattern, or several.
        beside, read_on_worker: whether the records are read in the tasks.
        check: whether to compare the checksum of each record, where google-crc32c is installed.

    Raises:
        InputError: no file has such a name, or it cannot be read.
    """

    def __init__(
        self, names: Names, *, beside: bool = False, check: bool = True, read_on_worker: bool = False
    ) -> None:
        super().__init__(names, beside or read_on_worker)
        self._check = check

    def reader(self, span: Span) -> Reader:
        """Records."""
        return RecordReader(span, self._check)

    def cuts(self, path: str, many: int) -> list[int]:
        """After a record; the lengths are read once."""
        return _nearest(offsets(path), path, many)


def found(names: Names) -> list[str]:
    """The files of these names and patterns, each once; those of one pattern in order of their names.

    Raises:
        InputError: a pattern without a file, a folder, a file that cannot be read; all of them at once.
    """
    given = [names] if isinstance(names, str | os.PathLike) else names
    patterns = [os.path.expanduser(os.fspath(name)) for name in given]
    faults: list[Fault] = []
    paths: dict[str, None] = {}
    for pattern in patterns:
        files = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        files = [path for path in files if path == pattern or not os.path.isdir(path)]
        faults += _faults(pattern, files)
        paths.update(dict.fromkeys(files))
    if faults or not patterns:
        raise InputError(faults or [Fault("data", "no files", "expected names or patterns")])
    return list(paths)


def _faults(pattern: str, files: list[str]) -> Iterator[Fault]:
    if not files:
        yield Fault("data", f"no file {pattern!r}", f"looked from {os.getcwd()}")
    for path in files:
        if os.path.isdir(path):
            expected = os.path.join(path, "*")
            yield Fault("data", f"{path!r} is a folder", f"expected its files, as in {expected!r}")
        elif not os.access(path, os.R_OK):
            yield Fault("data", f"{path!r} can't be read", "may this user read it?")


def cuttable(encoding: str) -> str:
    """The same encoding, if the bytes of line ends and quotes have only that meaning in it.

    Raises:
        InputError: they have others, or there is no such encoding.
    """
    try:
        if '\n"'.encode(encoding) == b'\n"':
            return encoding
    except LookupError:
        pass
    raise InputError([Fault("data", f"encoding={encoding!r}", "expected one such as utf-8 or latin-1")])


def _read(reader: Reader, rows: int) -> Iterator[Block]:
    return blocks_of(reader(), rows)


def _positions(path: str, many: int) -> list[int]:
    """Where a file would be cut into so many pieces if records did not matter."""
    size = os.path.getsize(path)
    return [position for n in range(1, many) if (position := size * n // many) > 0]


def _nearest(starts: Iterator[int], path: str, many: int) -> list[int]:
    """The first start at or after each position."""
    cuts, at = [], 0
    for position in _positions(path, many):
        while at < position:
            at = next(starts, os.path.getsize(path))
        cuts.append(at)
    return cuts


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
