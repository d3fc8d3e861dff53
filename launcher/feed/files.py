"""Data files by name or pattern: text, CSV, TFRecord.

Files are read in the driver, in partitions of about 2 MiB, or of less, so that every worker gets several.
With ``read_on_worker=True`` each file is one partition, and the task that gets the partition reads the file,
which needs a file system that all hosts share.
"""

from __future__ import annotations

import codecs
import glob
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from launcher.common.arguments import Arguments, flag, named_arguments, one_or_several, path, several, text
from launcher.common.errors import Fault, InputError
from launcher.feed.remote.readers import CsvReader, RecordReader, TextReader
from launcher.feed.sources import GROUP_BYTES, PIECES_PER_WORKER, FeedSource, Piece, groups, piece_of

#: One name or pattern, or several.
Names = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
FileReader = TextReader | CsvReader | RecordReader


class DataFiles(FeedSource):
    """Some files, and how to read them: the base of the three kinds."""

    def __init__(self, names: Sequence[str], reader: FileReader, *, is_remote: bool) -> None:
        super().__init__(self._pieces, once=False)
        self.paths = found(names)
        self._readers: list[Any] = [reader._replace(path=file) for file in self.paths]
        self._is_remote = is_remote

    def _pieces(self, workers: int) -> Iterator[Piece]:
        if self._is_remote:
            return map(piece_of, self._readers)
        size = sum(map(os.path.getsize, self.paths))
        rows = chain.from_iterable(reader() for reader in self._readers)
        return map(piece_of, groups(rows, min(GROUP_BYTES, size // (workers * PIECES_PER_WORKER))))


class TextFiles(DataFiles):
    """Lines of text files: each row is a line, without its end.

    Args:
        names: A name, a pattern (``data/*.txt``, ``**`` for any folders, ``~`` for the home), or several.
        encoding: The encoding of the text.
        read_on_worker: Whether the lines are read in the tasks.

    Raises:
        InputError: No file has such a name, or it cannot be read.
    """

    @named_arguments("TextFiles")
    def __init__(self, names: Names, *, encoding: str = "utf-8", read_on_worker: bool = False) -> None:
        read = Arguments("TextFiles")
        encoding = read.read("encoding", encoding, _encoding)
        files, is_remote = _read_files(read, names, read_on_worker)
        super().__init__(files, TextReader(encoding), is_remote=is_remote)


class CsvFiles(DataFiles):
    """Rows of CSV files; all values are texts.

    Each row is a dict by the names of the first line; with ``columns`` a tuple of those, in that order; with
    ``header=False`` a tuple of all.

    Args:
        names: A name, a pattern (``data/*.csv``), or several.
        columns: The names of the columns to take; default: all.
        header: Whether the first line of each file has the names.
        delimiter: Between the fields.
        encoding: The encoding of the text.
        read_on_worker: Whether the rows are read in the tasks.

    Raises:
        InputError: No file has such a name, it cannot be read, or has no such columns.
    """

    @named_arguments("CsvFiles")
    def __init__(
        self,
        names: Names,
        *,
        columns: Sequence[str] = (),
        header: bool = True,
        delimiter: str = ",",
        encoding: str = "utf-8",
        read_on_worker: bool = False,
    ) -> None:
        read = Arguments("CsvFiles")
        encoding = read.read("encoding", encoding, _encoding)
        delimiter = read.read("delimiter", delimiter, _delimiter)
        header = read.optional("header", header, flag, True)
        columns = read.optional("columns", columns, several(text), [])
        files, is_remote = _read_files(read, names, read_on_worker)
        reader = CsvReader(encoding, delimiter, header, tuple(columns))
        super().__init__(files, reader, is_remote=is_remote)
        faults = []
        for file in self.paths if columns else ():
            known = reader._replace(path=file).names() if header else []
            if missing := [name for name in columns if name not in known]:
                no_names = "the file is empty" if header else "columns have names only with header=True"
                has = f"it has {', '.join(known)}" if known else no_names
                faults.append(Fault(file, f"no column {', '.join(missing)}", has))
        if faults:
            raise InputError(faults)


class TFRecordFiles(DataFiles):
    """Records of TFRecord files: each row is the bytes of one, as ``tf.io.parse_single_example`` takes them.

    TensorFlow is not needed to read them. If the tasks read the records and TensorFlow parses them,
    ``tf.data.TFRecordDataset`` in the function is faster.

    Args:
        names: A name, a pattern (``data/*.tfrecord``), or several.
        check: Whether to compare the checksum of each record, where google-crc32c is installed.
        read_on_worker: Whether the records are read in the tasks.

    Raises:
        InputError: No file has such a name, or it cannot be read.
    """

    @named_arguments("TFRecordFiles")
    def __init__(self, names: Names, *, check: bool = True, read_on_worker: bool = False) -> None:
        read = Arguments("TFRecordFiles")
        check = read.optional("check", check, flag, True)
        files, is_remote = _read_files(read, names, read_on_worker)
        super().__init__(files, RecordReader(check), is_remote=is_remote)


def _read_files(read: Arguments, names: Any, read_on_worker: Any) -> tuple[list[str], bool]:
    """Read what all kinds of files have in common.

    Raises:
        InputError: There are faults. It has those of all arguments.
    """
    files: list[str] = read.read("names", names, one_or_several(path, "paths"))
    is_remote: bool = read.optional("read_on_worker", read_on_worker, flag, False)
    read.check()
    return files, is_remote


def _encoding(value: Any) -> str:
    try:
        codecs.lookup(text(value))
    except LookupError:
        raise ValueError("expected the name of an encoding, as in 'utf-8'") from None
    return text(value)


def _delimiter(value: Any) -> str:
    if isinstance(value, str) and len(value) == 1 and value not in '\r\n"':
        return value
    raise ValueError("expected one character")


def found(names: Sequence[str]) -> list[str]:
    """Return the files of these names and patterns, each once; those of one pattern in order of their names.

    Raises:
        InputError: A pattern without a file, a folder, a file that cannot be read; all of them at once.
    """
    patterns = [os.path.expanduser(name) for name in names]
    faults = [] if patterns else [Fault("data", "no files", "expected names or patterns")]
    paths: dict[str, None] = {}
    for pattern in patterns:
        files = sorted(file for file in glob.glob(pattern, recursive=True) if not os.path.isdir(file))
        files = [pattern] if os.path.exists(pattern) else files
        if not files:
            faults.append(Fault("data", f"no file {pattern!r}", f"looked from {os.getcwd()}"))
        for file in files:
            if os.path.isdir(file):
                expected = f"expected its files, as in {os.path.join(file, '*')!r}"
                faults.append(Fault("data", f"{file!r} is a folder", expected))
            elif not os.access(file, os.R_OK):
                faults.append(Fault("data", f"{file!r} can't be read", "may this user read it?"))
        paths.update(dict.fromkeys(files))
    if faults:
        raise InputError(faults)
    return list(paths)
