"""The frames of a feed: their kinds, and the numbers in them (little endian)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from launcher.feed.remote.frames import FeedRefused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_PROGRESS = struct.Struct("<QQB")
_COUNTED = struct.Struct("<QQ")

#: Flags of a CHUNK, its first buffer: it is the last of its partition; it is code that makes the rows.
LAST, REMOTE = 1, 2
#: The buffer of OPEN and TERMINATE: the function wants rows, wants no more, has returned.
WANTED, UNWANTED, RETURNED = b"", b"unwanted", b"returned"
#: The buffer of an END after which the rows sent before are not wanted either.
AT_ONCE = b"at once"


class Kind(IntEnum):
    """Kinds of frames of a feed. Chunks are counted on each connection, from 1."""

    #: Task: it opens a feed, or opens it again after a break.
    OPEN = 1
    #: Driver: the feed is open.
    WELCOME = 2
    #: Driver: rows.
    CHUNK = 3
    #: Driver: nothing more for the moment; a batch that has begun is handed out short.
    FLUSH = 4
    #: Driver: nothing more will come.
    END = 5
    #: Driver: the task gets no rows; the reason.
    GONE = 6
    #: Task: how far its function is.
    PROGRESS = 7
    #: Task: how many rows a chunk of code has made.
    COUNTED = 8
    #: Task: results, one for each row, in order.
    RESULTS = 9
    #: Task: its function wants no more rows of this feed.
    TERMINATE = 11


class Progress(NamedTuple):
    """How far the function of a task is, on the present connection."""

    #: The last chunk of which it has begun to hand out rows, and the last one that is consumed.
    taken: int = 0
    consumed: int = 0
    #: Whether it waits for rows.
    hungry: bool = False

    def pack(self) -> bytes:
        """The buffer of a PROGRESS."""
        return _PROGRESS.pack(*self)

    @classmethod
    def unpack(cls, buffers: Sequence[memoryview]) -> Progress:
        """The contents of a PROGRESS."""
        taken, consumed, hungry = _unpacked(_PROGRESS, buffers)
        return cls(taken, consumed, bool(hungry))


def pack_counted(chunk: int, rows: int) -> bytes:
    """The buffer of a COUNTED."""
    return _COUNTED.pack(chunk, rows)


def unpack_counted(buffers: Sequence[memoryview]) -> tuple[int, int]:
    """The contents of a COUNTED: the chunk, and its rows."""
    chunk, rows = _unpacked(_COUNTED, buffers)
    return chunk, rows


def only(buffers: Sequence[memoryview]) -> bytes:
    """The buffer of a frame that has one."""
    if len(buffers) != 1:
        raise FeedRefused(f"{len(buffers)} buffers instead of one")
    return bytes(buffers[0])


def _unpacked(form: struct.Struct, buffers: Sequence[memoryview]) -> tuple[Any, ...]:
    try:
        return form.unpack(only(buffers))
    except struct.error as error:
        raise FeedRefused(f"a frame of the wrong size: {error}") from error
