"""Data files by name or pattern: text, CSV, TFRecord.

Where there are more files than workers each file is a partition; else files are cut, where a record begins,
so that every worker gets several pieces. What can't be cut (packed files) is one piece. Files are read on
the driver, whose file they are; with ``beside=True`` each piece is read beside the worker that gets it, for
file systems that all of them share (the driver still finds and cuts the files).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from launcher.errors import Fault, InputError
from launcher.feed import cuts
from launcher.feed.pieces import PIECES_A_WORKER, Piece
from launcher.feed.remote.blocks import Block, chunks
from launcher.feed.remote.readers import CsvReader, Reader, RecordReader, Span, TextReader

#: One name or pattern, or several.
Names = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class DataFiles:
    """Some files and how to read them: what the three kinds share."""

    once = False

    def __init__(self, names: Names, beside: bool) -> None:
        self.paths = found(names)
        self._beside = beside
        self._cut: dict[int, list[Span]] = {}

    def pieces(self, workers: int) -> Iterator[Piece]:
        """The partitions for so many workers."""
        if workers not in self._cut:
            self._cut[workers] = list(self._spans(workers))
        for span in self._cut[workers]:
            reader = self.reader(span)
            yield Piece(partial(_read, reader), True, reader if self._beside else None)

    def reader(self, span: Span) -> Reader:
        """What reads this piece."""
        raise NotImplementedError

    def cut(self, path: str, many: int) -> list[int]:
        """Where to cut a file into about so many pieces: offsets in bytes, without its beginning and end."""
        raise NotImplementedError

    def _spans(self, workers: int) -> Iterator[Span]:
        if len(self.paths) > workers:
            yield from map(Span, self.paths)
            return
        sizes = {path: os.path.getsize(path) for path in self.paths}
        for path, size in sizes.items():
            many = round(workers * PIECES_A_WORKER * size / max(1, sum(sizes.values())))
            cuts = [] if path.endswith(".gz") or many < 2 else self.cut(path, many)
            for start, stop in zip([0, *cuts], [*cuts, None], strict=True):
                yield Span(path, start, stop)


class TextFiles(DataFiles):
    """Lines of text files: each row is a line, without its end.

    Args:
        names: a name, a pattern (``data/*.txt``, ``**`` for any folders, ``~`` for the home), or several.
        beside: whether the lines are read beside the workers.
        encoding: of the text.

    Raises:
        InputError: nothing has such a name, or it can't be read.
    """

    def __init__(self, names: Names, *, beside: bool = False, encoding: str = "utf-8") -> None:
        super().__init__(names, beside)
        self._encoding = cuttable(encoding)

    def reader(self, span: Span) -> Reader:
        """Lines."""
        return TextReader(span, self._encoding)

    def cut(self, path: str, many: int) -> list[int]:
        """After the end of a line."""
        return cuts.of_lines(path, many)


class CsvFiles(DataFiles):
    """Rows of CSV files; all values are texts.

    Each row is a dict by the names of the first line; with ``columns`` a tuple of those, in that order; with
    ``header=False`` a tuple of all.

    Args:
        names: a name, a pattern, or several.
        beside: whether the rows are read beside the workers.
        columns: which columns to take.
        header: whether the first line of each file has the names.
        delimiter: what separates the fields.
        encoding: of the text.

    Raises:
        InputError: nothing has such a name, it can't be read, or has no such columns.
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
    ) -> None:
        super().__init__(names, beside)
        self._form = (cuttable(encoding), delimiter, header, tuple(columns))
        if columns:
            self._check_columns(columns)

    def reader(self, span: Span) -> Reader:
        """Rows."""
        return CsvReader(span, *self._form)

    def cut(self, path: str, many: int) -> list[int]:
        """After the end of a row, which is no line end within quotes, and not within the first line."""
        return cuts.of_csv(path, many)

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

    TensorFlow is not needed to read them. Where the records are read beside the workers and TensorFlow parses
    them anyhow, ``tf.data.TFRecordDataset`` in the training function is faster.

    Args:
        names: a name, a pattern, or several.
        beside: whether the records are read beside the workers.
        check: whether to look at the checksum of each record (without numpy that is slow).

    Raises:
        InputError: nothing has such a name, or it can't be read.
    """

    def __init__(self, names: Names, *, beside: bool = False, check: bool = True) -> None:
        super().__init__(names, beside)
        self._check = check

    def reader(self, span: Span) -> Reader:
        """Records."""
        return RecordReader(span, self._check)

    def cut(self, path: str, many: int) -> list[int]:
        """After a record."""
        return cuts.of_records(path, many)


def found(names: Names) -> list[str]:
    """The files of these names and patterns, each once; those of one pattern in order of their names.

    Raises:
        InputError: a pattern that fits no file, a folder, a file that can't be read; all of them at once.
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
    """The same encoding, if the bytes of line ends and quotes mean nothing else in it.

    Raises:
        InputError: they can, or there is no such encoding.
    """
    try:
        if '\n"'.encode(encoding) == b'\n"':
            return encoding
    except LookupError:
        pass
    raise InputError([Fault("data", f"encoding={encoding!r}", "expected one such as utf-8 or latin-1")])


def _read(reader: Any, rows: int) -> Iterator[Block]:
    return chunks(reader(), rows)
