"""Data files by name or pattern: text, CSV, TFRecord.

Files are read in the driver, in partitions of about 2 MiB, or of less, so that every worker gets several.
With ``read_on_worker=True`` each file is one partition, and the task that gets it reads
it: for file systems that all hosts share.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from launcher.errors import Fault, InputError
from launcher.feed.remote.readers import CsvReader, RecordReader, TextReader
from launcher.feed.sources import GROUP_BYTES, PIECES_PER_WORKER, Piece, Source, groups, piece_of

#: One name or pattern, or several.
Names = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Reader = TextReader | CsvReader | RecordReader


class DataFiles(Source):
    """Some files, and how to read them: the base of the three kinds."""

    def __init__(self, names: Names, reader: Reader, remote: bool) -> None:
        super().__init__(once=False, pieces=self._pieces)
        self.paths = found(names)
        self._readers: list[Any] = [reader._replace(path=path) for path in self.paths]
        self._remote = remote

    def _pieces(self, workers: int) -> Iterator[Piece]:
        if self._remote:
            return map(piece_of, self._readers)
        size = sum(map(os.path.getsize, self.paths))
        rows = chain.from_iterable(reader() for reader in self._readers)
        return map(piece_of, groups(rows, min(GROUP_BYTES, size // (workers * PIECES_PER_WORKER))))


class TextFiles(DataFiles):
    """Lines of text files: each row is a line, without its end.

    Args:
        names: a name, a pattern (``data/*.txt``, ``**`` for any folders, ``~`` for the home), or several.
        encoding: of the text.
        read_on_worker: whether the lines are read in the tasks.

    Raises:
        InputError: no file has such a name, or it cannot be read.
    """

    def __init__(self, names: Names, *, encoding: str = "utf-8", read_on_worker: bool = False) -> None:
        super().__init__(names, TextReader(encoding), read_on_worker)


class CsvFiles(DataFiles):
    """Rows of CSV files; all values are texts.

    Each row is a dict by the names of the first line; with ``columns`` a tuple of those, in that order; with
    ``header=False`` a tuple of all.

    Args:
        names: a name, a pattern (``data/*.csv``), or several.
        columns: the names of the columns to take; default: all.
        header: whether the first line of each file has the names.
        delimiter: between the fields.
        encoding: of the text.
        read_on_worker: whether the rows are read in the tasks.

    Raises:
        InputError: no file has such a name, it cannot be read, or has no such columns.
    """

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
        reader = CsvReader(encoding, delimiter, header, tuple(columns))
        super().__init__(names, reader, read_on_worker)
        faults = []
        for path in self.paths if columns else ():
            known = reader._replace(path=path).names() if header else []
            if missing := [name for name in columns if name not in known]:
                no_names = "the file is empty" if header else "columns have names only with header=True"
                has = f"it has {', '.join(known)}" if known else no_names
                faults.append(Fault(path, f"no column {', '.join(missing)}", has))
        if faults:
            raise InputError(faults)


class TFRecordFiles(DataFiles):
    """Records of TFRecord files: each row is the bytes of one, as ``tf.io.parse_single_example`` takes them.

    TensorFlow is not needed to read them. If the tasks read the records and TensorFlow parses them,
    ``tf.data.TFRecordDataset`` in the function is faster.

    Args:
        names: a name, a pattern (``data/*.tfrecord``), or several.
        check: whether to compare the checksum of each record, where google-crc32c is installed.
        read_on_worker: whether the records are read in the tasks.

    Raises:
        InputError: no file has such a name, or it cannot be read.
    """

    def __init__(self, names: Names, *, check: bool = True, read_on_worker: bool = False) -> None:
        super().__init__(names, RecordReader(check), read_on_worker)


def found(names: Names) -> list[str]:
    """The files of these names and patterns, each once; those of one pattern in order of their names.

    Raises:
        InputError: a pattern without a file, a folder, a file that cannot be read; all of them at once.
    """
    given = [names] if isinstance(names, str | os.PathLike) else names
    patterns = [os.path.expanduser(os.fspath(name)) for name in given]
    faults = [] if patterns else [Fault("data", "no files", "expected names or patterns")]
    paths: dict[str, None] = {}
    for pattern in patterns:
        files = sorted(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
        files = [pattern] if os.path.exists(pattern) else files
        if not files:
            faults.append(Fault("data", f"no file {pattern!r}", f"looked from {os.getcwd()}"))
        for path in files:
            if os.path.isdir(path):
                text = f"expected its files, as in {os.path.join(path, '*')!r}"
                faults.append(Fault("data", f"{path!r} is a folder", text))
            elif not os.access(path, os.R_OK):
                faults.append(Fault("data", f"{path!r} can't be read", "may this user read it?"))
        paths.update(dict.fromkeys(files))
    if faults:
        raise InputError(faults)
    return list(paths)
