"""The driver's side of feeding: rows to whichever task has room, results back in order, nothing lost.

For each feed to each task there is a `Link` with two threads; one call of `train` or `inference` is a `Flow`,
from which the links take partitions. One lock guards them all; it is never held while something is sent, or
while the user's code runs.
"""

from __future__ import annotations

import sys
import threading
import time

from launcher.errors import FeedError
from launcher.feed.closing import Closing
from launcher.feed.dealing import Dealer
from launcher.feed.flow import Flow
from launcher.feed.frames import Kind, recv_frame, send_frame
from launcher.feed.keepalive import keep_alive
from launcher.feed.link import Link
from launcher.feed.messages import Opening, number, only
from launcher.feed.partitions import partitions_of
from launcher.feed.patience import Terms
from launcher.feed.rounds import rounds
from launcher.model.records import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from launcher.feed.partitions import Partition

    class Guest(Protocol):
        """A connection that a task has opened for a feed; see `launcher.feed.door`."""

        @property
        def task(self) -> str:
            """``worker/0``."""

        @property
        def attempt(self) -> int:
            """Which start of it."""

        @property
        def feed(self) -> str:
            """The name of the feed."""

        @property
        def sock(self) -> socket.socket:
            """Blocking, authenticated."""


#: Seconds that a task may take to say which feed it opens, and bytes.
_OPENING, _MOST_OPENING = 10.0, 1 << 20
#: Seconds that a thread may take to end.
_PATIENCE = 2.0
#: Seconds that what a task has said before it ended may still be on its way.
_LAST_WORDS = 0.3
_OVER = "the driver feeds no more rows"


class Feed:
    """One feed: the tasks that have opened it, and the call that is being served."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.links: dict[str, Link] = {}
        self.flow: Flow | None = None
        #: Whether tasks may have rows whose results nobody wants any more.
        self.abandoned = False

    def cut_off(self) -> None:
        """The feed ends, without those rows."""
        if self.abandoned:
            for link in self.links.values():
                link.cut_off()


class Feeder:
    """See the module.

    Args:
        tasks: those that are fed, ``worker/0`` ..., in their order.
        feeds: the names of the feeds.
        exactly_once: a lost task is an error for `train`, instead of its rows being fed again.
        last_lines: of a task, for messages.
        say: takes remarks; default: a line on stderr.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        feeds: Sequence[str] = ("input",),
        *,
        exactly_once: bool = False,
        last_lines: Callable[[str], Sequence[str]] = lambda task: (),
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._known = list(tasks)
        self._alive: dict[str, None] = dict.fromkeys(tasks)
        self._exactly_once = exactly_once
        self._last_lines = last_lines
        self._say = say or _to_stderr
        self._lock = threading.RLock()
        self._feeds = {name: Feed(name) for name in feeds}
        self._error: BaseException | None = None
        self._finished = self._closed = False
        self._given_up: set[str] = set()
        self._closing = Closing(self._lock, self._going, self._cut_off, self._say)
        self._links: list[Link] = []
        self._hearing: list[tuple[threading.Thread, socket.socket]] = []

    # What becomes of the tasks.

    def add(self, guest: Guest) -> None:
        """Take over a connection that a task has opened for a feed."""
        name = f"feed from {guest.task}"
        thread = threading.Thread(target=self._welcome, args=[guest], name=name, daemon=True)
        with self._lock:
            self._hearing = [(one, sock) for one, sock in self._hearing if one.is_alive()]
            self._hearing.append((thread, guest.sock))
            thread.start()

    def lost(self, task: str, why: str, again: bool = False) -> None:
        """A task has ended: others get what it did not consume.

        What it said last may still be on its way, so this waits a moment for the end of its connections.

        Args:
            why: for those who ask.
            again: whether it will be back, in another attempt.
        """
        with self._lock:
            deadline = time.monotonic() + _LAST_WORDS
            for link in [link for link in self._links if link.task == task]:
                link.wait_for_end(deadline)
            if not again:
                self._alive.pop(task, None)
            for feed in self._feeds.values():
                if task in feed.links:
                    self._drop(feed, feed.links[task], why)
                elif feed.flow is not None:
                    feed.flow.lost(task, why)

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
        partitions = partitions_of(data, len(self._known), epochs)
        if equal is None:
            self._train(qname, self._terms(feed_timeout), partitions)
            return
        if batch_size is None:
            raise FeedError(f"equal={equal!r} needs a batch_size: it makes batches of exactly so many rows")
        dealer = Dealer(rounds(partitions, len(self._known), batch_size, equal), len(self._known))
        try:
            self._train(qname, self._terms(feed_timeout, in_step=True), dealer.partitions())
        finally:
            dealer.end()

    def inference(self, data: Any, *, feed_timeout: float = 600.0, qname: str = "input") -> Iterator[Any]:
        """One result for each row, in the order of the rows; lazily.

        Args:
            data, feed_timeout, qname: as `train` has them.

        Raises:
            As `train` does.
        """
        partitions = partitions_of(data, len(self._known))
        flow = self._begin(qname, self._terms(feed_timeout, inference=True), partitions)
        try:
            while (results := self._results(flow)) is not None:
                yield from results
        finally:
            self._end(qname, flow)

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
            self._nudge()

    def close(self) -> None:
        """End all connections and threads. Tasks that wait for rows are told that there will be none."""
        with self._lock:
            self._closed = True
            links, hearing = list(self._links), list(self._hearing)
            for feed in self._feeds.values():
                orderly = self._finished and feed.flow is None
                if feed.flow is not None:
                    feed.flow.fail(FeedError("the feeder was closed"))
                for link in list(feed.links.values()):
                    link.dismiss("" if orderly else _OVER)
        self._closing.end(_PATIENCE)
        for link in links:
            link.close(_PATIENCE)
        for thread, sock in hearing:
            _hang_up(sock)
            thread.join(_PATIENCE)

    # Connections.

    def _welcome(self, guest: Guest) -> None:
        """Hear which feed is opened, answer, and go on hearing; a thread's."""
        sock = guest.sock
        try:
            sock.settimeout(_OPENING)
            keep_alive(sock)
            frame = recv_frame(sock, _MOST_OPENING)
            if frame is None or frame[0] != Kind.OPEN:
                raise ConnectionError("it opened no feed")
            opening = Opening.unpack(only(frame[1]))
            link = self._link(guest, opening)
            if isinstance(link, str):
                send_frame(sock, Kind.GONE, [link.encode()])
                sock.close()
                return
            with self._lock:
                had = link.detach()
            send_frame(sock, Kind.WELCOME, [number(had)])
            sock.settimeout(None)
        except OSError:  # it will come again, or be lost
            sock.close()
            return
        with self._lock:
            link.attach(sock, opening)
        link.hear(sock)

    def _link(self, guest: Guest, opening: Opening) -> Link | str:
        """The link of a connection; or why it gets none."""
        with self._lock:
            feed = self._feeds.get(guest.feed)
            if feed is None:
                return f"there is no such feed; there is {', '.join(self._feeds)}"
            if guest.task not in self._known:
                return f"{guest.task} is not fed; fed are {', '.join(self._known)}"
            if guest.task not in self._alive:
                return f"{guest.task} has ended, as far as the driver knows"
            if self._closed or opening.session in self._given_up:
                return _OVER if self._closed else "away for too long; others have its rows"
            link = feed.links.get(guest.task)
            if link is not None and link.session == opening.session:
                return link
            if link is not None:
                self._drop(feed, link, "the feed was opened again")
            return self._new_link(feed, guest, opening.session)

    def _new_link(self, feed: Feed, guest: Guest, session: str) -> Link:
        link = Link(
            guest.task,
            guest.attempt,
            session,
            self._lock,
            flow=lambda: feed.flow,
            ended=lambda: self._finished,
            on_lost=lambda link, why: self._drop(feed, link, why),
        )
        feed.links[guest.task] = link
        self._links.append(link)
        return link

    def _drop(self, feed: Feed, link: Link, why: str) -> None:
        """Nothing goes to this link any more; others get what it had."""
        self._given_up.add(link.session)
        if feed.links.get(link.task) is link:
            del feed.links[link.task]
        if feed.flow is not None:
            feed.flow.lost(link.task, why)
        for flow, share in link.dismiss(why):
            flow.feed_again(share)

    # Calls.

    def _terms(self, timeout: float, inference: bool = False, in_step: bool = False) -> Terms:
        return Terms(timeout, inference, self._exactly_once, self._last_lines, self._say, in_step)

    def _train(self, qname: str, terms: Terms, partitions: Iterator[Partition]) -> None:
        flow = self._begin(qname, terms, partitions)
        try:
            with self._lock:
                flow.wait(flow.consumed)
                if remains := flow.remains():
                    self._say(f"feed {qname!r}: {remains}")
        finally:
            self._end(qname, flow)

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
            missing = [name for name in self._known if name not in self._alive]
            if terms.in_step and missing:
                who = ", ".join(missing)
                raise FeedError(f"{who} is lost, and equal batches are for all tasks or for none")
            if feed.flow is not None:
                raise FeedError(f"feed {qname!r} is being fed already: {feed.flow.described()}")
            if self._finished or self._closed:
                raise FeedError(f"feed {qname!r} has ended: nothing can be fed after finish() or shutdown()")
            feed.abandoned = False
            feed.flow = Flow(qname, self._lock, partitions, self._alive, feed.links, terms)
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
        self._say(f"shutdown ends an inference() of the feed {qname!r} before all its results: {why}")
        flow.fail(FeedError(f"feed {qname!r}: shut down before all results were taken"))
        self._end(qname, flow)

    def _nudge(self) -> None:
        for feed in self._feeds.values():
            for link in feed.links.values():
                link.wake.notify_all()


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(2)
    except OSError:  # it has ended already
        pass


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
