"""What paramiko takes for its socket: one that never keeps a writer waiting.

paramiko writes to its socket until all is written, whoever's thread that is: with a host that was cut off,
whoever has something to say to it hangs. Here what the network does not take waits in a queue, which
the thread that reads empties. That thread sleeps until something happens, where paramiko's own
wakes up ten times a second to see whether it was closed.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from paramiko import Channel, SSHException

from launcher.transport.ssh.wake import Wake

#: Bytes in the queue above which nothing more should be sent; see `QueuedSocket.has_room`.
_PLENTY = 256 * 1024
#: Bytes in it below which those who wait to send are woken.
_LITTLE = 64 * 1024
_READ_SIZE = 128 * 1024
#: Seconds between looks at a channel that takes nothing now: it does not tell when it does.
_CHANNEL_LOOK = 0.02
#: How a socket, or a channel, says that it is broken.
_BROKEN = (OSError, EOFError, SSHException)


class QueuedSocket:
    """A socket as `paramiko.Transport` wants it. Any thread may send and close, one reads.

    Args:
        under: a connected socket, or a channel to one from another host.
    """

    def __init__(self, under: socket.socket | Channel) -> None:
        self._under = under
        under.setblocking(False)
        #: Called, by any thread, when there is room again.
        self.drained: Callable[[], None] = lambda: None
        #: Whether the other side has said that nothing more will come, or has gone.
        self.ended = False
        self._timeout: float | None = None
        self._lock = threading.Lock()
        self._queue = bytearray()
        self._clogged = False
        self._got, self._at = b"", 0
        self._alarm = Wake()
        self._reading = False
        self._closed = False
        self._poll = select.poll()
        self._poll.register(self._alarm, select.POLLIN)

    @property
    def has_room(self) -> bool:
        """Whether there is little enough in the queue to send more."""
        return len(self._queue) < _PLENTY

    def settimeout(self, seconds: float | None) -> None:
        """How long `recv` waits."""
        self._timeout = seconds

    def getpeername(self) -> object:
        """Who is at the other end."""
        return self._under.getpeername()

    def send(self, data: bytes) -> int:
        """Send it, or keep it until it can be sent; all of it, at once.

        Raises:
            OSError: it was closed, or the connection is broken.
        """
        with self._lock:
            if self._closed:
                raise OSError("it is closed")
            idle = not self._queue
            sent = self._write(data) if idle else 0
            self._queue += memoryview(data)[sent:]
            self._clogged = self._clogged or not self.has_room
            if idle and self._queue:
                self._alarm.ring()
        return len(data)

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self._under.send(data)
        except (BlockingIOError, TimeoutError):  # a channel says the latter
            return 0

    def recv(self, size: int) -> bytes:
        """Up to ``size`` bytes; ``b""`` at the end, or when it was closed.

        Raises:
            TimeoutError: nothing came in time.
            OSError: the connection is broken.
        """
        if self._at >= len(self._got):
            self._got, self._at = self._receive(), 0
        data = self._got[self._at : self._at + size]
        self._at += len(data)
        return data

    def _receive(self) -> bytes:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        if not self._begin_reading():
            return b""
        try:
            return self._next(deadline)
        finally:
            self._end_reading()

    def _begin_reading(self) -> bool:
        with self._lock:
            self._reading = not self._closed
            return self._reading

    def _end_reading(self) -> None:
        with self._lock:
            self._reading = False
            if self._closed:
                self._release()

    def _next(self, deadline: float | None) -> bytes:
        """Wait for bytes, and empty the queue while waiting."""
        while not self._closed:
            try:
                data = self._under.recv(_READ_SIZE)
                self.ended = not data
                return data
            except (BlockingIOError, TimeoutError):
                pass
            except ConnectionError:
                self.ended = True
                raise
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._wait(left)
            self._flush()
        return b""

    def _wait(self, seconds: float | None) -> None:
        events = select.POLLIN
        if self._queue and isinstance(self._under, Channel):
            seconds = _CHANNEL_LOOK if seconds is None else min(seconds, _CHANNEL_LOOK)
        elif self._queue:
            events |= select.POLLOUT
        self._poll.register(self._under.fileno(), events)
        self._poll.poll(None if seconds is None else seconds * 1000)
        self._alarm.clear()

    def _flush(self) -> None:
        with self._lock:
            if not self._queue or self._closed:
                return
            del self._queue[: self._write(self._queue)]
            relieved = self._clogged and len(self._queue) < _LITTLE
            self._clogged = self._clogged and not relieved
        if relieved:
            self.drained()

    def close(self) -> None:
        """Close it; what is queued is tried once more."""
        with self._lock:
            if self._closed:
                return
            try:
                del self._queue[: self._write(self._queue)]
            except _BROKEN:  # that is why it is closed
                pass
            self._closed = True
            if self._reading:
                self._alarm.ring()
            else:
                self._release()

    def _release(self) -> None:
        try:
            self._under.close()
        except _BROKEN:  # a channel says goodbye, through a gateway that may be gone
            pass
        finally:
            self._alarm.close()
