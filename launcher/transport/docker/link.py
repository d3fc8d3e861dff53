"""The link to the agent in a container: its attached stdin, stdout and stderr, which are one socket here."""

from __future__ import annotations

import os
import socket
from typing import Protocol

from launcher.transport.docker.arrival import Arrival, source
from launcher.transport.docker.faults import end_fault
from launcher.transport.docker.frames import Demultiplexer
from launcher.transport.docker.settings import Container, End

#: How much of stderr is kept, in bytes.
_SAID_LIMIT = 64 * 1024
#: Seconds for our modules, as source, to be taken by a Python that asks for them.
_SOURCE = 10.0


class Hands(Protocol):
    """What a link has done by whoever made the container."""

    def ended(self, seconds: float) -> End | None:
        """How it ended; ``None``: it did not, in time."""

    def why_unknown(self) -> str:
        """Why nobody can say how it ended; empty: it runs, as far as is known."""

    def remove(self) -> None:
        """End it by force, and remove it."""


class DockerLink:
    """One link; see `launcher.transport.base.Link`.

    Args:
        container: what it is.
        line: attached to it, with all on its way that starts the agent.
        hands: end it, and know its end.
        same_clock: its facts are dated by this machine's clock.
    """

    def __init__(
        self,
        container: Container,
        line: socket.socket,
        hands: Hands,
        same_clock: bool,
    ) -> None:
        self.same_clock = same_clock
        self._container = container
        self._line = line
        self._hands = hands
        self._demultiplexer = Demultiplexer()
        self._arrival = Arrival(container, self._send_source)
        self._said = b""
        line.setblocking(False)
        self.reading = line.fileno()
        # A number of its own: whoever waits for both may know only one by the same.
        self.writing = os.dup(self.reading)

    def read(self, size: int) -> bytes | None:
        """See `Link.read`; what comes before the agent itself is not for the reader."""
        try:
            data = self._line.recv(size)
        except BlockingIOError:
            return None
        except OSError:  # reset: the engine is gone
            return b""
        if not data or self._arrival.fault:
            return b""
        out, errors = self._demultiplexer.feed(data)
        self._said = (self._said + errors)[-_SAID_LIMIT:]
        out = self._arrival.feed(out)
        return b"" if self._arrival.fault else out or None

    def _send_source(self) -> None:
        """It waits for nothing else, and has read all that came before, so this is soon done."""
        self._line.settimeout(_SOURCE)
        try:
            self._line.sendall(source())
        finally:
            self._line.setblocking(False)

    def write(self, data: bytes | memoryview) -> int:
        """See `Link.write`."""
        try:
            return self._line.send(data)
        except OSError:  # it takes nothing now, or never again
            return 0

    def wait(self, seconds: float) -> str | None:
        """See `Link.wait`."""
        end = self._hands.ended(seconds)
        if end is None:
            return self._hands.why_unknown() or None
        self._hear_last()
        said = self._said.decode("utf-8", "replace")
        return self._arrival.fault or end_fault(end, self._container, self._arrival.ready, said)

    def _hear_last(self) -> None:
        """Its last words on stderr may not have been read."""
        while True:
            try:
                data = self._line.recv(_SAID_LIMIT)
            except OSError:
                return
            if not data:
                return
            self._said = (self._said + self._demultiplexer.feed(data)[1])[-_SAID_LIMIT:]

    def kill(self, seconds: float) -> str | None:
        """See `Link.kill`: nothing outlives its container."""
        self._hands.remove()
        return self.wait(seconds)

    def hang_up(self) -> None:
        """See `Link.hang_up`."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1
            try:
                self._line.shutdown(socket.SHUT_WR)
            except OSError:  # the other end is gone
                return

    def cut(self) -> None:
        """Nothing more will come: have the reader see an end. May be called by another thread."""
        try:
            self._line.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is at its end
            return

    def close(self) -> None:
        """See `Link.close`."""
        self.hang_up()
        self._line.close()
        self.reading = -1
