"""Rows in the task, ready for its function: those of the chunk that is being read, then of the next one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.feed.remote.blocks import blocks_of, part, size
from launcher.feed.remote.codec import decode, encode
from launcher.feed.remote.frames import check_size
from launcher.feed.remote.messages import LAST, REMOTE, Kind, Progress, pack_counted
from launcher.feed.remote.receiver import Receiver

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from typing import Any

    from launcher.feed.remote.blocks import Block
    from launcher.feed.remote.receiver import Item

#: Seconds between two reports of progress within one chunk.
_REPORT_SECONDS = 1.0
#: Bytes of chunks that may be taken before the driver gets a report.
_MOST_UNREPORTED = 3 << 19
#: Rows that a callable beside the task is asked for at a time.
_AT_ONCE = 1024


class Reader:
    """See the module. Used by one thread at a time.

    Args:
        connect, feed: see `Receiver`.
    """

    def __init__(self, connect: Callable[[str], socket.socket], feed: str) -> None:
        self.receiver = Receiver(connect, feed)
        #: Whether the feed has ended.
        self.ended = False
        #: The connection that the chunk, its progress and the last rows belong to.
        self._connection = 0
        self._number = self._flags = self._consumed = 0
        self._block: Block = []
        self._at = self._size = 0
        #: The blocks of a callable, and how many rows they had.
        self._more: Iterator[Block] | None = None
        self._made = 0
        self._by_partition = False
        self._reported, self._unreported = 0.0, 0
        #: Rows handed out, and results returned, in all; results that belong to broken connections.
        self._given = self._returned = self._stale = 0

    def batch(self, rows: int, by_partition: bool) -> list[Block]:
        """Blocks of so many rows together; of fewer at the end of the feed, or where the driver pauses.

        All rows handed out before count as consumed.

        Args:
            by_partition: whether a batch ends with its partition.

        Raises:
            FeedError: the driver is gone.
        """
        self._notice_break()
        self._consume()
        self._by_partition = by_partition
        blocks: list[Block] = []
        while rows and not self.ended and self._has_rows(bool(blocks)):
            stop = min(self._at + rows, self._size)
            blocks.append(part(self._block, self._at, stop))
            rows -= stop - self._at
            self._given += stop - self._at
            self._at = stop
            if by_partition and self._at_end():
                break
        return blocks

    def look_for_end(self) -> bool:
        """Whether there are no more rows, as far as is known without waiting."""
        self._notice_break()
        if not self.ended and self._at == self._size and self._more is None:
            while self.receiver.next_kind() == Kind.FLUSH:
                self.receiver.take()
            if self.receiver.next_kind() == Kind.END:
                self._end()
        return self.ended

    def give(self, results: list[Any]) -> None:
        """Send results of rows, in their order.

        Raises:
            ValueError: there are more than rows were handed out.
            FeedError: the driver is gone, or the results cannot be sent.
        """
        self._notice_break()
        if self._returned + len(results) > self._given:
            raise ValueError(
                f"{self._returned + len(results):,} results for {self._given:,} rows of the feed "
                f"{self.receiver.feed!r}: batch_results takes one for each row"
            )
        self.receiver.check()
        self._returned += len(results)
        stale = min(self._stale, len(results))
        self._stale -= stale
        if results := results[stale:]:
            buffers = encode(results, named=True)
            check_size(buffers, f"{len(results):,} results")
            self.receiver.send(self._connection, Kind.RESULTS, buffers)

    def terminate(self, returned: bool = False) -> None:
        """Drop the rows that are here; no more are wanted. Rows handed out count as consumed."""
        if not self.ended:
            self._consume()
            self._report()
            self._drop()
            self.ended = True
            self.receiver.terminate(returned)

    def _notice_break(self) -> None:
        """After a break the driver feeds again what was not consumed: the rows that are here are dropped."""
        if self._connection != self.receiver.connection:
            self._connection = self.receiver.connection
            self._stale = self._given - self._returned
            self._number = self._consumed = 0
            self._drop()

    def _drop(self) -> None:
        self._block, self._at, self._size, self._more = [], 0, 0, None

    def _has_rows(self, begun: bool) -> bool:
        """Whether there are rows; waits for some, unless a batch has begun and may be short."""
        self._notice_break()
        while self._at == self._size:
            if self._more is not None:
                self._make()
            else:
                item = self.receiver.take()
                if item is None:
                    self._report(hungry=True)
                    item = self.receiver.take(wait=True)
                self._notice_break()
                if item is not None and item.connection == self._connection and not self._take(item, begun):
                    return False
                if begun and self._by_partition and self._at_end():
                    return False
        return True

    def _take(self, item: Item, begun: bool) -> bool:
        """Begin with what came; ``False`` if a batch ends with it."""
        if item.kind == Kind.END:
            self._end()
        elif item.kind == Kind.CHUNK:
            self._open(item)
            return True
        return item.kind == Kind.FLUSH and not begun

    def _open(self, item: Item) -> None:
        self._number, self._flags = item.number, item.buffers[0][0]
        block = decode(item.buffers[1:])
        self._drop()
        if self._flags & REMOTE:
            self._more, self._made = blocks_of(block(), _AT_ONCE), 0
        else:
            self._block, self._size = block, size(block)
        self._unreported += sum([len(buffer) for buffer in item.buffers])
        if self._unreported > _MOST_UNREPORTED or self._more is not None:
            self._report()

    def _make(self) -> None:
        """The next rows of a callable."""
        assert self._more is not None
        block = next(self._more, None)
        if block is None:
            self._drop()
            self.receiver.send(self._connection, Kind.COUNTED, [pack_counted(self._number, self._made)])
        else:
            self._block, self._at, self._size = block, 0, size(block)
            self._made += self._size

    def _at_end(self) -> bool:
        """Whether the partition ends here. That of a callable ends when it has no more rows."""
        while self._at == self._size and self._more is not None:
            self._make()
        return self._at == self._size and bool(self._flags & LAST)

    def _end(self) -> None:
        self.ended = True
        self._consume()
        self._report(hungry=True)

    def _consume(self) -> None:
        """Rows handed out are consumed. The driver is told with the next chunk, or once a second."""
        if self._number:
            done = self._at == self._size and self._more is None
            self._consumed = self._number if done else self._number - 1
            if time.monotonic() - self._reported > _REPORT_SECONDS:
                self._report()

    def _report(self, hungry: bool = False) -> None:
        self._reported, self._unreported = time.monotonic(), 0
        progress = Progress(self._number, self._consumed, hungry)
        self.receiver.send(self._connection, Kind.PROGRESS, [progress.pack()])
