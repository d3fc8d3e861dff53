"""The driver's side of feeding: rows to whichever task has room, results back in order, nothing lost.

For each feed to each task there is a `Link` with two threads; one call of `train` or `inference` is a `Flow`,
from which the links take partitions. One lock guards them all; it is never held while something is sent, or
while the user's code runs.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from launcher.errors import FeedError
from launcher.feed.closing import Closing
from launcher.feed.dealing import Dealer
from launcher.feed.feed import Feed
from launcher.feed.flow import Flow
from launcher.feed.partitions import partitions_of
from launcher.feed.patience import Terms
from launcher.feed.reception import Reception
from launcher.feed.roll import Roll
from launcher.feed.rounds import rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from launcher.feed.link import Link
    from launcher.feed.partitions import Partition
    from launcher.feed.reception import Guest
    from launcher.feed.remote.messages import Opening

#: Seconds that a thread may take to end.
_PATIENCE = 2.0
#: Seconds that what a task has said before it ended may still be on its way.
_LAST_WORDS = 0.3
_OVER = "the driver feeds no more rows"


class Feeder:
    """See the module.

    Args:
        tasks: those that are fed, ``worker/0`` ..., in their order.
        feeds: the names of the feeds.
        exactly_once: a lost task is an error for `train`, instead of its rows being fed again.
        last_lines: of a task, for messages.
        say: is told who is waited for; default: a line on stderr.
        warn: is told what is not as it should be, and raises nothing; default: the same.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        feeds: Sequence[str] = ("input",),
        *,
        exactly_once: bool = False,
        last_lines: Callable[[str], Sequence[str]] = lambda task: (),
        say: Callable[[str], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._exactly_once = exactly_once
        self._last_lines = last_lines
        self._say = say or _to_stderr
        self._warn = warn or _to_stderr
        self._lock = threading.RLock()
        self._roll = Roll(tasks)
        self._feeds = {name: Feed(self._lock, self._roll, lambda: self._finished) for name in feeds}
        self._error: BaseException | None = None
        self._finished = self._closed = False
        self._closing = Closing(self._lock, self._going, self._cut_off, self._say)
        self._reception = Reception(self._lock, self._link_of)

    # What becomes of the tasks.

    def add(self, guest: Guest) -> None:
        """Take over a connection that a task has opened for a feed."""
        self._reception.add(guest)

    def lost(self, task: str, attempt: int, why: str, again: bool = False) -> None:
        """A task has ended: others get what it did not consume.

        What it said last may still be on its way, so this waits a moment for the end of its connections.

        Args:
            attempt: which start of it; a later one may come.
            why: for those who ask.
            again: whether one is to come: until then the task is awaited.
        """
        with self._lock:
            deadline = time.monotonic() + _LAST_WORDS
            for link in [link for feed in self._feeds.values() for link in feed.every if link.task == task]:
                link.wait_for_end(deadline)
            self._roll.ended(task, attempt, why, again)
            for feed in self._feeds.values():
                feed.lost(task, why)

    def fail(self, error: BaseException) -> None:
        """The job is over: whoever waits raises this, and whoever comes."""
        with self._lock:
            self._error = self._error or error
            for feed in self._feeds.values():
                if feed.flow is not None:
                    feed.flow.fail(error)

    # What the user calls.

    def train(
        self,
        data: Any,
        *,
        epochs: int = 1,
        feed_timeout: float = 600.0,
        qname: str = "input",
        equal: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Feed all rows; returns when they are consumed, or when all tasks want no more.

        Args:
            data: see `launcher.feed.partitions.partitions_of`.
            epochs: how often.
            feed_timeout: seconds in which some task must take some row.
            qname: the feed.
            equal: ``drop``, ``pad`` or ``repeat``: every task gets the same number of batches.
            batch_size: of those batches, exactly.

        Raises:
            FeedTimeout: no task took a row for so long.
            FeedError: rows can't be sent, or no task is left to take them.
            InputError: the data are none. Whatever iterating them raises, and whatever `fail` was given.
        """
        partitions = partitions_of(data, len(self._roll.known), epochs)
        try:
            if equal is None:
                self._train(qname, self._terms(feed_timeout), partitions)
            else:
                terms = self._terms(feed_timeout, in_step=True)
                self._train_in_step(qname, terms, partitions, equal, batch_size)
        finally:
            partitions.leave()

    def inference(self, data: Any, *, feed_timeout: float = 600.0, qname: str = "input") -> Iterator[Any]:
        """One result for each row, in the order of the rows; lazily.

        Args:
            data, feed_timeout, qname: as `train` has them.

        Raises:
            As `train` does.
        """
        partitions = partitions_of(data, len(self._roll.known))
        flow = self._begin(qname, self._terms(feed_timeout, inference=True), partitions)
        try:
            while (results := self._results(flow)) is not None:
                yield from results
        finally:
            self._end(qname, flow)
            partitions.leave()

    def finish(self) -> None:
        """Nothing more will be fed: ``should_stop()`` becomes true in the tasks.

        A feed that another thread still feeds, or takes results of, ends when that is done. An `inference`
        whose results nobody goes on to take is ended: it raises `FeedError` if somebody does.
        """
        with self._lock:
            self._finished = True
            self._closing.begin()
            for feed in self._feeds.values():
                if feed.flow is None:
                    feed.cut_off()
                feed.nudge()

    def close(self) -> None:
        """End all connections and threads. Tasks that wait for rows are told that there will be none."""
        with self._lock:
            self._closed = True
            links = [link for feed in self._feeds.values() for link in feed.every]
            for feed in self._feeds.values():
                orderly = self._finished and feed.flow is None
                if feed.flow is not None:
                    feed.flow.fail(FeedError("the feeder was closed"))
                for link in list(feed.links.values()):
                    link.dismiss("" if orderly else _OVER)
        self._closing.end(_PATIENCE)
        for link in links:
            link.close(_PATIENCE)
        self._reception.close(_PATIENCE)

    # Connections.

    def _link_of(self, guest: Guest, opening: Opening) -> Link | str:
        """The link of a connection; or why it gets none."""
        feed = self._feeds.get(guest.feed)
        if feed is None:
            return f"there is no such feed; there is {', '.join(self._feeds)}"
        if self._closed:
            return _OVER
        why_not = self._roll.admit(guest.task, guest.attempt, opening.session)
        return why_not or feed.link_of(guest.task, opening.session)

    # Calls.

    def _terms(self, timeout: float, inference: bool = False, in_step: bool = False) -> Terms:
        return Terms(timeout, inference, self._exactly_once, self._last_lines, self._say, in_step)

    def _train(self, qname: str, terms: Terms, partitions: Iterator[Partition]) -> None:
        flow = self._begin(qname, terms, partitions)
        try:
            with self._lock:
                flow.wait(flow.consumed)
                if remains := flow.remains():
                    self._warn(f"feed {qname!r}: {remains}")
        finally:
            self._end(qname, flow)

    def _train_in_step(
        self, qname: str, terms: Terms, partitions: Iterator[Partition], how: str, batch_size: int | None
    ) -> None:
        if batch_size is None:
            raise FeedError(f"equal={how!r} needs a batch_size: it makes batches of exactly so many rows")
        players = len(self._roll.known)
        dealer = Dealer(rounds(partitions, players, batch_size, how), players)
        try:
            self._train(qname, terms, dealer.partitions())
        finally:
            dealer.end()

    def _results(self, flow: Flow) -> list[Any] | None:
        with self._lock:
            return flow.results()

    def _begin(self, qname: str, terms: Terms, partitions: Iterator[Partition]) -> Flow:
        with self._lock:
            if self._error is not None:
                raise self._error
            feed = self._feeds.get(qname)
            if feed is None:
                raise FeedError(f"there is no feed {qname!r}; there is {', '.join(self._feeds)}")
            if terms.in_step and self._roll.missing:
                who = ", ".join(self._roll.missing)
                raise FeedError(f"{who} is lost, and equal batches are for all tasks or for none")
            if feed.flow is not None:
                raise FeedError(f"feed {qname!r} is being fed already: {feed.flow.described()}")
            if self._finished or self._closed:
                raise FeedError(f"feed {qname!r} has ended: nothing can be fed after finish() or shutdown()")
            feed.abandoned = False
            feed.flow = Flow(qname, self._lock, partitions, self._roll, feed.links, terms)
            feed.flow.changed()
            return feed.flow

    def _end(self, qname: str, flow: Flow) -> None:
        with self._lock:
            flow.end()
            feed = self._feeds[qname]
            if feed.flow is not flow:  # it was cut off
                return
            feed.flow = None
            feed.abandoned = flow.terms.inference
            if self._finished:
                feed.cut_off()

    def _going(self) -> list[tuple[str, Flow]]:
        return [(name, feed.flow) for name, feed in self._feeds.items() if feed.flow is not None]

    def _cut_off(self, qname: str, why: str) -> None:
        """Nobody takes what is left of the results: the feed ends, and whoever comes for them is told."""
        flow = self._feeds[qname].flow
        assert flow is not None
        self._warn(f"shutdown ends an inference() of the feed {qname!r} before all its results: {why}")
        flow.fail(FeedError(f"feed {qname!r}: shut down before all results were taken"))
        self._end(qname, flow)


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
