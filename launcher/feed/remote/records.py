"""TFRecord files without TensorFlow: the plain bytes of each record.

A record is its length (u64, little endian), the masked CRC-32C of those eight bytes, the record, and its
masked CRC-32C. The checksums of lengths are always compared, those of records if google-crc32c is installed.
"""

from __future__ import annotations

import gzip
import os
import struct
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Any

from launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_LENGTH = struct.Struct("<Q")
_SUM = struct.Struct("<I")
_HEAD = _LENGTH.size + _SUM.size
#: Bytes of a record; TensorFlow's own writer stays far below.
_MOST = 1 << 31
_POLYNOMIAL, _ONES = 0x82F63B78, 0xFFFFFFFF


class BrokenRecords(LaunchError):
    """The file is not a TFRecord file, or is damaged."""


def read_records(path: str, start: int = 0, stop: int | None = None, check: bool = True) -> Iterator[bytes]:
    """The records of a file, in order.

    Args:
        path: the file; one that ends in ``.gz`` is unpacked.
        start: an offset in bytes, at which a record begins.
        stop: an offset in bytes, at which a record begins; default: the end of the file.
        check: compare the checksums of the records too, if google-crc32c is installed.

    Raises:
        BrokenRecords: the file is damaged; the message says where.
        OSError: the file cannot be read.
    """
    check = check and fast_crc32c() is not None
    with opened(path) as file:
        if start:
            file.seek(start)
        at = start
        while stop is None or at < stop:
            length = _length(file, path, at)
            if length is None:
                return
            content = file.read(length + _SUM.size)
            if len(content) < length + _SUM.size:
                raise _cut_off(path, at)
            record = content[:length]
            if check and content[length:] != _masked(record):
                raise BrokenRecords(f"{path}: damaged: the checksum of the record at byte {at} is wrong")
            yield record
            at += _HEAD + length + _SUM.size


def offsets(path: str) -> Iterator[int]:
    """Where each record begins, and at last the end of the file: only the lengths are read.

    Raises:
        BrokenRecords: the file is damaged; the message says where.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while (length := _length(file, path, at)) is not None:
            yield at
            at = file.seek(at + _HEAD + length + _SUM.size)
            if at > end:
                raise _cut_off(path, at - length - _HEAD - _SUM.size)
        yield at


def write_records(path: str, records: Iterable[bytes]) -> int:
    """Write a file of these records; returns their number.

    Args:
        path: packed if it ends in ``.gz``.
        records: the bytes of each, as ``example.SerializeToString()`` gives them.

    Raises:
        OSError: the file cannot be written.
    """
    count = 0
    with opened(path, "wb") as file:
        for record in records:
            length = _LENGTH.pack(len(record))
            file.write(b"".join((length, _masked(length), record, _masked(record))))
            count += 1
    return count


def opened(path: str, mode: str = "rb") -> IO[bytes]:
    """The bytes of a file, unpacked if its name ends in ``.gz``."""
    file: Any = gzip.open(path, mode) if path.endswith(".gz") else open(path, mode)  # noqa: SIM115
    return file  # type: ignore[no-any-return]


def crc32c(data: bytes) -> int:
    """The CRC-32C (Castagnoli) of these bytes; slow without google-crc32c."""
    if (fast := fast_crc32c()) is not None:
        return int(fast(data))
    crc, table = _ONES, _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ _ONES


@lru_cache(maxsize=None)
def fast_crc32c() -> Callable[[bytes], int] | None:
    """That of google-crc32c; ``None``: it is not installed."""
    try:
        from google_crc32c import value
    except ImportError:
        return None
    return value  # type: ignore[no-any-return]


@lru_cache(maxsize=None)
def _table() -> list[int]:
    """The change of the register by each byte."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


def _length(file: IO[bytes], path: str, at: int) -> int | None:
    """The length of the record that begins here; ``None`` at the end of the file."""
    head = file.read(_HEAD)
    if not head:
        return None
    if len(head) < _HEAD:
        raise _cut_off(path, at)
    length = int(_LENGTH.unpack_from(head)[0])
    if head[_LENGTH.size :] != _masked(head[: _LENGTH.size]) or length > _MOST:
        what = "not a TFRecord file" if at == 0 else "damaged"
        raise BrokenRecords(f"{path}: {what}: the checksum of the length at byte {at} is wrong")
    return length


def _cut_off(path: str, at: int) -> BrokenRecords:
    return BrokenRecords(f"{path}: cut off within the record at byte {at}")


def _masked(data: bytes) -> bytes:
    """The checksum as it is stored: rotated, and a constant added."""
    crc = crc32c(data)
    return _SUM.pack((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
