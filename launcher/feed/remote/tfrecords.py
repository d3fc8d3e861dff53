"""TFRecord files without TensorFlow: plain bytes of each record, checksums looked at.

A record is its length (u64, little endian), the masked CRC-32C of those eight bytes, the record, and its
masked CRC-32C. With numpy a gigabyte is checked in some seconds; without it, byte by byte, that takes minutes
(``check=False`` leaves the checksums of the records out; those of the lengths are always looked at).
"""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Iterable, Iterator
from typing import IO, Any

from launcher.errors import LaunchError
from launcher.feed.remote.crc import crc32c

_LENGTH = struct.Struct("<Q")
_SUM = struct.Struct("<I")
_HEAD = _LENGTH.size + _SUM.size
#: Bytes of a record that is still believed; TensorFlow's own writer stays far below.
_MOST = 1 << 31


class BrokenRecords(LaunchError):
    """A file that is no TFRecord file, or a damaged one."""


def read_records(path: str, start: int = 0, stop: int | None = None, check: bool = True) -> Iterator[bytes]:
    """The records of a file, in order.

    Args:
        path: the file; one that ends in ``.gz`` is unpacked.
        start: where to begin, in bytes: where a record begins.
        stop: where to end: where a record begins; default: the end of the file.
        check: whether to look at the checksums of the records too.

    Raises:
        BrokenRecords: the file is damaged; the message says where.
        OSError: it can't be read.
    """
    with opened(path) as file:
        if start:
            file.seek(start)
        at = start
        while stop is None or at < stop:
            length = _length(file, path, at)
            if length is None:
                return
            yield _content(file, path, at, length, check)
            at += _HEAD + length + _SUM.size


def offsets(path: str) -> Iterator[int]:
    """Where each record begins, and at last the end of the file: only the lengths are read.

    Raises:
        BrokenRecords: the file is damaged; the message says where.
        OSError: it can't be read.
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
    """Write a file of these records; how many they were.

    Args:
        path: packed if it ends in ``.gz``.
        records: the bytes of each, as ``example.SerializeToString()`` gives them.

    Raises:
        OSError: it can't be written.
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
    if path.endswith(".gz"):
        packed: Any = gzip.open(path, mode)  # noqa: SIM115 - the caller closes it
        return packed  # type: ignore[no-any-return]
    plain: Any = open(path, mode)  # noqa: SIM115
    return plain  # type: ignore[no-any-return]


def _length(file: IO[bytes], path: str, at: int) -> int | None:
    head = file.read(_HEAD)
    if not head:
        return None
    if len(head) < _HEAD:
        raise _cut_off(path, at)
    length = int(_LENGTH.unpack_from(head)[0])
    if head[_LENGTH.size :] != _masked(head[: _LENGTH.size]) or length > _MOST:
        what = "no TFRecord file" if at == 0 else "damaged"
        raise BrokenRecords(f"{path}: {what}: the checksum of the length at byte {at} is wrong")
    return length


def _content(file: IO[bytes], path: str, at: int, length: int, check: bool) -> bytes:
    content = file.read(length + _SUM.size)
    if len(content) < length + _SUM.size:
        raise _cut_off(path, at)
    record = content[:length]
    if check and content[length:] != _masked(record):
        raise BrokenRecords(f"{path}: damaged: the checksum of the record at byte {at} is wrong")
    return record


def _cut_off(path: str, at: int) -> BrokenRecords:
    return BrokenRecords(f"{path}: cut off within the record at byte {at}; was it written to its end?")


def _masked(data: bytes) -> bytes:
    """The checksum as it is stored: rotated and moved, so that it can be part of what is summed up again."""
    crc = crc32c(data)
    return _SUM.pack((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
