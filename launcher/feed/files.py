"""Data files by name, pattern or URL: text, CSV, TFRecord and Parquet files as data for ``train``.

User programs make these objects. By default files are read in the program, in partitions of about 2 MiB, or
of less so that every worker receives several. Files at a URL are read in the tasks, and with
``read_on_worker=True`` so are files of a file system that all hosts share: a partition is then a file or a
range of it, which the task that receives it reads.
"""

from __future__ import annotations

import codecs
import glob
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import chain, groupby
from typing import Any

from launcher.common.arguments import Arguments, flag, named_arguments, one_or_several, path, several, text
from launcher.common.errors import Fault, InputError
from launcher.common.record import replace
from launcher.feed.remote import readers
from launcher.feed.remote.codec import Block, blocks_of
from launcher.feed.remote.readers import Names
from launcher.feed.sources import GROUP_BYTES, PIECES_PER_WORKER, FeedSource, Piece, groups, piece_of
from launcher.storage import store
from launcher.storage.store import StorageError
from launcher.storage.urls import is_url, missing_package, shown, url_fault

#: The number of ranges for each worker into which files that tasks read are cut, unless a range would then be
#: too small or too large. There are many, so that a quicker worker can take more of them.
_RANGES_PER_WORKER = 16
_MIN_RANGE_BYTES = 64 << 10
_MAX_RANGE_BYTES = 32 << 20


class DataFiles(FeedSource):
    """Some files, and how to read them. This is the base of the four kinds.

    Args:
        names: The names, patterns and URLs of the files.
        reader: Reads one file of this kind.
        is_remote: Whether tasks read the files that have no URL, too.

    Raises:
        InputError: No local file has such a name, it cannot be read, or a package for a URL is missing.
    """

    def __init__(self, names: Sequence[str], reader: readers.FileReader, *, is_remote: bool) -> None:
        """Find local files now, so that a missing one is reported before anything is fed."""
        super().__init__(self._pieces, once=False)
        #: The paths of local files, and what was given as URLs. These are not looked up before rows are
        #: needed, because this process must fork its launcher before it uses the packages for them.
        self._names = find_files(names)
        self._reader = reader
        self._is_remote = is_remote

    @property
    def paths(self) -> list[str]:
        """The paths and URLs of all files. Files at URLs are looked up when they are first needed.

        Raises:
            InputError: There is no file at a URL.
            StorageError: A store cannot be reached.
        """
        return list(self._sizes)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """The sizes of all files in bytes, by their paths and URLs."""
        sizes: dict[str, int] = {}
        faults = []
        for name in self._names:
            if not is_url(name):
                sizes[name] = os.path.getsize(name)
                continue
            try:
                # Some web servers do not tell the size.
                sizes.update((file.url, max(0, file.size)) for file in store.find_files(name))
            except StorageError as error:
                if not error.is_final:
                    raise
                faults.append(Fault("data", str(error)))
        if faults:
            raise InputError(faults)
        return sizes

    def _pieces(self, workers: int) -> Iterator[Piece]:
        """Yield the pieces of all files: ranges if tasks read them, otherwise groups of rows.

        A piece is what one task receives, and what is fed again as a whole if the task is lost.

        Args:
            workers: The number of tasks that take pieces.
        """
        sizes = self._sizes
        total_bytes = sum(sizes.values())
        # Small files are cut into smaller pieces, so that every worker receives some.
        group_bytes = min(GROUP_BYTES, total_bytes // (workers * PIECES_PER_WORKER))
        range_bytes = min(math.ceil(total_bytes / (workers * _RANGES_PER_WORKER)), _MAX_RANGE_BYTES)
        range_bytes = max(range_bytes, _MIN_RANGE_BYTES)
        # Rows stay in the order of the files, whether tasks read them or not.
        for is_remote, files in groupby(sizes, lambda file: self._is_remote or is_url(file)):
            ranges = chain.from_iterable(self._ranges(file, range_bytes) for file in files)
            if is_remote:
                # A reader is a callable that returns rows, which a task calls.
                yield from map(piece_of, ranges)
            elif isinstance(self._reader, readers.ParquetReader):
                # Its rows come as columns, which stay together, and a range is a piece here, too.
                yield from (Piece(partial(_blocks_of_range, each)) for each in ranges)
            else:
                rows = chain.from_iterable(replace(self._reader, path=file)() for file in files)
                yield from map(piece_of, groups(rows, group_bytes))

    def _ranges(self, file: str, range_bytes: int) -> Iterator[readers.FileReader]:
        """Yield readers of a file, each for a range of about this many bytes, or one for all of it."""
        reader = replace(self._reader, path=file)
        size = self._sizes[file]
        count = max(1, math.ceil(size / range_bytes)) if reader.can_be_cut else 1
        for number in range(count):
            end = size * (number + 1) // count if number + 1 < count else None
            yield replace(reader, start=size * number // count, end=end)


def _blocks_of_range(reader: readers.FileReader, rows: Callable[[], int]) -> Iterator[Block]:
    """Yield the rows of a range in blocks, in the program. See `Piece.blocks`."""
    return blocks_of(reader(), rows)


class TextFiles(DataFiles):
    """Lines of text files. Each row is a line, a str without its end.

    ::

        cluster.train(TextFiles("data/*.txt"))

    Args:
        names: A name, a pattern, or a list of both. In a pattern ``*`` stands for any text (``data/*.txt``),
            ``**`` for any folders, and ``~`` for the home folder. Files named ``*.gz`` are unpacked. A name
            or pattern may be a URL (``hdfs://namenode/logs/*.txt``, ``s3://bucket/x``): tasks read such
            files, which are looked up when rows are first needed. In a URL, names that begin with ``_`` or
            ``.`` match no pattern.
        encoding: The encoding of the text.
        read_on_worker: Whether tasks read the files, from a file system that all hosts share.

    Raises:
        InputError: No file has such a name, a file cannot be read, a package for a URL is missing, or an
            argument is wrong.
    """

    @named_arguments("TextFiles")
    def __init__(self, names: Names, *, encoding: str = "utf-8", read_on_worker: bool = False) -> None:
        """Check the arguments and find the files."""
        arguments = Arguments("TextFiles")
        encoding = arguments.read("encoding", encoding, _encoding)
        files, is_remote = _read_files(arguments, names, read_on_worker)
        super().__init__(files, readers.TextReader(encoding=encoding), is_remote=is_remote)


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
        multiline: Whether values in quotes may contain line ends. Without them, a large file that tasks read
            is shared out among them. With them, it is one partition.
        encoding: The encoding of the text.
        read_on_worker: Whether tasks read the files, from a file system that all hosts share.

    Raises:
        InputError: No file has such a name, a file cannot be read or lacks a column, or an argument is wrong.
    """

    @named_arguments("CsvFiles")
    def __init__(  # noqa: PLR0913 - public
        self,
        names: Names,
        *,
        columns: Sequence[str] = (),
        header: bool = True,
        delimiter: str = ",",
        multiline: bool = True,
        encoding: str = "utf-8",
        read_on_worker: bool = False,
    ) -> None:
        """Check the arguments, find the files, and check that they have the columns."""
        arguments = Arguments("CsvFiles")
        encoding = arguments.read("encoding", encoding, _encoding)
        delimiter = arguments.read("delimiter", delimiter, _delimiter)
        header = arguments.optional("header", header, flag, default=True)
        multiline = arguments.optional("multiline", multiline, flag, default=True)
        columns = arguments.optional("columns", columns, several(text), [])
        files, is_remote = _read_files(arguments, names, read_on_worker)
        reader = readers.CsvReader(
            encoding=encoding, delimiter=delimiter, header=header, columns=tuple(columns), multiline=multiline
        )
        super().__init__(files, reader, is_remote=is_remote)
        # A column that a file lacks is reported now, before anything is fed. Files at URLs are read in tasks.
        faults = []
        for file in self._names if columns else ():
            names = columns if is_url(file) else replace(reader, path=file).names()
            fault = readers.missing_columns(columns, names)
            if not header:
                fault = f"no column {', '.join(columns)}; columns have names only with header=True"
            if fault:
                faults.append(Fault(shown(file), fault))
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
        super().__init__(files, readers.RecordReader(check=check), is_remote=is_remote)


class ParquetFiles(DataFiles):
    """Rows of Parquet files, which pyarrow reads (``pip install 'tf-launcher[parquet]'``).

    By default each row is a dict with the names of the columns as keys. With ``columns`` it is a tuple of the
    values of these columns, in that order. Rows travel as columns, which are arrays of NumPy.

    ::

        cluster.train(ParquetFiles("hdfs://namenode/clicks/*.parquet", columns=["site", "label"]))

    A missing number is NaN in a column of floats, and anything else that is missing is None. Partitions are
    row groups, or several of them: a file of a single row group goes to one task.

    Args:
        names: A name, a pattern (``data/*.parquet``), or a list of both, as for `TextFiles`.
        columns: The names of the columns to read. By default all are read.
        read_on_worker: Whether tasks read the files, from a file system that all hosts share.

    Raises:
        InputError: No file has such a name, a file cannot be read, pyarrow is missing where it is to be read,
            or an argument is wrong.
    """

    @named_arguments("ParquetFiles")
    def __init__(self, names: Names, *, columns: Sequence[str] = (), read_on_worker: bool = False) -> None:
        """Check the arguments and find the files."""
        arguments = Arguments("ParquetFiles")
        columns = arguments.optional("columns", columns, several(text), [])
        files, is_remote = _read_files(arguments, names, read_on_worker)
        super().__init__(files, readers.ParquetReader(columns=tuple(columns)), is_remote=is_remote)
        if not is_remote and find_spec("pyarrow") is None and not all(map(is_url, self._names)):
            raise InputError([Fault("ParquetFiles", readers.MISSING_PYARROW)])


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

    URLs are returned as they are.

    Raises:
        InputError: A pattern matches no file, a name is that of a folder, a file cannot be read, or a package
            for a URL is missing. The message lists all such faults.
    """
    patterns = [os.path.expanduser(name) for name in names]
    faults = [] if patterns else [Fault("data", "no files", "expected names or patterns")]
    #: A dict keeps the order, and each path once.
    paths: dict[str, None] = {}
    for pattern in patterns:
        if is_url(pattern):
            if problem := url_fault(pattern) or missing_package(pattern):
                faults.append(Fault("data", f"{shown(pattern)}: {problem}"))
            paths[pattern] = None
            continue
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
