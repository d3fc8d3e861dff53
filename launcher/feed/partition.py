"""`Partition`: rows that one task gets, in chunks. `Chunker`: how many rows a chunk has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from launcher.common.errors import FeedError
from launcher.common.record import Record
from launcher.feed.remote import frames
from launcher.feed.remote.codec import Block, Buffer, encode, encode_code, part, size
from launcher.feed.sources import Piece

#: Bytes and rows of a chunk.
CHUNK_BYTES = 1 << 20
MAX_ROWS = 16384
#: Bytes of a chunk that is split once more: its rows are much larger than those before.
FAR_TOO_BIG_BYTES = 64 << 20
#: The factor by which a chunk may have more rows than the one before: the first rows may be small ones.
_MAX_GROWTH = 8
#: The weight of a chunk of code, in bytes: it will make many rows.
_CODE_WEIGHT_BYTES = 2 << 20
#: Bytes of memory for each result that waits, beside its bytes in the frame.
_RESULT_OVERHEAD_BYTES = 64


class Chunk(Record):
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
        self.rows = max(
            1, min(rows * CHUNK_BYTES // max(1, weight), max(self.rows, rows * _MAX_GROWTH), MAX_ROWS)
        )
        if rows > 1 and weight > FAR_TOO_BIG_BYTES:
            buffers.clear()
            yield from self._encoded(part(block, 0, rows // 2))
            yield from self._encoded(part(block, rows // 2, rows))
            return
        frames.check_size(buffers, "a row" if rows == 1 else f"{rows} rows")
        yield Chunk(rows, weight, buffers)


class Partition:
    """Some rows that are fed: their chunks, and how far the present task is with them.

    One thread at a time calls `make`, without a lock.

    Args:
        number: from 0, in the order of the rows.
        piece: gives the rows; if it can do so only once, the chunks are kept.
        chunker: of the call.
        inference: whether there is a result for each row.
        task: gets it; empty: any task.
    """

    def __init__(self, number: int, piece: Piece, chunker: Chunker, inference: bool, task: str = "") -> None:
        self.number = number
        self.inference = inference
        self.task = task
        #: Results in order that were not taken yet; of how many bytes.
        self.results: list[Any] = []
        self.result_bytes = 0
        self.kept_bytes = 0
        #: Whether all its rows are consumed, or answered.
        self.done = False
        self._piece = piece
        self._chunker = chunker
        #: Chunks kept for a second time; ``None``: the piece can give its rows again, or they are too many.
        self._kept: list[Chunk] | None = None if piece.repeatable else []
        self._fresh: Iterator[Chunk] | None = None
        #: The number of results known from all tasks.
        self._known = 0
        self._begin()

    def _begin(self) -> None:
        self._chunks = self._all_chunks()
        #: Whether all chunks were made; the number of the last one on its connection (0: there is none).
        self.complete = False
        self.last = 0
        #: Rows sent, results received; whether the number of rows is not known yet: code returns them.
        self._rows = self._answered = 0
        self._uncounted = False

    def _all_chunks(self) -> Iterator[Chunk]:
        if self._piece.remote is not None:
            code = encode_code(self._piece.remote)
            frames.check_size([code], f"the callable of partition {self.number}")
            yield Chunk(None, len(code) + _CODE_WEIGHT_BYTES, [code])
            return
        yield from list(self._kept or ())
        if self._fresh is None or self._piece.repeatable:
            self._fresh = self._chunker.chunks(self._piece)
        for chunk in self._fresh:
            if (kept := self._kept) is not None:
                kept.append(chunk)
                self.kept_bytes += chunk.weight
            yield chunk
            del chunk  # the next one may have the memory of its buffers

    def make(self) -> Chunk | None:
        """The next chunk; ``None`` after the last. Runs the user's code."""
        return next(self._chunks, None)

    def sent(self, chunk: Chunk, number: int) -> None:
        """A chunk is sent, the one of this number on its connection."""
        self.last = number
        self._rows += chunk.rows or 0
        self._uncounted = chunk.rows is None

    def counted(self, number: int, rows: int) -> None:
        """The code in a chunk of this number has returned so many rows."""
        if self._uncounted and self.last == number:
            self._rows, self._uncounted = rows, False

    @property
    def missing(self) -> int:
        """Results that are missing for rows sent, at least."""
        return self.inference and (1 if self._uncounted else self._rows - self._answered)

    def is_finished(self, consumed: int) -> bool:
        """Whether all its chunks are consumed, up to this number, or all its rows are answered."""
        return self.complete and (self.missing <= 0 if self.inference else self.last <= consumed)

    def answer(self, results: list[Any], size: int) -> tuple[list[Any], int]:
        """Take the results of its rows, except those that a lost task has given before.

        Args:
            results: the next ones of its task, in order.
            size: bytes that they had in their frame.

        Returns:
            The results that belong to later partitions; the bytes of those that are new.
        """
        taken = results if self._uncounted else results[: self.missing]
        new = taken[max(0, self._known - self._answered) :]
        self._answered += len(taken)
        self._known += len(new)
        self.results += new
        weight = size + _RESULT_OVERHEAD_BYTES * len(new) if new else 0
        self.result_bytes += weight
        return results[len(taken) :], weight

    def restart(self) -> None:
        """Begin again, for another task.

        Raises:
            FeedError: its rows are gone.
        """
        if self._kept is None and not self._piece.repeatable:
            raise FeedError(
                f"partition {self.number} can't be fed again: it can be iterated only once, and is too "
                "big to be kept; feed lists, callables that read the data, or smaller partitions"
            )
        self._begin()

    def fresh(self) -> Partition:
        """The same partition, with nothing sent. A thread that still sends this one has no effect then."""
        return Partition(self.number, self._piece, self._chunker, self.inference, self.task)

    def forget(self) -> None:
        """Drop the chunks kept for a second time."""
        self._kept, self.kept_bytes = None, 0
