"""One call of `train` or `inference`: which partitions there are, who has them, and when all is consumed.

Everything here is called by who holds the lock of the feeder, `Flow.fetch` and the waiting excepted.
"""

from __future__ import annotations

import threading
import time
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from launcher.errors import FeedError
from launcher.feed.answers import Answers
from launcher.feed.cutting import Cutter
from launcher.feed.patience import Patience
from launcher.feed.share import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from launcher.feed.link import Link
    from launcher.feed.partitions import Partition
    from launcher.feed.patience import Terms
    from launcher.feed.roll import Roll

#: Bytes of partitions that can't be iterated again, kept in case that a task is lost.
MOST_KEPT = 512 << 20
#: Seconds between two looks at the time.
_TICK = 0.25


class Flow:
    """See the module.

    Args:
        feed: its name.
        lock: the feeder's.
        source: partitions; read lazily, by one thread at a time.
        roll: the tasks.
        links: of those tasks that have opened the feed; changed by the feeder.
        terms: what is agreed.
    """

    def __init__(
        self,
        feed: str,
        lock: threading.RLock,
        source: Iterator[Partition],
        roll: Roll,
        links: Mapping[str, Link],
        terms: Terms,
    ) -> None:
        self.terms = terms
        self.wake = threading.Condition(lock)
        self.error: BaseException | None = None
        self.over = False
        #: Whether the source has nothing more.
        self.exhausted = False
        self._source = source
        self._tasks = roll.alive
        self._order = list(roll.alive)
        self._links = links
        self._cutter = Cutter()
        self._fetching = False
        self._fetched = 0
        #: Tasks that have had a partition.
        self._begun: set[str] = set()
        self._again: list[tuple[int, Share]] = []
        self._unfinished: dict[int, Share] = {}
        self._answers = Answers()
        self._patience = Patience(feed, roll, links, terms)
        self._loss = "a task is lost"
        #: Whether a task has said that it wants no more.
        self._refused = False
        #: Whether rows were given up because their task wants no more; tasks whose function has returned.
        self._dropped = False
        self._returned = {name for name, link in links.items() if link.returned}
        #: Who has called, or has taken results last; when; and whether it waits for some.
        self.taker = threading.current_thread()
        self._taken = time.monotonic()
        self._taking = False

    # What links ask.

    def claim(self, link: Link) -> Share | None:
        """A partition that this task should have next; ``None``: none now (see `must_fetch`)."""
        if self._again and self._may_begin(link, self._again[0][0]):
            self._begun.add(link.task)
            return heappop(self._again)[1]
        return None

    def must_fetch(self, link: Link) -> bool:
        """Whether this link should call `fetch`: a partition is due to it, and nobody fetches one."""
        free = not (self.exhausted or self._fetching or self._again or self.over)
        return free and self._may_begin(link, self._fetched)

    def begin_fetching(self, link: Link) -> None:
        """Nobody else may fetch until `fetch` has returned."""
        self._fetching = True
        self._begun.add(link.task)

    def fetch(self) -> Partition | None:
        """The next partition; without the lock, as it runs the user's code."""
        return next(self._source, None)

    def fetched(self, partition: Partition | None) -> Share | None:
        """What `fetch` gave becomes a share."""
        self._fetching = False
        self.moved()
        if partition is None:
            self.exhausted = True
            self.changed()
            return None
        keep = not self.terms.exactly_once
        share = Share(self._fetched, partition, self._cutter, self.terms.inference, keep)
        self._fetched += 1
        self._unfinished[share.number] = share
        if self.terms.inference:
            self._answers.expect(share)
        self.changed()
        return share

    @property
    def full(self) -> bool:
        """Whether too many results lie here for more rows to be sent, but those that are next."""
        return self._answers.full

    def permits(self, number: int) -> bool:
        """Whether rows of this partition may be sent."""
        return self._answers.permits(number)

    @property
    def all_given(self) -> bool:
        """Whether there is no partition left to begin with, as far as is known."""
        return self.exhausted and not self._again

    # What links tell.

    def moved(self) -> None:
        """A task took rows, or gave results."""
        self._patience.moved()

    def answered(self, share: Share, results: list[object], size: int) -> None:
        """Results of a partition have come."""
        if not self.over and self._answers.came(share, results, size):
            self.wake.notify_all()
        self.settle(share)

    def settle(self, share: Share) -> None:
        """Some of a partition was consumed: perhaps all."""
        if share.finished and self._unfinished.pop(share.number, None) is not None:
            share.forget()
            self.wake.notify_all()

    def made(self, share: Share) -> None:
        """A chunk was made: what is kept of it may be too much."""
        if share.kept_bytes and sum([one.kept_bytes for one in self._unfinished.values()]) > MOST_KEPT:
            share.forget()

    def refused(self, link: Link) -> None:
        """A task wants no more rows; it may end now, and others with it."""
        self._refused = True
        if link.returned:
            self._returned.add(link.task)
        self.changed()

    def give_up(self, share: Share) -> None:
        """The task wants no more: what it has not consumed counts as if it had."""
        if self.terms.inference:
            self.feed_again(share)
        else:
            self._dropped |= self._unfinished.pop(share.number, None) is not None
            self.changed()

    def lost(self, task: str, why: str) -> None:
        """A task is lost, or has to begin anew; what it had comes to `feed_again`."""
        self._loss = f"{task} is lost ({why})"
        if self.terms.in_step and not self.over:
            self.fail(FeedError(f"{self._loss}, and equal batches are for all tasks or for none"))
        self.changed()

    def feed_again(self, share: Share) -> None:
        """The task that had it is lost: another gets it, from its beginning."""
        if self.over or self._unfinished.get(share.number) is not share:
            return
        if share.made and self.terms.exactly_once:
            why = "it had not consumed all of its rows, and exactly_once=True: they are not fed again"
            self.fail(FeedError(f"{self._loss}; {why}"))
            return
        try:
            share.again()
        except FeedError as error:
            self.fail(FeedError(f"{self._loss}; {error}"))
            return
        heappush(self._again, (share.number, share))
        self.changed()

    def fail(self, error: BaseException) -> None:
        """Whoever waits raises this."""
        self.error = self.error or error
        self.changed()

    def end(self) -> None:
        """Nothing of it is sent any more."""
        self.over = True
        self._unfinished.clear()
        self._again.clear()
        for link in self._links.values():
            link.forget()

    def changed(self) -> None:
        """Let everybody look again."""
        self.wake.notify_all()
        self.nudge()

    def nudge(self) -> None:
        """Let the links look again."""
        for link in self._links.values():
            link.wake.notify_all()

    # Waiting, in the thread of the user.

    def consumed(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self._patience.unwanted():
            return True
        if self._refused and not self._tasks:  # nobody asks: what waits to be fed again is not wanted
            return len(self._unfinished) == len(self._again)
        return self.exhausted and not self._unfinished

    def described(self) -> str:
        """Which call it is, for who wants to feed beside it."""
        if self.terms.inference:
            return "there is an inference() whose results are not all taken (take them, or close() it)"
        return f"by train() in {self.taker.name}"

    def remains(self) -> str:
        """Why rows of `train` were not consumed, if a function has returned too early; empty: they were.

        Who says ``terminate()`` wants that, and nothing is to be said of it. Whether a source that was not
        read to its end has more is not looked up: it might wait for ever.
        """
        if not self._returned or (self.exhausted and not self._dropped):
            return ""
        who = ", ".join(name for name in self._order if name in self._returned)
        left = "rows were left" if self._dropped else "rows may be left"
        return f"{left}: the function has returned in {who} (terminate() says that this is wanted)"

    def abandoned(self) -> str:
        """Why nobody will take the results that are left; empty: somebody may, or there are none to take."""
        if not self.terms.inference or self._taking:
            return ""
        if self.taker is threading.current_thread() or not self.taker.is_alive():
            return "not all were taken"
        idle = time.monotonic() - self._taken > self.terms.timeout
        return f"{self.taker.name} has taken none for {self.terms.timeout:g} s" if idle else ""

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until this is so, with the lock.

        Raises:
            FeedTimeout: no task takes a row. FeedError: nobody is left. Whatever `fail` was given.
        """
        while self.error is not None or not ready():
            if self.error is not None:
                raise self.error
            self._patience.look()
            self.nudge()  # time alone can make it the turn of a task
            self.wake.wait(_TICK)

    def results(self) -> list[object] | None:
        """Results that are next, in order; waits for some. ``None``: there are no more."""
        self.taker, self._taking = threading.current_thread(), True
        try:
            self.wait(lambda: bool(self._answers.head()) or self._all_answered())
        finally:
            self._taking, self._taken = False, time.monotonic()
        if not self._answers.head():
            return None
        found = self._answers.take()
        self.nudge()
        return found

    def _all_answered(self) -> bool:
        """Go on to the next partition; whether there is none, or results of it are here."""
        if self._answers.advance(self._unfinished):
            self.nudge()  # rows of the next one may be sent now
        done = self.exhausted and self._answers.all_taken(self._fetched)
        return done or bool(self._answers.head())

    def _may_begin(self, link: Link, number: int) -> bool:
        """Whether this task should get a partition: who waits for rows; else who has the least of them."""
        if self.terms.in_step:
            return self._order[number : number + 1] in ([link.task], [])
        if not self.permits(number):
            return False
        if not self._patience.gathered():
            return link.task not in self._begun
        others = [other for other in self._links.values() if other is not link and other.has_room]
        return link.hungry or all(link.ledger.load <= other.ledger.load for other in others)
