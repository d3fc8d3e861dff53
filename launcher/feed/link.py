"""What is known about a task that is fed, and about its connection: what was sent, consumed and answered.

`FeedState` owns `FedTask` and `FeedLink`. Neither may send or receive anything: `launcher.feed.feeder` does
so, and reports it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from launcher.common.record import Record
from launcher.feed.call import Chunk, Partition

#: A task is sent no more while its function has not begun to read this many bytes of what it has received.
WINDOW_BYTES = 4 << 20


class FeedEnd(Record):
    """The end of a task."""

    #: The number of the start that has ended.
    attempt: int
    #: Why it has ended. This completes the sentence "worker/0 ...".
    reason: str
    #: When it has ended, by `time.monotonic`.
    at: float
    #: Whether the task is to start again. In this case it may not have ended yet.
    is_restart: bool = False


class FedTask:
    """A task that is fed, with its last connection and its end.

    Args:
        name: The name of the task, such as ``worker/0``.
    """

    def __init__(self, name: str) -> None:
        """Record a task that has not opened the feed."""
        self.name = name
        #: The number of its last start, as far as this is known.
        self.attempt = 1
        #: How its last start has ended, or that it is to end for a restart. None while the task simply runs.
        self.ended: FeedEnd | None = None
        #: The last connection of the task, which may have broken.
        self.link: FeedLink | None = None
        #: Whether the task accepts no more rows, and whether the reason is that its function has returned.
        self.has_refused = self.has_returned = False

    @property
    def is_restarting(self) -> bool:
        """Whether the task is to start again."""
        return self.ended is not None and self.ended.is_restart

    @property
    def is_alive(self) -> bool:
        """Whether the task runs, or is to start again."""
        return self.ended is None or self.is_restarting

    @property
    def takes_rows(self) -> bool:
        """Whether the task may accept more rows, now or after a restart."""
        # The new process of a task that starts again may accept rows, even if the old one has refused them.
        return self.is_alive and (self.is_restarting or not self.has_refused)

    @property
    def is_connected(self) -> bool:
        """Whether the task has a connection that works."""
        return self.link is not None and self.link.ended is None

    @property
    def is_late(self) -> bool:
        """Whether the task runs, and has unread rows or owes results."""
        return self.ended is None and self.link is not None and self.link.ended is None and self.link.is_late


class FeedLink:
    """One connection of a task to a feed, and what was sent on it.

    Args:
        task: The task that has made the connection.
        attempt: Which start of the task this is, from 1.
        now: The time, by `time.monotonic`.
    """

    def __init__(self, task: FedTask, attempt: int, now: float) -> None:
        """Record a new connection of a task, on which nothing was sent."""
        self.task = task
        self.attempt = attempt
        #: When the task has connected.
        self.since = now
        #: Whether the task has sent a frame. By then it is known whether its function accepts rows.
        self.has_opened = False
        #: Whether the function waits for rows, and has read everything that was sent.
        self.is_hungry = False
        #: Why no more rows are sent. None while they are. An empty text stands for the end of the feed, and
        #: any other text is the error for the task.
        self.reason: str | None = None
        #: When the connection ended, or None. Until then frames may come.
        self.ended: float | None = None
        #: Whether the thread that sends has something to do, or has been told to leave.
        self.is_busy = False
        #: Whether a FLUSH frame was sent after the last chunk.
        self.was_flushed = True
        #: The partition whose chunks are being sent, or None.
        self.sending: Partition | None = None
        #: The weight in bytes of the chunks that the function of the task has not begun to read.
        self.window = 0
        #: The numbers of the last chunk that was sent, and of the last one that was consumed.
        self._sent = self._consumed = 0
        #: The weights of the chunks that the function has not begun to read, the oldest first.
        self._unread: deque[int] = deque()
        #: The unfinished partitions of training, the oldest first.
        self._trained: deque[Partition] = deque()
        #: The unfinished partitions of inference, whose rows must be answered by results, the oldest first.
        self._inferred: deque[Partition] = deque()

    @property
    def is_over(self) -> bool:
        """Whether no more rows can be sent: the connection has ended, or a reason to close it was given."""
        return self.ended is not None or self.reason is not None

    @property
    def is_late(self) -> bool:
        """Whether the task has unread rows, or owes results, so a call waits for it."""
        # A task that waits for rows (is hungry) has read all of them, even if a batch that is not full yet
        # does not count as consumed.
        has_unread_rows = self._sent > self._consumed and not self.is_hungry
        owes_results = any(partition.missing > 0 for partition in self._inferred)
        return not self.task.has_refused and (has_unread_rows or owes_results)

    def begin(self, partition: Partition) -> None:
        """Note that the thread of this connection begins to send a partition."""
        self.sending = partition
        (self._inferred if partition.is_inference else self._trained).append(partition)

    def count_sent(self, chunk: Chunk) -> None:
        """Note that the next chunk of the present partition is sent now."""
        assert self.sending is not None
        self._sent += 1
        self.sending.count_sent(chunk, self._sent)
        self._unread.append(chunk.weight)
        self.window += chunk.weight
        self.is_hungry = self.was_flushed = False

    def progress(self, read: int, consumed: int, *, is_hungry: bool) -> None:
        """Note how many chunks the task has read and consumed.

        Args:
            read: The number of the last chunk that the function has begun to read.
            consumed: The number of the last chunk that is consumed.
            is_hungry: Whether the function waits for rows.
        """
        self._consumed = consumed
        # The number of the oldest unread chunk is `_sent - len(_unread) + 1`.
        while self._unread and self._sent - len(self._unread) < read:
            self.window -= self._unread.popleft()
        # A chunk may have been sent while the task reported that it waits.
        self.is_hungry = is_hungry and read >= self._sent

    def set_row_count(self, number: int, rows: int) -> None:
        """Note how many rows the code in a chunk has returned in the task.

        A chunk contains rows, or code that makes them in the task. Only the task knows how many it makes.

        Args:
            number: The number of the chunk on this connection.
            rows: The number of rows.
        """
        # The partition that contains the chunk knows its number, and the others ignore the call. In training
        # rows are not counted, because no results are awaited.
        for partition in self._inferred:
            partition.set_row_count(number, rows)

    def answer(self, results: list[Any], size: int) -> list[tuple[Partition, int]]:
        """Distribute results to the partitions whose rows they answer.

        Args:
            results: The results, in the order of the rows.
            size: The number of bytes of the frame in which they came.

        Returns:
            The partitions that have received results, each with the memory of the new ones in bytes.
        """
        answered = []
        for partition in self._inferred:
            if not results:
                break
            results, weight = partition.answer(results, size)
            answered.append((partition, weight))
            size = 0  # the bytes of the frame count once, for the first partition
        return answered

    def pop_finished(self) -> list[Partition]:
        """Remove and return the partitions whose rows are all consumed, or answered by results."""
        finished = []
        for partitions in (self._trained, self._inferred):
            # The task reads them one after another, so the oldest one is finished first.
            while partitions and partitions[0].is_finished(self._consumed):
                finished.append(partitions.popleft())
        return finished

    def pop_unfinished(self) -> list[Partition]:
        """Remove and return the unfinished partitions, except one that a thread still sends.

        The task will not finish them, so their rows go to other tasks.
        """
        unfinished = [*self._trained, *self._inferred]
        self._trained.clear()
        self._inferred.clear()
        sending = self.sending
        # Its thread runs code of the user, which no other thread may run at the same time. The partition is
        # taken by the next call, after the thread has stopped.
        if self.is_busy and sending is not None and sending in unfinished:
            unfinished.remove(sending)
            # This puts it back among the unfinished ones, from which it was removed above.
            self.begin(sending)
        return unfinished

    def end_call(self) -> None:
        """Stop sending the partitions of the program's present call of `train` or `inference`.

        Results of `inference` that are missing may still come. They must still be counted, because the first
        results of the next call follow them. `train` has no results.
        """
        self._trained.clear()
        for partition in self._inferred:
            # All that will be sent of it was sent, so it is finished when the results of that have come.
            partition.is_complete = True
