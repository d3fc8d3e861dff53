"""One partition that is fed: its chunks, those that its task has not consumed, and its results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.errors import FeedError
from launcher.feed.remote.blocks import Block, join, part, size
from launcher.feed.remote.codec import Buffer, by_value, encode
from launcher.feed.remote.frames import check_size
from launcher.feed.remote.messages import LAST, REMOTE
from launcher.feed.sources import Piece

if TYPE_CHECKING:
    from launcher.feed.call import FeedCall

#: Bytes and rows of a chunk; rows that are asked for while their size is not known.
CHUNK, MOST_ROWS, FIRST_ROWS = 1 << 20, 16384, 64
#: Bytes of a chunk that is split once more: its rows are much larger than those before.
FAR_TOO_BIG = 64 << 20
#: The factor by which a chunk may have more rows than the one before: the first rows may be small ones.
_GROWTH = 8
#: A chunk may be larger or smaller by this factor, if that avoids splitting or joining.
_ROUGHLY = 1.25
#: Seconds that rows wait for others to travel with.
_GATHERING = 0.02
#: The weight of a chunk of code, in bytes: it will make many rows.
_REMOTE_WEIGHT = 2 << 20


class Chunk(NamedTuple):
    """Some rows, or the code that makes them, ready to be sent."""

    flags: int
    rows: int
    weight: int
    buffers: Sequence[Buffer]


class Chunker:
    """Cuts partitions into chunks of about a mebibyte; learns from each how many rows that is."""

    def __init__(self) -> None:
        self.rows = 1  # the first row may have any size

    def chunks(self, piece: Piece) -> Iterator[Chunk]:
        """The rows of a partition, encoded.

        Raises:
            FeedError: they cannot be sent. Any exception of the user's code.
        """
        for block in self._gathered(piece.blocks(max(self.rows, FIRST_ROWS))):
            at, total = 0, size(block)
            while at < total:
                stop = total if total - at <= self.rows * _ROUGHLY else at + self.rows
                yield from self._encoded(block if stop - at == total else part(block, at, stop), stop - at)
                at = stop

    def _encoded(self, block: Block, rows: int) -> Iterator[Chunk]:
        buffers = encode(block)
        weight = sum([len(buffer) for buffer in buffers])
        self.rows = max(1, min(rows * CHUNK // max(1, weight), rows * _GROWTH, MOST_ROWS))
        if rows > 1 and weight > FAR_TOO_BIG:
            buffers.clear()
            half = rows // 2
            yield from self._encoded(part(block, 0, half), half)
            yield from self._encoded(part(block, half, rows), rows - half)
            return
        check_size(buffers, "a row" if rows == 1 else f"{rows} rows")
        yield Chunk(0, rows, weight, buffers)

    def _gathered(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Small blocks together, unless they come so slowly that their rows would wait."""
        waiting: list[Block] = []
        rows, since = 0, 0.0
        for block in blocks:
            if not waiting:
                since = time.monotonic()
            waiting.append(block)
            rows += size(block)
            if rows * _ROUGHLY >= self.rows or time.monotonic() - since > _GATHERING:
                yield _together(waiting)
                waiting, rows = [], 0
        if waiting:
            yield _together(waiting)


def _together(blocks: list[Block]) -> Block:
    """`join`, fast for lists."""
    if len(blocks) == 1 or not all(isinstance(block, list) for block in blocks):
        return join(blocks)
    return list(chain.from_iterable(blocks))


class Partition:
    """See the module. All but `make` is called with the lock of the feeder.

    Args:
        call: feeds it.
        number: from 0.
        piece: gives its rows.
        chunker: cuts them.
    """

    def __init__(self, call: FeedCall, number: int, piece: Piece, chunker: Chunker) -> None:
        self.call = call
        self.number = number
        self._inference = call.options.inference
        self._piece = piece
        self._chunker = chunker
        #: Whether chunks are kept, because the piece cannot give its rows a second time.
        self._keep = not (call.options.exactly_once or piece.repeatable or piece.remote is not None)
        self._kept: list[Chunk] = []
        self._fresh: Iterator[Chunk] | None = None
        self._forgotten = False
        self._chunks = self._begin()
        self.kept_bytes = 0
        #: Whether a thread is making a chunk of it.
        self.busy = False
        #: Whether all its chunks were made.
        self.complete = False
        #: Chunks made for the task that has it, and those of them that are not consumed.
        self.made = self.out = 0
        #: Rows sent to that task, and results that it gave; chunks of code that are not counted yet.
        self.rows = self.answered = self.uncounted = 0
        #: Results in order that were not taken yet.
        self.results: list[Any] = []
        self.result_bytes = 0
        self._known_results = 0

    @property
    def finished(self) -> bool:
        """Whether it is consumed, and all its results are here."""
        if not self._inference:
            return self.complete and not self.out
        return self.complete and not self.uncounted and self.answered >= self.rows

    def make(self) -> Chunk | None:
        """The next chunk; ``None`` after the last. Runs the user's code."""
        return next(self._chunks, None)

    def restart(self) -> None:
        """Begin again, for another task.

        Raises:
            FeedError: its rows are gone.
        """
        if self._forgotten:
            raise FeedError(
                f"partition {self.number} can't be fed again: it can be iterated only once, and is too "
                "big to be kept; feed lists, callables that read the data, or smaller partitions"
            )
        self.complete = False
        self.made = self.out = self.rows = self.answered = self.uncounted = 0
        self._chunks = self._begin()

    def sent(self, chunk: Chunk) -> None:
        """A chunk goes to its task."""
        self.made += 1
        self.out += 1
        self.rows += chunk.rows
        self.uncounted += bool(chunk.flags & REMOTE)

    def counted(self, rows: int) -> None:
        """A chunk of code has made so many rows."""
        self.rows += rows
        self.uncounted -= 1

    def add_results(self, results: list[Any]) -> int:
        """Add results of its rows, in order, except those that a lost task has given before.

        Returns:
            The number of new ones.
        """
        new = results[max(0, self._known_results - self.answered) :]
        self.answered += len(results)
        self._known_results += len(new)
        self.results += new
        return len(new)

    def forget(self) -> None:
        """Drop what is kept for a second time."""
        self._keep, self._kept, self.kept_bytes = False, [], 0
        self._forgotten = True

    def _begin(self) -> Iterator[Chunk]:
        if self._piece.remote is not None:
            code = by_value(self._piece.remote)
            check_size([code], f"the callable of partition {self.number}")
            yield Chunk(LAST | REMOTE, 0, len(code) + _REMOTE_WEIGHT, [code])
            return
        yield from list(self._kept)
        if self._fresh is None or not self._keep:
            self._fresh = self._chunker.chunks(self._piece)
        for chunk in self._fresh:
            if self._keep:
                self._kept.append(chunk)
                self.kept_bytes += chunk.weight
            yield chunk
        if self._inference:
            yield Chunk(LAST, 0, 0, encode([]))
