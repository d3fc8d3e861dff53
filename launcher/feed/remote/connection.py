"""The connection of a feed in its task: a thread receives ahead of the function, and connects again.

`launcher.feed.remote.data_feed` takes the frames, in the thread of the function. This module travels to the
tasks.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from typing import Callable, Sequence, Tuple

from launcher.common.errors import FeedError, LaunchError
from launcher.feed.remote import frames
from launcher.feed.remote.codec import Buffer

# A broken connection must be back in this time.
MAX_AWAY_SECONDS = 60.0
RECONNECT_PAUSE_SECONDS = 0.2
#: Makes an authenticated connection for the feed of a name, each time it is called.
Connect = Callable[[str], socket.socket]
Frame = Tuple[int, Sequence[memoryview]]


class FeedConnection:
    """Receives the frames of a feed in a thread. The driver limits how much may wait here.

    The frames of a connection that has broken are dropped: the driver feeds their rows again.

    Args:
        connect: Connects to the driver. The thread calls it again when a connection has broken.
        feed: The name of the feed.
    """

    def __init__(self, connect: Connect, feed: str) -> None:
        self._connect = connect
        self._feed = feed
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._sock: socket.socket | None = None
        self._frames: deque[Frame] = deque()
        #: What the driver was told when the function wanted no more rows.
        self._terminated = b""
        self._end_received = False
        self._error: FeedError | None = None
        #: How many connections have broken. This numbers the present one.
        self.number = 0
        self._thread = threading.Thread(target=self._receive_all, name=f"feed {feed}", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether the function gets no more rows: the feed has ended, or `terminate` was called."""
        return self._end_received or bool(self._terminated)

    @property
    def has_frame(self) -> bool:
        """Whether `next_frame` need not wait for a frame."""
        return bool(self._frames)

    def next_frame(self, number: int) -> tuple[int, Frame | None]:
        """Wait for rows, code or FLUSH.

        Args:
            number: The connection of the last frame. If it has broken, this does not wait.

        Returns:
            The number of the present connection, and the frame, or None if there is none.

        Raises:
            FeedError: The driver is gone, or feeds this task no more.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._frames or self.has_ended or self._error or self.number != number
            )
            if self._error is not None and not (self._frames or self.has_ended):
                raise self._error
            return self.number, self._frames.popleft() if self._frames else None

    def send(self, number: int, kind: frames.Kind, buffers: Sequence[Buffer]) -> None:
        """Send a frame on the connection of this number, unless that has broken."""
        with self._sending:
            if self._sock is None or number != self.number:
                return
            try:
                frames.send_frame(self._sock, kind, buffers)
            except OSError:
                frames.hang_up(self._sock)

    def terminate(self, number: int, reason: bytes) -> None:
        """Drop the frames that are here, and ask the driver for no more, also after a break."""
        with self._changed:
            self._terminated = reason
            self._frames.clear()
        self.send(number, frames.Kind.TERMINATE, [reason])

    def close(self) -> None:
        """End the connection and the thread."""
        self._fail("was closed")
        if (sock := self._sock) is not None:
            frames.hang_up(sock)
        self._thread.join(5.0)

    # The thread.

    @property
    def _is_over(self) -> bool:
        """Whether the driver sends no more."""
        return self._end_received or self._error is not None

    def _receive_all(self) -> None:
        broken_at = time.monotonic()
        while not self._is_over:
            try:
                sock = self._connect(self._feed)
            except (OSError, LaunchError) as error:
                if time.monotonic() - broken_at > MAX_AWAY_SECONDS:
                    self._fail(f"the driver cannot be reached: {error}", error)
            else:
                self._receive(sock)
                broken_at = time.monotonic()
            with self._changed:
                self._changed.wait_for(lambda: self._is_over, RECONNECT_PAUSE_SECONDS)

    def _receive(self, sock: socket.socket) -> None:
        """Take frames until the connection ends."""
        try:
            with self._sending:
                self._sock = sock
                if self._terminated:
                    frames.send_frame(sock, frames.Kind.TERMINATE, [self._terminated])
                else:
                    frames.send_frame(sock, frames.Kind.PROGRESS, [frames.pack_numbers(0, 0)])
            file = frames.reader(sock)
            while not self._is_over and (frame := frames.recv_frame(file)) is not None:
                if frame[0] == frames.Kind.GONE:
                    self._fail(b"".join(frame[1]).decode("utf-8", "replace"))
                with self._changed:
                    if frame[0] == frames.Kind.END:
                        self._end_received = True
                        self._frames.clear()
                    elif frame[0] != frames.Kind.GONE and not self._terminated:
                        self._frames.append(frame)
                    self._changed.notify_all()
        except frames.FeedRefusedError as error:
            self._fail(f"a frame of the driver is invalid: {error}", error)
        except OSError:
            pass
        with self._sending:
            self._sock = None
        sock.close()
        with self._changed:
            if not self._is_over:
                self._frames.clear()
                self.number += 1
                self._changed.notify_all()

    def _fail(self, reason: str, cause: Exception | None = None) -> None:
        with self._changed:
            if self._error is None:
                self._error = FeedError(f"feed {self._feed!r}: {reason}")
                self._error.__cause__ = cause
            self._changed.notify_all()
