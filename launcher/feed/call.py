"""`Call`: the rows of one call of `train` or `inference`: what waits, is finished, comes next.

A `Partition` is what one task gets, in chunks; a `Chunker` decides how many rows a chunk has. `FeedState`
calls these. They are pure, but for the code of the user that a partition runs to make its chunks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from typing import Any

from launcher.common.errors import FeedError
from launcher.common.record import Record
from launcher.feed.remote import frames
from launcher.feed.remote.codec import Block, Buffer, encode, encode_code, part, size
from launcher.feed.sources import Piece, piece_of

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


#: Bytes of partitions that cannot be iterated again, kept in case that a task is lost.
MAX_KEPT_BYTES = 512 << 20
#: Bytes of results that wait to be taken: beyond, no more rows are sent.
MAX_RESULT_BYTES = 32 << 20
#: Equal batches: rounds that the fastest task may be ahead of the slowest.
_MAX_ROUNDS_AHEAD = 32
#: The key of partitions that any task may get.
_ANY_TASK = ""


class Call:
    """One call of `train` or `inference` on a feed.

    Args:
        source: a generator of pieces; with ``in_step`` of rounds, a block for each task. Threads read it.
        tasks: that are fed.
        timeout: seconds in which some task must take some row.
        inference: whether there is a result for each row.
        in_step: whether all tasks get the same number of batches.
    """

    def __init__(
        self,
        source: Generator[Any],
        tasks: Sequence[str],
        timeout: float,
        inference: bool = False,
        in_step: bool = False,
    ) -> None:
        self.source = source
        self.timeout = timeout
        self.inference = inference
        self.in_step = in_step
        #: What the call raises; whether it has returned or raised.
        self.error: BaseException | None = None
        self.over = False
        #: Whether a thread reads the source; whether all of it is read.
        self.reading = self.exhausted = False
        #: When it began, a task took rows, or gave results.
        self.moved = 0.0
        #: Whether the user was told that results are missing.
        self.told_missing = False
        #: Tasks that had some partition; whether rows were dropped, because tasks take no more.
        self.served: set[str] = set()
        self.dropped = False
        #: Equal batches: tasks that have left a batch unfinished, with the reason; whether the rounds are fed
        #: again when the tasks have started again.
        self.broken: dict[str, str] = {}
        self.again = False
        self.result_bytes = 0
        self._tasks = tasks
        self._chunker = Chunker()
        #: Partitions that are not finished, or have results to be taken; the number of all that were made.
        self._partitions: dict[int, Partition] = {}
        self._made = 0
        #: Those of them that no task has: equal batches, by task; those that any task may get, by
        #: `_ANY_TASK`.
        self._queues: defaultdict[str, dict[int, Partition]] = defaultdict(dict)
        #: Equal batches: rounds that not all tasks have consumed, oldest first.
        self._rounds: deque[list[Partition]] = deque()
        #: The partition that the next results belong to.
        self._next = 0

    def fail(self, error: BaseException) -> None:
        """The call raises this, unless it has failed before."""
        self.error = self.error or error

    # What is sent.

    def has_rows(self, task: str) -> bool:
        """Whether there is a partition with which a task may begin, or the source may be read for one."""
        waiting, readable = self._waiting(task), not (self.exhausted or self.reading)
        if self.in_step:
            return bool(waiting) or (readable and max(map(len, self._queues.values())) < _MAX_ROUNDS_AHEAD)
        return bool(waiting or readable) and self.permits(min(waiting, default=self._made))

    def permits(self, number: int) -> bool:
        """Whether rows of this partition may be sent: too many results wait only if they are not the next."""
        if self.result_bytes < MAX_RESULT_BYTES:
            return True
        head = self._partitions.get(self._next)
        if number == self._next:
            return not (head and head.results)
        return self._next in self._queues[_ANY_TASK]  # it needs a task that has room

    def is_all_given(self, task: str) -> bool:
        """Whether there is no partition for a task to begin with, as far as is known."""
        return self.exhausted and not self._waiting(task)

    def next_partition(self, task: str) -> Partition | None:
        """The first partition that waits for a task; it waits no more."""
        waiting = self._waiting(task)
        return waiting.pop(min(waiting)) if waiting else None

    def has_partition(self, partition: Partition | None) -> bool:
        """Whether this is a partition of this call that is not finished."""
        return partition is not None and self._partitions.get(partition.number) is partition

    def _waiting(self, task: str) -> dict[int, Partition]:
        return self._queues[task if self.in_step else _ANY_TASK]

    # What has happened.

    def add(self, item: Any, refused: Sequence[str]) -> None:
        """Make partitions of an item of the source: a piece, or a round of blocks, one for each task.

        Args:
            refused: tasks that take no more rows.
        """
        pieces = zip(self._tasks, map(piece_of, item), strict=True) if self.in_step else [(_ANY_TASK, item)]
        made = []
        for task, piece in pieces:
            if task in refused:
                self.dropped = True
                continue
            made.append(Partition(self._made, piece, self._chunker, self.inference, task))
            self._made += 1
        self._put(made)
        if self.in_step:
            self._rounds.append(made)
            while self._rounds and not any(map(self.has_partition, self._rounds[0])):
                self._rounds.popleft()

    def _put(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self._partitions[partition.number] = self._queues[partition.task][partition.number] = partition

    def finished(self, partition: Partition) -> None:
        """All rows of a partition are consumed, or answered."""
        partition.done = True
        partition.forget()
        if not self.inference and self.has_partition(partition):
            del self._partitions[partition.number]

    def limit_kept(self, partition: Partition) -> None:
        """Keep no more chunks of this partition if too many are kept."""
        if partition.kept_bytes and sum([it.kept_bytes for it in self._partitions.values()]) > MAX_KEPT_BYTES:
            partition.forget()

    def drop_rows_of(self, task: str) -> None:
        """Equal batches: a task takes no more."""
        for number in self._queues.pop(task, ()):
            del self._partitions[number]
            self.dropped = True

    def give_back(self, partition: Partition, loss: str, exactly_once: bool) -> None:
        """A task has not finished a partition: it is lost, or (empty) it takes no more rows."""
        if not self.has_partition(partition):
            return
        if not loss and not self.inference and (partition.last or self.in_step):
            self.dropped = True  # the rows that it has count as consumed
            del self._partitions[partition.number]
        elif self.in_step and partition.last:
            self.broken[partition.task] = loss
        else:
            try:
                if partition.last and exactly_once:
                    raise FeedError(
                        "it had not consumed all of its rows, and exactly_once=True: they are not fed again"
                    )
                partition.restart()
                self._put([partition])
            except FeedError as error:
                self.fail(FeedError(f"{loss or 'a task takes no more rows'}; {error}"))

    def feed_rounds_again(self) -> None:
        """Feed the rounds that not all tasks have consumed again, to all of them."""
        self.again = False
        self.broken.clear()
        self._queues.clear()
        rounds = [each for each in self._rounds if any(map(self.has_partition, each))]
        self._rounds = deque([partition.fresh() for partition in each] for each in rounds)
        self._put([*chain.from_iterable(self._rounds)])

    def end(self) -> None:
        """Nothing more is sent."""
        self.over, self.again = True, False
        self._partitions.clear()
        self._queues.clear()

    # What is left.

    @property
    def is_finished(self) -> bool:
        """Whether all rows are consumed, or answered."""
        return self.exhausted and not self._partitions

    @property
    def is_none_given(self) -> bool:
        """Whether no task has a partition that is not finished."""
        return len(self._partitions) == len(self._queues[_ANY_TASK])

    def advance_to_results(self) -> bool:
        """Go on to the next partition with results; whether there is one, or all are answered."""
        while (head := self._partitions.get(self._next)) and not head.results:
            if not head.done:
                return False
            del self._partitions[self._next]
            self._next += 1
        return head is not None or (self.exhausted and self._next >= self._made)

    def take_results(self) -> list[Any] | None:
        """Return the next results in order, if `advance_to_results`; ``None``: no results are left."""
        head = self._partitions.get(self._next)
        if head is None:
            return None
        found, head.results = head.results, []
        self.result_bytes -= head.result_bytes
        head.result_bytes = 0
        return found
