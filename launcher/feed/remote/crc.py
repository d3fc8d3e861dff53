"""CRC-32C (Castagnoli), the checksum of TFRecord files; Python's library has only the other one.

A CRC is linear: that of many bytes is the exclusive or of what each byte contributes from its place. So whole
lines of bytes are looked up at once by numpy, and only one step a line is left to Python. numpy is used where
it is installed; it is no dependency of ours.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
#: Bytes looked up at once; below some lines of it the way byte by byte is faster.
_LINE = 256
_FEW = 128


def crc32c(data: bytes) -> int:
    """The checksum of these bytes."""
    if len(data) < _FEW or (numpy := _numpy()) is None:
        return _step(_ONES, data) ^ _ONES
    return _by_lines(numpy, data) ^ _ONES


def _step(crc: int, data: bytes) -> int:
    """The register after these bytes, one by one."""
    table = _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def _by_lines(numpy: Any, data: bytes) -> int:
    """The register after these bytes: those before the first whole line one by one, then line by line."""
    odd = len(data) % _LINE
    crc = _step(_ONES, data[:odd]) if odd < _FEW else _padded(numpy, data[:odd])
    lines = numpy.frombuffer(data, numpy.uint8, offset=odd).reshape(-1, _LINE)
    for contribution in _sums(numpy, lines):
        crc = _after_line(crc) ^ contribution
    return crc


def _padded(numpy: Any, data: bytes) -> int:
    """The register after less than a line; leading zeros count for nothing."""
    line = numpy.zeros((1, _LINE), numpy.uint8)
    line[0, _LINE - len(data) :] = numpy.frombuffer(data, numpy.uint8)
    line[0, _LINE - len(data) : _LINE - len(data) + 4] ^= 0xFF
    return int(_sums(numpy, line)[0])


def _sums(numpy: Any, lines: Any) -> list[int]:
    """What each line contributes, were the register zero before it."""
    places, found = _places(numpy), []
    for some in range(0, len(lines), 256):  # the looked up numbers of all lines at once would fill memory
        index = lines[some : some + 256].astype(numpy.intp)
        index += numpy.arange(0, _LINE * 256, 256)
        found += numpy.bitwise_xor.reduce(places[index], axis=1).tolist()
    return found


def _after_line(crc: int) -> int:
    """The register after a line of zeros."""
    first, second, third, fourth = _zeros()
    return first[crc & 0xFF] ^ second[crc >> 8 & 0xFF] ^ third[crc >> 16 & 0xFF] ^ fourth[crc >> 24]


@cache
def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


@cache
def _table() -> list[int]:
    """What each byte does to the register."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


@cache
def _places(numpy: Any) -> Any:
    """What each byte contributes from each place of a line, flat: ``places[place * 256 + byte]``."""
    table = numpy.array(_table(), numpy.uint32)
    rows = [table]
    for _ in range(_LINE - 1):
        rows.append(table[rows[-1] & 0xFF] ^ (rows[-1] >> 8))
    return numpy.concatenate(rows[::-1])


@cache
def _zeros() -> list[list[int]]:
    """What a line of zeros makes of each byte of the register: four tables."""
    blank = bytes(_LINE)
    return [[_step(byte << shift, blank) for byte in range(256)] for shift in (0, 8, 16, 24)]
