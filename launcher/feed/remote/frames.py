"""What goes over a connection between driver and task: frames, each a kind and some buffers.

The header says the kind, the number of buffers and the size of each (little endian). Buffers go out in one
``sendmsg`` without being joined and come in into memory of their own, so that an array made of one needs
no copy.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING

from launcher.errors import FeedError

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

#: Bytes that one frame may have, unless its receiver says otherwise.
MOST_BYTES = 1 << 31
#: Buffers that one frame may have.
MOST_BUFFERS = 1 << 16
#: Bytes that may stand before those of the user in a frame.
_WORDS = 1 << 16
#: Buffers that one ``sendmsg`` takes (IOV_MAX).
_AT_ONCE = 1024
#: ``MSG_WAITALL`` of Linux; `socket` is not imported for a number.
_WAIT_ALL = 0x100
#: Bytes that `ReadAhead` reads at once of what is small.
_AHEAD = 4096

_HEAD = struct.Struct("<BI")


class FeedBroken(ConnectionError):
    """The connection ended in the middle of a frame."""


class FeedRefused(FeedBroken):
    """What came is no frame that can be: it would come again over another connection."""


class Kind(IntEnum):
    """What a frame of a feed is; what is in it says `messages`. Other connections have numbers from 20 up."""

    #: Task: a feed is opened, or opened again after a break.
    OPEN = 1
    #: Driver: it is, and how far it has come.
    WELCOME = 2
    #: Driver: rows.
    CHUNK = 3
    #: Driver: nothing more for the moment, so a batch that has begun is handed out short.
    FLUSH = 4
    #: Driver: nothing more will come.
    END = 5
    #: Driver: no longer wanted, and why.
    GONE = 6
    #: Task: how far its function has come.
    PROGRESS = 7
    #: Task: how many rows there were in a chunk that was code to run beside it.
    COUNTED = 8
    #: Task: results, one a row.
    RESULTS = 9
    #: Driver: how many results it has.
    KEPT = 10
    #: Task: its function wants no more rows of this feed.
    TERMINATE = 11


def send_frame(
    sock: socket.socket, kind: int, buffers: Sequence[bytes | bytearray | memoryview] = ()
) -> None:
    """Send one frame; returns when the kernel has all of it.

    Args:
        sock: blocking, with a timeout if the caller wants one.
        buffers: contiguous memory; nothing of it is copied.

    Raises:
        OSError: the connection is gone, or its timeout is over: it is of no use any more.
    """
    views = [_flat(buffer) for buffer in buffers]
    head = _HEAD.pack(kind, len(views)) + struct.pack(f"<{len(views)}Q", *map(len, views))
    _send_all(sock, [memoryview(head), *views])


def recv_frame(
    sock: socket.socket | ReadAhead, limit: int | None = None
) -> tuple[int, list[memoryview]] | None:
    """Wait for one frame.

    Args:
        sock: a socket, or what reads ahead of it.
        limit: bytes that its buffers may have together; default: `MOST_BYTES`.

    Returns:
        Its kind and buffers (writable memory, contiguous bytes); ``None`` if the other side has ended in an
        orderly way.

    Raises:
        FeedBroken: it ended within a frame. FeedRefused: it sent what can't be a frame.
        OSError: the connection is gone, or its timeout is over.
    """
    head = bytearray(_HEAD.size)
    if not _fill(sock, memoryview(head), may_end=True):
        return None
    kind, count = _HEAD.unpack(head)
    if count > MOST_BUFFERS:
        raise FeedRefused(f"a frame of {count} buffers can't be")
    sizes = _sizes(sock, count, MOST_BYTES if limit is None else limit)
    buffers = [memoryview(bytearray(size)) for size in sizes]
    for buffer in buffers:
        _fill(sock, buffer)
    return kind, buffers


def check_size(buffers: Sequence[bytes | bytearray | memoryview], what: str) -> None:
    """See to it that `recv_frame` takes these at the other end, with some words of ours before them.

    Args:
        what: they are, for the message.

    Raises:
        FeedError: they are too many, or too big.
    """
    size = sum(map(len, buffers))
    if size > MOST_BYTES - _WORDS or len(buffers) > MOST_BUFFERS - 1:
        pieces = f" in {len(buffers):,} pieces" if len(buffers) > 1 else ""
        most = f"at most {MOST_BYTES - _WORDS:,} bytes in {MOST_BUFFERS - 1:,} pieces can be sent at once"
        raise FeedError(f"{what} would have {size:,} bytes{pieces}; {most}")


class ReadAhead:
    """For `recv_frame` in a loop: small frames that lie ready cost one call of the system, not three each.

    Args:
        sock: nobody else may receive from it any more.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(_AHEAD))
        self._at = self._end = 0

    def recv_into(self, view: memoryview, nbytes: int, flags: int) -> int:
        """As a socket has it."""
        if self._at == self._end:
            if len(view) >= _AHEAD:
                return self._sock.recv_into(view, nbytes, flags)
            self._at, self._end = 0, self._sock.recv_into(self._buffer)
        some = min(len(view), self._end - self._at)
        view[:some] = self._buffer[self._at : self._at + some]
        self._at += some
        return some


def _flat(buffer: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(buffer)
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


def _send_all(sock: socket.socket, views: list[memoryview]) -> None:
    """``sendall`` for many buffers."""
    at = 0
    while at < len(views):
        sent = sock.sendmsg(views[at : at + _AT_ONCE])
        while at < len(views) and sent >= len(views[at]):
            sent -= len(views[at])
            at += 1
        if sent:
            views[at] = views[at][sent:]


def _sizes(sock: socket.socket | ReadAhead, count: int, limit: int) -> tuple[int, ...]:
    """The sizes of the buffers that follow, checked before memory is taken for them."""
    words = bytearray(8 * count)
    _fill(sock, memoryview(words))
    sizes = struct.unpack(f"<{count}Q", words)
    if sum(sizes) > limit:
        raise FeedRefused(f"a frame of {sum(sizes):,} bytes; at most {limit:,} can be")
    return sizes


def _fill(sock: socket.socket | ReadAhead, view: memoryview, may_end: bool = False) -> bool:
    """Receive exactly as much as fits.

    Returns:
        Whether it came; ``False`` only if there was nothing at all and that ``may_end`` it.
    """
    at = 0
    while at < len(view):
        got = sock.recv_into(view[at:], 0, _WAIT_ALL)
        if got == 0:
            if may_end and at == 0:
                return False
            raise FeedBroken("the connection ended within a frame")
        at += got
    return True


def hang_up(sock: socket.socket) -> None:
    """Let whoever waits at a connection see its end: to close it would wake nobody."""
    try:
        sock.shutdown(2)
    except OSError:  # it has ended already
        pass
