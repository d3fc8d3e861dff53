"""The stream of an attached container: stdout and stderr in turns, each piece with a head of eight bytes.

Engine API, "Attach to a container", "Stream format": the stream's number (1 or 2), three zeros,
and the length of what follows, four bytes, the highest first.
"""

from __future__ import annotations

_HEAD_SIZE = 8
_STDERR = 2


class Demultiplexer:
    """Tells stdout from stderr. It never gives more bytes than it got."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self._stream = 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """What these bytes hold of stdout, and of stderr."""
        out: list[bytes] = []
        errors: list[bytes] = []
        while data:
            if not self._left:
                data = self._take_head(data)
                continue
            piece, data = data[: self._left], data[self._left :]
            self._left -= len(piece)
            (errors if self._stream == _STDERR else out).append(piece)
        return b"".join(out), b"".join(errors)

    def _take_head(self, data: bytes) -> bytes:
        """Collect the eight bytes; what follows those that were needed."""
        needed = _HEAD_SIZE - len(self._head)
        self._head += data[:needed]
        if len(self._head) == _HEAD_SIZE:
            self._stream, self._left = self._head[0], int.from_bytes(self._head[4:], "big")
            self._head = b""
        return data[needed:]
