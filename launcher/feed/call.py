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

# A chunk has about so many bytes, and at most so many rows.
CHUNK_BYTES = 1 << 20
MAX_ROWS = 16384
#: A larger chunk is split once more: its rows are much larger than those before.
FAR_TOO_BIG_BYTES = 64 << 20
# A chunk has at most so many times more rows than the one before: the first rows may be small ones.
_MAX_GROWTH = 8
# A chunk of code weighs so much, because it will make many rows.
_CODE_WEIGHT_BYTES = 2 << 20
# Each result that waits takes so much memory beside its bytes in the frame.
_RESULT_OVERHEAD_BYTES = 64


class Chunk(Record):
    """Some rows, or the code that returns them, ready to be sent."""

    #: How many rows it has; None if it is code.
    rows: int | None
    weight: int
    buffers: Sequence[Buffer]


class Chunker:
    """Cuts partitions into chunks of about a mebibyte. It learns from each chunk how many rows that is."""

    def __init__(self) -> None:
        self.rows = 1  # the first row may have any size

    def chunks(self, piece: Piece) -> Iterator[Chunk]:
        """Yield the rows of a partition, encoded.

        Raises:
            FeedError: The rows cannot be sent.
            Exception: Whatever the code of the user raises.
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
        number: The place of the partition in the order of the rows, from 0.
        piece: Returns the rows. If it can do so only once, the chunks are kept.
        chunker: The chunker of the call.
        is_inference: Whether there is a result for each row.
        task: The task that gets the partition. By default any task may get it.
    """

    def __init__(
        self, number: int, piece: Piece, chunker: Chunker, task: str = "", *, is_inference: bool
    ) -> None:
        self.number = number
        self.is_inference = is_inference
        self.task = task
        #: The results that were not taken yet, in order, and the number of their bytes.
        self.results: list[Any] = []
        self.result_bytes = 0
        self.kept_bytes = 0
        #: Whether all its rows are consumed, or answered.
        self.is_done = False
        self._piece = piece
        self._chunker = chunker
        #: Chunks kept for a second time; None if the piece can return its rows again, or they are too many.
        self._kept: list[Chunk] | None = None if piece.repeatable else []
        self._fresh: Iterator[Chunk] | None = None
        #: The number of results known from all tasks.
        self._known = 0
        self._begin()

    def _begin(self) -> None:
        self._chunks = self._all_chunks()
        #: Whether all chunks were made.
        self.is_complete = False
        #: The number of the last chunk on its connection, or 0 if no chunk was sent.
        self.last = 0
        #: How many rows were sent, and how many results have come.
        self._rows = self._answered = 0
        #: Whether the number of rows is not known yet, because code returns them.
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
        """Make the next chunk, which runs the code of the user. Returns None after the last chunk."""
        return next(self._chunks, None)

    def count_sent(self, chunk: Chunk, number: int) -> None:
        """Count a chunk that is sent now, with this number on its connection."""
        self.last = number
        self._rows += chunk.rows or 0
        self._uncounted = chunk.rows is None

    def set_row_count(self, number: int, rows: int) -> None:
        """Note how many rows the code in the chunk of this number has returned."""
        if self._uncounted and self.last == number:
            self._rows, self._uncounted = rows, False

    @property
    def missing(self) -> int:
        """How many results at least are missing for rows that were sent."""
        return self.is_inference and (1 if self._uncounted else self._rows - self._answered)

    def is_finished(self, consumed: int) -> bool:
        """Return whether all its chunks are consumed, up to this number, or all its rows are answered."""
        return self.is_complete and (self.missing <= 0 if self.is_inference else self.last <= consumed)

    def answer(self, results: list[Any], size: int) -> tuple[list[Any], int]:
        """Take the results of its rows, except those that a lost task has given before.

        Args:
            results: The next results of its task, in order.
            size: The number of bytes that they had in their frame.

        Returns:
            The results that belong to later partitions, and the number of bytes of those that are new.
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
            FeedError: The rows are gone.
        """
        if self._kept is None and not self._piece.repeatable:
            raise FeedError(
                f"partition {self.number} can't be fed again: it can be iterated only once, and is too "
                "big to be kept; feed lists, callables that read the data, or smaller partitions"
            )
        self._begin()

    def fresh(self) -> Partition:
        """Return the same partition with nothing sent. A thread that sends this one has no effect then."""
        return Partition(self.number, self._piece, self._chunker, self.task, is_inference=self.is_inference)

    def forget(self) -> None:
        """Drop the chunks kept for a second time."""
        self._kept, self.kept_bytes = None, 0


#: Partitions that cannot be iterated again are kept up to this size, in case that a task is lost.
MAX_KEPT_BYTES = 512 << 20
#: No more rows are sent while results of so many bytes wait to be taken.
MAX_RESULT_BYTES = 32 << 20
# With equal batches, the fastest task may be so many rounds ahead of the slowest.
_MAX_ROUNDS_AHEAD = 32
#: The key of partitions that any task may get.
_ANY_TASK = ""


class Call:
    """One call of `train` or `inference` on a feed.

    Args:
        source: A generator of pieces; with ``is_in_step`` of rounds, with a block for each task. Threads
            read it.
        tasks: The tasks that are fed.
        timeout: Seconds in which some task must take some row.
        is_inference: Whether there is a result for each row.
        is_in_step: Whether all tasks get the same number of batches.
    """

    def __init__(
        self,
        source: Generator[Any],
        tasks: Sequence[str],
        timeout: float,
        *,
        is_inference: bool = False,
        is_in_step: bool = False,
    ) -> None:
        self.source = source
        self.timeout = timeout
        self.is_inference = is_inference
        self.is_in_step = is_in_step
        #: What the call raises.
        self.error: BaseException | None = None
        #: Whether it has returned or raised.
        self.is_over = False
        #: Whether a thread reads the source, and whether all of it is read.
        self.is_reading = self.is_exhausted = False
        #: When the call last went on: it began, or a task took rows or gave results.
        self.moved = 0.0
        #: Whether the user was told that results are missing.
        self.was_told_missing = False
        #: Tasks that had some partition.
        self.served: set[str] = set()
        #: Whether rows were dropped, because tasks take no more.
        self.has_dropped_rows = False
        #: With equal batches, tasks that have left a batch unfinished, with the reason.
        self.broken: dict[str, str] = {}
        #: With equal batches, whether the rounds are fed again when the tasks have started again.
        self.should_feed_again = False
        self.result_bytes = 0
        self._tasks = tasks
        self._chunker = Chunker()
        #: Partitions that are not finished, or have results to be taken.
        self._partitions: dict[int, Partition] = {}
        #: How many partitions were made.
        self._made = 0
        #: Partitions that no task has: by the task with equal batches, otherwise by `_ANY_TASK`.
        self._queues: defaultdict[str, dict[int, Partition]] = defaultdict(dict)
        #: With equal batches, rounds that not all tasks have consumed, the oldest first.
        self._rounds: deque[list[Partition]] = deque()
        #: The partition that the next results belong to.
        self._next = 0

    def fail(self, error: BaseException) -> None:
        """Let the call raise this, unless it has failed before."""
        self.error = self.error or error

    # What is sent.

    def has_rows(self, task: str) -> bool:
        """Return whether a task may begin with a partition, or the source may be read for one."""
        waiting, readable = self._waiting(task), not (self.is_exhausted or self.is_reading)
        if self.is_in_step:
            return bool(waiting) or (readable and max(map(len, self._queues.values())) < _MAX_ROUNDS_AHEAD)
        return bool(waiting or readable) and self.permits(min(waiting, default=self._made))

    def permits(self, number: int) -> bool:
        """Return whether rows of this partition may be sent.

        They may not while too many results wait, unless the results of this partition are the next ones.
        """
        if self.result_bytes < MAX_RESULT_BYTES:
            return True
        head = self._partitions.get(self._next)
        if number == self._next:
            return not (head and head.results)
        return self._next in self._queues[_ANY_TASK]  # it needs a task that has room

    def is_all_given(self, task: str) -> bool:
        """Return whether there is no partition for a task to begin with, as far as is known."""
        return self.is_exhausted and not self._waiting(task)

    def next_partition(self, task: str) -> Partition | None:
        """Remove the first partition that waits for a task, and return it."""
        waiting = self._waiting(task)
        return waiting.pop(min(waiting)) if waiting else None

    def has_partition(self, partition: Partition | None) -> bool:
        """Return whether this is a partition of this call that is not finished."""
        return partition is not None and self._partitions.get(partition.number) is partition

    def _waiting(self, task: str) -> dict[int, Partition]:
        return self._queues[task if self.is_in_step else _ANY_TASK]

    # What has happened.

    def add(self, item: Any, refused: Sequence[str]) -> None:
        """Make partitions of an item of the source: a piece, or a round of blocks, one for each task.

        Args:
            item: What was read.
            refused: Tasks that take no more rows.
        """
        pieces = [(_ANY_TASK, item)]
        if self.is_in_step:
            pieces = list(zip(self._tasks, map(piece_of, item), strict=True))
        made = []
        for task, piece in pieces:
            if task in refused:
                self.has_dropped_rows = True
                continue
            partition = Partition(self._made, piece, self._chunker, task, is_inference=self.is_inference)
            made.append(partition)
            self._made += 1
        self._put(made)
        if self.is_in_step:
            self._rounds.append(made)
            while self._rounds and not any(map(self.has_partition, self._rounds[0])):
                self._rounds.popleft()

    def _put(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            self._partitions[partition.number] = self._queues[partition.task][partition.number] = partition

    def finish_partition(self, partition: Partition) -> None:
        """Note that all rows of a partition are consumed, or answered."""
        partition.is_done = True
        partition.forget()
        if not self.is_inference and self.has_partition(partition):
            del self._partitions[partition.number]

    def limit_kept(self, partition: Partition) -> None:
        """Keep no more chunks of this partition if too many are kept."""
        if partition.kept_bytes and sum([it.kept_bytes for it in self._partitions.values()]) > MAX_KEPT_BYTES:
            partition.forget()

    def drop_rows_of(self, task: str) -> None:
        """Drop the rows that wait for a task which takes no more, with equal batches."""
        for number in self._queues.pop(task, ()):
            del self._partitions[number]
            self.has_dropped_rows = True

    def give_back(self, partition: Partition, loss: str, *, exactly_once: bool) -> None:
        """Take back a partition that a task has not finished.

        Args:
            partition: The partition.
            loss: Why the task is lost. Empty if it takes no more rows.
            exactly_once: Whether no row may be fed a second time.
        """
        if not self.has_partition(partition):
            return
        if not loss and not self.is_inference and (partition.last or self.is_in_step):
            self.has_dropped_rows = True  # the rows that it has count as consumed
            del self._partitions[partition.number]
        elif self.is_in_step and partition.last:
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
        self.should_feed_again = False
        self.broken.clear()
        self._queues.clear()
        rounds = [each for each in self._rounds if any(map(self.has_partition, each))]
        self._rounds = deque([partition.fresh() for partition in each] for each in rounds)
        self._put([*chain.from_iterable(self._rounds)])

    def end(self) -> None:
        """Send nothing more."""
        self.is_over, self.should_feed_again = True, False
        self._partitions.clear()
        self._queues.clear()

    # What is left.

    @property
    def is_finished(self) -> bool:
        """Whether all rows are consumed, or answered."""
        return self.is_exhausted and not self._partitions

    @property
    def is_none_given(self) -> bool:
        """Whether no task has a partition that is not finished."""
        return len(self._partitions) == len(self._queues[_ANY_TASK])

    def advance_to_results(self) -> bool:
        """Go on to the next partition with results. Returns whether there is one, or all are answered."""
        while (head := self._partitions.get(self._next)) and not head.results:
            if not head.is_done:
                return False
            del self._partitions[self._next]
            self._next += 1
        return head is not None or (self.is_exhausted and self._next >= self._made)

    def take_results(self) -> list[Any] | None:
        """Return the next results in order, after `advance_to_results` has returned true.

        Returns:
            None if no results are left.
        """
        head = self._partitions.get(self._next)
        if head is None:
            return None
        found, head.results = head.results, []
        self.result_bytes -= head.result_bytes
        head.result_bytes = 0
        return found
