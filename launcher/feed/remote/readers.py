"""Readers of data files: text, CSV and TFRecord. They run in the program, or travel to a task and run there.

`launcher.feed.files` makes them. Files named ``*.gz`` are unpacked. TFRecord files are read without
TensorFlow: a record is its length (u64, little endian), the masked CRC-32C of those eight bytes, the content,
and its masked CRC-32C. A damaged file must raise an error and never yield wrong rows. Checksums are compared
if google-crc32c is installed.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from typing import IO, Any, NamedTuple

from launcher.common.errors import LaunchError
from launcher.storage import urls
from launcher.storage.store import open_url

#: How many characters are read at once.
_READ_CHARACTERS = 1 << 18
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEAD = _LENGTH.size + _CHECKSUM.size
#: The largest record that is believed. TensorFlow's own writer stays far below.
_MAX_RECORD_BYTES = 1 << 31


class BrokenFileError(LaunchError):
    """A data file is damaged, or of another format. The message names the file and the place."""


class TextReader(NamedTuple):
    """Reads the lines of a text file, each without its end. An instance is called to read the file."""

    encoding: str
    path: str = ""

    def __call__(self) -> Iterator[str]:
        """Return an iterator over the lines.

        Raises:
            BrokenFileError: The file contains bytes that are not text of this encoding.
            OSError: The file cannot be read.
        """
        return chain.from_iterable(self._lines())

    def _lines(self) -> Iterator[list[str]]:
        """Yield many lines at a time, because a list costs less than a generator's step for each line."""
        with _text(self.path, self.encoding) as file:
            while text := file.read(_READ_CHARACTERS):
                # readline completes the last line. Behind its end, the split leaves an empty text.
                lines = (text + file.readline()).split("\n")
                yield lines if lines[-1] else lines[:-1]


class CsvReader(NamedTuple):
    """Reads the rows of a CSV file, as dicts or tuples of texts. An instance is called to read the file."""

    encoding: str
    delimiter: str
    #: Whether the first line of the file contains the names of the columns.
    header: bool
    #: The names of the columns that are read. Rows are then tuples of their values, in this order. Empty if
    #: all are read.
    columns: tuple[str, ...]
    path: str = ""

    def __call__(self) -> Iterator[Any]:
        """Yield the rows: dicts by the names in the first line, or tuples.

        Rows are tuples if columns are chosen, or have no names.

        Raises:
            BrokenFileError: A row has more or fewer fields than the one before it, or bytes are not text.
            OSError: The file cannot be read.
        """
        with closing(self._records()) as records:
            names = next(records, []) if self.header else []
            places = [names.index(name) for name in self.columns]
            width = len(names)
            for record in records:
                # Without names, the first row shows how many fields a row has.
                width = width or len(record)
                if len(record) != width:
                    row = f"a row of {len(record)} fields instead of {width}: {','.join(record)[:80]!r}"
                    raise BrokenFileError(f"{self.path}: {row}; is {self.delimiter!r} the delimiter?")
                if places:
                    yield tuple([record[place] for place in places])
                else:
                    yield dict(zip(names, record)) if names else tuple(record)

    def names(self) -> list[str]:
        """Return the names in the first line of the file. Empty if the file is empty."""
        return next(self._records(), [])

    def _records(self) -> Generator[list[str], None, None]:
        """Yield the fields of each line that is not empty.

        Raises:
            BrokenFileError: The file is not CSV.
        """
        with _text(self.path, self.encoding, newline="") as file:
            try:
                yield from filter(None, csv.reader(file, delimiter=self.delimiter, strict=True))
            except csv.Error as error:
                raise BrokenFileError(f"{self.path}: not CSV: {error}") from error


class RecordReader(NamedTuple):
    """Reads the records of a TFRecord file, as bytes. An instance is called to read the file."""

    #: Whether the checksums are compared, if google-crc32c is installed.
    check: bool = True
    path: str = ""

    def __call__(self) -> Iterator[bytes]:
        """Yield the records.

        A record is stored as its length, the masked checksum of the length, the content, and the masked
        checksum of the content.

        Raises:
            BrokenFileError: The file is damaged. The message says where.
            OSError: The file cannot be read.
        """
        crc32c = crc32c_function() if self.check else None

        def is_right(data: bytes, checksum: bytes) -> bool:
            """Return whether this is the stored checksum of these bytes."""
            # Checksums are not wanted, or google-crc32c is not installed.
            return crc32c is None or _masked(crc32c(data)) == checksum

        with opened(self.path) as file:
            # The number of bytes before the present record.
            offset = 0
            while head := file.read(_HEAD):
                if len(head) < _HEAD:
                    raise BrokenFileError(f"{self.path}: cut off within the record at byte {offset}")
                size = int(_LENGTH.unpack_from(head)[0])
                # Without checksums, only its size can show that a length is wrong.
                if size > _MAX_RECORD_BYTES or not is_right(head[: _LENGTH.size], head[_LENGTH.size :]):
                    # If not even the first length is right, the file is probably of another kind.
                    kind = "damaged" if offset else "not a TFRecord file"
                    raise BrokenFileError(
                        f"{self.path}: {kind}: the length of the record at byte {offset} is wrong"
                    )
                content = file.read(size + _CHECKSUM.size)
                if len(content) < size + _CHECKSUM.size:
                    raise BrokenFileError(f"{self.path}: cut off within the record at byte {offset}")
                record = content[:size]
                if not is_right(record, content[size:]):
                    raise BrokenFileError(
                        f"{self.path}: damaged: the checksum of the record at byte {offset} is wrong"
                    )
                yield record
                offset += _HEAD + len(content)


def as_record(content: bytes, crc32c: Callable[[bytes], int]) -> bytes:
    """Return bytes as a record of a TFRecord file.

    Args:
        content: The bytes.
        crc32c: The function that computes checksums.
    """
    length = _LENGTH.pack(len(content))
    return b"".join([length, _masked(crc32c(length)), content, _masked(crc32c(content))])


def _masked(checksum: int) -> bytes:
    """Return a checksum as TFRecord files contain it: rotated, with a constant added."""
    return _CHECKSUM.pack((((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c_function() -> Callable[[bytes], int] | None:
    """Return the function that computes the CRC-32C (Castagnoli) of bytes.

    Returns:
        The function, or None if google-crc32c is not installed.
    """
    try:
        from google_crc32c import value  # noqa: PLC0415 - a package that may be missing
    except ImportError:
        return None
    return value  # type: ignore[no-any-return]


def opened(path: str) -> IO[bytes]:
    """Open a file, by its path or URL, to read its bytes, unpacked if its name ends in ``.gz``."""
    local = urls.local_path(path) if urls.is_url(path) else path
    file: Any = open_url(path) if local is None else open(local, "rb")  # noqa: SIM115
    content: Any = gzip.open(file) if path.endswith(".gz") else file  # noqa: SIM115
    return content  # type: ignore[no-any-return]


@contextmanager
def _text(path: str, encoding: str, newline: str | None = None) -> Iterator[IO[str]]:
    """Open a file to read its text, after its byte order mark if it has one.

    Args:
        path: The path of the file.
        encoding: The encoding of the text.
        newline: How line ends are read, see `open`.

    Raises:
        BrokenFileError: Bytes are not text of this encoding.
    """
    # Python's utf-8-sig leaves out the mark at the start, which some editors write.
    decoding = "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    try:
        with opened(path) as file, io.TextIOWrapper(file, decoding, newline=newline) as text:
            yield text
    except UnicodeError as error:
        wrong = "its start"  # UTF-16 or UTF-32 without a byte order mark, about which the error says no more.
        if isinstance(error, UnicodeDecodeError):
            wrong = repr(error.object[error.start : error.start + 4])
        raise BrokenFileError(f"{path}: {wrong} is not {encoding}; set encoding=...") from error
