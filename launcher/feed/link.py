"""`FedTask`, and `FeedLink`, its connection for a feed: what was sent, consumed and answered. Pure."""

from __future__ import annotations

from collections import deque
from typing import Any

from launcher.common.record import Record
from launcher.feed.call import Chunk, Partition

#: Bytes sent to a task of which it has not begun to hand out rows.
WINDOW_BYTES = 4 << 20


class FeedEnd(Record):
    """The end of a task: the number of its start, the reason, and the time."""

    attempt: int
    reason: str
    at: float
    #: It is to start again. (It may not have ended yet.)
    again: bool = False


class FedTask:
    """A task that is fed."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: The number of its last start, as far as it is known.
        self.attempt = 1
        self.ended: FeedEnd | None = None
        #: Its last connection, which may have broken.
        self.link: FeedLink | None = None
        #: Whether it takes no more rows; because its function has returned.
        self.refused = self.returned = False

    @property
    def is_restarting(self) -> bool:
        """Whether it is to start again."""
        return self.ended is not None and self.ended.again

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or is to start."""
        return self.ended is None or self.is_restarting

    @property
    def takes_rows(self) -> bool:
        """Whether it may take more rows."""
        return self.is_alive and (self.is_restarting or not self.refused)

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
        task: that has made it.
        attempt: the number of its start.
        now: the time.
    """

    def __init__(self, task: FedTask, attempt: int, now: float) -> None:
        self.task = task
        self.attempt = attempt
        self.since = now
        #: Whether the task has sent a frame: by then it is known whether its function takes rows.
        self.opened = False
        #: Whether the function waits for rows, and has all that were sent.
        self.hungry = False
        #: Why no more rows are sent, the error for the task; empty: the feed has ended in an orderly way.
        self.reason: str | None = None
        #: When it ended; ``None``: it has not, and frames may come.
        self.ended: float | None = None
        #: Whether the thread that sends has something to do, or leaves.
        self.busy = False
        #: Whether FLUSH was sent after the last chunk.
        self.flushed = True
        #: The partition whose chunks are being sent.
        self.sending: Partition | None = None
        #: Bytes of which the task has not begun to hand out rows.
        self.window = 0
        #: Chunks sent, and the last consumed one; weights of those of which no row is handed out.
        self._sent = self._consumed = 0
        self._unread: deque[int] = deque()
        #: Partitions with rows that are not consumed (False), or not answered (True).
        self._partitions: dict[bool, deque[Partition]] = {False: deque(), True: deque()}

    @property
    def is_over(self) -> bool:
        """Whether no more rows can be sent."""
        return self.ended is not None or self.reason is not None

    @property
    def has_room(self) -> bool:
        """Whether the task could begin with another partition now."""
        return not (self.sending or self.task.refused or self.is_over) and self.window < WINDOW_BYTES

    @property
    def is_late(self) -> bool:
        """Whether the task has rows, or owes results."""
        waits = self._sent > self._consumed and not self.hungry
        return not self.task.refused and (waits or any(it.missing > 0 for it in self._partitions[True]))

    def give(self, partition: Partition) -> None:
        """The next partition to be sent."""
        self.sending = partition
        self._partitions[partition.inference].append(partition)

    def sent(self, chunk: Chunk) -> None:
        """The next chunk of the partition is sent."""
        assert self.sending is not None
        self._sent += 1
        self.sending.sent(chunk, self._sent)
        self._unread.append(chunk.weight)
        self.window += chunk.weight
        self.hungry = self.flushed = False

    def progress(self, read: int, consumed: int, hungry: bool) -> None:
        """The last chunk of which rows were handed out, and the last consumed one."""
        self._consumed = consumed
        while self._unread and self._sent - len(self._unread) < read:
            self.window -= self._unread.popleft()
        self.hungry = hungry and read >= self._sent

    def counted(self, number: int, rows: int) -> None:
        """The code in a chunk of this number has returned so many rows."""
        for partition in self._partitions[True]:
            partition.counted(number, rows)

    def answer(self, results: list[Any], size: int) -> list[tuple[Partition, int]]:
        """Results have come, in a frame of so many bytes; their partitions, and the bytes for each."""
        found = []
        for partition in self._partitions[True]:
            if not results:
                break
            results, weight = partition.answer(results, size)
            found.append((partition, weight))
            size = 0
        return found

    def finished(self) -> list[Partition]:
        """The partitions of which all rows are consumed, or answered. A partition is returned once."""
        found = []
        for partitions in self._partitions.values():
            while partitions and partitions[0].is_finished(self._consumed):
                found.append(partitions.popleft())
        return found

    def unfinished(self) -> list[Partition]:
        """The unfinished partitions, except one that a thread still sends. A partition is returned once."""
        found = []
        for inference, partitions in self._partitions.items():
            kept = [partition for partition in partitions if self.busy and partition is self.sending]
            found += [partition for partition in partitions if partition not in kept]
            self._partitions[inference] = deque(kept)
        return found

    def end_call(self) -> None:
        """Nothing more is sent of the partitions that it has; the results that are missing may still come."""
        self._partitions[False].clear()
        for partition in self._partitions[True]:
            partition.complete = True
