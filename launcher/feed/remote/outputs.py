"""The results of a partition as a file, which the task that computes them stores at a URL.

The program makes an `OutputPartition` of each partition. `launcher.feed.remote.data_feed` collects its
results in an `OutputFile`. Nothing may appear at the URL before all of them are there, because a partition
whose task is lost is done again as a whole.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from numbers import Number
from typing import Any, Callable, NamedTuple

from launcher.common.arguments import shown
from launcher.common.errors import Fault, InputError, LaunchError
from launcher.feed.remote.codec import RowBlocks, decode, imported
from launcher.feed.remote.readers import as_record, crc32c_function
from launcher.storage.store import StorageError, store
from launcher.storage.urls import missing_package

# The results of a partition are kept in memory up to this size, and then in a file without a name.
_SPOOL_BYTES = 8 << 20
_EXPECTED = (
    "expected with output=: texts without a line end and numbers, or bytes, or dicts as in JSON; one of the "
    "three in each partition"
)


class SentRows(NamedTuple):
    """Rows that the program has read, which travel to the task as code does, and are called there."""

    #: The buffers of some rows each, as `launcher.feed.remote.codec.encode` returns them.
    chunks: Sequence[Sequence[bytearray]]

    def __call__(self) -> RowBlocks:
        """Return the rows."""
        return RowBlocks(map(decode, self.chunks))


class OutputPartition(NamedTuple):
    """A partition whose results become a file. It is code: the task calls it for the rows."""

    rows: Callable[[], Iterable[Any]]
    #: The URL of the file, without the ending that depends on the results.
    target: str
    #: A text in the temporary names of all files of the call, see `launcher.storage.store`.
    mark: str

    def __repr__(self) -> str:
        """Return the rows only, because messages contain this, and the URL may contain a password."""
        return repr(self.rows)

    def __call__(self) -> Iterable[Any]:
        """Return the rows."""
        return self.rows()


class OutputFile:
    """The results of one partition, until all are there and can be stored.

    Args:
        partition: The partition.
        first: The number of rows that the function has read before this partition.
    """

    def __init__(self, partition: OutputPartition, first: int) -> None:
        """Begin a file without results, of which nothing exists outside this process.

        Raises:
            StorageError: A package is missing, without which it could not be stored.
        """
        # It is found out now, because later the results would have been computed in vain.
        if missing := missing_package(partition.target):
            raise StorageError(partition.target, missing)
        #: The number of rows before this partition, and so of results.
        self.first = first
        #: The number of rows of this partition, or None while not all are read.
        self.rows: int | None = None
        self._partition = partition
        #: The number of results that are here.
        self._count = 0
        #: The ending of the name of the file. Empty before the first result.
        self._suffix = ""
        self._content = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 - `close` closes it

    @property
    def is_complete(self) -> bool:
        """Whether all rows were read, and have results."""
        return self._count == self.rows

    def add(self, results: list[Any]) -> int:
        """Take the next results, and return how many. The others belong to later partitions.

        Raises:
            InputError: A file cannot contain these results, or these beside the earlier ones.
            LaunchError: google-crc32c is missing, which results of bytes need.
            OSError: There is no room for them.
        """
        taken = results if self.rows is None else results[: self.rows - self._count]
        # This looks at types, not at results, because there are few of them.
        suffixes = {self._suffix, *map(_suffix, {*map(type, taken)})} - {""}
        if len(suffixes) > 1:
            raise _refused(f"results of several kinds in one partition, such as {shown(taken[0])}")
        (self._suffix,) = suffixes
        try:
            self._content.write(_ENCODERS[self._suffix](taken))
        except (TypeError, ValueError, RecursionError) as error:
            raise _refused(f"results such as {shown(taken[0])}: {error}") from error
        self._count += len(taken)
        return len(taken)

    def store(self, moved: Callable[[int], None]) -> str:
        """Store the file, and return its URL.

        Args:
            moved: Called again and again while the file is stored.

        Raises:
            StorageError: It cannot be stored.
        """
        url = self._partition.target + self._suffix
        store(self._content, url, moved, mark=self._partition.mark)
        return url

    def close(self) -> None:
        """Drop the results."""
        self._content.close()


def _suffix(kind: type) -> str:
    """Return the ending of the file that can contain results of a type.

    Raises:
        InputError: There is none.
    """
    # A scalar of NumPy may be no number for Python, such as a bool. There is none if NumPy is not imported.
    one_line = (str, Number, imported("numpy", "generic") or str)
    for suffix, accepted in ((".tfrecord", (bytes,)), (".jsonl", (dict,)), (".txt", one_line)):
        if issubclass(kind, accepted):
            return suffix
    raise _refused(f"results of type {kind.__name__}")


def _refused(problem: str) -> InputError:
    """Return the error about results that cannot become a file."""
    return InputError([Fault("batch_results", problem, _EXPECTED)])


def _lines(results: Sequence[Any]) -> bytes:
    """Return texts and numbers as lines of UTF-8."""
    text = "\n".join(map(str, results)) + "\n"
    # Readers of text files treat both as line ends.
    if text.count("\n") > len(results) or "\r" in text:
        broken = next(each for each in map(str, results) if "\n" in each or "\r" in each)
        raise ValueError(f"{shown(broken)} contains a line end")
    return text.encode()


def _json_lines(results: Sequence[Any]) -> bytes:
    """Return dicts as lines of JSON. Arrays and scalars of NumPy become lists and numbers."""

    def plain(value: Any) -> Any:
        """Convert a value that is none of JSON's."""
        if type(value).__module__ == "numpy":
            return value.tolist()
        raise TypeError(f"{type(value).__name__} is no type of JSON")

    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain)
    return "".join(f"{encoder.encode(result)}\n" for result in results).encode()


def _records(results: Sequence[bytes]) -> bytes:
    """Return bytes as the records of a TFRecord file.

    Raises:
        LaunchError: google-crc32c is not installed.
    """
    crc32c = crc32c_function()
    if crc32c is None:
        text = "results of bytes become TFRecord files, whose checksums need google-crc32c in this Python"
        raise LaunchError(f"{text}: {sys.executable} -m pip install google-crc32c")
    return b"".join([as_record(result, crc32c) for result in results])


_ENCODERS: dict[str, Callable[[Sequence[Any]], bytes]] = {
    ".txt": _lines,
    ".jsonl": _json_lines,
    ".tfrecord": _records,
}
