"""Data files by name or pattern: text, CSV and TFRecord files as data for ``train`` and ``inference``.

User programs make these objects. By default files are read in the program, in partitions of about 2 MiB, or
of less so that every worker receives several. With ``read_on_worker=True`` each file is one partition, and
the task that receives it reads the file. This needs a file system that all hosts share.
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

#: The names or patterns of files, one or several.
Names = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
FileReader = TextReader | CsvReader | RecordReader


class DataFiles(FeedSource):
    """Some files, and how to read them. This is the base of the three kinds.

    Args:
        names: The names and patterns of the files.
        reader: Reads one file of this kind.
        is_remote: Whether tasks read the files.

    Raises:
        InputError: No file has such a name, or it cannot be read.
    """

    def __init__(self, names: Sequence[str], reader: FileReader, *, is_remote: bool) -> None:
        """Find the files now, so that a missing one is reported before anything is fed."""
        super().__init__(self._pieces, once=False)
        self.paths = find_files(names)
        self._readers: list[Any] = [reader._replace(path=file) for file in self.paths]
        self._is_remote = is_remote

    def _pieces(self, workers: int) -> Iterator[Piece]:
        """Yield the pieces of all files: each file by itself if tasks read it, otherwise groups of rows.

        A piece is what one task receives, and what is fed again as a whole if the task is lost.

        Args:
            workers: The number of tasks that take pieces.
        """
        # A reader is a callable that returns rows, which a task calls.
        if self._is_remote:
            return map(piece_of, self._readers)
        total_bytes = sum(map(os.path.getsize, self.paths))
        rows = chain.from_iterable(reader() for reader in self._readers)
        # Small files are cut into smaller groups, so that every worker receives some.
        group_bytes = min(GROUP_BYTES, total_bytes // (workers * PIECES_PER_WORKER))
        return map(piece_of, groups(rows, group_bytes))


class TextFiles(DataFiles):
    """Lines of text files. Each row is a line, a str without its end.

    ::

        cluster.train(TextFiles("data/*.txt"))

    Args:
        names: A name, a pattern, or a list of both. In a pattern ``*`` stands for any text (``data/*.txt``),
            ``**`` for any folders, and ``~`` for the home folder. Files named ``*.gz`` are unpacked.
        encoding: The encoding of the text.
        read_on_worker: Whether tasks read the files, from a file system that all hosts share.

    Raises:
        InputError: No file has such a name, a file cannot be read, or an argument is wrong.
    """

    @named_arguments("TextFiles")
    def __init__(self, names: Names, *, encoding: str = "utf-8", read_on_worker: bool = False) -> None:
        """Check the arguments and find the files."""
        arguments = Arguments("TextFiles")
        encoding = arguments.read("encoding", encoding, _encoding)
        files, is_remote = _read_files(arguments, names, read_on_worker)
        super().__init__(files, TextReader(encoding), is_remote=is_remote)


class CsvFiles(DataFiles):
    """Rows of CSV files, whose values are all str.

    By default each row is a dict with the names in the first line as keys. With ``columns`` it is a tuple of
    the values of these columns, in that order. With ``header=False`` it is a tuple of all values.

    ::

        cluster.train(CsvFiles("data/*.csv", columns=["height", "weight"]))

    Args:
        names: A name, a pattern (``data/*.csv``), or a list of both, as for `TextFiles`.
        columns: The names of the columns to read. By default all are read.
        header: Whether the first line of each file contains the names of the columns.
        delimiter: The character between two values.
        encoding: The encoding of the text.
        read_on_worker: Whether tasks read the files, from a file system that all hosts share.

    Raises:
        InputError: No file has such a name, a file cannot be read or lacks a column, or an argument is wrong.
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
        """Check the arguments, find the files, and check that they have the columns."""
        arguments = Arguments("CsvFiles")
        encoding = arguments.read("encoding", encoding, _encoding)
        delimiter = arguments.read("delimiter", delimiter, _delimiter)
        header = arguments.optional("header", header, flag, default=True)
        columns = arguments.optional("columns", columns, several(text), [])
        files, is_remote = _read_files(arguments, names, read_on_worker)
        reader = CsvReader(encoding, delimiter, header, tuple(columns))
        super().__init__(files, reader, is_remote=is_remote)
        # A column that a file lacks is reported now, before anything is fed.
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
    """Records of TFRecord files. Each row is the bytes of one record, for ``tf.io.parse_single_example``.

    TensorFlow is not needed to read the files. If tasks read the records and parse them with TensorFlow,
    ``tf.data.TFRecordDataset`` in the function is faster.

    ::

        cluster.train(TFRecordFiles("data/*.tfrecord"))

    Args:
        names: A name, a pattern (``data/*.tfrecord``), or a list of both, as for `TextFiles`.
        check: Whether the checksum of each record is compared. This needs the package google-crc32c, and is
            left out without it.
        read_on_worker: Whether tasks read the files, from a file system that all hosts share.

    Raises:
        InputError: No file has such a name, a file cannot be read, or an argument is wrong.
    """

    @named_arguments("TFRecordFiles")
    def __init__(self, names: Names, *, check: bool = True, read_on_worker: bool = False) -> None:
        """Check the arguments and find the files."""
        arguments = Arguments("TFRecordFiles")
        check = arguments.optional("check", check, flag, default=True)
        files, is_remote = _read_files(arguments, names, read_on_worker)
        super().__init__(files, RecordReader(check), is_remote=is_remote)


def _read_files(arguments: Arguments, names: Any, read_on_worker: Any) -> tuple[list[str], bool]:
    """Read the arguments that all kinds of files have in common.

    Args:
        arguments: Contains the faults of the other arguments, which are raised together with those of these.
        names: The names or patterns, as the user has passed them.
        read_on_worker: Whether tasks read the files, as the user has passed it.

    Returns:
        The names, and whether tasks read the files.

    Raises:
        InputError: Arguments are wrong. The message lists all faults.
    """
    files: list[str] = arguments.read("names", names, one_or_several(path, "paths"))
    is_remote: bool = arguments.optional("read_on_worker", read_on_worker, flag, default=False)
    arguments.check()
    return files, is_remote


def _encoding(value: Any) -> str:
    """Read the name of an encoding that Python knows, or raise a ValueError."""
    try:
        codecs.lookup(text(value))
    except LookupError:
        raise ValueError("expected the name of an encoding, as in 'utf-8'") from None
    return text(value)


def _delimiter(value: Any) -> str:
    """Read one character that can separate the values of a CSV file, or raise a ValueError."""
    if isinstance(value, str) and len(value) == 1 and value not in '\r\n"':
        return value
    raise ValueError("expected one character")


def find_files(names: Sequence[str]) -> list[str]:
    """Return the files with these names or patterns, each once. Files of one pattern are sorted by name.

    Raises:
        InputError: A pattern matches no file, a name is that of a folder, or a file cannot be read. The
            message lists all such faults.
    """
    patterns = [os.path.expanduser(name) for name in names]
    faults = [] if patterns else [Fault("data", "no files", "expected names or patterns")]
    #: A dict keeps the order, and each path once.
    paths: dict[str, None] = {}
    for pattern in patterns:
        files = sorted(file for file in glob.glob(pattern, recursive=True) if not os.path.isdir(file))
        # The name of a file may contain characters of a pattern, such as brackets.
        files = [pattern] if os.path.exists(pattern) else files
        if not files:
            faults.append(Fault("data", f"no file {pattern!r}", f"looked from {os.getcwd()}"))
        for file in files:
            if os.path.isdir(file):
                expected = f"expected its files, as in {os.path.join(file, '*')!r}"
                faults.append(Fault("data", f"{file!r} is a folder", expected))
            elif not os.access(file, os.R_OK):
                faults.append(Fault("data", f"{file!r} cannot be read", "may this user read it?"))
        paths.update(dict.fromkeys(files))
    if faults:
        raise InputError(faults)
    return list(paths)
