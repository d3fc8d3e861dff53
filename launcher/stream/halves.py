"""The two halves of an end: what our application wrote, and what arrived for it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from launcher.errors import WireError
from launcher.stream.frames import DATA, END, FRAME, MOST_WORDS, frame, with_limit

if TYPE_CHECKING:
    from typing import Deque, List, Optional, Tuple, Union

    Bytes = Union[bytes, bytearray, memoryview]

#: An acknowledgement is due after so many bytes, or so many seconds, whichever comes first.
ACK_BYTES = 256 * 1024
ACK_SECONDS = 1.0
#: Most pieces handed out at once (`os.writev` takes 1024).
_MANY = 64


class Outbox:
    """What our application wrote, kept until the other end has it.

    Args:
        keep: bytes that may be kept.
    """

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
        """Bytes that may be written now."""
        return 0 if self._end is not None else max(0, self._keep - (self._written - self._arrived))

    @property
    def delivered(self) -> bool:
        """Whether all of it has arrived, and that it was all."""
        return self._end is not None and self._arrived > self._written

    def write(self, data: Bytes) -> None:
        """Send this after what was written before."""
        self._to_send.append(data)
        self._written += len(data)

    def finish(self, reason: bytes) -> None:
        """That was all, and why."""
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
            return frame(DATA, at, payload)
        if self._end is not None and at == self._written:
            self._sent += 1
            return frame(END, at, self._end)
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


class Inbox:
    """What arrived, until our application has taken it.

    Args:
        take: bytes that may wait for that.
    """

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
        """The other end must not send bytes from this one on."""
        return self._taken + self._take

    def add(self, data: memoryview) -> None:
        """The next bytes came."""
        if self.received + len(data) > self.limit or self.end is not None:
            raise WireError("more came than was asked for")
        self._pieces.append(data)
        self.received += len(data)

    def finish(self, reason: bytes) -> None:
        """It was the last."""
        self.received += 1
        self.end = reason
        self._asked = True

    def ask(self) -> None:
        """The other end wants an acknowledgement now."""
        self._asked = True

    def pieces(self) -> List[memoryview]:
        """The first of what waits."""
        return [self._pieces[index] for index in range(min(len(self._pieces), _MANY))]

    def took(self, count: int) -> None:
        """So many bytes of it are taken."""
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
        return self.received, with_limit(self.limit)
