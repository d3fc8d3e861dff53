"""Frames of a connection between driver and task: each is a kind and some buffers.

The header has the kind, the number of buffers and the size of each (little endian). Buffers are sent by one
``sendmsg`` without being joined, and each is received into memory of its own: an array made of it needs no
copy.
"""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any

from launcher.common.errors import FeedError

#: Bytes of a frame.
MAX_BYTES = 1 << 31
#: Buffers of a frame.
MAX_BUFFERS = 1 << 16
#: Bytes of our own buffers in a frame with the user's.
_MAX_OWN_BYTES = 1 << 16
#: Buffers that one ``sendmsg`` takes (IOV_MAX).
_MAX_BUFFERS_PER_SEND = 1024
#: Bytes that are read at once of small frames.
_READ_AHEAD_BYTES = 4096

_HEAD = struct.Struct("<BI")
_NUMBERS = struct.Struct("<QQ")


class Kind(IntEnum):
    """Kinds of frames of a feed. Chunks are counted on each connection, from 1."""

    #: Driver: a chunk of rows; a chunk of code that returns the rows.
    ROWS = 1
    CODE = 2
    #: Driver: no more rows for the moment, or the end of a partition of inference: a batch ends here.
    FLUSH = 3
    #: Driver: the feed has ended; rows that are not handed out are dropped.
    END = 4
    #: Driver: the task gets no rows; the reason.
    GONE = 5
    #: Task: the last chunk of which rows were handed out, and the last one that is consumed. This or a
    #: TERMINATE comes first on each connection.
    PROGRESS = 6
    #: The same, and the function waits for rows.
    HUNGRY = 7
    #: Task: the number of a chunk of code, and how many rows it returned.
    COUNTED = 8
    #: Task: results, one for each row, in order.
    RESULTS = 9
    #: Task: its function takes no more rows: it has called terminate() (`UNWANTED`), or has returned.
    TERMINATE = 10


#: The buffers of TERMINATE.
UNWANTED = b"unwanted"
RETURNED = b"returned"


class FeedBrokenError(ConnectionError):
    """The connection ended in the middle of a frame."""


class FeedRefusedError(FeedBrokenError):
    """An invalid frame was received: the other end would send it again over another connection."""


def send_frame(
    sock: socket.socket, kind: int, buffers: Sequence[bytes | bytearray | memoryview] = ()
) -> None:
    """Send one frame; returns when the kernel has all of it.

    Args:
        sock: Blocking, with a timeout if the caller needs it.
        buffers: Contiguous bytes; nothing of them is copied.

    Raises:
        OSError: The connection is gone, or its timeout is over: it is of no use any more.
    """
    views = [memoryview(buffer) for buffer in buffers]
    head = _HEAD.pack(kind, len(views)) + struct.pack(f"<{len(views)}Q", *map(len, views))
    _send_all(sock, [memoryview(head), *views])


def recv_frame(file: io.BufferedReader) -> tuple[int, list[memoryview]] | None:
    """Wait for one frame.

    Args:
        file: Made by `reader`.

    Returns:
        Its kind and buffers (writable memory, contiguous bytes); ``None`` if the connection has ended between
        two frames.

    Raises:
        FeedBrokenError: It ended within a frame. FeedRefusedError: the frame is invalid.
        OSError: The connection is gone, or its timeout is over.
    """
    if not file.peek(1):
        return None
    kind, count = _HEAD.unpack(_received(file, _HEAD.size))
    if count > MAX_BUFFERS:
        raise FeedRefusedError(f"a frame of {count} buffers; at most {MAX_BUFFERS:,} are allowed")
    sizes = struct.unpack(f"<{count}Q", _received(file, 8 * count))
    if sum(sizes) > MAX_BYTES:  # before memory is taken for them
        raise FeedRefusedError(f"a frame of {sum(sizes):,} bytes; at most {MAX_BYTES:,} are allowed")
    return kind, [_received(file, size) for size in sizes]


def _received(file: io.BufferedReader, size: int) -> memoryview:
    view = memoryview(bytearray(size))
    if file.readinto(view) < size:
        raise FeedBrokenError("the connection closed within a frame")
    return view


def reader(sock: socket.socket) -> io.BufferedReader:
    """For `recv_frame`: several small frames cost one system call, and so does a large buffer, uncopied.

    Args:
        sock: Nothing else may receive from it.
    """
    return io.BufferedReader(_Received(sock), _READ_AHEAD_BYTES)


class _Received(io.RawIOBase):
    """The bytes that come."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, view: Any) -> int:
        return self._sock.recv_into(view, 0, socket.MSG_WAITALL if len(view) > _READ_AHEAD_BYTES else 0)


def check_size(buffers: Sequence[bytes | bytearray | memoryview], name: str) -> None:
    """Check that `recv_frame` accepts these buffers, and a few small ones before them, at the other end.

    Args:
        name: Of the buffers, for the message.

    Raises:
        FeedError: They are too many, or too large.
    """
    size = sum(map(len, buffers))
    if size > MAX_BYTES - _MAX_OWN_BYTES or len(buffers) > MAX_BUFFERS - 1:
        pieces = f" in {len(buffers):,} pieces" if len(buffers) > 1 else ""
        most = (
            f"at most {MAX_BYTES - _MAX_OWN_BYTES:,} bytes in {MAX_BUFFERS - 1:,} pieces can be sent at once"
        )
        raise FeedError(f"{name} would have {size:,} bytes{pieces}; {most}")


def pack_numbers(first: int, second: int) -> bytes:
    """Return the buffer of a PROGRESS, HUNGRY or COUNTED."""
    return _NUMBERS.pack(first, second)


def unpack_numbers(buffers: Sequence[memoryview]) -> tuple[int, int]:
    """Return the two numbers of such a frame.

    Raises:
        struct.error: The frame is invalid.
    """
    first, second = _NUMBERS.unpack(b"".join(buffers))
    return first, second


def _send_all(sock: socket.socket, views: list[memoryview]) -> None:
    """``sendall`` for many buffers."""
    at = 0
    while at < len(views):
        sent = sock.sendmsg(views[at : at + _MAX_BUFFERS_PER_SEND])
        while at < len(views) and sent >= len(views[at]):
            sent -= len(views[at])
            at += 1
        if sent:
            views[at] = views[at][sent:]


def hang_up(sock: socket.socket) -> None:
    """End a connection so that threads that wait for it wake up; closing it would not wake them."""
    with suppress(OSError):  # it has ended already
        sock.shutdown(socket.SHUT_RDWR)
