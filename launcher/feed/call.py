"""A call of `train` or `inference`: which task gets which partition, and when all are consumed.

All methods but `take` and `results` are called with the lock of the feeder.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any

from launcher.errors import FeedError, FeedTimeout
from launcher.feed.channel import Chunker, Partition, WorkerChannel
from launcher.feed.sources import piece_of, run_user_code
from launcher.record import Record
from launcher.text import Waiting, listed

#: Bytes of partitions that cannot be iterated again, kept in case that a task is lost.
MOST_KEPT = 512 << 20
#: Bytes of results that wait to be taken, and for each of them: beyond, no more rows are sent.
MOST_RESULTS, _RESULT = 32 << 20, 64
#: The key of partitions that any task may get.
_ANY = ""
#: Equal batches: rounds that the fastest task may be ahead of the slowest.
_AHEAD = 32
IN_STEP = "equal batches are for all tasks or for none"
#: Seconds for all tasks to open their feeds; until then each gets one partition.
GATHERING = 10.0
#: Seconds without any task: in this time the job should have failed, for a more precise reason.
LONELY = 1.0
#: Seconds between two looks at the time.
LOOK = 0.25


class Ended(Record):
    """The end of a task: the number of its start, the reason, and the time."""

    attempt: int
    reason: str
    at: float
    #: It is to start again. (It may not have ended yet.)
    again: bool = False


@dataclass
class Feed:
    """A feed: its tasks, and the call that is served. Used with the lock."""

    name: str
    lock: threading.RLock
    #: The names of all tasks that are fed, in their order; those that have ended.
    tasks: Sequence[str]
    ended: dict[str, Ended]
    #: Whether a lost task is an error.
    exactly_once: bool
    #: The last lines of a task, for messages.
    last_lines: Callable[[str], Sequence[str]]
    #: Takes lines about long waits.
    notice: Callable[[str], None]
    #: The last channel of each task; its connection may have broken.
    channels: dict[str, WorkerChannel] = field(default_factory=dict)
    call: FeedCall | None = None
    #: Whether nothing more will be fed.
    finished: bool = False

    @property
    def alive(self) -> list[str]:
        """Tasks that run, or are to start."""
        return [task for task in self.tasks if task not in self.ended or self.ended[task].again]

    @property
    def restarting(self) -> set[str]:
        """Tasks that are to start again."""
        return {task for task, end in self.ended.items() if end.again}

    def wake(self) -> None:
        """Let all channels look for something to do."""
        for channel in self.channels.values():
            channel.wake.notify_all()


class FeedCall:
    """One call of `train` or `inference` on a feed.

    Args:
        feed: the feed.
        source: a generator of pieces, read lazily; with ``in_step`` of rounds, a block for each task.
        timeout: seconds in which some task must take some row.
        inference: whether there is a result for each row.
        in_step: whether all tasks get the same number of batches.
    """

    def __init__(
        self,
        feed: Feed,
        source: Generator[Any],
        timeout: float,
        inference: bool = False,
        in_step: bool = False,
    ) -> None:
        self.inference = inference
        self.timeout = timeout
        self.chunker = Chunker()
        self.error: BaseException | None = None
        self.over = False
        self.feed = feed
        self._changed = threading.Condition(feed.lock)
        # The source, the number of partitions made of it, and tasks that had some.
        self._source = source
        self._reading = self._exhausted = False
        self._made = 0
        self._served: set[str] = set()
        #: Partitions that are not finished, or have results to be taken.
        self._partitions: dict[int, Partition] = {}
        #: Those of them that no task has: equal batches, by task; those to be fed again, by `_ANY`.
        self._queues: defaultdict[str, dict[int, Partition]] = defaultdict(dict)
        #: Equal batches: rounds that not all tasks have consumed, oldest first; tasks that have left a batch
        #: unfinished, with the reason; whether the rounds are fed again when the tasks have started again.
        self._in_step = in_step
        self._rounds: deque[list[Partition]] = deque()
        self._broken: dict[str, str] = {}
        self._again = in_step and not feed.exactly_once and set(feed.tasks) <= feed.restarting
        #: Results: the partition that the next ones belong to, bytes that wait.
        self._next = self._result_bytes = 0
        # Tasks that take no more rows, and whether rows were dropped with that.
        channels = {name: channel for name, channel in feed.channels.items() if name not in feed.ended}
        self._refused = {name for name, channel in channels.items() if channel.terminated}
        self._dropped = False
        self._returned = {name for name, channel in channels.items() if channel.returned}
        #: The thread that waits for the end, or takes results.
        self.taker = threading.current_thread()
        #: When it has taken results (infinity: it waits for some); when a task took rows or gave results.
        self._taken = self._moved = time.monotonic()
        self._waiting = Waiting()

    # Partitions for channels.

    def offers(self, channel: WorkerChannel) -> bool:
        """Whether there is a partition for a task now: it waits for rows, or has the fewest unread ones."""
        if self.over or self.error is not None or not channel.has_room:
            return False
        waiting, readable = self._queue(channel), not (self._exhausted or self._reading)
        if self._in_step:
            return bool(waiting) or (readable and max(map(len, self._queues.values())) < _AHEAD)
        if not (waiting or readable) or not self.permits(min(waiting, default=self._made)):
            return False
        if not self._gathered():
            return channel.task not in self._served
        others = [other for other in self.feed.channels.values() if other is not channel and other.has_room]
        return channel.hungry or all(channel.window <= other.window for other in others)

    def permits(self, number: int) -> bool:
        """Whether rows of this partition may be sent: too many results wait only if they are not the next."""
        if self._result_bytes < MOST_RESULTS:
            return True
        head = self._partitions.get(self._next)
        if number == self._next:
            return not (head and head.results)
        return self._next in self._queues[_ANY]  # it needs a task that has room

    def all_given(self, channel: WorkerChannel) -> bool:
        """Whether there is no partition for a task to begin with, as far as is known."""
        return self._exhausted and not self._queue(channel)

    def take(self, channel: WorkerChannel) -> Partition | None:
        """The next partition of a task; ``None``: it has to ask again. Reads the source, the user's code."""
        with self.feed.lock:
            if not self.offers(channel):
                return None
            self._served.add(channel.task)
            if (partition := self._next_partition(channel)) is not None:
                return partition
            self._reading = True
        item, error = run_user_code(lambda: next(self._source, None))
        with self.feed.lock:
            self._reading = False
            self.moved()
            if error is not None:
                self.fail(error)
            if self.over:
                self._source.close()
                return None
            self._exhausted = item is None
            if item is not None:
                self._add(item)
            self.changed()
            return self._next_partition(channel)

    def _queue(self, channel: WorkerChannel) -> dict[int, Partition]:
        """The partitions that wait for this task."""
        return self._queues[channel.task if self._in_step else _ANY]

    def _add(self, item: Any) -> None:
        """Make partitions of an item of the source: a piece, or a round of blocks, one for each task."""
        tasks = self.feed.tasks if self._in_step else [_ANY]
        made = []
        for task, piece in zip(tasks, map(piece_of, item) if self._in_step else [item], strict=True):
            if task in self._refused:
                self._dropped = True
                continue
            partition = Partition(self, self._made, piece, task)
            self._partitions[self._made] = self._queues[task][self._made] = partition
            self._made += 1
            made.append(partition)
        if self._in_step:
            self._rounds.append(made)
            while self._rounds and not any(
                partition.number in self._partitions for partition in self._rounds[0]
            ):
                self._rounds.popleft()

    def _next_partition(self, channel: WorkerChannel) -> Partition | None:
        """Give a task the first partition that waits for it."""
        if not (waiting := self._queue(channel)):
            return None
        partition = waiting.pop(min(waiting))
        channel.add(partition)
        self.feed.wake()  # the source may be read again
        return partition

    def _gathered(self) -> bool:
        """Whether all tasks have opened the feed, or had the time to."""
        channels = self.feed.channels
        if len(channels) >= len(self.feed.tasks) - len(self.feed.ended):
            return True
        now = time.monotonic()
        return now - min([channel.since for channel in channels.values()], default=now) > GATHERING

    # Events of partitions.

    def moved(self) -> None:
        """A task took rows, or gave results."""
        self._moved = time.monotonic()

    def answered(self, partition: Partition, new: int, size: int) -> None:
        """So many new results of a partition have come, in a frame of so many bytes."""
        if new and not self.over:
            partition.result_bytes += size + _RESULT * new
            self._result_bytes += size + _RESULT * new
            self._changed.notify_all()

    def finished(self, partition: Partition) -> None:
        """All rows of a partition are consumed, or answered."""
        partition.done = True
        partition.forget()
        if not self.inference and self._partitions.get(partition.number) is partition:
            del self._partitions[partition.number]
        self._changed.notify_all()

    def limit_kept(self, partition: Partition) -> None:
        """Keep no more chunks of this partition if too many are kept."""
        if partition.kept_bytes and sum([it.kept_bytes for it in self._partitions.values()]) > MOST_KEPT:
            partition.forget()

    def refused(self, channel: WorkerChannel) -> None:
        """A task takes no more rows."""
        self._refused.add(channel.task)
        for number in self._queues.pop(channel.task, ()):
            del self._partitions[number]
            self._dropped = True
        if channel.returned:
            self._returned.add(channel.task)
        self.changed()

    def given_back(self, partition: Partition, loss: str) -> None:
        """A task has not finished a partition: it is lost, or (empty) it takes no more rows."""
        if self.over or self._partitions.get(partition.number) is not partition:
            return
        if not loss and not self.inference and (partition.last or self._in_step):
            self._dropped = True  # the rows that it has count as consumed
            del self._partitions[partition.number]
        elif self._in_step and partition.last:
            self._broken[partition.task] = loss  # `_look_at_step` decides
        else:
            try:
                if partition.last and self.feed.exactly_once:
                    raise FeedError(
                        "it had not consumed all of its rows, and exactly_once=True: they are not fed again"
                    )
                partition.restart()
                self._queues[partition.task][partition.number] = partition
            except FeedError as error:
                self.fail(FeedError(f"{loss or 'a task takes no more rows'}; {error}"))
        self.changed()

    def restarting(self, tasks: Collection[str]) -> None:
        """These tasks are to start again."""
        if not self._in_step:
            return
        self._again = not self.feed.exactly_once and set(self.feed.tasks) <= self.feed.restarting
        if not self._again:
            rule = "exactly_once=True: no rows are fed again" if self.feed.exactly_once else IN_STEP
            self.fail(FeedError(f"a restart of {listed(list(tasks))}; {rule}"))

    def started_again(self, task: str) -> None:
        """A task has started again: no process of those that start together with it is left."""
        self._refused.discard(task)
        self._returned.discard(task)
        if self._again:
            for channel in self.feed.channels.values():
                channel.close("all tasks start again", ended=True)
            self._feed_rounds_again()
        self.changed()

    def _feed_rounds_again(self) -> None:
        """Feed the rounds that not all tasks have consumed again, to all of them."""
        self._again = False
        for of_tasks in (self._refused, self._returned, self._broken, self._queues):
            of_tasks.clear()
        rounds = [each for each in self._rounds if any(it.number in self._partitions for it in each)]
        self._rounds = deque([partition.fresh() for partition in each] for each in rounds)
        for partition in chain.from_iterable(self._rounds):
            self._partitions[partition.number] = partition
            self._queues[partition.task][partition.number] = partition

    # Its end.

    def fail(self, error: BaseException) -> None:
        """The thread that waits raises this."""
        self.error = self.error or error
        self.changed()

    def end(self) -> None:
        """Nothing more is sent."""
        self.over = True
        self._partitions.clear()
        self._queues.clear()
        if not self._reading:
            self._source.close()  # ends the thread that reads ahead, if there is one
        for channel in self.feed.channels.values():
            channel.call_ended()

    def changed(self) -> None:
        """Let all threads look again."""
        self._changed.notify_all()
        self.feed.wake()

    # Waiting, in the thread of the user.

    def consumed(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self._refused and not self._takers():  # no task takes partitions to be fed again
            return bool(self.feed.alive) or len(self._partitions) == len(self._queues[_ANY])
        return self._exhausted and not self._partitions

    def remains(self) -> str:
        """The warning if a function has returned before all rows of `train` were read; empty: it has not."""
        if not self._returned or (self._exhausted and not (self._dropped or self._partitions)):
            return ""
        tasks = listed([name for name in self.feed.tasks if name in self._returned])
        return f"{tasks} returned before reading all rows; call feed.terminate() if that is intended"

    def abandoned(self) -> str:
        """Why no thread will take the results that are left; empty: a thread may."""
        if not self.inference:
            return ""
        if self.taker is threading.current_thread() or not self.taker.is_alive():
            return "not all were taken"
        idle = time.monotonic() - self._taken > self.timeout
        return f"{self.taker.name} has taken none for {self.timeout:g}s" if idle else ""

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until a condition holds.

        Raises:
            FeedTimeout: no task takes a row. FeedError: no task is left. The error given to `fail`.
        """
        while self.error is not None or not ready():
            if self.error is not None:
                raise self.error
            self._look()
            self.feed.wake()  # with time it may become the turn of another task
            self._changed.wait(LOOK)

    def results(self) -> list[object] | None:
        """The next results, in order; waits for some. ``None``: there are no more."""
        with self.feed.lock:
            self.taker, self._taken = threading.current_thread(), inf
            try:
                self.wait(self._advance)
            finally:
                self._taken = time.monotonic()
            partition = self._partitions.get(self._next)
            if partition is None:
                return None
            found, partition.results = partition.results, []
            self._result_bytes -= partition.result_bytes
            partition.result_bytes = 0
            self.feed.wake()
            return found

    def _advance(self) -> bool:
        """Go on to the next partition with results; whether there is one, or all are answered."""
        while (head := self._partitions.get(self._next)) and not head.results:
            if not head.done:
                return False
            del self._partitions[self._next]
            self._next += 1
            self.feed.wake()  # its rows may be sent now
        return head is not None or (self._exhausted and self._next >= self._made)

    def _takers(self) -> list[str]:
        """Tasks that may take more rows."""
        terminated = {name for name, channel in self.feed.channels.items() if channel.terminated}
        return [name for name in self.feed.alive if name not in terminated - self.feed.restarting]

    def _look(self) -> None:
        """Look at the time: missing tasks, the time limit."""
        now = time.monotonic()
        alive, takers = self.feed.alive, self._takers()
        connected = {name for name, channel in self.feed.channels.items() if channel.connected}
        missing = [name for name in takers if name not in connected]
        feed, ended = f"feed {self.feed.name!r}", self.feed.ended
        if self._in_step:
            self._look_at_step(connected, now)
        rows_wait = missing and (self._in_step or missing == alive or not self._gathered())
        if rows_wait and (begun := self._waiting.due()):
            lines = self.feed.last_lines(missing[0])
            hint = (
                f"last line of {missing[0]}: {lines[-1]}" if lines else "importing TensorFlow takes seconds"
            )
            self.feed.notice(f"{begun} {listed(missing)} to ask for rows of the {feed} ({hint})")
        if not alive and now - max([end.at for end in ended.values()], default=0.0) > LONELY:
            endings = listed([f"{name} {end.reason}" for name, end in ended.items()])
            raise FeedError(f"{feed}: no task is left to take its rows: {endings}")
        if self.inference and alive and not takers:
            raise FeedError(f"{feed}: all tasks have called terminate(): no results will come")
        running = [name for name in alive if name in connected and name not in ended]
        late = [name for name in running if self.feed.channels[name].late]
        if not late and (self._in_step or missing == takers):
            late = [name for name in missing if name not in ended]  # the others are to start again
        if not late:  # only the source of the rows is awaited
            self._moved = now
        elif now - self._moved > self.timeout:
            stuck = [name for name in late if name in missing or not self.feed.channels[name].hungry]
            if stuck or not self.inference:
                lines = [line for task in stuck for line in self.feed.last_lines(task)]
                raise FeedTimeout(", ".join(stuck or late), self.timeout, lines)
            raise FeedError(
                f"{feed}: {', '.join(late)} asked for more rows, and for {self.timeout:g}s results are "
                "missing: batch_results() must be given one result for each row"
            )

    def _look_at_step(self, connected: Collection[str], now: float) -> None:
        """Look for tasks that have missed batches, and do not start again together with all others."""
        for name, end in self.feed.ended.items():
            if not end.again and now - end.at > LONELY:
                raise FeedError(f"{name} is lost ({end.reason}); {IN_STEP}")
        for name, loss in self._broken.items():
            if name in connected and not self._again:
                raise FeedError(f"{loss}; {IN_STEP}")
