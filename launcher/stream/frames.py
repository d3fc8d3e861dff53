"""What goes over a connection: frames, each a kind, the size of its payload, a number, and the payload."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from launcher.errors import WireError

if TYPE_CHECKING:
    from typing import List, Tuple

#: Bytes of DATA in one frame, and of words in any other at most.
FRAME = 64 * 1024
MOST_WORDS = FRAME

HELLO, DATA, ACK, PING, END, REFUSED = range(1, 7)

_HEAD = struct.Struct("<BIQ")
_LIMIT = struct.Struct("<Q")


class Refused(WireError):
    """The other side of the connection says that there is nobody to speak to, and why."""


def refusal(why: str) -> bytes:
    """What to answer on a connection when there is nobody to speak to."""
    return frame(REFUSED, 0, why.encode("utf-8", "replace")[:MOST_WORDS])


def frame(kind: int, number: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return _HEAD.pack(kind, len(payload), number) + payload


def with_limit(limit: int, rest: bytes = b"") -> bytes:
    """The payload of a HELLO or ACK."""
    return _LIMIT.pack(limit) + rest


def limit_and_rest(payload: memoryview) -> Tuple[int, bytes]:
    """What `with_limit` made it of.

    Raises:
        WireError: it is no such payload.
    """
    if len(payload) < _LIMIT.size:
        raise WireError("an acknowledgement without a limit")
    return int(_LIMIT.unpack_from(payload)[0]), bytes(payload[_LIMIT.size :])


class Parser:
    """The bytes of one connection, in any pieces -> the frames in them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> List[Tuple[int, int, memoryview]]:
        """(kind, number, payload) of each frame that these bytes complete.

        Raises:
            WireError: what came is not ours.
        """
        data = self._rest + data if self._rest else data
        view, at, end = memoryview(data), 0, len(data)
        frames: List[Tuple[int, int, memoryview]] = []
        while end - at >= _HEAD.size:
            kind, size, number = _HEAD.unpack_from(data, at)
            if not HELLO <= kind <= REFUSED or size > FRAME + _LIMIT.size:
                raise WireError(f"a frame of kind {kind} and {size} bytes can't be")
            start = at + _HEAD.size
            if end - start < size:
                break
            at = start + size
            frames.append((kind, number, view[start:at]))
        self._rest = data[at:]
        return frames
