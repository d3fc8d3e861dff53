"""What comes over a channel, handed to a socket here by the thread that reads the connection.

paramiko keeps what comes until the thread that waits for it is awake: two copies and a change of threads for
each packet, a third of what it costs in all.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable

from paramiko import Channel, Transport
from paramiko.common import cMSG_CHANNEL_WINDOW_ADJUST
from paramiko.message import Message


class Inflow:
    """Stands where a channel of paramiko's has its buffer.

    What the socket does not take at once waits here for the thread of `pass_on`; meanwhile the host is not
    told that it may send more, so that this is a channel's window (2 MiB) at most.

    Args:
        passed: called with the bytes that the socket has taken, by either thread; must not wait.
    """

    def __init__(self, passed: Callable[[int], None]) -> None:
        self._passed = passed
        self._changed = threading.Condition()
        self._here: socket.socket | None = None
        #: The first of them is on its way while there is any: so nothing overtakes it.
        self._kept: deque[bytes] = deque()
        self._ended = False
        self._failure: OSError | None = None

    def feed(self, data: bytes) -> None:
        """Something has come; called by the connection's thread."""
        sent = 0
        with self._changed:
            if self._ended or self._failure:
                return
            if self._here is not None and not self._kept:
                sent = self._try(self._here, data)
            if sent < len(data):
                self._kept.append(data[sent:])
                self._changed.notify()
        if sent:
            self._passed(sent)

    def _try(self, here: socket.socket, data: bytes) -> int:
        try:
            return here.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._failure = error
            return 0

    def close(self) -> None:
        """Nothing more will come; called by whoever hears of it."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def pass_on(self, here: socket.socket) -> None:
        """Have all that comes go to a socket, until nothing more will come.

        Raises:
            OSError: the socket takes nothing more.
        """
        with self._changed:
            self._here = here
        try:
            while (piece := self._next()) is not None:
                here.sendall(piece)
                with self._changed:
                    self._kept.popleft()
                self._passed(len(piece))
        finally:
            self.close()  # from now on nobody touches the socket, which may be closed

    def _next(self) -> bytes | None:
        with self._changed:
            while not self._kept and not self._ended:
                self._changed.wait()
            if self._failure:
                raise self._failure
            return self._kept[0] if self._kept else None


def divert(line: Transport, channel: Channel) -> Inflow:
    """Give a channel an `Inflow`, which lets the host send as much more as it has passed on.

    To be called by the connection's thread, before anything has come over the channel.
    """

    def passed(size: int) -> None:
        room = channel._check_add_window(size)  # type: ignore[attr-defined]
        if room:
            message = Message()
            message.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(channel.remote_chanid)
            message.add_int(room)
            line._send_user_message(message)  # type: ignore[attr-defined]

    made = Inflow(passed)
    channel.in_buffer = made  # type: ignore[assignment]
    return made
