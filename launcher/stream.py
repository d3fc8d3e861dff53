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

import struct
from collections import deque

from launcher.errors import WireError
from launcher.model.records import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Deque, List, Optional, Tuple, Union

    Bytes = Union[bytes, bytearray, memoryview]

#: Bytes of DATA in one frame, and in any other frame at most.
FRAME = 64 * 1024
MOST_WORDS = 64 * 1024
#: An acknowledgement is due after so many bytes, or so many seconds, whichever comes first.
ACK_BYTES = 256 * 1024
ACK_SECONDS = 1.0
#: Most pieces handed out at once (`os.writev` takes 1024).
_MANY = 64

_HEAD = struct.Struct("<BIQ")
_LIMIT = struct.Struct("<Q")
_HELLO, _DATA, _ACK, _PING, _END, _REFUSED = range(1, 7)


def refusal(why: str) -> bytes:
    """What to answer on a connection when there is nobody to speak to."""
    return _frame(_REFUSED, 0, why.encode("utf-8", "replace")[:MOST_WORDS])


def _frame(kind: int, number: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(payload), number) + payload


class Refused(WireError):
    """The other side of the connection says that there is nobody to speak to, and why."""


class _Outbox:
    """What our application wrote, kept until the other end has it."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        #: Bytes written, sent on this connection, known to have arrived; END counts as one.
        self._written = self._sent = self._arrived = 0
        #: Where the other end wants us to stop.
        self._limit = 0
        self._to_send: Deque[Bytes] = deque()
        self._on_the_way: Deque[Bytes] = deque()
        self._end: Optional[bytes] = None

    @property
    def room(self) -> int:
        return 0 if self._end is not None else max(0, self._keep - (self._written - self._arrived))

    @property
    def delivered(self) -> bool:
        return self._end is not None and self._arrived > self._written

    def write(self, data: Bytes) -> None:
        self._to_send.append(data)
        self._written += len(data)

    def finish(self, reason: bytes) -> None:
        if self._end is None:
            self._end = reason[:MOST_WORDS]

    def resume(self, arrived: int, limit: int) -> None:
        """A new connection, on which the other end says what it has."""
        self.acknowledge(arrived, limit)
        self._to_send.extendleft(reversed(self._on_the_way))
        self._on_the_way.clear()
        self._sent = arrived

    def acknowledge(self, arrived: int, limit: int) -> None:
        """Forget what has arrived."""
        if not self._arrived <= arrived <= self._sent or limit < self._limit:
            raise WireError(f"{arrived} bytes acknowledged, of {self._arrived} to {self._sent}")
        count = min(arrived, self._written) - min(self._arrived, self._written)
        while count:
            first = self._on_the_way.popleft()
            if len(first) > count:
                self._on_the_way.appendleft(memoryview(first)[count:])
            count -= min(count, len(first))
        self._arrived = arrived
        self._limit = limit

    def next_frame(self) -> bytes:
        """What is to be sent now; empty if there is nothing."""
        at = self._sent
        size = min(FRAME, self._limit - at, self._written - at)
        if size > 0:
            payload = self._cut(size)
            self._on_the_way.append(payload)
            self._sent += size
            return _frame(_DATA, at, payload)
        if self._end is not None and at == self._written:
            self._sent += 1
            return _frame(_END, at, self._end)
        return b""

    def _cut(self, size: int) -> bytes:
        """The next ``size`` bytes in one piece."""
        pieces: List[Bytes] = []
        while size:
            piece = self._to_send.popleft()
            if len(piece) > size:
                self._to_send.appendleft(memoryview(piece)[size:])
                piece = memoryview(piece)[:size]
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)


class _Inbox:
    """What arrived, until our application has taken it."""

    def __init__(self, take: int) -> None:
        self._take = take
        self._pieces: Deque[memoryview] = deque()
        self._taken = 0
        #: Bytes that came in order; END counts as one.
        self.received = 0
        self.end: Optional[bytes] = None
        #: What the other end was told last, and when.
        self._told = (0, 0)
        self._told_at = 0.0
        self._asked = False

    @property
    def limit(self) -> int:
        return self._taken + self._take

    def add(self, data: memoryview) -> None:
        if self.received + len(data) > self.limit or self.end is not None:
            raise WireError("more came than was asked for")
        self._pieces.append(data)
        self.received += len(data)

    def finish(self, reason: bytes) -> None:
        self.received += 1
        self.end = reason
        self._asked = True

    def ask(self) -> None:
        """The other end wants an acknowledgement now."""
        self._asked = True

    def pieces(self) -> List[memoryview]:
        return [self._pieces[index] for index in range(min(len(self._pieces), _MANY))]

    def took(self, count: int) -> None:
        self._taken += count
        while count:
            first = self._pieces[0]
            if len(first) > count:
                self._pieces[0] = first[count:]
                return
            self._pieces.popleft()
            count -= len(first)

    def due(self) -> Optional[float]:
        """When to acknowledge; ``None``: there is nothing to."""
        progress = self.received - self._told[0] + self.limit - self._told[1]
        if self._asked or progress >= ACK_BYTES:
            return 0.0
        return self._told_at + ACK_SECONDS if progress else None

    def tell(self, now: float) -> Tuple[int, bytes]:
        """The number and payload of an acknowledgement, which is sent now."""
        self._told = (self.received, self.limit)
        self._told_at = now
        self._asked = False
        return self.received, _LIMIT.pack(self.limit)


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
        self._outbox = _Outbox(keep)
        self._inbox = _Inbox(take)
        self._ping_every = ping_every
        self._pinged_at = now
        #: What came of a frame that is not complete.
        self._rest = b""
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
        """The reason the other end gave when it finished, once all its bytes are in; ``None``: not yet."""
        return None if self._inbox.end is None else self._inbox.end.decode("utf-8", "replace")

    # ------------------------------------------------------------------ the connection

    def connect(self) -> None:
        """There is a new connection, in place of any other."""
        self.disconnect()
        self.connected = True

    def disconnect(self) -> None:
        """There is none any more."""
        self.connected = self._greeted = self.met = False
        self._rest = b""
        self._sending = memoryview(b"")

    def receive(self, data: bytes, now: float) -> None:
        """These bytes came on the connection.

        Raises:
            Refused: there is nobody at its other end.
            WireError: what came is not ours; the connection is of no use.
        """
        self.heard_at = now
        data = self._rest + data if self._rest else data
        view, at, end = memoryview(data), 0, len(data)
        while end - at >= _HEAD.size:
            kind, size, number = _HEAD.unpack_from(data, at)
            if not _HELLO <= kind <= _REFUSED or size > FRAME + _LIMIT.size:
                raise WireError(f"a frame of kind {kind} and {size} bytes can't be")
            start = at + _HEAD.size
            if end - start < size:
                break
            at = start + size
            self._take(kind, number, view[start:at])
        self._rest = data[at:]

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
            return _frame(_HELLO, received, limit + self._session)
        if not self.met:
            return b""
        ack, ping = self._inbox.due(), self._ping_due()
        if ack is not None and ack <= now:
            return _frame(_ACK, *self._inbox.tell(now))
        if ping is not None and ping <= now:
            self._pinged_at = now
            return _frame(_PING, 0)
        return self._outbox.next_frame()

    def _take(self, kind: int, number: int, payload: memoryview) -> None:
        if kind == _REFUSED:
            raise Refused(bytes(payload).decode("utf-8", "replace"))
        if self.met == (kind == _HELLO):
            raise WireError(f"a frame of kind {kind} {'instead of' if not self.met else 'after'} a greeting")
        if kind == _HELLO:
            self._greet(number, payload)
        elif kind == _ACK:
            self._outbox.acknowledge(number, _limit(payload))
        elif kind == _PING:
            self._inbox.ask()
        elif number != self._inbox.received:
            raise WireError(f"bytes from {number} on came, not from {self._inbox.received} on")
        elif kind == _DATA:
            self._inbox.add(payload)
        else:
            self._inbox.finish(bytes(payload))

    def _greet(self, received: int, payload: memoryview) -> None:
        if payload[_LIMIT.size :] != self._session:
            raise WireError("the greeting of another session")
        self._outbox.resume(received, _limit(payload))
        self.met = True


def _limit(payload: memoryview) -> int:
    if len(payload) < _LIMIT.size:
        raise WireError("an acknowledgement without a limit")
    return int(_LIMIT.unpack_from(payload)[0])
