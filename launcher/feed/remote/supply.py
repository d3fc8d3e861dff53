"""Rows in the task, ready to be handed out: of the chunk that is being read, and then of the next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.feed.remote.blocks import part, size
from launcher.feed.remote.codec import decode
from launcher.feed.remote.frames import Kind
from launcher.feed.remote.messages import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from launcher.feed.remote.blocks import Block
    from launcher.feed.remote.intake import Intake, Item
    from launcher.feed.remote.messages import ChunkHead

#: Seconds after which the driver is told that the function goes on, within one chunk.
_SIGN_OF_LIFE = 1.0
#: Bytes of chunks that were begun with, and the driver was not told.
_MOST_UNTOLD = 3 << 19
#: Rows that are taken at once of those that code beside the task makes.
_AT_ONCE = 1024


class Supply:
    """See the module. Used by one thread at a time.

    Args:
        intake: where chunks come from.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._by_partition = False
        self._head: ChunkHead | None = None
        self._block: Block = []
        self._at = self._size = 0
        self._more: Iterator[Block] | None = None
        self._made = 0
        self._consumed = self._consumed_rows = 0
        self._told, self._untold = 0.0, 0
        #: Rows handed out, in all.
        self.given = 0
        #: Whether the feed has ended.
        self.ended = False

    def batch(self, rows: int, by_partition: bool) -> list[Block]:
        """Pieces of so many rows together; of fewer at the end of the feed, or where the driver says so.

        All that was handed out before counts as consumed.

        Args:
            by_partition: whether a batch ends with its partition.

        Raises:
            FeedError: the driver is gone.
        """
        self._consume()
        self._heed_cut()
        self._by_partition = by_partition
        pieces: list[Block] = []
        while rows and not self.ended and self._has_rows(bool(pieces)):
            stop = min(self._at + rows, self._size)
            pieces.append(part(self._block, self._at, stop))
            rows -= stop - self._at
            self.given += stop - self._at
            self._at = stop
            if self._by_partition and self._at_end():
                break
        return pieces

    def look_for_end(self) -> bool:
        """Whether nothing will come any more, as far as is known without waiting."""
        self._heed_cut()
        if not self.ended and self._at == self._size and self._more is None:
            while self._intake.next_kind() == Kind.FLUSH:
                self._intake.take()
            if self._intake.next_kind() == Kind.END:
                self._intake.take()
                self._end()
        return self.ended

    def stop(self) -> None:
        """Forget what is there: no more is wanted. What was handed out counts as consumed."""
        self._consume()
        self._tell()
        self._forget()
        self.ended = True

    def _heed_cut(self) -> None:
        """Forget what is there if the driver wants no results of it."""
        if self._intake.cut_off:
            self._forget()

    def _forget(self) -> None:
        self._block, self._at, self._size, self._more = [], 0, 0, None

    def _has_rows(self, begun: bool) -> bool:
        """Whether there are rows to hand out; waits for some unless a batch has begun and may be short."""
        while self._at == self._size:
            if self._more is not None:
                self._make()
            elif not self._next(self._intake.take() or self._awaited(), begun):
                return False
        return True

    def _awaited(self) -> Item | None:
        self._tell(hungry=True)
        self._intake.wait()
        return self._intake.take()

    def _next(self, item: Item | None, begun: bool) -> bool:
        """Take what came; ``False`` if a batch ends with it."""
        if item is None:
            return True
        if item.kind == Kind.END:
            self._end()
            return False
        if item.head is None:
            return not begun
        self._open(item)
        return True

    def _open(self, item: Item) -> None:
        """Begin with a chunk."""
        assert item.head is not None
        self._head = item.head
        if self._head.remote:
            self._more, self._made = _run_beside(decode(item.buffers)), 0
        else:
            self._show(decode(item.buffers))
        self._untold += sum([len(buffer) for buffer in item.buffers])
        if self._untold > _MOST_UNTOLD or self._head.remote:
            self._tell()

    def _show(self, block: Block) -> None:
        self._block, self._at, self._size = block, 0, size(block)

    def _make(self) -> None:
        """Rows of code that came instead of rows."""
        assert self._more is not None and self._head is not None
        block = next(self._more, None)
        if block is None:
            self._more = None
            self._intake.count(self._head.number, self._made)
            self._show([])
        else:
            self._show(block)
            self._made += self._size

    def _at_end(self) -> bool:
        """Whether the partition ends here. Of code that makes rows it is only known when it has ended."""
        while self._at == self._size and self._more is not None:
            self._make()
        return self._at == self._size and self._head is not None and self._head.last

    def _end(self) -> None:
        self.ended = True
        self._consume()
        self._tell(hungry=True)

    def _consume(self) -> None:
        """What was handed out is consumed. The driver hears of it with the next chunk, or once a second."""
        self._consumed_rows = self.given
        if self._head is not None:
            done = self._at == self._size and self._more is None
            self._consumed = self._head.number if done else self._head.number - 1
            if time.monotonic() - self._told > _SIGN_OF_LIFE:
                self._tell()

    def _tell(self, hungry: bool = False) -> None:
        self._told, self._untold = time.monotonic(), 0
        taken = self._head.number if self._head is not None else 0
        self._intake.report(Progress(taken, self._consumed, self._consumed_rows, hungry))


def _run_beside(code: Any) -> Iterator[Block]:
    """The rows of what the driver sent to be run here."""
    from launcher.feed.sources import blocks_of

    return iter(blocks_of(code(), _AT_ONCE))
