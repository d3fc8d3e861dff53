"""``FeedConnection``: receives the frames of a feed in a task, ahead of the function, and connects again.

`launcher.feed.remote.data_feed` takes the frames, in the thread of the function. Frames of a connection that
has broken must never be used after the break, because the program feeds their rows again.
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

# A broken connection must be made again within this time.
MAX_AWAY_SECONDS = 60.0
RECONNECT_PAUSE_SECONDS = 0.2
#: Makes an authenticated connection for the feed with a name, each time it is called.
Connect = Callable[[str], socket.socket]
#: The kind of a frame, and its buffers.
Frame = Tuple[int, Sequence[memoryview]]


class FeedConnection:
    """Receives the frames of one feed in a thread. The program limits how many may wait here.

    Args:
        connect: Connects to the program. The thread calls it again when a connection has broken.
        feed: The name of the feed.
    """

    def __init__(self, connect: Connect, feed: str) -> None:
        """Start the thread that connects to the program and receives frames."""
        self._connect = connect
        self._feed = feed
        #: Guards the attributes below except the socket, and tells waiting threads that one has changed.
        self._changed = threading.Condition()
        #: Held while a frame is sent, or the socket is replaced.
        self._sending = threading.Lock()
        #: The present connection, or None while there is none.
        self._sock: socket.socket | None = None
        #: The frames of this connection that the function has not taken, the oldest first.
        self._frames: deque[Frame] = deque()
        #: The reason that the program was told when the function wanted no more rows, or empty bytes.
        self._terminated = b""
        #: Whether the program has said that the feed has ended.
        self._end_received = False
        #: The error that `next_frame` raises once no frame is left. None if there is none.
        self._error: FeedError | None = None
        #: The number of the present connection, from 0. Each break adds 1.
        self.number = 0
        self._thread = threading.Thread(target=self._receive_all, name=f"feed {feed}", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether the function receives no more rows: the feed has ended, or `terminate` was called."""
        return self._end_received or bool(self._terminated)

    @property
    def has_frame(self) -> bool:
        """Whether `next_frame` returns a frame without waiting."""
        return bool(self._frames)

    def next_frame(self, number: int) -> tuple[int, Frame | None]:
        """Wait for a frame with rows, code or FLUSH.

        Args:
            number: The number of the connection from which the last frame came. If that connection has
                broken, this does not wait.

        Returns:
            The number of the present connection, and the frame. None instead of a frame if the connection has
            broken or the feed has ended.

        Raises:
            FeedError: The program is gone, or no longer feeds this task.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._frames or self.has_ended or self._error or self.number != number
            )
            # The frames that came before the error are returned first.
            if self._error is not None and not (self._frames or self.has_ended):
                raise self._error
            return self.number, self._frames.popleft() if self._frames else None

    def send(self, number: int, kind: frames.Kind, buffers: Sequence[Buffer]) -> None:
        """Send a frame to the program. It is dropped if the connection has broken that it is meant for.

        Args:
            number: The number of the connection that it is meant for.
            kind: The kind of the frame.
            buffers: The bytes in it.
        """
        with self._sending:
            if self._sock is None or number != self.number:
                return
            try:
                frames.send_frame(self._sock, kind, buffers)
            except OSError:
                frames.hang_up(self._sock)  # this wakes the thread that receives, which connects again

    def terminate(self, number: int, reason: bytes) -> None:
        """Drop the frames that are here, and tell the program that the function accepts no more rows.

        If the connection breaks, the program is told so on the next one.

        Args:
            number: The number of the present connection.
            reason: The reason for the program, `frames.UNWANTED` or `frames.RETURNED`.
        """
        with self._changed:
            self._terminated = reason
            self._frames.clear()
        self.send(number, frames.Kind.TERMINATE, [reason])

    def close(self) -> None:
        """Close the connection, and end the thread."""
        # The error ends the thread, once the connection wakes it below.
        self._fail("was closed")
        if (sock := self._sock) is not None:
            frames.hang_up(sock)
        self._thread.join(5.0)

    # The thread.

    @property
    def _is_over(self) -> bool:
        """Whether the thread can end, because the program sends no more frames or an error has occurred."""
        return self._end_received or self._error is not None

    def _receive_all(self) -> None:
        """Connect, receive until the connection breaks, and connect again, until the feed has ended.

        If no connection can be made for some time, the function gets an error.
        """
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
            # A pause, which ends early if there is nothing more to connect for.
            with self._changed:
                self._changed.wait_for(lambda: self._is_over, RECONNECT_PAUSE_SECONDS)

    def _receive(self, sock: socket.socket) -> None:
        """Keep the frames of one connection for `next_frame` until it ends, then close it.

        - END (the feed has ended): the frames that wait are dropped, and the thread ends.
        - GONE (the program no longer feeds this task, with the reason): the function gets an error, after the
          frames that came before.
        - Any other frame waits for the function, unless that has called `terminate`.
        - The connection breaks: its frames are dropped, because the program feeds their rows again.

        Args:
            sock: The connection.
        """
        try:
            # The thread of the function may send as soon as there is a socket, but not before this frame.
            with self._sending:
                self._sock = sock
                # The first frame tells the program whether this task accepts rows.
                if self._terminated:
                    frames.send_frame(sock, frames.Kind.TERMINATE, [self._terminated])
                else:
                    frames.send_frame(sock, frames.Kind.PROGRESS, [frames.pack_numbers(0, 0)])
            file = frames.reader(sock)
            while not self._is_over and (frame := frames.recv_frame(file)) is not None:
                kind, buffers = frame
                if kind == frames.Kind.GONE:
                    self._fail(b"".join(buffers).decode("utf-8", "replace"))
                with self._changed:
                    if kind == frames.Kind.END:
                        self._end_received = True
                        self._frames.clear()
                    elif kind != frames.Kind.GONE and not self._terminated:
                        self._frames.append(frame)
                    self._changed.notify_all()
        except frames.FeedRefusedError as error:
            self._fail(f"a frame of the driver is invalid: {error}", error)
        except OSError:
            # The connection has broken. `_receive_all` makes a new one.
            pass
        # No other thread may use the socket when it is closed, because its number may be another file then.
        with self._sending:
            self._sock = None
        sock.close()
        with self._changed:
            # It has broken, and the next connection has another number.
            if not self._is_over:
                self._frames.clear()
                self.number += 1
                self._changed.notify_all()

    def _fail(self, reason: str, cause: Exception | None = None) -> None:
        """Let `next_frame` raise an error with this reason, unless there is an earlier one.

        Args:
            reason: The reason, for the user.
            cause: The exception behind it, or None.
        """
        with self._changed:
            if self._error is None:
                self._error = FeedError(f"feed {self._feed!r}: {reason}")
                self._error.__cause__ = cause
            self._changed.notify_all()
