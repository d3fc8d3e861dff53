"""Rows of a feed in its task: a thread receives frames ahead of the function, which takes rows from them.

After a break the thread connects again. All chunks of the broken connection are void: the driver feeds the
partitions that are not acknowledged again. The driver limits how much may wait here.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from launcher.errors import FeedError, LaunchError
from launcher.feed.remote.codec import Block, Buffer, blocks_of, decode, encode, part, size
from launcher.feed.remote.frames import (
    RETURNED,
    UNWANTED,
    FeedRefused,
    Kind,
    ReadAhead,
    check_size,
    hang_up,
    pack_numbers,
    recv_frame,
    send_frame,
)

#: Seconds in which a broken connection must be back, and between two attempts.
MOST_AWAY, PAUSE = 60.0, 0.2
#: Seconds between two reports of progress within one chunk; bytes of chunks taken without a report.
_REPORT_SECONDS, _MOST_UNREPORTED = 1.0, 3 << 19
#: Rows that the code of a partition is asked for at a time.
_CODE_ROWS = 1024


class Reader:
    """See the module. The methods are called by one thread at a time.

    Args:
        connect: makes an authenticated connection for the feed of a name, each time it is called.
        feed: the name.
    """

    def __init__(self, connect: Callable[[str], socket.socket], feed: str) -> None:
        self.feed = feed
        #: Whether the function gets no more rows: the feed has ended, or `terminate` was called.
        self.ended = False
        # Shared with the receiving thread.
        self._connect = connect
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._sock: socket.socket | None = None
        self._connection = 0
        self._frames: deque[tuple[int, Sequence[memoryview]]] = deque()
        self._terminated = b""
        self._end_received = self._closed = False
        self._error: FeedError | None = None
        # The connection of the present chunk, the number of the chunk on it, the last consumed one.
        self._current = self._number = self._consumed = 0
        # The rest of the chunk: a block of so many rows, of which some were handed out; further blocks.
        self._block: Block = []
        self._at = self._size = 0
        self._blocks: Iterator[Block] = iter(())
        self._reported, self._unreported = 0.0, 0
        #: Rows handed out and results returned, in all; missing results of rows of broken connections.
        self._given = self._returned = self._stale = 0
        self._thread = threading.Thread(target=self._receive_all, name=f"feed {feed}", daemon=True)
        self._thread.start()

    def batch(self, rows: int) -> list[Block]:
        """Blocks of so many rows together; of fewer at the end of the feed, or where the driver ends a batch.

        All rows handed out before count as consumed. This is reported with the next chunk, or once a second.

        Raises:
            FeedError: the driver is gone, or the rows cannot be read.
        """
        self._sync()
        self._consumed = max(self._consumed, self._number - 1)
        blocks: list[Block] = []
        while rows and self._has_rows(bool(blocks)):
            stop = min(self._at + rows, self._size)
            blocks.append(part(self._block, self._at, stop))
            rows -= stop - self._at
            self._given += stop - self._at
            self._at = stop
        if time.monotonic() - self._reported > _REPORT_SECONDS:
            self._report()
        return blocks

    def look_for_end(self) -> bool:
        """Whether there are no more rows, as far as is known without waiting."""
        self._sync()
        return self.ended

    def give(self, results: list[Any]) -> None:
        """Send results of rows, in their order.

        Raises:
            ValueError: there are more than rows were handed out.
            FeedError: the driver is gone, or the results cannot be sent.
        """
        self._sync()
        if self._returned + len(results) > self._given:
            raise ValueError(
                f"{self._returned + len(results):,} results for {self._given:,} rows of the feed "
                f"{self.feed!r}: batch_results takes one for each row"
            )
        self._returned += len(results)
        stale = min(self._stale, len(results))
        self._stale -= stale
        if results := results[stale:]:
            buffers = encode(results, named=True)
            check_size(buffers, f"{len(results):,} results")
            self._send(Kind.RESULTS, buffers)

    def terminate(self, returned: bool = False) -> None:
        """Drop the rows that are here; no more are fed to this task.

        Args:
            returned: the function has returned without a call of ``terminate()``.
        """
        if self.ended:
            return
        self.ended = True
        self._drop()
        with self._changed:
            self._terminated = RETURNED if returned else UNWANTED
            self._frames.clear()
        self._send(Kind.TERMINATE, [self._terminated])

    def close(self) -> None:
        """End the connection and the thread."""
        with self._changed:
            self._closed = True
            self._fail("was closed")
        if (sock := self._sock) is not None:
            hang_up(sock)
        self._thread.join(5.0)

    # Taking rows.

    def _sync(self) -> None:
        """Drop the rows of a connection that has broken, or of a feed that has ended."""
        if self._current != self._connection:
            self._current = self._connection
            self._stale = self._given - self._returned
            self._number = self._consumed = 0
            self._drop()
        if self._end_received and not self.ended:
            self.ended = True
            self._drop()

    def _drop(self) -> None:
        self._at = self._size = 0
        self._block, self._blocks = [], iter(())

    def _has_rows(self, begun: bool) -> bool:
        """Whether there are rows; waits for some, unless a batch has begun and ends here."""
        while self._at == self._size:
            if (block := next(self._blocks, None)) is not None:
                self._block, self._at, self._size = block, 0, size(block)
                continue
            if not begun:
                self._consumed = self._number
            kind, buffers = self._next_frame()
            if self.ended or (begun and kind == Kind.FLUSH):
                return False
            if kind in (Kind.ROWS, Kind.CODE):
                self._number += 1
                self._blocks = self._blocks_of(kind, buffers)
                self._unreported += sum([len(buffer) for buffer in buffers])
                if self._unreported > _MOST_UNREPORTED or kind == Kind.CODE:
                    self._report()
        return True

    def _next_frame(self) -> tuple[int, Sequence[memoryview]]:
        """Wait for rows, code or FLUSH; kind 0: the feed has ended, or the connection broke meanwhile.

        Raises:
            FeedError: the driver is gone, or feeds this task no more.
        """
        if not (self._frames or self.ended):
            self._report(Kind.HUNGRY)
        with self._changed:
            while not (self._frames or self._end_received or self.ended or self._error is not None):
                if self._current != self._connection:
                    break
                self._changed.wait()
            self._sync()
            if self._frames:
                return self._frames.popleft()
            if self._error is not None and not self.ended:
                raise self._error
            return 0, []

    def _blocks_of(self, kind: int, buffers: Sequence[memoryview]) -> Iterator[Block]:
        content = decode(buffers)
        if kind == Kind.ROWS:
            yield content
            return
        rows = 0
        for block in blocks_of(content(), lambda: _CODE_ROWS):
            rows += size(block)
            yield block
        self._send(Kind.COUNTED, [pack_numbers(self._number, rows)])

    def _report(self, kind: Kind = Kind.PROGRESS) -> None:
        self._reported, self._unreported = time.monotonic(), 0
        self._send(kind, [pack_numbers(self._number, self._consumed)])

    def _send(self, kind: Kind, buffers: Sequence[Buffer]) -> None:
        """Send a frame on the connection of the present chunk; nothing if it has broken, or breaks."""
        with self._sending:
            if self._sock is None or self._current != self._connection:
                return
            try:
                send_frame(self._sock, kind, buffers)
            except OSError:
                hang_up(self._sock)

    # The thread.

    def _receive_all(self) -> None:
        broken_at = time.monotonic()
        while not (self._end_received or self._error is not None):
            try:
                sock = self._connect(self.feed)
            except (OSError, LaunchError) as error:
                if time.monotonic() - broken_at > MOST_AWAY:
                    self._fail(f"the driver cannot be reached: {error}", error)
            else:
                self._receive(sock)
                broken_at = time.monotonic()
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._end_received, PAUSE)

    def _receive(self, sock: socket.socket) -> None:
        """Take frames until the connection ends."""
        try:
            with self._sending:
                self._sock = sock
                if self._terminated:
                    send_frame(sock, Kind.TERMINATE, [self._terminated])
                else:
                    send_frame(sock, Kind.PROGRESS, [pack_numbers(0, 0)])
            ahead = ReadAhead(sock)
            while not self._closed and (frame := recv_frame(ahead)) is not None:
                self._received(*frame)
        except FeedRefused as error:
            self._fail(f"a frame of the driver is invalid: {error}", error)
        except OSError:
            pass
        with self._sending:
            self._sock = None
        sock.close()
        with self._changed:
            if not self._end_received and self._error is None:
                self._frames.clear()
                self._connection += 1
                self._changed.notify_all()

    def _received(self, kind: int, buffers: Sequence[memoryview]) -> None:
        if kind == Kind.GONE:
            self._fail(b"".join(buffers).decode("utf-8", "replace"))
            return
        with self._changed:
            if kind == Kind.END:
                self._end_received = True
                self._frames.clear()
            elif not self._terminated:
                self._frames.append((kind, buffers))
            self._changed.notify_all()

    def _fail(self, reason: str, cause: Exception | None = None) -> None:
        with self._changed:
            if self._error is None:
                self._error = FeedError(f"feed {self.feed!r}: {reason}")
                self._error.__cause__ = cause
            self._changed.notify_all()
