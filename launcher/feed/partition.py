"""One partition that is fed: its chunks, those that its task has not consumed, and its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.errors import FeedError
from launcher.feed.remote.blocks import Block, part, size
from launcher.feed.remote.codec import Buffer, encode, encode_code
from launcher.feed.remote.frames import check_size
from launcher.feed.sources import Piece

if TYPE_CHECKING:
    from launcher.feed.call import FeedCall

#: Bytes and rows of a chunk.
CHUNK, MOST_ROWS = 1 << 20, 16384
#: Bytes of a chunk that is split once more: its rows are much larger than those before.
FAR_TOO_BIG = 64 << 20
#: The factor by which a chunk may have more rows than the one before: the first rows may be small ones.
_GROWTH = 8
#: The weight of a chunk of code, in bytes: it will make many rows.
_CODE_WEIGHT = 2 << 20


class Chunk(NamedTuple):
    """Some rows, or the code that returns them, ready to be sent."""

    #: Their number; ``None``: it is code.
    rows: int | None
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
        for block in piece.blocks(lambda: self.rows):
            yield from self._encoded(block)

    def _encoded(self, block: Block) -> Iterator[Chunk]:
        rows = size(block)
        if not rows:
            return
        buffers = encode(block)
        weight = sum([len(buffer) for buffer in buffers])
        self.rows = max(1, min(rows * CHUNK // max(1, weight), max(self.rows, rows * _GROWTH), MOST_ROWS))
        if rows > 1 and weight > FAR_TOO_BIG:
            buffers.clear()
            yield from self._encoded(part(block, 0, rows // 2))
            yield from self._encoded(part(block, rows // 2, rows))
            return
        check_size(buffers, "a row" if rows == 1 else f"{rows} rows")
        yield Chunk(rows, weight, buffers)


class Partition:
    """See the module. All but `make` is called with the lock of the feeder.

    Args:
        call: feeds it.
        number: from 0.
        piece: gives its rows.
        chunker: cuts them.
        keep: keep the chunks if the piece cannot give its rows a second time.
    """

    def __init__(self, call: FeedCall, number: int, piece: Piece, chunker: Chunker, keep: bool) -> None:
        self.call = call
        self.number = number
        self._piece = piece
        self._chunker = chunker
        self._keep = keep and not piece.repeatable
        self._kept: list[Chunk] = []
        self._fresh: Iterator[Chunk] | None = None
        self._forgotten = False
        self.kept_bytes = 0
        #: Whether a thread is making a chunk of it.
        self.busy = False
        #: Chunks sent to the task that has it, and those of them that are not consumed or answered.
        self.sent = self.pending = 0
        #: Whether all its chunks were made.
        self.complete = False
        self._chunks = self._begin()
        #: Results in order that were not taken yet; of how many bytes.
        self.results: list[Any] = []
        self.result_bytes = 0
        #: Results that its present task gave, and the number of those known from all tasks.
        self._answered = self._known = 0

    @property
    def finished(self) -> bool:
        """Whether it is consumed, and all its results are here."""
        return self.complete and not self.pending

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
        self.sent = self.pending = self._answered = 0
        self._chunks = self._begin()

    def add_results(self, results: list[Any]) -> int:
        """Add results of its rows, in order, except those that a lost task has given before.

        Returns:
            The number of new ones.
        """
        new = results[max(0, self._known - self._answered) :]
        self._answered += len(results)
        self._known += len(new)
        self.results += new
        return len(new)

    def forget(self) -> None:
        """Drop what is kept for a second time."""
        self._keep, self._kept, self.kept_bytes = False, [], 0
        self._forgotten = True

    def _begin(self) -> Iterator[Chunk]:
        if self._piece.remote is not None:
            code = encode_code(self._piece.remote)
            check_size([code], f"the callable of partition {self.number}")
            yield Chunk(None, len(code) + _CODE_WEIGHT, [code])
            return
        yield from list(self._kept)
        if self._fresh is None or not self._keep:
            self._fresh = self._chunker.chunks(self._piece)
        for chunk in self._fresh:
            if self._keep:
                self._kept.append(chunk)
                self.kept_bytes += chunk.weight
            yield chunk
