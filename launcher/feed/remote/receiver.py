"""The task's end of a feed: a thread receives chunks ahead of the function, and reconnects after a break.

A break makes all chunks of the connection void: the driver feeds the partitions that are not acknowledged
again. The driver limits how much may lie here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import FeedError, LaunchError
from launcher.feed.remote.frames import (
    FeedBroken,
    FeedRefused,
    ReadAhead,
    hang_up,
    recv_frame,
    send_frame,
)
from launcher.feed.remote.messages import RETURNED, UNWANTED, WANTED, Kind, only

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from launcher.feed.remote.codec import Buffer

#: Seconds in which a broken connection must be back, and between two attempts.
MOST_AWAY, PAUSE = 60.0, 0.2
#: Seconds for the driver's answer to an OPEN.
_ANSWER = 30.0


class Item(NamedTuple):
    """A frame of the driver."""

    kind: int
    connection: int
    #: Of a chunk: its number on the connection.
    number: int
    buffers: Sequence[memoryview]


class Receiver:
    """See the module.

    Args:
        connect: makes an authenticated connection for the feed of a name, each time it is called.
        feed: the name.
    """

    def __init__(self, connect: Callable[[str], socket.socket], feed: str) -> None:
        self.feed = feed
        #: The number of the present connection, or of the next one where there is none.
        self.connection = 0
        self._connect = connect
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._sock: socket.socket | None = None
        self._items: deque[Item] = deque()
        self._received = 0
        self._wanted = WANTED
        self._ended = self._closed = False
        self._error: FeedError | None = None
        self._thread = threading.Thread(target=self._run, name=f"feed {feed}", daemon=True)
        self._thread.start()

    def take(self, wait: bool = False) -> Item | None:
        """The next frame; ``None``: there is none yet, or the connection broke during the wait.

        Raises:
            FeedError: the driver is gone, or feeds this task no more.
        """
        with self._changed:
            connection = self.connection
            while wait and not self._items and self._error is None and connection == self.connection:
                self._changed.wait()
            if self._items:
                return self._items.popleft()
            if self._error is not None:
                raise self._error
            return None

    def next_kind(self) -> int | None:
        """The kind of the frame that `take` would return."""
        with self._changed:
            return self._items[0].kind if self._items else None

    def send(self, connection: int, kind: Kind, buffers: Sequence[Buffer] = ()) -> None:
        """Send a frame on this connection; nothing if it has broken, or breaks."""
        with self._sending:
            if self._sock is None or connection != self.connection:
                return
            try:
                send_frame(self._sock, kind, buffers)
            except OSError:
                hang_up(self._sock)

    def check(self) -> None:
        """Raise the error that has ended the feed, if there is one."""
        with self._changed:
            if self._error is not None:
                raise self._error

    def terminate(self, returned: bool = False) -> None:
        """Tell the driver that the function wants no more rows; those that lie here are dropped.

        Args:
            returned: it has returned without saying so.
        """
        with self._changed:
            self._wanted = RETURNED if returned else UNWANTED
            self._items.clear()
        self.send(self.connection, Kind.TERMINATE, [self._wanted])

    def close(self) -> None:
        """End the connection and the thread."""
        with self._changed:
            self._closed = True
            self._error = self._error or FeedError(f"feed {self.feed!r} was closed")
            self._changed.notify_all()
        if (sock := self._sock) is not None:
            hang_up(sock)
        self._thread.join(5.0)

    # The thread.

    def _run(self) -> None:
        broken_at = time.monotonic()
        while not (self._ended or self._closed or self._error is not None):
            try:
                sock = self._open()
            except FeedError as error:  # the driver's answer
                self._fail(str(error), error)
                return
            except (OSError, LaunchError) as error:
                if time.monotonic() - broken_at > MOST_AWAY:
                    self._fail(f"the driver cannot be reached: {error}", error)
                    return
            else:
                self._receive(sock)
                broken_at = time.monotonic()
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._ended, PAUSE)

    def _open(self) -> socket.socket:
        """A connection on which the driver has opened the feed."""
        sock = self._connect(self.feed)
        try:
            sock.settimeout(_ANSWER)
            with self._sending:
                send_frame(sock, Kind.OPEN, [self._wanted])
                frame = recv_frame(sock, 1 << 16)
                if frame is None or frame[0] not in (Kind.WELCOME, Kind.GONE):
                    raise FeedBroken("the driver did not answer")
                if frame[0] == Kind.GONE:
                    raise FeedError(only(frame[1]).decode("utf-8", "replace"))
                sock.settimeout(None)
                self._sock = sock
            if self._closed:  # meanwhile, when there was no connection to hang up
                hang_up(sock)
        except (OSError, FeedError):
            sock.close()
            raise
        return sock

    def _receive(self, sock: socket.socket) -> None:
        """Take frames until the connection ends."""
        try:
            ahead = ReadAhead(sock)
            while True:
                frame = recv_frame(ahead)
                if frame is None:
                    break
                self._take_in(*frame)
        except FeedRefused as error:
            self._fail(f"a frame of the driver is invalid: {error}", error)
        except OSError:
            pass
        with self._sending:
            self._sock = None
        sock.close()
        with self._changed:
            if not self._ended and self._error is None:
                self._void()

    def _take_in(self, kind: int, buffers: Sequence[memoryview]) -> None:
        if kind == Kind.GONE:
            self._fail(only(buffers).decode("utf-8", "replace"))
            return
        with self._changed:
            if kind == Kind.END:
                self._ended = True
                if buffers:
                    self._void()
            elif kind == Kind.CHUNK:
                self._received += 1
                if self._wanted != WANTED:
                    return
            self._items.append(Item(kind, self.connection, self._received, buffers))
            self._changed.notify_all()

    def _void(self) -> None:
        """What came on this connection is not wanted any more; with the lock."""
        self._items.clear()
        self.connection += 1
        self._received = 0
        self._changed.notify_all()

    def _fail(self, why: str, cause: Exception | None = None) -> None:
        with self._changed:
            if self._error is None:
                self._error = FeedError(f"feed {self.feed!r}: {why}")
                self._error.__cause__ = cause
            self._changed.notify_all()
