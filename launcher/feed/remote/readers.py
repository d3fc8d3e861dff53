"""Readers of data files: text, CSV, TFRecord and Parquet. They run in the program, or in a task.

`launcher.feed.files` makes them. A file has a path, or a URL, which `launcher.storage` reads. Files named
``*.gz`` are unpacked. TFRecord files are read without TensorFlow: a record is its length (u64, little
endian), the masked CRC-32C of those eight bytes, the content, and its masked CRC-32C. Checksums are compared
if google-crc32c is installed. A damaged file must raise an error and never yield wrong rows.

A reader may read only a range of its file, from the byte ``start`` to before the byte ``end``. The lines or
row groups that begin in the range belong to it. So however a file is cut into ranges, each row is read once.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import chain, islice
from operator import itemgetter
from typing import IO, Any, Sequence, Union

from launcher.common.errors import LaunchError
from launcher.common.record import Record, replace
from launcher.feed.remote.codec import Block, RowBlocks
from launcher.storage.store import open_url
from launcher.storage.urls import WEB_SCHEMES, local_path, scheme_of, shown

#: The names or patterns of files, one or several.
Names = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]
#: How many bytes are read at once, or characters of text.
_READ_BYTES = 1 << 18
#: How many rows of a Parquet file make a block.
_BLOCK_ROWS = 4096
#: The same of a CSV file. With more of them, Python's garbage collector would run again and again.
_CSV_BLOCK_ROWS = 256
MISSING_PYARROW = "pyarrow is not installed: pip install 'tf-launcher[parquet]'"
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
#: The length of a record, and its checksum.
_HEAD = struct.Struct("<QI")
#: The largest record that is believed. TensorFlow's own writer stays far below.
_MAX_RECORD_BYTES = 1 << 31


class BrokenFileError(LaunchError):
    """A data file is damaged, or of another format. The message names the file and the place."""


class FileReader(Record):
    """Reads a file, or a range of it: an instance is called for the rows, possibly in a task.

    This is the base of the four kinds.
    """

    path: str = ""
    #: The range begins at this byte, and ends before the other one. None stands for the end of the file.
    start: int = 0
    end: int | None = None

    def __call__(self) -> RowBlocks:
        """Return the rows.

        Raises:
            BrokenFileError: While iterating: the file is damaged, or of another kind.
            StorageError: While iterating: the file at a URL cannot be read.
            OSError: While iterating: the file cannot be read.
        """
        return RowBlocks(self._blocks())

    def _blocks(self) -> Iterator[Block]:
        """Yield many rows at a time, because a block costs less than a generator's step for each row."""
        raise NotImplementedError

    @property
    def can_be_cut(self) -> bool:
        """Whether a range of the file can be read: whether any byte of it can be the first that is read."""
        return not _is_packed(self.path) and scheme_of(self.path) not in WEB_SCHEMES


class TextReader(FileReader):
    """Reads the lines of a text file, each without its end."""

    encoding: str = "utf-8"

    @property
    def can_be_cut(self) -> bool:
        """Whether a range of the file can be read. Line ends are looked for before the text is decoded."""
        return super().can_be_cut and _extends_ascii(self.encoding)

    def _blocks(self) -> Iterator[list[str]]:
        """Yield many lines at a time."""
        with _text(self, self.encoding) as file:
            yield from _line_blocks(file)


class CsvReader(FileReader):
    """Reads the rows of a CSV file: dicts by the names in the first line, or tuples of texts.

    Rows are tuples if columns are chosen, or have no names.
    """

    encoding: str = "utf-8"
    delimiter: str = ","
    #: Whether the first line of the file contains the names of the columns.
    header: bool = True
    #: The names of the columns that are read, in the order of the values in a row. Empty if all are read.
    columns: tuple[str, ...] = ()
    #: Whether values in quotes may contain line ends.
    multiline: bool = True

    @property
    def can_be_cut(self) -> bool:
        """Whether a range of the file can be read. A line end in quotes would be taken for that of a row."""
        return super().can_be_cut and not self.multiline and _extends_ascii(self.encoding)

    def names(self) -> list[str]:
        """Return the fields of the first line that is not empty. There are none if the file is empty."""
        with closing(self._records(1)) as blocks:
            return next(chain.from_iterable(blocks), [])

    def _blocks(self) -> Iterator[list[Any]]:
        """Yield many rows at a time."""
        # The first line of the file has the names, or shows how many fields a row has. It lies before the
        # range, most probably at the beginning, or is the first one in it.
        first: list[str] = []
        for end in sorted({min(self.start, _READ_BYTES), self.start} - {0}):
            first = first or replace(self, start=0, end=end).names()
        make_row = self._row_maker(first) if first else None
        with closing(self._records(_CSV_BLOCK_ROWS)) as blocks:
            for records in filter(None, blocks):
                if make_row is None:
                    first = records[0]
                    make_row = self._row_maker(first)
                    records = records[1:] if self.header else records
                if {*map(len, records)} - {len(first)}:
                    wrong = next(record for record in records if len(record) != len(first))
                    row = f"a row of {len(wrong)} fields instead of {len(first)}: {','.join(wrong)[:80]!r}"
                    raise BrokenFileError(f"{shown(self.path)}: {row}; is {self.delimiter!r} the delimiter?")
                yield [*map(make_row, records)]
        # No line of the whole file was found, so it lacks all columns.
        if make_row is None and self.end is None:
            self._row_maker(first)

    def _row_maker(self, first: list[str]) -> Callable[[list[str]], Any]:
        """Return a function that makes a row of the fields of a line.

        Args:
            first: The fields of the first line of the file.

        Raises:
            BrokenFileError: A column is missing.
        """
        if fault := missing_columns(self.columns, first if self.header else []):
            raise BrokenFileError(f"{shown(self.path)}: {fault}")
        if not self.columns:
            return (lambda fields: dict(zip(first, fields))) if self.header else tuple
        places = [first.index(name) for name in self.columns]
        # With a single place it would return no tuple.
        return itemgetter(*places) if len(places) > 1 else lambda fields: (fields[places[0]],)

    def _records(self, count: int) -> Generator[list[list[str]], None, None]:
        """Yield lists of lines, each line as a list of its fields. Empty lines are left out.

        Args:
            count: The number of lines in a list, at most.

        Raises:
            BrokenFileError: The file is not CSV.
        """
        hint = "" if self.multiline else "; multiline=True allows line ends in quotes"
        number = 0
        with _text(self, self.encoding, newline="" if self.multiline else None) as file:
            # Blocks of lines are faster than single lines. They lack the line ends, which values may contain.
            lines = file if self.multiline else chain.from_iterable(_line_blocks(file))
            reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
            try:
                while records := list(islice(reader, count)):
                    number += len(records)
                    # A value has taken several lines.
                    if not self.multiline and reader.line_num != number:
                        raise BrokenFileError(f"{shown(self.path)}: a value contains a line end{hint}")
                    # An empty line has no fields.
                    yield list(filter(None, records))
            except csv.Error as error:
                raise BrokenFileError(f"{shown(self.path)}: not CSV: {error}{hint}") from error


class RecordReader(FileReader):
    """Reads the records of a TFRecord file, as bytes."""

    #: Whether the checksums are compared, if google-crc32c is installed.
    check: bool = True

    @property
    def can_be_cut(self) -> bool:
        """Whether a range of the file can be read. Nothing shows where a record begins."""
        return False

    def _blocks(self) -> Iterator[list[bytes]]:
        """Yield some records at a time. The module describes how they are stored."""
        crc32c = crc32c_function() if self.check else None
        path = shown(self.path)
        with opened(self.path) as file:
            # What was read of the file and does not belong to earlier records, and where that begins.
            data, offset = b"", 0
            # How many bytes the first record in the data has, if not all of them were read. These are read at
            # once, because bytes that come in pieces are copied again and again.
            cut_bytes = 0
            while more := file.read(max(_READ_BYTES, cut_bytes - len(data))):
                data += more
                records = []
                # Where the next record begins in the data.
                begin = 0
                while (content := begin + _HEAD.size) <= len(data):
                    size, checksum = _HEAD.unpack_from(data, begin)
                    # Without checksums, only its size can show that a length is wrong.
                    is_wrong = size > _MAX_RECORD_BYTES
                    if is_wrong or (crc32c and _masked(crc32c(data[begin : begin + 8])) != checksum):
                        # If not even the first length is right, the file is probably of another kind.
                        kind = "damaged" if offset + begin else "not a TFRecord file"
                        wrong = f"the length of the record at byte {offset + begin} is wrong"
                        raise BrokenFileError(f"{path}: {kind}: {wrong}")
                    end = content + size
                    if end + _CHECKSUM.size > len(data):
                        cut_bytes = end + _CHECKSUM.size - begin
                        break
                    record = data[content:end]
                    (checksum,) = _CHECKSUM.unpack_from(data, end)
                    if crc32c and _masked(crc32c(record)) != checksum:
                        wrong = f"the checksum of the record at byte {offset + begin} is wrong"
                        raise BrokenFileError(f"{path}: damaged: {wrong}")
                    records.append(record)
                    begin = end + _CHECKSUM.size
                yield records
                data, offset = data[begin:], offset + begin
            if data:
                raise BrokenFileError(f"{path}: cut off within the record at byte {offset}")


class ParquetReader(FileReader):
    """Reads the rows of a Parquet file, as columns: dicts of arrays, or tuples if columns are chosen."""

    #: The names of the columns that are read, in the order of the values in a row. Empty if all are read.
    columns: tuple[str, ...] = ()

    def _blocks(self) -> Iterator[Block]:
        """Yield many rows at a time. `BrokenFileError` also says that pyarrow or a column is missing."""
        path = shown(self.path)
        try:
            from pyarrow import ArrowException, parquet  # noqa: PLC0415 - slow, and may be missing
        except ImportError as error:
            raise BrokenFileError(f"{path}: {MISSING_PYARROW}") from error
        with opened(self.path, size=0) as content:
            try:
                file = parquet.ParquetFile(content)
                names = file.schema_arrow.names
                if fault := missing_columns(self.columns, names):
                    raise BrokenFileError(f"{path}: {fault}")
                groups = [[number] for number in range(file.num_row_groups) if self._has(file, number)]
                chosen = list(self.columns or names)
                # One after another, without threads, which would need memory and the cores of other tasks.
                batches = (file.iter_batches(_BLOCK_ROWS, each, chosen, use_threads=False) for each in groups)
                for batch in chain.from_iterable(batches):
                    columns = [_values(batch.column(name)) for name in chosen]
                    yield tuple(columns) if self.columns else dict(zip(names, columns))
            # A KeyError says that two columns have the same name.
            except (ArrowException, OSError, KeyError) as error:
                why = str(error).partition("\n")[0]
                raise BrokenFileError(f"{path}: cannot be read as Parquet: {why}") from error

    def _has(self, file: Any, number: int) -> bool:
        """Return whether a row group of a file of pyarrow begins in the range."""
        column = file.metadata.row_group(number).column(0)
        # The dictionary of a column comes before its values, if it has one.
        begins = column.dictionary_page_offset or column.data_page_offset
        return self.start <= begins and (self.end is None or begins < self.end)


def missing_columns(columns: Sequence[str], names: Sequence[str]) -> str:
    """Return which columns a file lacks, given the names that it has, or an empty text."""
    missing = [name for name in columns if name not in names]
    has = f"it has {', '.join(names)}" if names else "the file is empty"
    return f"no column {', '.join(missing)}; {has}" if missing else ""


def _values(column: Any) -> Any:
    """Return a column of pyarrow as an array of NumPy.

    A missing number is NaN in a column of floats, and anything else that is missing is None. Lists that all
    have the same length, such as vectors, become an array of more dimensions.
    """
    import numpy  # noqa: PLC0415 - only Parquet needs both
    from pyarrow import types  # noqa: PLC0415 - the same

    # As floats, large numbers would lose digits.
    if column.null_count and types.is_integer(column.type):
        return numpy.array(column.to_pylist(), object)
    kinds_of_list = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if not column.null_count and any(is_kind(column.type) for is_kind in kinds_of_list):
        lengths = column.value_lengths().unique().to_pylist()
        if len(lengths) == 1:
            values = _values(column.flatten())
            return values.reshape(len(column), *lengths, *values.shape[1:])
    return column.to_numpy(zero_copy_only=False)


def as_record(content: bytes, crc32c: Callable[[bytes], int]) -> bytes:
    """Return bytes as a record of a TFRecord file.

    Args:
        content: The bytes.
        crc32c: The function that computes checksums.
    """
    length = _LENGTH.pack(len(content))
    checksums = [_CHECKSUM.pack(_masked(crc32c(data))) for data in (length, content)]
    return b"".join([length, checksums[0], content, checksums[1]])


def _masked(checksum: int) -> int:
    """Return a checksum as TFRecord files contain it: rotated, with a constant added."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


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


def _is_packed(path: str) -> bool:
    """Return whether a file is to be unpacked."""
    # In the address of a web page, a question mark ends the name.
    name = path.partition("?")[0] if scheme_of(path) in WEB_SCHEMES else path
    return name.endswith(".gz")


def _extends_ascii(encoding: str) -> bool:
    """Return whether every ASCII character, such as a line end, is the same byte in an encoding."""
    ascii_bytes = bytes(range(128))
    try:
        return ascii_bytes.decode(encoding) == ascii_bytes.decode("ascii")
    except (UnicodeError, LookupError):
        return False


@contextmanager
def opened(path: str, start: int = 0, size: int | None = None) -> Iterator[IO[bytes]]:
    """Open a file to read its bytes, unpacked if its name ends in ``.gz``.

    Args:
        path: The path or URL of the file.
        start: The number of bytes to skip.
        size: About how many bytes will be read of a file at a URL, so that few others are fetched. None for
            all of the file.

    Raises:
        BrokenFileError: It cannot be unpacked.
        StorageError: It cannot be read.
        OSError: The same.
    """
    is_local = scheme_of(path) in ("", "file")
    with open(local_path(path) or path, "rb") if is_local else open_url(path, start, size) as file:
        if is_local:
            file.seek(start)
        if not _is_packed(path):
            yield file
            return
        try:
            with gzip.open(file) as unpacked:
                yield unpacked  # type: ignore[misc]
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BrokenFileError(f"{shown(path)}: damaged or cut off: {error}") from error


@contextmanager
def _text(reader: FileReader, encoding: str, newline: str | None = None) -> Iterator[IO[str]]:
    """Open a file to read the lines that begin in the range of its reader, without a byte order mark.

    Args:
        reader: The reader.
        encoding: The encoding of the text.
        newline: How line ends are read, see `open`.

    Raises:
        BrokenFileError: Bytes are not text of this encoding.
    """
    decoding = encoding
    if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig"):
        # The latter leaves out the mark, which only the beginning of a file can have.
        decoding = "utf-8" if reader.start else "utf-8-sig"
    # The byte before the range may end a line.
    before = max(0, reader.start - 1)
    size = None if reader.end is None else reader.end - before
    try:
        with opened(reader.path, before, size) as file:
            pieces: Any = _Pieces(_range_of_lines(file, reader.start, reader.end))
            with io.TextIOWrapper(pieces, decoding, newline=newline) as text:
                yield text
    except UnicodeError as error:
        wrong = "its start"  # UTF-16 or UTF-32 without a byte order mark, about which the error says no more.
        if isinstance(error, UnicodeDecodeError):
            wrong = repr(error.object[error.start : error.start + 4])
        raise BrokenFileError(f"{shown(reader.path)}: {wrong} is not {encoding}; set encoding=...") from error


def _line_blocks(file: IO[str]) -> Iterator[list[str]]:
    """Yield the lines of a text whose line ends are ``\\n``, without them, many at a time."""
    while text := file.read(_READ_BYTES):
        # readline completes the last line. Behind its end, the split leaves an empty text.
        lines = (text + file.readline()).split("\n")
        if not lines[-1]:
            lines.pop()
        yield lines


def _range_of_lines(file: IO[bytes], start: int, end: int | None) -> Iterator[bytes]:
    """Yield the bytes of the lines that begin in a range of a file, in pieces that are not empty.

    Here only ``\\n`` ends a line. What other line ends separate stays together, in one range.

    Args:
        file: The file, which is at the byte before the range.
        start: Where the range begins.
        end: Where it ends, or None for the end of the file.
    """
    position = start
    if start:
        # The line of the byte before the range belongs to an earlier range.
        position = start - 1 + sum(map(len, _rest_of_line(file)))
    # The last line of the range is the one to which the byte before the end belongs.
    while end is None or position < end - 1:
        data = file.read(_READ_BYTES if end is None else min(_READ_BYTES, end - 1 - position))
        if not data:
            return
        position += len(data)
        yield data
    if position < end:
        yield from _rest_of_line(file)


def _rest_of_line(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes up to the next line end and with it, or up to the end of the file."""
    while data := file.readline(_READ_BYTES):
        yield data
        if data.endswith(b"\n"):
            return


class _Pieces(io.BufferedIOBase):
    """A file of bytes that come in pieces, for a `io.TextIOWrapper`.

    Args:
        pieces: The pieces, none of which is empty.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        """Keep the pieces, of which none is read."""
        super().__init__()
        self._pieces = pieces

    def readable(self) -> bool:
        """Return that this file can be read."""
        return True

    def read1(self, size: int = -1, /) -> bytes:
        """Return the next piece, of whatever size, or no bytes at the end."""
        return next(self._pieces, b"")
