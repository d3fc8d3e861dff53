"""Programs that follow a job: they get its events as they happen, by a connection to the control socket.

All read from the same memory of the last events, each at its own pace. One that is so slow that events left
the memory before it got them is dropped: the launcher never waits for a follower.
"""

from __future__ import annotations

import socket
import time
from functools import partial

from launcher.common.errors import LaunchError
from launcher.event_loop import EventLoop, TimerHandle
from launcher.output.run_files import EventBuffer

#: Followers at a time; bytes of a packet; seconds between two lines that tasks have printed.
_MAX_FOLLOWERS = 16
_PACKET_BYTES = 1 << 16
_PRINTED_PAUSE_SECONDS = 0.1
#: The line that tasks have printed; the last line for a follower that is too slow.
PRINTED_LINE = b'{"event": "Printed"}\n'
TOO_SLOW_LINE = b'{"event": "Dropped", "why": "too slow: later events are in events.jsonl"}\n'


class EventFollowers:
    """The followers of a job.

    Args:
        loop: serves their connections.
        event_buffer: the last events.
    """

    def __init__(self, loop: EventLoop, event_buffer: EventBuffer) -> None:
        self._loop, self._event_buffer = loop, event_buffer
        #: The number of the next event of each, and bytes that it has not taken yet.
        self._next: dict[socket.socket, int] = {}
        self._rests: dict[socket.socket, bytes] = {}
        #: Those that want to know when tasks print; and the timer for that.
        self._readers: set[socket.socket] = set()
        self._timer: TimerHandle | None = None

    def first(self, number: int | None) -> int:
        """The number of the first event for a new follower.

        Args:
            number: that it asks for; ``None``: that of the next event.

        Raises:
            LaunchError: it can't follow from there.
        """
        first, later = self._event_buffer.first, self._event_buffer.next
        if len(self._next) >= _MAX_FOLLOWERS:
            raise LaunchError(f"{_MAX_FOLLOWERS} programs follow it already")
        if number is not None and not first <= number <= later:
            raise LaunchError(
                f"events can be followed from {first} to {later}; events.jsonl has earlier ones"
            )
        return later if number is None else number

    def add(self, client: socket.socket, number: int, output: bool = False) -> None:
        """Send events to a client from this number on; ``output``: also that tasks have printed."""
        self._next[client], self._rests[client] = number, b""
        if output:
            self._readers.add(client)
        self._send(client)

    def tell(self) -> None:
        """Send new events to those that have taken all earlier ones."""
        for client in [client for client, rest in self._rests.items() if not rest]:
            self._send(client)
        if self._readers and self._event_buffer.printed and self._timer is None:
            self._timer = self._loop.call_at(time.monotonic() + _PRINTED_PAUSE_SECONDS, self._tell_printed)

    def _tell_printed(self) -> None:
        """Tell followers that tasks have printed. One that lacks earlier lines looks at the logs later."""
        self._timer, self._event_buffer.printed = None, False
        for client in [client for client in self._readers if not self._rests[client]]:
            self._rests[client] = PRINTED_LINE
            self._send(client)

    def close(self) -> None:
        """Send what they take at once, and close the connections."""
        self.tell()
        for client in [*self._next]:
            self._drop(client)

    def _send(self, client: socket.socket) -> None:
        """Send what a client takes now; the loop goes on when it takes more."""
        try:
            while rest := self._rests[client] or self._more(client):
                self._rests[client] = rest
                self._rests[client] = rest[client.send(rest[:_PACKET_BYTES]) :]
        except BlockingIOError:
            self._loop.watch(client.fileno(), partial(self._drop, client), partial(self._send, client))
        except OSError:
            self._drop(client)
        else:
            dropped = self._next[client] < 0
            self._drop(client) if dropped else self._loop.watch(client.fileno(), partial(self._drop, client))

    def _more(self, client: socket.socket) -> bytes:
        """The next lines for a client; empty: there are none now."""
        number = self._next[client]
        if 0 <= number < self._event_buffer.first:
            self._next[client] = -1
            return TOO_SLOW_LINE
        lines = self._event_buffer.after(number, _PACKET_BYTES) if number >= 0 else []
        self._next[client] += len(lines)
        return b"".join(lines)

    def _drop(self, client: socket.socket) -> None:
        """Close a connection; also that of a client that has closed its end, or that sends something."""
        self._loop.watch(client.fileno())
        client.close()
        self._next.pop(client, None)
        self._rests.pop(client, None)
        self._readers.discard(client)
