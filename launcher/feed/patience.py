"""How long one call of `train` or `inference` waits for its tasks, and what is said when it was long enough.

All of it is called by who holds the lock of the feeder.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import FeedError, FeedTimeout
from launcher.feed.remote.intake import MOST_AWAY
from launcher.feed.waiting import ODD, Waiting
from launcher.text import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.feed.link import Link
    from launcher.feed.roll import Roll

#: Seconds in which all tasks should open their feeds.
GATHERING = 10.0
#: Seconds without any task, in which the job should be known to have failed, and of what: that says more.
LONELY = 1.0


class Terms(NamedTuple):
    """What is agreed for one call."""

    #: Seconds in which some task must take some row.
    timeout: float
    #: Whether there is a result for each row.
    inference: bool
    #: Whether a loss is an error.
    exactly_once: bool
    #: Of a task, for messages.
    last_lines: Callable[[str], Sequence[str]]
    #: Takes remarks.
    say: Callable[[str], None]
    #: Whether each task has one partition of its own, the tasks in their order.
    in_step: bool = False


class Patience:
    """See the module.

    Args:
        feed: its name.
        roll: the tasks.
        links: of those tasks that have opened the feed; changed by the feeder.
        terms: what is agreed.
    """

    def __init__(self, feed: str, roll: Roll, links: Mapping[str, Link], terms: Terms) -> None:
        self._feed = feed
        self._roll = roll
        self._tasks = roll.alive
        self._links = links
        self._terms = terms
        self._moved = time.monotonic()
        self._lonely_since: float | None = None
        self._waiting = Waiting()

    def moved(self) -> None:
        """A task took rows, or gave results; or there are rows again."""
        self._moved = time.monotonic()

    def gathered(self) -> bool:
        """Whether all tasks are here, or were given the time to come: until then each gets one partition."""
        now = time.monotonic()
        opened = [link.since for link in self._links.values() if link.opened]
        return len(opened) >= len(self._tasks) or now - min(opened, default=now) > GATHERING

    def unwanted(self) -> bool:
        """Whether all tasks have said that they want no more."""
        links = [self._links.get(name) for name in self._tasks]
        return bool(links) and all(link is not None and link.terminated for link in links)

    def look(self) -> None:
        """See what time has brought; to be called often.

        Raises:
            FeedTimeout: no task takes a row. FeedError: no task gives results, or nobody is left.
        """
        now = time.monotonic()
        self._remark()
        for link in list(self._links.values()):
            if link.away_for(now) > MOST_AWAY:
                link.lose(f"its connection broke and was not back within {MOST_AWAY:g} s")
        self._look_for_tasks(now)
        if self._terms.inference and self.unwanted():
            raise FeedError(f"feed {self._feed!r}: all tasks have called terminate(): no results will come")
        late = self._late()
        if not late:
            self._moved = now
        elif now - self._moved > self._terms.timeout:
            raise self._too_late(late)

    def _look_for_tasks(self, now: float) -> None:
        if self._tasks:
            self._lonely_since = None
        elif self._lonely_since is None:
            self._lonely_since = now
        elif now - self._lonely_since > LONELY:
            raise FeedError(f"feed {self._feed!r}: no task is left to take its rows: {self._roll.losses}")

    def _remark(self) -> None:
        """Say who has not opened the feed, while that holds anybody up."""
        missing = [name for name in self._tasks if name not in self._links]
        if not missing or (self._links and self.gathered() and not self._terms.in_step):
            return
        if begun := self._waiting.due():
            what = f"to ask for rows of the feed {self._feed!r}"
            self._terms.say(f"{begun} {listed(missing)} {what} ({self._perhaps(missing)})")

    def _perhaps(self, missing: Sequence[str]) -> str:
        """Why they do not come: mostly they import something."""
        if self._waiting.seconds < ODD:
            return "importing TensorFlow takes seconds"
        lines = self._terms.last_lines(missing[0])
        return f"{missing[0]} has printed last: {lines[-1]}" if lines else f"{missing[0]} has printed nothing"

    def _late(self) -> list[str]:
        """The tasks that should do something; none where only the source of the rows is awaited."""
        busy = [(name, self._links[name].ledger) for name in self._tasks if name in self._links]
        late = [name for name, ledger in busy if ledger.unconsumed or ledger.unanswered]
        if late or not (self._terms.in_step or all(link.terminated for link in self._links.values())):
            return late
        return [name for name in self._tasks if name not in self._links]

    def _too_late(self, late: Sequence[str]) -> FeedError:
        links = [(name, self._links.get(name)) for name in late]
        stuck = [name for name, link in links if link is None or not link.hungry]
        if self._terms.inference and not stuck:
            missing = sum([link.ledger.unanswered for _, link in links if link is not None])
            return FeedError(
                f"{', '.join(late)}: {missing:,} {'result is' if missing == 1 else 'results are'} missing in "
                f"the feed {self._feed!r}, for {self._terms.timeout:g} s, and more rows are asked for: "
                "batch_results() must be given one result for each row"
            )
        lines = [line for task in stuck for line in self._terms.last_lines(task)]
        return FeedTimeout(", ".join(stuck or late), self._terms.timeout, lines)
