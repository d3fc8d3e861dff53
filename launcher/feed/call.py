"""One call of `train` or `inference`: its partitions, which task has them, and when all are consumed.

All methods are called with the lock of the feeder, `FeedCall.fetch` excepted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Literal

from launcher.errors import FeedError, FeedTimeout
from launcher.feed.partition import Chunker, Partition
from launcher.feed.sources import Piece
from launcher.text import Waiting, listed

if TYPE_CHECKING:
    from launcher.feed.channel import WorkerChannel

#: Bytes of partitions that cannot be iterated again, kept in case that a task is lost.
MOST_KEPT = 512 << 20
#: Bytes of results that wait to be taken, and for each of them: beyond, no more rows are sent.
MOST_RESULTS, _RESULT = 32 << 20, 64
#: Seconds for all tasks to open their feeds; until then each gets one partition.
GATHERING = 10.0
#: Seconds without any task: in this time the job should have failed, with a reason that says more.
LONELY = 1.0
#: Seconds after a break until partitions are fed again, so that the reason of a loss is known.
_BROKEN = 1.0
#: Seconds between two looks at the time.
LOOK = 0.25


class Tasks:
    """The tasks that are fed.

    Args:
        names: in their order.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        #: Those that run, or are to start; as a set in order.
        self.alive = dict.fromkeys(names)
        self._ended: dict[str, tuple[int, str]] = {}

    @property
    def missing(self) -> list[str]:
        """Those that have ended for good."""
        return [name for name in self.names if name not in self.alive]

    @property
    def losses(self) -> str:
        """How those have ended."""
        return listed([f"{name} {self._ended[name][1]}" for name in self.missing])

    def ended(self, task: str, attempt: int, reason: str, again: bool) -> None:
        """A task has ended; ``again``: it will be started once more."""
        self._ended[task] = attempt, reason
        if not again:
            self.alive.pop(task, None)

    def admit(self, task: str, attempt: int) -> str:
        """Why a task may not open a feed; empty: it may."""
        if task not in self.names:
            return f"{task} is not fed; fed are {', '.join(self.names)}"
        if task in self._ended and attempt <= self._ended[task][0]:
            return f"{task} has ended"
        self.alive[task] = None
        return ""


@dataclass
class Feed:
    """One feed: its tasks, and the call that is served. Used with the lock."""

    name: str
    lock: threading.RLock
    tasks: Tasks
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

    def wake(self) -> None:
        """Let all channels look for something to do."""
        for channel in self.channels.values():
            channel.wake.notify_all()


class FeedCall:
    """See the module.

    Args:
        feed: the feed.
        source: a generator of pieces; read lazily, by one thread at a time.
        timeout: seconds in which some task must take some row.
        inference: whether there is a result for each row.
        in_step: whether each task has one partition of its own, the tasks in their order.
    """

    def __init__(
        self,
        feed: Feed,
        source: Generator[Piece],
        timeout: float,
        inference: bool = False,
        in_step: bool = False,
    ) -> None:
        self.inference = inference
        self.in_step = in_step
        self.timeout = timeout
        self.error: BaseException | None = None
        self.over = False
        self._feed = feed
        self._tasks = feed.tasks
        self._changed = threading.Condition(feed.lock)
        # Partitions.
        self._source = source
        self._chunker = Chunker()
        self._fetching = self._exhausted = False
        self._fetched = 0
        self._begun: set[str] = set()
        self._again: list[tuple[int, Partition]] = []
        self._unfinished: dict[int, Partition] = {}
        # Results: partitions that have some to come, the number of the next one, bytes that wait.
        self._answering: dict[int, Partition] = {}
        self._next = 0
        self._result_bytes = 0
        # Tasks that take no more rows.
        self._refused = self._dropped = False
        self._returned = {name for name, channel in feed.channels.items() if channel.returned}
        # The thread that waits for the end, or takes results; whether it waits for some now.
        self.taker = threading.current_thread()
        self._taking = False
        self._taken = self._moved = time.monotonic()
        self._lonely_since: float | None = None
        self._waiting = Waiting()

    # Partitions for channels.

    def claim(self, channel: WorkerChannel) -> Partition | Literal["fetch"] | None:
        """The next partition of this task: one to be fed again, one to be fetched, or none now.

        A channel that gets ``"fetch"`` calls `fetch`; no other one gets it before that has returned.
        """
        if not self._again and (self._exhausted or self._fetching or self.over):
            return None
        if not self._may_begin(channel, self._again[0][0] if self._again else self._fetched):
            return None
        self._begun.add(channel.task)
        if self._again:
            return heappop(self._again)[1]
        self._fetching = True
        return "fetch"

    def fetch(self) -> Piece | None:
        """The next piece, for `fetched`; without the lock, as it runs the user's code."""
        return next(self._source, None)

    def fetched(self, piece: Piece | None, error: BaseException | None) -> Partition | None:
        """The partition of what `fetch` returned, or raised."""
        self._fetching = False
        self.moved()
        if error is not None:
            self.fail(error)
        if self.over:
            self._source.close()
        self._exhausted = piece is None
        self.changed()
        if piece is None or self.over:
            return None
        keep = not self._feed.exactly_once
        partition = Partition(self, self._fetched, piece, self._chunker, keep)
        self._fetched += 1
        self._unfinished[partition.number] = partition
        if self.inference:
            self._answering[partition.number] = partition
        return partition

    @property
    def full(self) -> bool:
        """Whether so many results wait that only rows of the next ones are sent."""
        return self._result_bytes >= MOST_RESULTS

    def permits(self, number: int) -> bool:
        """Whether rows of this partition may be sent."""
        if not self.full:
            return True
        head = self._answering.get(self._next)
        return number == self._next and not (head and head.results)

    @property
    def all_given(self) -> bool:
        """Whether there is no partition to begin with, as far as is known."""
        return self._exhausted and not self._again

    def _may_begin(self, channel: WorkerChannel, number: int) -> bool:
        """Whether a task gets a partition: it waits for rows, or has the fewest unread ones."""
        if self.in_step:
            return self._tasks.names[number : number + 1] in ([channel.task], [])
        if not self.permits(number):
            return False
        if not self._gathered():
            return channel.task not in self._begun
        others = [other for other in self._feed.channels.values() if other is not channel and other.has_room]
        return channel.hungry or all(channel.window <= other.window for other in others)

    def _gathered(self) -> bool:
        """Whether all tasks have opened the feed, or had the time to."""
        now = time.monotonic()
        opened = [channel.since for channel in self._feed.channels.values()]
        return len(opened) >= len(self._tasks.alive) or now - min(opened, default=now) > GATHERING

    # Events of partitions.

    def moved(self) -> None:
        """A task took rows, or gave results."""
        self._moved = time.monotonic()

    def add_results(self, partition: Partition, results: list[object], size: int) -> None:
        """Results of a partition have come, of so many bytes."""
        if not self.over and (new := partition.add_results(results)):
            partition.result_bytes += size + _RESULT * new
            self._result_bytes += size + _RESULT * new
            self._changed.notify_all()

    def settle(self, partition: Partition) -> None:
        """Chunks of a partition were consumed, or answered: perhaps all."""
        if partition.finished and self._unfinished.pop(partition.number, None) is not None:
            partition.forget()
            self._changed.notify_all()

    def limit_kept(self, partition: Partition) -> None:
        """Keep no more chunks of this partition if too many are kept."""
        if partition.kept_bytes and sum([it.kept_bytes for it in self._unfinished.values()]) > MOST_KEPT:
            partition.forget()

    def refused(self, channel: WorkerChannel) -> None:
        """A task takes no more rows."""
        self._refused = True
        if channel.returned:
            self._returned.add(channel.task)
        self.changed()

    def give_up(self, partition: Partition) -> None:
        """Its task takes no more rows: those that it has count as consumed."""
        if self.inference:
            self.feed_again(partition)
        else:
            self._dropped |= self._unfinished.pop(partition.number, None) is not None
            self.changed()

    def release(self, task: str, lost: Sequence[Partition], reason: str) -> None:
        """A task is lost, or has to begin again: other tasks get what it has not finished."""
        loss = f"{task} is lost ({reason})"
        if self.in_step and not self.over:
            self.fail(FeedError(f"{loss}, and equal batches are for all tasks or for none"))
        for partition in lost:
            self.feed_again(partition, loss)
        self.changed()

    def feed_again(self, partition: Partition, loss: str = "a task is lost") -> None:
        """Feed a partition again, from its beginning."""
        if self.over or self._unfinished.get(partition.number) is not partition:
            return
        try:
            if partition.sent and self._feed.exactly_once:
                raise FeedError(
                    "it had not consumed all of its rows, and exactly_once=True: they are not fed again"
                )
            partition.restart()
        except FeedError as error:
            self.fail(FeedError(f"{loss}; {error}"))
            return
        heappush(self._again, (partition.number, partition))
        self.changed()

    # Its end.

    def fail(self, error: BaseException) -> None:
        """The thread that waits raises this."""
        self.error = self.error or error
        self.changed()

    def end(self) -> None:
        """Nothing more is sent."""
        self.over = True
        self._unfinished.clear()
        self._again.clear()
        if not self._fetching:
            self._source.close()  # ends the thread that reads ahead, if there is one
        for channel in self._feed.channels.values():
            channel.partitions.clear()
        self._feed.wake()

    def changed(self) -> None:
        """Let all threads look again."""
        self._changed.notify_all()
        self._feed.wake()

    # Waiting, in the thread of the user.

    def consumed(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self._unwanted():
            return True
        if self._refused and not self._tasks.alive:  # partitions to be fed again are not wanted
            return len(self._unfinished) == len(self._again)
        return self._exhausted and not self._unfinished

    def remains(self) -> str:
        """The warning if a function has returned before all rows of `train` were read; empty: it has not."""
        if not self._returned or (self._exhausted and not self._dropped):
            return ""
        tasks = listed([name for name in self._tasks.names if name in self._returned])
        return f"{tasks} returned before reading all rows; call feed.terminate() if that is intended"

    def abandoned(self) -> str:
        """Why no thread will take the results that are left; empty: one may."""
        if not self.inference or self._taking:
            return ""
        if self.taker is threading.current_thread() or not self.taker.is_alive():
            return "not all were taken"
        idle = time.monotonic() - self._taken > self.timeout
        return f"{self.taker.name} has taken none for {self.timeout:g} s" if idle else ""

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until a condition holds.

        Raises:
            FeedTimeout: no task takes a row. FeedError: no task is left. The error given to `fail`.
        """
        while self.error is not None or not ready():
            if self.error is not None:
                raise self.error
            self._look()
            self._feed.wake()  # with time it may become the turn of another task
            self._changed.wait(LOOK)

    def results(self) -> list[object] | None:
        """The next results, in order; waits for some. ``None``: there are no more."""
        self.taker, self._taking = threading.current_thread(), True
        try:
            self.wait(self._advance)
        finally:
            self._taking, self._taken = False, time.monotonic()
        partition = self._answering.get(self._next)
        if partition is None or not partition.results:
            return None
        found, partition.results = partition.results, []
        self._result_bytes -= partition.result_bytes
        partition.result_bytes = 0
        self._feed.wake()
        return found

    def _advance(self) -> bool:
        """Go on to the next partition with results; whether there is one, or all are answered."""
        while (head := self._answering.get(self._next)) and not head.results:
            if head.number in self._unfinished:
                return False
            del self._answering[self._next]
            self._next += 1
            self._feed.wake()  # its rows may be sent now
        return head is not None or (self._exhausted and self._next >= self._fetched)

    def _unwanted(self) -> bool:
        """Whether all tasks take no more rows."""
        channels = [self._feed.channels.get(name) for name in self._tasks.alive]
        return bool(channels) and all(channel is not None and channel.terminated for channel in channels)

    def _look(self) -> None:
        """Look at the time: broken connections, missing tasks, the time limit."""
        now = time.monotonic()
        channels = self._feed.channels
        for channel in channels.values():
            if channel.sock is None and channel.owes_anything and now - channel.broken_at > _BROKEN:
                self.release(channel.task, channel.take_away(), "its connection broke")
        present = {
            name: channels[name]
            for name in self._tasks.alive
            if name in channels and (channels[name].sock is not None or channels[name].terminated)
        }
        missing = [name for name in self._tasks.alive if name not in present]
        if missing and (self.in_step or not present or not self._gathered()):
            self._explain(missing)
        feed = f"feed {self._feed.name!r}"
        if self._tasks.alive:
            self._lonely_since = None
        elif now - (self._lonely_since or now) > LONELY:
            raise FeedError(f"{feed}: no task is left to take its rows: {self._tasks.losses}")
        else:
            self._lonely_since = self._lonely_since or now
        if self.inference and self._unwanted():
            raise FeedError(f"{feed}: all tasks have called terminate(): no results will come")
        late = [
            name
            for name, channel in present.items()
            if channel.unanswered or (channel.unconsumed and not channel.hungry)
        ]
        if not late and (self.in_step or all(channel.terminated for channel in present.values())):
            late = missing
        if not late:  # only the source of the rows is awaited
            self._moved = now
        elif now - self._moved > self.timeout:
            raise self._too_late(late, present)

    def _explain(self, missing: Sequence[str]) -> None:
        """Name the tasks that have not opened the feed, while rows wait for them."""
        if not (begun := self._waiting.due()):
            return
        hint = "importing TensorFlow takes seconds"
        if self._waiting.seconds >= Waiting.SECOND:
            lines = self._feed.last_lines(missing[0])
            hint = f"last line of {missing[0]}: {lines[-1]}" if lines else f"{missing[0]} has printed nothing"
        rows = f"rows of the feed {self._feed.name!r}"
        self._feed.notice(f"{begun} {listed(missing)} to ask for {rows} ({hint})")

    def _too_late(self, late: Sequence[str], present: dict[str, WorkerChannel]) -> FeedError:
        stuck = [name for name in late if name not in present or not present[name].hungry]
        if self.inference and not stuck:
            missing = sum([present[name].unanswered for name in late])
            return FeedError(
                f"{', '.join(late)}: {missing:,} {'result is' if missing == 1 else 'results are'} missing in "
                f"the feed {self._feed.name!r}, for {self.timeout:g} s, and more rows are asked for: "
                "batch_results() must be given one result for each row"
            )
        lines = [line for task in stuck for line in self._feed.last_lines(task)]
        return FeedTimeout(", ".join(stuck or late), self.timeout, lines)
