"""The task's end of a feed: a thread takes what comes, knows how far it got, and connects after a break.

It reads ahead, so that rows lie ready when the function asks for them, and so that a break is mended while
the function computes. How much may lie here is the driver's business: it sends no more than a window.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import FeedError, LaunchError
from launcher.feed.remote.connect import keep_alive
from launcher.feed.remote.frames import (
    FeedBroken,
    FeedRefused,
    Kind,
    ReadAhead,
    hang_up,
    recv_frame,
    send_frame,
)
from launcher.feed.remote.messages import (
    RETURNED,
    ChunkHead,
    Opening,
    Progress,
    counted,
    number,
    only,
    to_number,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from launcher.feed.remote.codec import Buffer

#: Seconds in which a broken connection must be back, and between two attempts.
MOST_AWAY = 60.0
_PAUSE = 0.2
#: Seconds that the driver may take to answer the opening of a feed.
_ANSWER = 30.0
#: Bytes of results that the driver has not confirmed.
_MOST_UNKEPT = 16 << 20


class Item(NamedTuple):
    """What the driver sent."""

    kind: int
    head: ChunkHead | None = None
    buffers: Sequence[memoryview] = ()


class _Results(NamedTuple):
    first: int
    buffers: Sequence[Buffer]
    size: int


class Intake:
    """See the module.

    Args:
        connect: gives an authenticated connection for this feed, again and again.
        feed: its name.
    """

    def __init__(self, connect: Callable[[str], socket.socket], feed: str) -> None:
        self.feed = feed
        self._connect = connect
        self._session = uuid.uuid4().hex
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._sock: socket.socket | None = None
        self._items: deque[Item] = deque()
        self._received = 0
        self._progress = Progress()
        self._counted: dict[int, int] = {}
        self._unkept: deque[_Results] = deque()
        self._results = 0
        self._terminated = self._ended = self._closed = False
        #: Whether the feed has ended at once: nobody wants the results of what has come.
        self.cut_off = False
        self._error: FeedError | None = None
        self._thread = threading.Thread(target=self._run, name=f"feed {feed}", daemon=True)
        self._thread.start()

    def take(self) -> Item | None:
        """What came next; ``None`` if nothing has come that is not taken yet."""
        with self._changed:
            if self._items:
                return self._items.popleft()
            if self._error is not None:
                raise self._error
            return None

    def next_kind(self) -> int | None:
        """What `take` would give."""
        with self._changed:
            return self._items[0].kind if self._items else None

    def wait(self) -> None:
        """Wait until `take` gives something.

        Raises:
            FeedError: the driver is gone, or wants nothing of this task any more.
        """
        with self._changed:
            while not self._items and self._error is None:
                self._changed.wait()

    def report(self, progress: Progress) -> None:
        """Tell the driver how far the function has come."""
        with self._changed:
            self._progress = progress
            for chunk in [chunk for chunk in self._counted if chunk <= progress.consumed]:
                del self._counted[chunk]
        self._say(Kind.PROGRESS, [progress.pack()])

    def count(self, chunk: int, rows: int) -> None:
        """Tell the driver how many rows a chunk had that was code."""
        with self._changed:
            self._counted[chunk] = rows
        self._say(Kind.COUNTED, [counted(chunk, rows)])

    def give(self, buffers: Sequence[Buffer], rows: int) -> None:
        """Send results; returns when they are sent, or will be after a break.

        Raises:
            FeedError: the driver is gone.
        """
        with self._changed:
            while sum([one.size for one in self._unkept]) > _MOST_UNKEPT and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            results = _Results(self._results, buffers, sum([len(buffer) for buffer in buffers]))
            self._results += rows
            self._unkept.append(results)
        self._say(Kind.RESULTS, [number(results.first), *buffers])

    def terminate(self, returned: bool = False) -> None:
        """Tell the driver that the function wants no more; what has come is forgotten.

        Args:
            returned: whether it did not say so, but has returned.
        """
        with self._changed:
            self._terminated = True
            self._items.clear()
        self._say(Kind.TERMINATE, [RETURNED] if returned else [])

    def close(self) -> None:
        """End the connection and the thread."""
        with self._changed:
            self._closed = True
            self._error = self._error or FeedError(f"feed {self.feed!r} was closed")
            self._changed.notify_all()
        self._hang_up()
        self._thread.join(5.0)

    # What the user's thread sends.

    def _say(self, kind: int, buffers: Sequence[Buffer] = ()) -> None:
        """Send, if there is a connection; what is said is said again when a broken one is back."""
        with self._sending:
            if self._sock is None:
                return
            try:
                send_frame(self._sock, kind, buffers)
            except OSError:
                self._hang_up()

    def _hang_up(self) -> None:
        """Let the thread see the end of the connection."""
        if (sock := self._sock) is not None:
            hang_up(sock)

    # The thread.

    def _run(self) -> None:
        away_since = time.monotonic()
        while not self._over():
            sock = self._connected(away_since)
            if sock is None:
                return
            if self._closed:  # meanwhile: there was no connection to hang up
                hang_up(sock)
            since = time.monotonic()
            self._listen(sock)
            away_since = time.monotonic()
            if away_since - since < _PAUSE and self._closed_within(_PAUSE):  # the next may break as soon
                return

    def _over(self) -> bool:
        with self._changed:
            return self._closed or self._ended or self._error is not None

    def _connected(self, since: float) -> socket.socket | None:
        """A connection that the driver has welcomed; ``None`` if there will be none."""
        while True:
            try:
                return self._welcomed(self._connect(self.feed))
            except FeedError as error:  # the driver's own word
                self._fail(str(error))
                return None
            except (OSError, LaunchError) as error:
                if time.monotonic() - since > MOST_AWAY:
                    self._fail(f"the driver can't be reached any more: {error}", error)
                    return None
            if self._closed_within(_PAUSE):
                return None

    def _closed_within(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, seconds)

    def _welcomed(self, sock: socket.socket) -> socket.socket:
        """Say how far this end has come, and hear how far the other."""
        try:
            sock.settimeout(_ANSWER)
            keep_alive(sock)
            with self._sending:
                send_frame(sock, Kind.OPEN, [self._opening().pack()])
                frame = recv_frame(sock, 1 << 16)
                if frame is None or frame[0] not in (Kind.WELCOME, Kind.GONE):
                    raise FeedBroken("the driver did not answer")
                if frame[0] == Kind.GONE:
                    raise FeedError(bytes(only(frame[1])).decode("utf-8", "replace"))
                sock.settimeout(None)
                self._sock = sock  # from here on `close` can hang it up
                self._resend(sock, to_number(only(frame[1])))
        except (OSError, FeedError):
            self._sock = None
            sock.close()
            raise
        return sock

    def _opening(self) -> Opening:
        with self._changed:
            return Opening(
                self._session, self._received, self._progress, self._terminated, dict(self._counted)
            )

    def _resend(self, sock: socket.socket, kept: int) -> None:
        self._forget(kept)
        with self._changed:
            again = list(self._unkept)
        for results in again:
            send_frame(sock, Kind.RESULTS, [number(results.first), *results.buffers])

    def _forget(self, kept: int) -> None:
        """The driver has so many results."""
        with self._changed:
            while self._unkept and self._unkept[0].first < kept:
                self._unkept.popleft()
            self._changed.notify_all()

    def _listen(self, sock: socket.socket) -> None:
        """Take what comes until the connection ends."""
        try:
            ahead = ReadAhead(sock)
            while (frame := recv_frame(ahead)) is not None:
                self._came(*frame)
        except FeedRefused as error:
            self._fail(f"what the driver sends can't be understood: {error}", error)
        except OSError:
            pass
        finally:
            with self._sending:
                self._sock = None
            sock.close()

    def _came(self, kind: int, buffers: list[memoryview]) -> None:
        if kind == Kind.CHUNK:
            self._queue(Item(kind, ChunkHead.unpack(buffers[0]), buffers[1:]))
        elif kind == Kind.KEPT:
            self._forget(to_number(only(buffers)))
        elif kind == Kind.GONE:
            self._fail(bytes(only(buffers)).decode("utf-8", "replace"))
        elif kind in (Kind.FLUSH, Kind.END):
            if kind == Kind.END and buffers:
                self._cut()
            self._queue(Item(kind))

    def _cut(self) -> None:
        with self._changed:
            self.cut_off = True
            self._items.clear()

    def _queue(self, item: Item) -> None:
        with self._changed:
            if item.head is not None:
                if item.head.number <= self._received:  # it was on its way when the connection broke
                    return
                self._received = item.head.number
            self._ended = self._ended or item.kind == Kind.END
            if not self._terminated or item.kind == Kind.END:
                self._items.append(item)
            self._changed.notify_all()

    def _fail(self, why: str, error: Exception | None = None) -> None:
        with self._changed:
            if self._error is None:
                self._error = FeedError(f"feed {self.feed!r}: {why}")
                self._error.__cause__ = error
            self._changed.notify_all()
