"""Frames of a connection between program and task. Each consists of a kind and some buffers.

Both sides of the feed send and receive with these functions. The header contains the kind, the number of
buffers and the size of each (little endian). Buffers are sent by one ``sendmsg`` without being joined, and
each is received into memory of its own, so an array made of it needs no copy. No memory may be taken for a
frame that is too large.
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

#: The largest frame.
MAX_BYTES = 1 << 31
#: How many buffers a frame contains at most.
MAX_BUFFERS = 1 << 16
#: The part of a frame that is reserved for buffers of the launcher beside those of the user.
_MAX_OWN_BYTES = 1 << 16
#: How many buffers one ``sendmsg`` accepts (IOV_MAX).
_MAX_BUFFERS_PER_SEND = 1024
#: How much is read at once, so that several small frames cost one system call.
_READ_AHEAD_BYTES = 4096

_HEAD = struct.Struct("<BI")
_NUMBERS = struct.Struct("<QQ")


class Kind(IntEnum):
    """The kinds of frames of a feed. Chunks are counted on each connection, from 1."""

    #: From the program: a chunk of rows.
    ROWS = 1
    #: From the program: a chunk of code that returns the rows.
    CODE = 2
    #: From the program: a batch ends here, because no more rows come for the moment, or a partition of
    #: inference ends.
    FLUSH = 3
    #: From the program: the feed has ended. Rows that the function has not read are dropped.
    END = 4
    #: From the program: the task receives no rows, for the reason in the buffer.
    GONE = 5
    #: From the task: the number of the last chunk that the function has begun to read, and that of the last
    #: consumed chunk. This or a TERMINATE comes first on each connection.
    PROGRESS = 6
    #: From the task: the numbers of PROGRESS, and the function waits for rows.
    HUNGRY = 7
    #: From the task: the number of a chunk of code, and how many rows the code has returned.
    COUNTED = 8
    #: From the task: results, one for each row, in order.
    RESULTS = 9
    #: From the task: its function accepts no more rows. The buffer is `UNWANTED` or `RETURNED`.
    TERMINATE = 10


#: The buffer of TERMINATE if the function has called ``terminate()``.
UNWANTED = b"unwanted"
#: The buffer of TERMINATE if the function has returned.
RETURNED = b"returned"


class FeedBrokenError(ConnectionError):
    """A connection has ended in the middle of a frame."""


class FeedRefusedError(FeedBrokenError):
    """An invalid frame was received. To connect again is useless, because the frame would come again."""


def send_frame(
    sock: socket.socket, kind: int, buffers: Sequence[bytes | bytearray | memoryview] = ()
) -> None:
    """Send one frame, and return when the kernel has all of it.

    Args:
        sock: A blocking socket, which may have a timeout.
        kind: The kind of the frame.
        buffers: Contiguous bytes. They are not copied.

    Raises:
        OSError: The connection is gone, or its timeout is over. It cannot be used any longer.
    """
    views = [memoryview(buffer) for buffer in buffers]
    head = _HEAD.pack(kind, len(views)) + struct.pack(f"<{len(views)}Q", *map(len, views))
    _send_all(sock, [memoryview(head), *views])


def recv_frame(file: io.BufferedReader) -> tuple[int, list[memoryview]] | None:
    """Wait for one frame.

    Args:
        file: The file that `reader` has made of the connection.

    Returns:
        The kind of the frame and its buffers, which are contiguous writable memory. None if the connection
        has ended between two frames.

    Raises:
        FeedBrokenError: The connection has ended within a frame.
        FeedRefusedError: The frame is too large.
        OSError: The connection is gone, or its timeout is over.
    """
    # This waits for a byte, and returns none if the connection has ended.
    if not file.peek(1):
        return None
    kind, count = _HEAD.unpack(_read(file, _HEAD.size))
    if count > MAX_BUFFERS:
        raise FeedRefusedError(f"a frame of {count} buffers; at most {MAX_BUFFERS:,} are allowed")
    sizes = struct.unpack(f"<{count}Q", _read(file, 8 * count))
    if sum(sizes) > MAX_BYTES:  # checked before memory is taken for the buffers
        raise FeedRefusedError(f"a frame of {sum(sizes):,} bytes; at most {MAX_BYTES:,} are allowed")
    return kind, [_read(file, size) for size in sizes]


def _read(file: io.BufferedReader, size: int) -> memoryview:
    """Wait for the next ``size`` bytes of a connection, and return them in memory of their own.

    Raises:
        FeedBrokenError: The connection has ended before.
    """
    view = memoryview(bytearray(size))
    if file.readinto(view) < size:
        raise FeedBrokenError("the connection closed within a frame")
    return view


def reader(sock: socket.socket) -> io.BufferedReader:
    """Return a file of a connection, from which `recv_frame` reads.

    Several small frames cost one system call. A large buffer costs one as well, and is not copied.

    Args:
        sock: The connection. Nothing else may receive from it.
    """
    return io.BufferedReader(_ConnectionFile(sock), _READ_AHEAD_BYTES)


class _ConnectionFile(io.RawIOBase):
    """The bytes of a connection as a raw file, for `io.BufferedReader`.

    Args:
        sock: The connection.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Read from this connection."""
        self._sock = sock

    def readable(self) -> bool:
        """Return True, which `io.BufferedReader` demands."""
        return True

    def readinto(self, view: Any) -> int:
        """Receive bytes into memory, and return how many. A large read waits until it is complete."""
        # More than is read ahead is asked for only to fill a large buffer.
        flags = socket.MSG_WAITALL if len(view) > _READ_AHEAD_BYTES else 0
        return self._sock.recv_into(view, 0, flags)


def check_size(buffers: Sequence[bytes | bytearray | memoryview], name: str) -> None:
    """Check that `recv_frame` accepts these buffers at the other end, with a few small ones before them.

    Args:
        buffers: The buffers.
        name: What the buffers contain, for the message.

    Raises:
        FeedError: The buffers are too many, or too large.
    """
    size, max_size, max_buffers = sum(map(len, buffers)), MAX_BYTES - _MAX_OWN_BYTES, MAX_BUFFERS - 1
    if size > max_size or len(buffers) > max_buffers:
        pieces = f" in {len(buffers):,} pieces" if len(buffers) > 1 else ""
        limit = f"at most {max_size:,} bytes in {max_buffers:,} pieces can be sent at once"
        raise FeedError(f"{name} would have {size:,} bytes{pieces}; {limit}")


def pack_numbers(first: int, second: int) -> bytes:
    """Return the buffer of a PROGRESS, HUNGRY or COUNTED frame, which consists of two numbers."""
    return _NUMBERS.pack(first, second)


def unpack_numbers(buffers: Sequence[memoryview]) -> tuple[int, int]:
    """Return the two numbers of a PROGRESS, HUNGRY or COUNTED frame.

    Raises:
        struct.error: The frame does not consist of two numbers.
    """
    first, second = _NUMBERS.unpack(b"".join(buffers))
    return first, second


def _send_all(sock: socket.socket, views: list[memoryview]) -> None:
    """Send all of many buffers, as ``sendall`` does for one.

    Args:
        sock: The socket.
        views: The buffers. An item is replaced if only a part of it could be sent.
    """
    # The number of buffers that were sent as a whole.
    done = 0
    while done < len(views):
        sent = sock.sendmsg(views[done : done + _MAX_BUFFERS_PER_SEND])
        while done < len(views) and sent >= len(views[done]):
            sent -= len(views[done])
            done += 1
        if sent:
            views[done] = views[done][sent:]


def hang_up(sock: socket.socket) -> None:
    """Shut a connection down, so that threads that wait for it wake up. Closing it would not wake them."""
    with suppress(OSError):  # the connection has ended already
        sock.shutdown(socket.SHUT_RDWR)
