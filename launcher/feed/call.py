"""`Call`: the rows of one call of `train` or `inference`: what waits, is finished, comes next. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Sequence
from itertools import chain
from typing import Any

from launcher.common.errors import FeedError
from launcher.feed.partition import Chunker, Partition
from launcher.feed.sources import piece_of

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
