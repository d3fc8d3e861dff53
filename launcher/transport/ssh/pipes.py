"""The two pipes between an orchestrator and a stream: what the agent says, and what it is told."""

from __future__ import annotations

import os
import select

from launcher.stream import Stream

#: Seconds in which whoever hung up takes something of what is still there, or else gets no more.
PATIENCE = 1.0
_READ = 256 * 1024


class Pipes:
    """Our ends of them. Neither is waited for.

    Args:
        facts, orders: file descriptors, not blocking; they are closed at the end.
        stream: what they are the ends of.
        now: monotonic seconds.
    """

    def __init__(self, facts: int, orders: int, stream: Stream, now: float) -> None:
        self._facts = facts
        self._orders = orders
        self._stream = stream
        #: Nobody reads what comes any more.
        self.discards = False
        #: When something was taken last, or there was no hurry to.
        self._took_at = now

    @property
    def hung_up(self) -> bool:
        """Whether the end of the orders has come."""
        return self._orders < 0

    def watch(self, poll: select.poll) -> None:
        """Be woken when one of them can be used."""
        if self._orders >= 0 and self._stream.room:
            poll.register(self._orders, select.POLLIN)
        if self._stream.incoming():
            poll.register(self._facts, select.POLLOUT)

    def next_due(self) -> float | None:
        """When `deliver` has something to do even if nothing happens (monotonic); ``None``: never."""
        return self._took_at + PATIENCE if self.hung_up and self._stream.incoming() else None

    def take_orders(self) -> None:
        """Into the stream with what there is, and with their end."""
        while self._orders >= 0 and self._stream.room:
            try:
                data = os.read(self._orders, min(_READ, self._stream.room))
            except BlockingIOError:
                return
            if data:
                self._stream.write(data)
            else:
                os.close(self._orders)
                self._orders = -1
                self._stream.finish()

    def deliver(self, now: float) -> None:
        """Hand on what came. Whoever stops reading after a hang-up gets no more of it, not even later."""
        try:
            while not self.discards and (pieces := self._stream.incoming()):
                self._stream.took(os.writev(self._facts, pieces))
                self._took_at = now
        except BlockingIOError:
            self.discards = self.hung_up and now >= self._took_at + PATIENCE
        except OSError:  # the other end is closed
            self.discards = True
        if not self.hung_up or not self._stream.incoming():
            self._took_at = now
        while self.discards and (pieces := self._stream.incoming()):
            self._stream.took(sum(map(len, pieces)))

    def close(self) -> None:
        """Whoever reads sees the end."""
        for fd in (self._facts, self._orders):
            if fd >= 0:
                os.close(fd)
        self._facts = self._orders = -1
