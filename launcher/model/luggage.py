"""What both ends of ``--sync`` and ``--collect`` agree on: what a tree is, and how it goes through a pipe.

A manifest lists a tree: one `Entry` a file, folder or link, sorted by path, as JSON. Its digest names the
tree, so a host that has the manifest need not be told it again; the digest of a file's content names the
content in the same way.

::

    frame:    size of the payload (u32, little endian), kind (u8), payload
    TELL:     JSON: what one end says to the other
    PLAIN:    bytes as they are          } together one long stream of bytes,
    DEFLATED: bytes that zlib shrank     } cut wherever it suits the sender
    SQUEEZED: bytes that lzma shrank     } (see `launcher.model.shrinking`)

Paths are strings in which bytes that are not UTF-8 are lone surrogates (PEP 383).
"""

from __future__ import annotations

import json
import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, Iterable, List, Tuple, Union

    Data = Union[bytes, bytearray, memoryview]

TELL, PLAIN, DEFLATED, SQUEEZED = 1, 2, 3, 4
#: What a host says every second, in a TELL, whatever else it does: that it is there.
PRESENT = b"{}"
#: Bytes of the stream in one frame, at most.
CHUNK = 1024 * 1024
#: Bounds a frame's payload: of a TELL, the longest is a list of what is needed.
MAX_FRAME = 16 * 1024 * 1024
#: How many entries a tree may have, and how many bytes its manifest.
MAX_ENTRIES, MAX_MANIFEST = 500_000, 256 * 1024 * 1024
#: What the file in a synced folder is called that says that it is one, and what was brought there.
SYNC_MARK = ".tf-launcher-sync"
#: The folder beside the trees of a run where its tasks have a folder each for what they make.
OUTPUTS = ".tf-launcher-output"

FILE, FOLDER, LINK = "f", "d", "l"

_HEAD = struct.Struct("<IB")


class LuggageError(Exception):
    """What came is not what both ends agreed on."""


class Entry(NamedTuple):
    """One file, folder or symbolic link of a tree."""

    #: Relative to the tree, with ``/``.
    path: str
    #: `FILE`, `FOLDER` or `LINK`.
    kind: str
    #: Permission bits; 0 for a link.
    mode: int = 0
    #: Bytes; 0 for all but files.
    size: int = 0
    #: When a file was last changed, nanoseconds since 1970; 0 for all else.
    mtime: int = 0
    #: A file's digest in hex; where a link leads.
    content: str = ""


def digest_of(data: Data) -> str:
    """What names this content: 160 bits in hex, as git has it, of a faster kind."""
    return blake2b(data, digest_size=20).hexdigest()


def digest() -> blake2b:
    """The same, for content that comes in pieces."""
    return blake2b(digest_size=20)


def manifest_of(entries: Iterable[Entry]) -> bytes:
    """The manifest of these entries: the same for the same tree."""
    rows = sorted(tuple(entry) for entry in entries)
    return json.dumps(rows, separators=(",", ":")).encode("ascii")


def entries_of(manifest: Data) -> List[Entry]:
    """The entries in a manifest, folders before what is in them.

    Raises:
        LuggageError: it is none, or a path leads out of the tree, also by way of a link.
    """
    try:
        entries = [Entry(*row) for row in json.loads(bytes(manifest))]
    except (ValueError, TypeError) as error:
        raise LuggageError(f"not a manifest: {error}") from error
    folders = {""}
    for entry in entries:
        check_path(entry.path)
        if folder_of(entry.path) not in folders or entry.kind not in (FILE, FOLDER, LINK):
            raise LuggageError(f"{entry.path!r} is in no folder of its tree")
        if entry.kind == FOLDER:
            folders.add(entry.path)
    return entries


def check_path(path: str) -> None:
    """Pass a path that stays within its tree.

    Raises:
        LuggageError: it does not.
    """
    if not path or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise LuggageError(f"{path!r} can't be a path in a tree")


def folder_of(path: str) -> str:
    """The path of the folder that an entry is in; empty at the top."""
    return path.rpartition("/")[0]


def spell(indexes: Iterable[int]) -> str:
    """Rising numbers in short: ``0-4,7``."""
    runs: List[List[int]] = []
    for index in indexes:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def unspell(text: str, count: int) -> List[int]:
    """The numbers in short, each below ``count``.

    Raises:
        LuggageError: there are others.
    """
    indexes: List[int] = []
    for run in filter(None, text.split(",")):
        low, _, high = run.partition("-")
        if not low.isdigit() or not (high or low).isdigit() or int(high or low) >= count:
            raise LuggageError(f"no list of numbers below {count}: {run[:40]!r}")
        indexes.extend(range(int(low), int(high or low) + 1))
    return indexes


def tell(**what: Any) -> bytes:
    """A frame that says something."""
    return framed(TELL, json.dumps(what, separators=(",", ":")).encode("ascii"))


def framed(kind: int, payload: Data) -> bytes:
    """A frame."""
    return _HEAD.pack(len(payload), kind) + payload


class Frames:
    """Bytes in any pieces -> the frames in them."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: Data) -> List[Tuple[int, bytes]]:
        """Kind and payload of the frames that these bytes complete.

        Raises:
            LuggageError: what came is not ours.
        """
        self._rest += data
        frames: List[Tuple[int, bytes]] = []
        at, end = 0, len(self._rest)
        while end - at >= _HEAD.size:
            size, kind = _HEAD.unpack_from(self._rest, at)
            if size > MAX_FRAME or kind not in (TELL, PLAIN, DEFLATED, SQUEEZED):
                raise LuggageError(f"a frame of kind {kind} and {size} bytes can't be")
            if end - at - _HEAD.size < size:
                break
            at += _HEAD.size + size
            frames.append((kind, bytes(memoryview(self._rest)[at - size : at])))
        del self._rest[:at]
        return frames


def understood(payload: bytes) -> Any:
    """What a TELL says.

    Raises:
        LuggageError: nothing that can be understood.
    """
    try:
        said = json.loads(payload)
    except ValueError as error:
        raise LuggageError(f"can't be understood: {payload[:200]!r}") from error
    if not isinstance(said, dict):
        raise LuggageError(f"can't be understood: {payload[:200]!r}")
    return said
