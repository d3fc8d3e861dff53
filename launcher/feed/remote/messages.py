"""What stands in the frames of a feed: one record a kind of frame, numbers little endian."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, NamedTuple

from launcher.feed.remote.frames import FeedRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_CHUNK = struct.Struct("<QQQB")
_PROGRESS = struct.Struct("<QQQB")
_NUMBER = struct.Struct("<Q")
_COUNTED = struct.Struct("<QQ")
_LAST, _REMOTE = 1, 2

#: The buffer of an END after which the rows that came before it are not wanted any more.
AT_ONCE = b"at once"
#: The buffer of a TERMINATE of a function that has returned.
RETURNED = b"returned"


class ChunkHead(NamedTuple):
    """What is said about rows that follow."""

    #: 1, 2, 3 ... over the life of a feed to one task.
    number: int
    partition: int
    #: How many; 0 if they are made by code that follows.
    rows: int
    #: Whether they are the last of their partition.
    last: bool
    #: Whether code follows that makes them.
    remote: bool = False

    def pack(self) -> bytes:
        """The first buffer of a CHUNK."""
        return _CHUNK.pack(*self[:3], self.last * _LAST | self.remote * _REMOTE)

    @classmethod
    def unpack(cls, buffer: memoryview) -> ChunkHead:
        """Of the first buffer of a CHUNK."""
        number, partition, rows, flags = _unpacked(_CHUNK, buffer)
        return cls(number, partition, rows, bool(flags & _LAST), bool(flags & _REMOTE))


class Progress(NamedTuple):
    """How far the function of a task has come."""

    #: The last chunk that it has begun to hand out.
    taken: int = 0
    #: The last chunk of which all rows are consumed.
    consumed: int = 0
    #: Rows consumed in all.
    rows: int = 0
    #: Whether it waits for more.
    hungry: bool = False

    def pack(self) -> bytes:
        """The buffer of a PROGRESS."""
        return _PROGRESS.pack(*self)

    @classmethod
    def unpack(cls, buffer: memoryview) -> Progress:
        """Of the buffer of a PROGRESS."""
        taken, consumed, rows, hungry = _unpacked(_PROGRESS, buffer)
        return cls(taken, consumed, rows, bool(hungry))


class Opening(NamedTuple):
    """What a task says when it opens a feed, or opens it again."""

    #: Of one `Intake`: the same only after a break.
    session: str
    #: The last chunk that came.
    received: int
    progress: Progress
    terminated: bool
    #: Rows of chunks that were code, by the number of the chunk.
    counted: Mapping[int, int]

    def pack(self) -> bytes:
        """The buffer of an OPEN."""
        fields = self._asdict()
        return json.dumps({**fields, "counted": list(self.counted.items())}).encode()

    @classmethod
    def unpack(cls, buffer: memoryview) -> Opening:
        """Of the buffer of an OPEN."""
        try:
            fields = json.loads(bytes(buffer))
            taken, consumed, rows, hungry = fields["progress"]
            progress = Progress(int(taken), int(consumed), int(rows), bool(hungry))
            session, received = str(fields["session"]), int(fields["received"])
            counted = {int(number): int(rows) for number, rows in fields["counted"]}
            return cls(session, received, progress, bool(fields["terminated"]), counted)
        except (ValueError, KeyError, TypeError) as error:
            raise FeedRefused(f"a feed that was opened in a way that can't be: {error}") from error


def number(value: int) -> bytes:
    """The buffer of a WELCOME or KEPT; before the block of RESULTS."""
    return _NUMBER.pack(value)


def to_number(buffer: memoryview) -> int:
    """What `number` made it of."""
    return int(_unpacked(_NUMBER, buffer)[0])


def counted(chunk: int, rows: int) -> bytes:
    """The buffer of a COUNTED."""
    return _COUNTED.pack(chunk, rows)


def to_counted(buffer: memoryview) -> tuple[int, int]:
    """What `counted` made it of."""
    chunk, rows = _unpacked(_COUNTED, buffer)
    return int(chunk), int(rows)


def only(buffers: Sequence[memoryview]) -> memoryview:
    """The buffer of a frame that has one."""
    if len(buffers) != 1:
        raise FeedRefused(f"{len(buffers)} buffers where one was expected")
    return buffers[0]


def _unpacked(form: struct.Struct, buffer: memoryview) -> tuple[Any, ...]:
    try:
        return form.unpack(buffer)
    except struct.error as error:
        raise FeedRefused(f"a frame that can't be: {error}") from error
