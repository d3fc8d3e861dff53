"""A feed without threads, sockets and time: a test decides what our threads and the tasks do next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from launcher.common.record import Record
from launcher.feed.call import Call, Chunk, Partition
from launcher.feed.link import FeedLink
from launcher.feed.remote.codec import as_rows, decode
from launcher.feed.remote.frames import UNWANTED, Kind, pack_numbers
from launcher.feed.sources import partitions, pieces_of, rounds
from launcher.feed.state import CloseFeed, Command, FeedState, Flush, Leave, Make, Read


class Made(Record):
    """A chunk that one of our threads has made, and is to send."""

    partition: Partition
    chunk: Chunk


class Player:
    """A task: its connection, what is on the way to it, and what its function had."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.attempt = 1
        self.link: FeedLink | None = None
        self.coming: deque[tuple[Kind, Any]] = deque()
        self.taken = 0
        self.terminated = b""
        #: The rows that its function had, a batch for each chunk.
        self.batches: list[list[Any]] = []
        #: Whether its function gives results.
        self.answers = True

    def opens(self) -> None:
        """Connect; the first frame says whether rows are wanted."""
        state = self.world.state
        self.link = state.on_connected(self.name, self.attempt, self.world.now)
        if self.link is not None:
            self.coming, self.taken = deque(), 0
            self.world.wires[self.link] = self.coming
            first = (Kind.TERMINATE, [self.terminated]) if self.terminated else (Kind.HUNGRY, None)
            self.says(*first)

    def says(self, kind: Kind, content: Any = None, size: int = 0) -> None:
        """Send a frame; the numbers are those of the last chunk taken."""
        numbers = [pack_numbers(self.taken, self.taken)]
        assert self.link is not None
        content = numbers if content is None else content
        self.world.state.on_frame(self.link, kind, content, size, self.world.now)
        self.world.act()

    def takes(self) -> None:
        """Take what comes next: the rows of a chunk are a batch, and count as consumed at once."""
        kind, chunk = self.coming.popleft()
        if kind in (Kind.ROWS, Kind.CODE):
            self.taken += 1
            batch = as_rows(decode(chunk)) if kind == Kind.ROWS else list(decode(chunk)())
            self.batches.append(batch)
            if kind == Kind.CODE:
                self.says(Kind.COUNTED, [pack_numbers(self.taken, len(batch))])
            if self.world.call.is_inference and self.answers:
                self.says(Kind.RESULTS, [self.world.answer(self.name, row) for row in batch], size=8)
        self.says(Kind.HUNGRY if not self.coming else Kind.PROGRESS)

    def terminates(self) -> None:
        """Its function takes no more."""
        self.terminated = UNWANTED
        self.coming.clear()
        if self.link is not None:
            self.says(Kind.TERMINATE, [self.terminated])

    def breaks(self) -> None:
        """Its connection ends; what was on the way is gone."""
        if self.link is not None:
            self.world.ends(self.link)
            self.world.act()

    def is_lost(self, reason: str = "was killed") -> None:
        """It ends."""
        self.world.state.on_lost(self.name, self.attempt, reason, self.world.now)
        self.world.act()
        self.breaks()

    def starts_again(self) -> None:
        """Its next attempt starts."""
        self.attempt += 1
        self.world.state.on_started(self.name, self.attempt)
        self.world.act()
        self.breaks()
        self.terminated = b""


class World:
    """A feed and its tasks; a call begins at once.

    Args:
        tasks: how many.
        data: partitions.
        inference: whether each row is answered by `answer`.
        batch_size: of equal batches; 0: there are none.
        equal: ``drop``, ``pad`` or ``repeat``.
        timeout: of the call.
        exactly_once: see `FeedState`.
    """

    def __init__(
        self,
        tasks: int,
        data: Iterable[Any],
        inference: bool = False,
        batch_size: int = 0,
        equal: str = "drop",
        timeout: float = 60.0,
        exactly_once: bool = False,
    ) -> None:
        names = [f"worker/{number}" for number in range(tasks)]
        self.now = 0.0
        self.state = FeedState(
            "input", names, exactly_once=exactly_once, last_lines=lambda task: [f"last line of {task}"]
        )
        self.tasks = [Player(self, name) for name in names]
        self.wires: dict[FeedLink, deque[tuple[Kind, Any]]] = {}
        #: What our threads have to do next.
        self.threads: dict[FeedLink, Command | Made] = {}
        self.answer: Callable[[str, Any], Any] = lambda task, row: -row
        self.results: list[Any] = []
        self.answered, self.takes_results = False, True
        source: Any = pieces_of(partitions(data), tasks)
        if batch_size:
            source = rounds(source, tasks, batch_size, equal)
        self.call = Call(source, names, timeout, is_inference=inference, is_in_step=bool(batch_size))
        self.state.begin(self.call, self.now)
        self.act()

    def act(self) -> None:
        """Begin what the state decides."""
        for command in self.state.commands(self.now):
            if isinstance(command, CloseFeed):
                self.ends(command.link)
                self.act()
            else:
                assert command.link not in self.threads
                self.threads[command.link] = command
        making = [step.partition for step in self.threads.values() if isinstance(step, (Make, Made))]
        assert len(making) == len(set(making)), "two threads make chunks of one partition"
        if self.takes_results:
            self.take_results()

    def take_results(self) -> None:
        """Take all results that are there."""
        while not self.is_over and self.call.is_inference and self.call.advance_to_results():
            found = self.call.take_results()
            self.answered = found is None
            self.results += found or []

    @property
    def is_over(self) -> bool:
        """Whether the call returns, or raises."""
        if self.call.error is not None or self.call.is_inference:
            return self.call.error is not None or self.answered
        return self.state.is_ready()

    def works(self, link: FeedLink) -> None:
        """One of our threads does the next thing that it has to."""
        command = self.threads.pop(link)
        if isinstance(command, Read):
            item, error = self._try(lambda: next(command.call.source, None))
            self.state.on_read(link, command.call, item, error, self.now)
        elif isinstance(command, Make):
            chunk, error = self._try(command.partition.make)
            if self.state.on_made(link, command.partition, chunk, error):
                assert chunk is not None
                self.threads[link] = Made(command.partition, chunk)
                return
            self.state.on_sent(link)
        elif isinstance(command, Made):
            kind = Kind.CODE if command.chunk.rows is None else Kind.ROWS
            self._arrives(link, kind, [bytes(buffer) for buffer in command.chunk.buffers])
            if self.state.may_make(link):
                self.threads[link] = Make(link, command.partition)
                return
            self.state.on_sent(link)
        elif isinstance(command, Flush):
            self._arrives(link, Kind.FLUSH, [])
            self.state.on_sent(link)
        else:
            assert isinstance(command, Leave)
            self.ends(link)
            self.state.on_left(link)
        self.act()

    def ends(self, link: FeedLink) -> None:
        """The connection ends, if it has not."""
        self.wires[link].clear()
        for player in self.tasks:
            if player.link is link:
                player.link = None
        if link.ended is None:
            self.state.on_broken(link, None, self.now)

    def _arrives(self, link: FeedLink, kind: Kind, content: Any) -> None:
        if link.ended is None:
            self.wires[link].append((kind, content))

    @staticmethod
    def _try(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
        try:
            return call(), None
        except Exception as error:  # noqa: BLE001 - the user's
            return None, error

    def begins(self, tasks: int = 9) -> World:
        """So many tasks connect, and our threads do all that they can."""
        for player in self.tasks[:tasks]:
            player.opens()
        self.work()
        return self

    def work(self) -> None:
        """Our threads do all that they can."""
        while self.threads:
            self.works(next(iter(self.threads)))

    def passes(self, seconds: float) -> None:
        """Time passes, and the thread that waits looks at it."""
        self.now += seconds
        self.state.check(self.now)
        self.act()

    def go_on(self) -> None:
        """Everything goes on, without faults, until the call is over, or time makes it fail."""
        for _ in range(10_000):
            self.work()
            if self.is_over:
                return
            moved = False
            for player in self.tasks:
                if player.link is None and not self.state.tasks[player.name].ended:
                    player.opens()
                    moved = True
                elif player.coming:
                    player.takes()
                    moved = True
            if not moved and not self.threads:
                self.passes(2.0)
        raise AssertionError("it goes on for ever")
