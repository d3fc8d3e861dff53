"""MNIST as it was published: the four original files, their format, and the proof that arrays are theirs."""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

import numpy as np


class Raw(NamedTuple):
    """MNIST as published, uint8: images [N, 28, 28], labels [N]."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


class DataError(Exception):
    """The data can't be had, or what was had is not the data."""


class Published(NamedTuple):
    """One of the four original files."""

    name: str
    #: SHA-256 of the file as it is served, ``name.gz``.
    packed: str
    #: SHA-256 of the file itself: header and bytes.
    content: str


#: By field of `Raw`.
ORIGINALS: dict[str, Published] = {
    "train_images": Published(
        "train-images-idx3-ubyte",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train_labels": Published(
        "train-labels-idx1-ubyte",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "test_images": Published(
        "t10k-images-idx3-ubyte",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "test_labels": Published(
        "t10k-labels-idx1-ubyte",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}


def idx_header(array: np.ndarray) -> bytes:
    """The header that the original file format (idx, unsigned bytes) puts before such an array."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)


def parse_idx(content: bytes) -> np.ndarray:
    """An idx file of unsigned bytes as an array.

    Raises:
        DataError: it is none, or its length is not what its header says.
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"not an idx file of unsigned bytes: it begins with {content[:4]!r}")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"an idx file cut off in its header, after {len(content)} bytes")
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    expected = 1
    for length in shape:
        expected *= length
    if len(content) - start != expected:
        found = len(content) - start
        raise DataError(f"an idx file of shape {shape} with {found} bytes instead of {expected}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def prove(raw: Raw) -> Raw:
    """The same arrays, if written as idx files they are the originals byte by byte.

    Raises:
        DataError: they are not.
    """
    for field, array in raw._asdict().items():
        if array.dtype != np.uint8:
            raise DataError(f"{field} are {array.dtype}, not uint8")
        digest = hashlib.sha256(idx_header(array))
        digest.update(np.ascontiguousarray(array).data)
        if digest.hexdigest() != ORIGINALS[field].content:
            raise DataError(f"{field} are not those of MNIST (checksum {digest.hexdigest()[:12]}...)")
    return raw


def check_sha256(content: bytes, expected: str, what: str) -> bytes:
    """The same bytes, if they have this checksum: nothing is unpacked before it is known what it is."""
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(
            f"{what} ({len(content)} bytes) has the checksum {found[:12]}..., not {expected[:12]}..."
        )
    return content
