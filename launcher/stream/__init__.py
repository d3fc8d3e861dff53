"""A byte stream that survives the connections under it.

Both ends hold a `Stream`. What one end's application writes is numbered and kept until the other end has
acknowledged it; when a connection breaks, the next one begins with both saying what they have, and the rest
is sent again: no byte is lost, none comes twice. Frames on a connection, little endian::

    kind (u8), size of the payload (u32), number (u64), payload

    HELLO    first, from both   number: bytes received so far    payload: limit (u64), session
    DATA                        number: position of its first byte
    ACK                         number: bytes received so far    payload: limit (u64)
    PING     is answered with an ACK
    END      after the last byte of DATA, and numbered as if it were one more    payload: a reason
    REFUSED  instead of HELLO: there is nobody to speak to       payload: why

Nobody sends bytes at or beyond the other's limit, which moves on as its application takes what came. So a
slow reader holds up the writer, memory is bounded, and acknowledgements and pings pass all the same: silence
means that the connection, or the other end, is gone.

The clock (any monotonic seconds) and the connection belong to the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import WireError
from launcher.stream.frames import (
    ACK,
    DATA,
    HELLO,
    PING,
    REFUSED,
    Parser,
    Refused,
    frame,
    limit_and_rest,
    refusal,
)
from launcher.stream.halves import Inbox, Outbox

if TYPE_CHECKING:
    from typing import List, Optional

    from launcher.stream.halves import Bytes

__all__ = ["Refused", "Stream", "refusal"]


class Stream:
    """One end.

    Args:
        session: what both ends must agree on, so that no connection is taken for another one's.
        keep: bytes kept until they are acknowledged: `room` is what is left of it.
        take: bytes that may come before our application has taken them.
        now: monotonic seconds.
        ping_every: seconds between two pings; ``None``: none are sent.
    """

    def __init__(
        self, session: bytes, keep: int, take: int, now: float, ping_every: Optional[float] = None
    ) -> None:
        self._session = session
        self._outbox = Outbox(keep)
        self._inbox = Inbox(take)
        self._ping_every = ping_every
        self._pinged_at = now
        self._parser = Parser()
        self._greeted = False
        self._sending = memoryview(b"")
        #: When the last byte of the other end came.
        self.heard_at = now
        #: Between `connect` and `disconnect`.
        self.connected = False
        #: Whether the other end has greeted us on this connection.
        self.met = False

    # ------------------------------------------------------------------ the application

    @property
    def room(self) -> int:
        """Bytes that `write` may be given now."""
        return self._outbox.room

    def write(self, data: Bytes) -> None:
        """Send these bytes; they are kept as they are, so don't change them."""
        self._outbox.write(data)

    def finish(self, reason: str = "") -> None:
        """Nothing more will be written; the other end gets the reason after the last byte."""
        self._outbox.finish(reason.encode("utf-8", "replace"))

    @property
    def delivered(self) -> bool:
        """Whether all that was written, and the `finish`, has arrived for certain."""
        return self._outbox.delivered

    def incoming(self) -> List[memoryview]:
        """What has arrived and was not taken: some pieces of it, in order."""
        return self._inbox.pieces()

    def took(self, count: int) -> None:
        """So many bytes of what is `incoming` were taken."""
        self._inbox.took(count)

    @property
    def last_words(self) -> Optional[str]:
        """The reason that came after the last byte, which may not be taken yet; ``None``: it has not come."""
        return None if self._inbox.end is None else self._inbox.end.decode("utf-8", "replace")

    # ------------------------------------------------------------------ the connection

    def connect(self) -> None:
        """There is a new connection, in place of any other."""
        self.disconnect()
        self.connected = True

    def disconnect(self) -> None:
        """There is none any more."""
        self.connected = self._greeted = self.met = False
        self._parser = Parser()
        self._sending = memoryview(b"")

    def receive(self, data: bytes, now: float) -> None:
        """These bytes came on the connection.

        Raises:
            Refused: there is nobody at its other end.
            WireError: what came is not ours; the connection is of no use.
        """
        self.heard_at = now
        for kind, number, payload in self._parser.feed(data):
            self._take(kind, number, payload)

    def output(self, now: float) -> memoryview:
        """What to send on the connection now; empty: nothing."""
        if not self._sending and self.connected:
            self._sending = memoryview(self._next_frame(now))
        return self._sending

    def sent(self, count: int) -> None:
        """So many bytes of `output` were sent."""
        self._sending = self._sending[count:]

    def next_due(self) -> Optional[float]:
        """When `output` has something to say even if nothing happens (monotonic); ``None``: never."""
        if not self.met or self._sending:
            return None
        dues = [due for due in (self._inbox.due(), self._ping_due()) if due is not None]
        return min(dues) if dues else None

    def _ping_due(self) -> Optional[float]:
        return None if self._ping_every is None else self._pinged_at + self._ping_every

    def _next_frame(self, now: float) -> bytes:
        """Small frames go before large ones."""
        if not self._greeted:
            self._greeted = True
            received, limit = self._inbox.tell(now)
            return frame(HELLO, received, limit + self._session)
        if not self.met:
            return b""
        ack, ping = self._inbox.due(), self._ping_due()
        if ack is not None and ack <= now:
            return frame(ACK, *self._inbox.tell(now))
        if ping is not None and ping <= now:
            self._pinged_at = now
            return frame(PING, 0)
        return self._outbox.next_frame()

    def _take(self, kind: int, number: int, payload: memoryview) -> None:
        if kind == REFUSED:
            raise Refused(bytes(payload).decode("utf-8", "replace"))
        if self.met == (kind == HELLO):
            raise WireError("a second greeting" if self.met else "no greeting")
        if kind == HELLO:
            self._greet(number, payload)
        elif kind == ACK:
            self._outbox.acknowledge(number, limit_and_rest(payload)[0])
        elif kind == PING:
            self._inbox.ask()
        elif number != self._inbox.received:
            raise WireError(f"bytes from {number} on came, not from {self._inbox.received} on")
        elif kind == DATA:
            self._inbox.add(payload)
        else:
            self._inbox.finish(bytes(payload))

    def _greet(self, received: int, payload: memoryview) -> None:
        limit, session = limit_and_rest(payload)
        if session != self._session:
            raise WireError("the greeting of another session")
        self._outbox.resume(received, limit)
        self.met = True
