"""A task that is fed, and its connection: what was sent on it, consumed and answered.

`FeedState` owns `FedTask` and `FeedLink`. Both are pure: they send and receive nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from launcher.common.record import Record
from launcher.feed.call import Chunk, Partition

#: A task gets no more as long as it has not begun to hand out rows of so many bytes.
WINDOW_BYTES = 4 << 20


class FeedEnd(Record):
    """The end of a task, with the number of its start, the reason, and the time."""

    attempt: int
    reason: str
    at: float
    #: Whether it is to start again. It may not have ended yet.
    is_restart: bool = False


class FedTask:
    """A task that is fed."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: The number of its last start, as far as it is known.
        self.attempt = 1
        self.ended: FeedEnd | None = None
        #: Its last connection, which may have broken.
        self.link: FeedLink | None = None
        #: Whether it takes no more rows, and whether that is because its function has returned.
        self.has_refused = self.has_returned = False

    @property
    def is_restarting(self) -> bool:
        """Whether it is to start again."""
        return self.ended is not None and self.ended.is_restart

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or is to start."""
        return self.ended is None or self.is_restarting

    @property
    def takes_rows(self) -> bool:
        """Whether it may take more rows."""
        return self.is_alive and (self.is_restarting or not self.has_refused)

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection."""
        return self.link is not None and self.link.ended is None

    @property
    def is_late(self) -> bool:
        """Whether it runs, and has rows or owes results."""
        return self.ended is None and self.link is not None and self.link.ended is None and self.link.is_late


class FeedLink:
    """A connection of a task.

    Args:
        task: The task that has made the connection.
        attempt: Which start of the task this is.
        now: The time.
    """

    def __init__(self, task: FedTask, attempt: int, now: float) -> None:
        self.task = task
        self.attempt = attempt
        self.since = now
        #: Whether the task has sent a frame: by then it is known whether its function takes rows.
        self.has_opened = False
        #: Whether the function waits for rows, and has all that were sent.
        self.is_hungry = False
        #: Why no more rows are sent: the error for the task, or an empty text if the feed has simply ended.
        self.reason: str | None = None
        #: When it ended. Until then frames may come.
        self.ended: float | None = None
        #: Whether the thread that sends has something to do, or leaves.
        self.is_busy = False
        #: Whether FLUSH was sent after the last chunk.
        self.was_flushed = True
        #: The partition whose chunks are being sent.
        self.sending: Partition | None = None
        #: The number of bytes of which the task has not begun to hand out rows.
        self.window = 0
        #: The numbers of the last chunk that was sent, and of the last one that was consumed.
        self._sent = self._consumed = 0
        #: The weights of chunks of which no row was handed out.
        self._unread: deque[int] = deque()
        #: Partitions by whether their rows must be answered, or only be consumed.
        self._partitions: dict[bool, deque[Partition]] = {False: deque(), True: deque()}

    @property
    def is_over(self) -> bool:
        """Whether no more rows can be sent."""
        return self.ended is not None or self.reason is not None

    @property
    def is_late(self) -> bool:
        """Whether the task has rows, or owes results."""
        waits = self._sent > self._consumed and not self.is_hungry
        return not self.task.has_refused and (waits or any(it.missing > 0 for it in self._partitions[True]))

    def begin(self, partition: Partition) -> None:
        """Begin to send a partition."""
        self.sending = partition
        self._partitions[partition.is_inference].append(partition)

    def count_sent(self, chunk: Chunk) -> None:
        """Count the next chunk of the partition, which is sent now."""
        assert self.sending is not None
        self._sent += 1
        self.sending.count_sent(chunk, self._sent)
        self._unread.append(chunk.weight)
        self.window += chunk.weight
        self.is_hungry = self.was_flushed = False

    def progress(self, read: int, consumed: int, *, is_hungry: bool) -> None:
        """Note how far the task is.

        Args:
            read: The last chunk of which rows were handed out.
            consumed: The last chunk that was consumed.
            is_hungry: Whether the function waits for rows.
        """
        self._consumed = consumed
        while self._unread and self._sent - len(self._unread) < read:
            self.window -= self._unread.popleft()
        self.is_hungry = is_hungry and read >= self._sent

    def set_row_count(self, number: int, rows: int) -> None:
        """Note how many rows the code in the chunk of this number has returned."""
        for partition in self._partitions[True]:
            partition.set_row_count(number, rows)

    def answer(self, results: list[Any], size: int) -> list[tuple[Partition, int]]:
        """Take results that came in a frame of so many bytes.

        Returns:
            The partitions that they belong to, with the bytes for each.
        """
        found = []
        for partition in self._partitions[True]:
            if not results:
                break
            results, weight = partition.answer(results, size)
            found.append((partition, weight))
            size = 0
        return found

    def pop_finished(self) -> list[Partition]:
        """Return, once, each partition of which all rows are consumed, or answered."""
        found = []
        for partitions in self._partitions.values():
            while partitions and partitions[0].is_finished(self._consumed):
                found.append(partitions.popleft())
        return found

    def pop_unfinished(self) -> list[Partition]:
        """Return, once, each unfinished partition, except one that a thread still sends."""
        found = []
        for inference, partitions in self._partitions.items():
            kept = [partition for partition in partitions if self.is_busy and partition is self.sending]
            found += [partition for partition in partitions if partition not in kept]
            self._partitions[inference] = deque(kept)
        return found

    def end_call(self) -> None:
        """Send nothing more of the partitions that it has. Results that are missing may still come."""
        self._partitions[False].clear()
        for partition in self._partitions[True]:
            partition.is_complete = True
