"""One feed: the links to the tasks that have opened it, and the call that is served (`train`, `inference`).

All of it is called by who holds the lock of the feeder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.feed.link import Link

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from launcher.feed.flow import Flow
    from launcher.feed.roll import Roll


class Feed:
    """See the module.

    Args:
        lock: the feeder's.
        roll: the tasks.
        ended: says whether all feeds have ended.
    """

    def __init__(self, lock: threading.RLock, roll: Roll, ended: Callable[[], bool]) -> None:
        #: By task: those that rows go to.
        self.links: dict[str, Link] = {}
        self.flow: Flow | None = None
        #: Whether tasks may have rows whose results nobody wants any more.
        self.abandoned = False
        self._lock = lock
        self._roll = roll
        self._ended = ended
        self._every: list[Link] = []

    @property
    def every(self) -> list[Link]:
        """All links that there ever were: those that are over may still have to be heard to the end."""
        return list(self._every)

    def link_of(self, task: str, session: str) -> Link:
        """The link of a task that opens the feed, or opens it again after a break."""
        link = self.links.get(task)
        if link is not None and link.session == session:
            return link
        if link is not None:
            self.drop(link, "the feed was opened again")
        link = self.links[task] = Link(
            task, session, self._lock, flow=lambda: self.flow, ended=self._ended, on_lost=self.drop
        )
        self._every.append(link)
        return link

    def lost(self, task: str, why: str) -> None:
        """A task has ended."""
        if task in self.links:
            self.drop(self.links[task], why)
        elif self.flow is not None:
            self.flow.lost(task, why)

    def drop(self, link: Link, why: str) -> None:
        """Nothing goes to this link any more; others get what it had."""
        self._roll.give_up(link.session, why)
        if self.links.get(link.task) is link:
            del self.links[link.task]
        if self.flow is not None:
            self.flow.lost(link.task, why)
        for flow, share in link.dismiss(why):
            flow.feed_again(share)

    def cut_off(self) -> None:
        """The feed ends, without the rows whose results nobody wants."""
        if self.abandoned:
            for link in self.links.values():
                link.cut_off()

    def nudge(self) -> None:
        """Let the links look what there is to do."""
        for link in self.links.values():
            link.wake.notify_all()
