"""``Call``: the rows of one call of ``train`` or ``inference`` that wait, are under way, or are finished.

`FeedState` calls it. A `Partition` is what one task receives, in chunks, and a `Chunker` decides how many
rows a chunk contains. These classes use no thread, socket or clock. Only `Partition.make` runs code of the
user, so it must be called without a lock.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from launcher.common.errors import FeedError
from launcher.common.record import Record
from launcher.feed.remote import frames
from launcher.feed.remote.codec import Block, Buffer, encode, encode_code, part, size
from launcher.feed.sources import Piece, piece_of

#: The usual size of a chunk.
CHUNK_BYTES = 1 << 20
#: How many rows a chunk contains at most.
MAX_ROWS = 16384
#: A chunk of more bytes is split, because its rows are much larger than those before.
FAR_TOO_BIG_BYTES = 64 << 20
# How many times more rows than the chunk before it a chunk may contain. The first rows may be small ones.
_MAX_GROWTH = 8
# How much a chunk of code counts in addition to its own bytes, because it will make many rows.
_CODE_WEIGHT_BYTES = 2 << 20
# The memory that a waiting result needs in addition to its bytes in the frame.
_RESULT_OVERHEAD_BYTES = 64


class Chunk(Record):
    """Some rows, or the code that returns them, ready to be sent to a task."""

    #: The number of rows, or None if the chunk is code.
    rows: int | None
    #: The number of bytes that the chunk counts for the limits of what a task may have unread.
    weight: int
    buffers: Sequence[Buffer]


class Chunker:
    """Cuts partitions into chunks of about a mebibyte.

    It learns from each chunk how many rows that is.
    """

    def __init__(self) -> None:
        """Start with chunks of a single row, because nothing is known about the size of rows."""
        self.next_rows = 1  # the first row may have any size

    def chunks(self, piece: Piece) -> Iterator[Chunk]:
        """Yield the rows of a piece as encoded chunks.

        Raises:
            FeedError: The rows cannot be sent.
            Exception: Whatever code of the user raises.
        """
        # The number of rows is asked for before each block, because `_encoded` has learned from the last one.
        for block in piece.blocks(lambda: self.next_rows):
            yield from self._encoded(block)

    def _encoded(self, block: Block) -> Iterator[Chunk]:
        """Yield a block of rows as one chunk, or as several if it is far too large.

        The size of the chunk decides how many rows the next block may contain.

        Raises:
            FeedError: A row cannot be sent.
        """
        rows = size(block)
        if not rows:
            return
        # The size of rows is known only when they are pickled.
        buffers = encode(block)
        weight = sum([len(buffer) for buffer in buffers])
        fitting_rows = rows * CHUNK_BYTES // max(1, weight)
        # A few small rows must not make the next chunk huge.
        max_rows = min(max(self.next_rows, rows * _MAX_GROWTH), MAX_ROWS)
        self.next_rows = max(1, min(fitting_rows, max_rows))
        if rows > 1 and weight > FAR_TOO_BIG_BYTES:
            # This frees their memory before the two halves need some.
            buffers.clear()
            yield from self._encoded(part(block, 0, rows // 2))
            yield from self._encoded(part(block, rows // 2, rows))
            return
        frames.check_size(buffers, "a row" if rows == 1 else f"{rows} rows")
        yield Chunk(rows, weight, buffers)


class Partition:
    """The rows of a piece, in chunks, and how many of them the present task has taken.

    `make` may run code of the user, so it is called by one thread at a time, without a lock.

    Args:
        number: The place of the partition in the order of the rows, from 0.
        piece: Returns the rows. If it can do so only once, the chunks are kept for a second time.
        chunker: The chunker of the call.
        task: The name of the task that is to receive the partition. Empty if any task may.
        is_inference: Whether the task returns a result for each row.
    """

    def __init__(
        self, number: int, piece: Piece, chunker: Chunker, task: str = "", *, is_inference: bool
    ) -> None:
        """Make a partition of which nothing was sent."""
        self.number = number
        self.is_inference = is_inference
        self.task = task
        #: The results that the user's program has not taken yet, in the order of their rows.
        self.results: list[Any] = []
        #: The memory of these results, in bytes.
        self.result_bytes = 0
        #: The bytes of the chunks that are kept for a second time.
        self.kept_bytes = 0
        #: Whether all its rows are consumed, or answered by results.
        self.is_done = False
        self._piece = piece
        self._chunker = chunker
        #: The chunks kept for a second time. None if the piece can return its rows again, or if they became
        #: too many.
        self._kept: list[Chunk] | None = None if piece.repeatable else []
        #: Makes the chunks that were not kept. If the piece can be read only once, another task gets the rest
        #: from it when this one is lost. None until the first chunk is made.
        self._new_chunks: Iterator[Chunk] | None = None
        #: The number of results that have come from any task, the present one and lost ones.
        self._result_count = 0
        self._begin()

    def _begin(self) -> None:
        """Prepare to make all chunks (some rows each), for the first task or for another one.

        The results that an earlier task has returned stay, see `answer`.
        """
        self._chunks = self._all_chunks()
        #: Whether all chunks were made.
        self.is_complete = False
        #: The number that the last sent chunk has on its connection, or 0 if no chunk was sent.
        self.last_chunk = 0
        #: How many rows were sent to the present task.
        self._rows = 0
        #: How many results the present task has returned.
        self._answered = 0
        #: Whether the number of rows is not known yet, because the task itself makes them.
        self._is_uncounted = False

    def _all_chunks(self) -> Iterator[Chunk]:
        """Yield all chunks: first those that were kept, then new ones, which run code of the user.

        Raises:
            FeedError: The rows, or the callable that returns them, cannot be sent.
            Exception: Whatever code of the user raises.
        """
        # A callable of the user travels as code, which returns the rows in the task.
        if self._piece.remote is not None:
            code = encode_code(self._piece.remote)
            frames.check_size([code], f"the callable of partition {self.number}")
            yield Chunk(rows=None, weight=len(code) + _CODE_WEIGHT_BYTES, buffers=[code])
            return
        yield from list(self._kept or ())
        # Rows that can be read only once are read on where the last task has stopped.
        if self._new_chunks is None or self._piece.repeatable:
            self._new_chunks = self._chunker.chunks(self._piece)
        for chunk in self._new_chunks:
            if (kept := self._kept) is not None:
                kept.append(chunk)
                self.kept_bytes += chunk.weight
            yield chunk
            del chunk  # so that its memory is free when the next one is made

    def make(self) -> Chunk | None:
        """Make the next chunk, which runs code of the user.

        Returns:
            The chunk, or None after the last one.

        Raises:
            FeedError: The rows cannot be sent.
            Exception: Whatever code of the user raises.
        """
        return next(self._chunks, None)

    def count_sent(self, chunk: Chunk, number: int) -> None:
        """Note that a chunk is sent now.

        Args:
            chunk: The chunk.
            number: The number of the chunk on its connection.
        """
        self.last_chunk = number
        # How many rows the code in a chunk returns is known when the task has run it.
        self._rows += chunk.rows or 0
        self._is_uncounted = chunk.rows is None

    def set_row_count(self, number: int, rows: int) -> None:
        """Note how many rows the code in a chunk has returned in the task.

        Args:
            number: The number of the chunk on its connection. Those of other partitions are ignored.
            rows: The number of rows.
        """
        if self._is_uncounted and self.last_chunk == number:
            self._rows, self._is_uncounted = rows, False

    @property
    def missing(self) -> int:
        """The number of results that are still missing for rows that were sent, at least.

        While the number of rows is not known, this is 1. Without inference it is 0.
        """
        if not self.is_inference:
            return 0
        return 1 if self._is_uncounted else self._rows - self._answered

    def is_finished(self, consumed: int) -> bool:
        """Return whether all rows are consumed, or answered by results if this is inference.

        Args:
            consumed: The number of the last chunk on the connection that the task has consumed.
        """
        return self.is_complete and (self.missing <= 0 if self.is_inference else self.last_chunk <= consumed)

    def answer(self, results: list[Any], size: int) -> tuple[list[Any], int]:
        """Take the results of its rows, except those that a lost task has returned before.

        Args:
            results: The next results of the present task, in order. Some may belong to later partitions.
            size: The number of bytes of these results in their frame.

        Returns:
            The results that belong to later partitions, and the memory in bytes of those that are new here.
        """
        # While the task itself makes the rows and their number is unknown, all results must be for them.
        taken = results if self._is_uncounted else results[: self.missing]
        # A lost task may have returned the results of the first rows already. These are skipped.
        known = max(0, self._result_count - self._answered)
        new = taken[known:]
        self._answered += len(taken)
        self._result_count += len(new)
        self.results += new
        weight = size + _RESULT_OVERHEAD_BYTES * len(new) if new else 0
        self.result_bytes += weight
        return results[len(taken) :], weight

    def restart(self) -> None:
        """Prepare to send all rows once more, to another task.

        Raises:
            FeedError: The rows cannot be read again, and were not kept.
        """
        if self._kept is None and not self._piece.repeatable:
            raise FeedError(
                f"partition {self.number} cannot be fed again: it can be iterated only once, and is too "
                "big to be kept; feed lists, callables that read the data, or smaller partitions"
            )
        self._begin()

    def untouched_copy(self) -> Partition:
        """Return a copy of which nothing was sent, to take the place of this partition in the call.

        What a thread still sends of this one is then ignored.
        """
        return Partition(self.number, self._piece, self._chunker, self.task, is_inference=self.is_inference)

    def forget(self) -> None:
        """Drop the chunks that are kept for a second time, and keep no more."""
        self._kept, self.kept_bytes = None, 0

    def finish(self) -> None:
        """Note that all its rows are consumed, or answered by results. It will not be fed again."""
        self.is_done = True
        self.forget()
        # Results wait for those of earlier partitions, and the rows, which may be large, must not.
        if self.is_inference:
            self._piece, self._chunks, self._new_chunks = Piece(lambda rows: iter(())), iter(()), None


#: The memory for chunks of partitions that can be read only once. They are kept in case a task is lost.
MAX_KEPT_BYTES = 512 << 20
#: No more rows are sent while results of this size wait for the user's program.
MAX_RESULT_BYTES = 32 << 20
# With equal batches, how many rounds the fastest task may be ahead of the slowest.
_MAX_ROUNDS_AHEAD = 32
#: The key of partitions that any task may receive.
_ANY_TASK = ""


class Call:
    """The rows and results of one call of ``train`` or ``inference``.

    `FeedState` tells it what has happened, and asks it what to send next.

    Args:
        source: A generator of pieces. With ``is_in_step`` it yields rounds instead, each with a block for
            every task. Threads read it, one at a time.
        tasks: The names of the tasks that are fed.
        timeout: The number of seconds in which some task must take some row.
        is_inference: Whether tasks return a result for each row.
        is_in_step: Whether all tasks receive the same number of batches (``equal=``).
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
        """Make a call of which no rows were read."""
        self.source = source
        self.timeout = timeout
        self.is_inference = is_inference
        self.is_in_step = is_in_step
        #: The exception that the call raises, or None.
        self.error: BaseException | None = None
        #: Whether the call has returned or raised.
        self.is_over = False
        #: Whether a thread reads the source at present, and whether all of the source was read.
        self.is_reading = self.is_exhausted = False
        #: When the call last made progress: it began, or a task took rows or returned results.
        self.progress_at = 0.0
        #: Whether the user was told that results are missing.
        self.was_told_missing = False
        #: The tasks that have received some partition.
        self.served: set[str] = set()
        #: Whether rows were dropped, because tasks accept no more.
        self.has_dropped_rows = False
        #: With equal batches, the tasks that have left a batch unfinished, with the reason.
        self.broken: dict[str, str] = {}
        #: With equal batches, whether the unfinished rounds are fed once more, because all tasks start again.
        #: `FeedState` sets it, and `feed_rounds_again` clears it.
        self.should_feed_again = False
        #: The memory of all results that wait for the user's program, in bytes.
        self.result_bytes = 0
        self._tasks = tasks
        self._chunker = Chunker()
        #: The partitions that are not finished, and those with results that wait, by their numbers.
        self._partitions: dict[int, Partition] = {}
        #: The number of partitions that were made.
        self._made = 0
        #: The partitions that wait for a task, by their numbers. The outer key is the task with equal
        #: batches, and otherwise `_ANY_TASK`.
        self._queues: defaultdict[str, dict[int, Partition]] = defaultdict(dict)
        #: With equal batches, the rounds that not all tasks have consumed, the oldest first.
        self._rounds: deque[list[Partition]] = deque()
        #: The number of the partition to which the next results belong.
        self._next = 0

    def fail(self, error: BaseException) -> None:
        """Let the call raise this exception in the thread of the user, unless it has failed before."""
        self.error = self.error or error

    # What is to be sent.

    def has_rows(self, task: str) -> bool:
        """Return whether a task can begin with a partition, or the source can be read for one.

        With equal batches, the source is not read on while the slowest task has a long queue. Otherwise, no
        partition begins while too many results wait for the user's program.
        """
        waiting, is_readable = self._waiting(task), not (self.is_exhausted or self.is_reading)
        if self.is_in_step:
            # Each round adds a batch to each queue, so the longest queue is that of the slowest task.
            rounds_ahead = max(map(len, self._queues.values()))
            return bool(waiting) or (is_readable and rounds_ahead < _MAX_ROUNDS_AHEAD)
        # A partition that is read from the source now gets the next number.
        next_number = min(waiting, default=self._made)
        return bool(waiting or is_readable) and self.permits(next_number)

    def permits(self, number: int) -> bool:
        """Return whether rows of the partition with this number may be sent.

        The program takes results in the order of the rows, and those that wait for it need memory. While they
        are too many, rows are sent only if they bring the results that the program takes next.

        Args:
            number: The number of the partition, in the order of the rows. Results of training do not exist,
                so any number may be sent then.
        """
        if self.result_bytes < MAX_RESULT_BYTES:
            return True
        # The partition whose results the program takes next. None if it was not made yet.
        head = self._partitions.get(self._next)
        if number == self._next:
            # If some of its results wait already, the program has to take these first.
            return not (head and head.results)
        # The partition that the program needs next still waits. The tasks must finish theirs to have room for
        # it.
        return self._next in self._queues[_ANY_TASK]

    def is_all_given(self, task: str) -> bool:
        """Return whether no partition is left for a task to begin with, unless another task is lost."""
        return self.is_exhausted and not self._waiting(task)

    def next_partition(self, task: str) -> Partition | None:
        """Remove the first partition that waits for a task, and return it. Return None if there is none."""
        waiting = self._waiting(task)
        return waiting.pop(min(waiting)) if waiting else None

    def has_partition(self, partition: Partition | None) -> bool:
        """Return whether this partition belongs to the call, and is not finished."""
        return partition is not None and self._partitions.get(partition.number) is partition

    def _waiting(self, task: str) -> dict[int, Partition]:
        """Return the partitions that wait for a task, by number.

        With equal batches each task has its own. Otherwise all tasks share them.
        """
        return self._queues[task if self.is_in_step else _ANY_TASK]

    # What has happened.

    def add(self, item: Any, refused: Sequence[str]) -> None:
        """Make partitions from an item that was read from the source, and let them wait for tasks.

        Without `is_in_step` the item is one partition, which any task may receive. With it the item is a
        round, which becomes a partition for each task.

        Args:
            item: A piece, or with `is_in_step` a round of blocks, one for each task.
            refused: The names of the tasks that accept no more rows. With `is_in_step` their blocks are
                dropped.
        """
        pieces = [(_ANY_TASK, item)]
        if self.is_in_step:
            pieces = list(zip(self._tasks, map(piece_of, item), strict=True))
        partitions = []
        for task, piece in pieces:
            if task in refused:
                self.has_dropped_rows = True
                continue
            partition = Partition(self._made, piece, self._chunker, task, is_inference=self.is_inference)
            partitions.append(partition)
            self._made += 1
        self._enqueue(partitions)
        if self.is_in_step:
            self._rounds.append(partitions)
            # A round is fed again if a task is lost. One that all tasks have consumed is not needed for that.
            while self._rounds and not any(map(self.has_partition, self._rounds[0])):
                self._rounds.popleft()

    def _enqueue(self, partitions: Sequence[Partition]) -> None:
        """Let partitions wait for a task, for the first time or again."""
        for partition in partitions:
            self._partitions[partition.number] = partition
            self._queues[partition.task][partition.number] = partition

    def finish_partition(self, partition: Partition) -> None:
        """Note that all rows of a partition are consumed, or answered by results."""
        partition.finish()
        # In inference it stays until its results are taken.
        if not self.is_inference and self.has_partition(partition):
            del self._partitions[partition.number]

    def limit_kept(self, partition: Partition) -> None:
        """Stop keeping the chunks of this partition if those of all partitions became too large.

        Chunks of rows that can be read only once are kept, so that they can be fed again if a task is lost.
        Without them, such a loss fails the call.

        Args:
            partition: The partition of which a chunk is sent now.
        """
        kept_bytes = sum([each.kept_bytes for each in self._partitions.values()])
        if partition.kept_bytes and kept_bytes > MAX_KEPT_BYTES:
            # From now on its chunks are not kept, so if its task is lost, `restart` fails.
            partition.forget()

    def drop_rows_of(self, task: str) -> None:
        """Drop the partitions that wait for a task which accepts no more rows.

        Only with equal batches (``equal=``) each partition belongs to a certain task beforehand. Otherwise
        none waits for this task, and nothing happens.
        """
        for number in self._queues.pop(task, ()):
            del self._partitions[number]
            self.has_dropped_rows = True

    def give_back(self, partition: Partition, loss: str, *, exactly_once: bool) -> None:
        """Take back a partition that a task will not finish, and decide what becomes of its rows.

        - A task of training wanted no more rows: a partition of which it was sent some counts as consumed.
          With equal batches so does any other one, because each task has partitions of its own.
        - A task is lost in the middle of equal batches: all tasks receive the unfinished batches again, or
          the call fails. `FeedState` decides that later, by `broken`.
        - In all other cases another task receives the partition from its beginning. In inference that is so
          for a task that wanted no more rows, too, because every row needs a result. If the rows cannot be
          read again or must not be fed twice, the call fails.

        Args:
            partition: The partition. Nothing happens if it is finished, or belongs to an earlier call.
            loss: Why the task is lost. Empty if the task accepts no more rows.
            exactly_once: Whether no row may be fed a second time.
        """
        if not self.has_partition(partition):
            return
        has_sent_rows = partition.last_chunk > 0
        # Without a loss, the function wanted no more rows. In inference its rows still need results.
        if not loss and not self.is_inference and (has_sent_rows or self.is_in_step):
            self.has_dropped_rows = True
            del self._partitions[partition.number]
        elif self.is_in_step and has_sent_rows:
            # No other task may receive it, so it does not wait in a queue.
            self.broken[partition.task] = loss
        else:
            try:
                # Some rows may have been consumed, although the task did not report it.
                if has_sent_rows and exactly_once:
                    raise FeedError(
                        "it had not consumed all of its rows, and exactly_once=True: they are not fed again"
                    )
                partition.restart()
                self._enqueue([partition])
            except FeedError as error:
                self.fail(FeedError(f"{loss or 'a task takes no more rows'}; {error}"))

    def feed_rounds_again(self) -> None:
        """With equal batches, feed the rounds that not all tasks have consumed once more, to all tasks.

        A round is one batch for each task. All tasks have started again.
        """
        self.should_feed_again = False
        self.broken.clear()
        # The queues are filled again below, with copies of the same batches.
        self._queues.clear()
        unfinished = [each for each in self._rounds if any(map(self.has_partition, each))]
        # Even a task that has consumed its part of such a round receives it again.
        self._rounds = deque([partition.untouched_copy() for partition in each] for each in unfinished)
        for partitions in self._rounds:
            self._enqueue(partitions)

    def end(self) -> None:
        """Close the call, so nothing more is sent for it, and results of its rows are dropped."""
        self.is_over, self.should_feed_again = True, False
        # What a thread still sends or receives for a partition that is not here is ignored.
        self._partitions.clear()
        self._queues.clear()

    # What is left.

    @property
    def is_finished(self) -> bool:
        """Whether all rows are consumed, or answered by results that were taken."""
        return self.is_exhausted and not self._partitions

    @property
    def is_none_given(self) -> bool:
        """Whether all unfinished partitions wait in the queue for any task, so no task has their rows.

        If no task accepts more rows then, the call is over without an error. With equal batches they wait in
        queues of certain tasks, which must consume them, so this is false.
        """
        return len(self._partitions) == len(self._queues[_ANY_TASK])

    def advance_to_results(self) -> bool:
        """Go to the next partition with results, and forget those before it, whose results were all taken.

        Returns:
            Whether there are results to be taken, or no more will come because all rows are answered.
        """
        while (head := self._partitions.get(self._next)) and not head.results:
            # More of its results will come.
            if not head.is_done:
                return False
            del self._partitions[self._next]
            self._next += 1
        # Without a partition of this number, it was not read yet, or the last one is behind us.
        return head is not None or (self.is_exhausted and self._next >= self._made)

    def take_results(self) -> list[Any] | None:
        """Return the next results in the order of the rows, after `advance_to_results` has returned true.

        Returns:
            The results, or None if no results are left.
        """
        head = self._partitions.get(self._next)
        if head is None:
            return None
        results, head.results = head.results, []
        self.result_bytes -= head.result_bytes
        head.result_bytes = 0
        return results
