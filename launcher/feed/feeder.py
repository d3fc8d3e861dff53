"""`Feeder`: rows to the tasks that have room, results back in order, no row lost.

Each feed of each task has a `WorkerChannel`; a call of `train` or `inference` is a `FeedCall`, from which the
channels take `Partition`s. One lock guards them all; it is not held while something is sent, or while the
user's code runs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from typing import Any

from launcher.errors import FeedError
from launcher.feed.call import IN_STEP, LOOK, Ended, Feed, FeedCall
from launcher.feed.channel import WorkerChannel
from launcher.feed.listener import Peer
from launcher.feed.sources import pieces_of, rounds
from launcher.text import Waiting

#: Seconds for a thread to end.
_THREAD = 2.0
_OVER = "the driver feeds no more rows"


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Feeder:
    """All feeds of a cluster.

    Args:
        tasks: those that are fed, ``worker/0`` ..., in their order.
        feeds: the names of the feeds.
        exactly_once: a lost task is an error for `train`; its rows are not fed again.
        last_lines: of a task, for messages.
        notice: takes lines about long waits; default: stderr.
        warn: takes warnings: problems that raise nothing; default: stderr.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        feeds: Sequence[str] = ("input",),
        *,
        exactly_once: bool = False,
        last_lines: Callable[[str], Sequence[str]] = lambda task: (),
        notice: Callable[[str], None] = _to_stderr,
        warn: Callable[[str], None] = _to_stderr,
    ) -> None:
        self._notice = notice
        self._warn = warn
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._tasks = list(tasks)
        self._ended: dict[str, Ended] = {}
        #: The number of the last start of each task that has started again.
        self._attempts: dict[str, int] = {}
        self._feeds = {
            name: Feed(name, self._lock, self._tasks, self._ended, exactly_once, last_lines, self._notice)
            for name in feeds
        }
        self._error: BaseException | None = None
        self._closed = False

    # Events of the tasks.

    def add(self, peer: Peer) -> None:
        """Take over a connection on which a task opens a feed."""
        with self._lock:
            if refusal := self._refusal(peer):
                no_feed = replace(next(iter(self._feeds.values())), call=None)
                WorkerChannel(no_feed, peer.task, peer.attempt, peer.sock).close(refusal)
                return
            if peer.task in self._ended:
                self.started(peer.task, peer.attempt)
            feed = self._feeds[peer.feed]
            old = feed.channels.get(peer.task)
            if old is not None and old.attempt != peer.attempt:
                peer.sock.close()  # the end of the old attempt is not known yet; the task connects again
                return
            if old is not None:
                old.close("the feed was opened again")
            feed.channels[peer.task] = WorkerChannel(feed, peer.task, peer.attempt, peer.sock)
            feed.wake()

    def _refusal(self, peer: Peer) -> str:
        """Why a task may not open a feed; empty: it may."""
        if peer.feed not in self._feeds:
            return f"there is no such feed; there is {', '.join(self._feeds)}"
        if self._closed:
            return _OVER
        if peer.task not in self._tasks:
            return f"{peer.task} is not fed; fed are {', '.join(self._tasks)}"
        if peer.task in self._ended and peer.attempt <= self._ended[peer.task].attempt:
            return f"{peer.task} has ended"
        if peer.attempt < self._attempts.get(peer.task, 1):
            return f"{peer.task} has started again"
        return ""

    def lost(self, task: str, attempt: int, reason: str) -> None:
        """A task has ended: other tasks get the rows that it did not consume.

        Args:
            attempt: the number of its start; a later one may open feeds.
            reason: for messages.
        """
        with self._lock:
            self._ended[task] = Ended(attempt, reason, time.monotonic())
            for feed in self._feeds.values():
                if (channel := feed.channels.pop(task, None)) is not None:
                    channel.close(reason, ended=True)
                if feed.call is not None:
                    feed.call.changed()

    def restarting(self, attempts: Mapping[str, int]) -> None:
        """Tasks are to start again: they are waited for. They take rows until they end.

        Args:
            attempts: by task the number of its last start; a later one may open feeds.
        """
        with self._lock:
            fed = [task for task in self._tasks if task in attempts]
            for task in fed:
                self._ended[task] = Ended(attempts[task], "is to start again", time.monotonic(), again=True)
            for feed in self._feeds.values():
                if feed.call is not None and fed:
                    feed.call.restarting(fed)

    def started(self, task: str, attempt: int) -> None:
        """A task has started; if it has started again, all processes of its last attempt have ended.

        Args:
            attempt: the number of its start.
        """
        with self._lock:
            end = self._ended.get(task)
            if end is not None and attempt <= end.attempt:
                return
            self._ended.pop(task, None)
            self._attempts[task] = attempt
            for feed in self._feeds.values():
                channel = feed.channels.get(task)
                if channel is not None and channel.attempt < attempt:
                    del feed.channels[task]
                    channel.close("it has started again", ended=True)
                if feed.call is not None and end is not None:
                    feed.call.started_again(task)

    def fail(self, error: BaseException) -> None:
        """The job has failed: present and later calls raise this."""
        with self._lock:
            self._error = self._error or error
            for feed in self._feeds.values():
                if feed.call is not None:
                    feed.call.fail(error)
            self._changed.notify_all()

    # Calls of the user.

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
        """Feed all rows; returns when they are consumed, or when no task takes more.

        Args:
            data: see `launcher.feed.sources`.
            epochs: how often.
            feed_timeout: seconds in which some task must take some row.
            qname: the feed.
            equal: ``drop``, ``pad`` or ``repeat``: every task gets the same number of batches.
            batch_size: rows of each of these batches.

        Raises:
            FeedTimeout: no task took a row for so long.
            FeedError: rows cannot be sent, or no task is left to take them.
            InputError: ``data`` has no rows. Any exception of iterating it, and the error given to `fail`.
        """
        tasks = len(self._tasks)
        source: Generator[Any] = pieces_of(data, tasks, epochs)
        if equal is not None:
            source = rounds(source, tasks, batch_size, equal)
        with self._call(qname, source, feed_timeout, in_step=equal is not None) as call, self._lock:
            call.wait(call.consumed)
            if remains := call.remains():
                self._warn(f"feed {qname!r}: {remains}")

    def inference(self, data: Any, *, feed_timeout: float = 600.0, qname: str = "input") -> Iterator[Any]:
        """One result for each row, in the order of the rows; lazily.

        Args:
            data, feed_timeout, qname: as `train` has them.

        Raises:
            As `train` does.
        """
        pieces = pieces_of(data, len(self._tasks))
        with self._call(qname, pieces, feed_timeout, inference=True) as call:
            while (results := call.results()) is not None:
                yield from results

    def finish(self, timeout: float | None = None) -> None:
        """Nothing more will be fed: ``should_stop()`` becomes true in the tasks.

        Waits for other threads that feed rows, or take results. An `inference` whose results no thread takes
        any more is ended: it raises `FeedError` if one does.

        Args:
            timeout: seconds to wait; ``None``: no limit.
        """
        deadline = inf if timeout is None else time.monotonic() + timeout
        waiting = Waiting()
        with self._lock:
            for feed in self._feeds.values():
                feed.finished = True
                feed.wake()
            while not (self._closed or self._error is not None or time.monotonic() > deadline):
                calls = [call for feed in self._feeds.values() if (call := self._going(feed)) is not None]
                if not calls:
                    return
                begun = waiting.due()
                for call in calls if begun else ():
                    action = "takes results" if call.inference else "feeds rows"
                    text = f"{begun} {call.taker.name}, which {action} of the feed {call.feed.name!r}"
                    self._notice(f"shutdown: {text} (at most {call.timeout:g}s without any)")
                self._changed.wait(LOOK)

    def _going(self, feed: Feed) -> FeedCall | None:
        """The call of a feed; it is ended if no thread takes its results."""
        if (call := feed.call) is not None and (reason := call.abandoned()):
            text = f"shutdown stops an inference() of the feed {feed.name!r} before all its results: {reason}"
            self._warn(text)
            call.fail(FeedError(f"feed {feed.name!r}: shut down before all results were taken"))
            self._end(call)
        return feed.call

    def close(self) -> None:
        """End all connections and threads. Unless `finish` was called, tasks get an error."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            for feed in self._feeds.values():
                orderly = feed.finished and feed.call is None
                if feed.call is not None:
                    feed.call.fail(FeedError("the feeder was closed"))
                for channel in feed.channels.values():
                    channel.close("" if orderly else _OVER)
            channels = [channel for feed in self._feeds.values() for channel in feed.channels.values()]
        for channel in channels:
            channel.join(_THREAD)

    # Calls.

    @contextmanager
    def _call(self, qname: str, source: Generator[Any], timeout: float, **kind: bool) -> Iterator[FeedCall]:
        with self._lock:
            if self._error is not None:
                raise self._error
            feed = self._feeds.get(qname)
            if feed is None:
                raise FeedError(f"there is no feed {qname!r}; there is {', '.join(self._feeds)}")
            lost = [task for task, end in self._ended.items() if not end.again]
            if kind.get("in_step") and lost:
                raise FeedError(f"{', '.join(lost)} is lost; {IN_STEP}")
            if (call := feed.call) is not None:
                text = "there is an inference(): take all its results, or close() it"
                text = text if call.inference else f"by train() in {call.taker.name}"
                raise FeedError(f"feed {qname!r} is being fed already: {text}")
            if feed.finished or self._closed:
                raise FeedError(f"feed {qname!r} has ended: nothing can be fed after finish() or shutdown()")
            call = feed.call = FeedCall(feed, source, timeout, **kind)
            call.changed()
        try:
            yield call
        finally:
            self._end(call)

    def _end(self, call: FeedCall) -> None:
        with self._lock:
            call.end()
            if call.feed.call is call:
                call.feed.call = None
                self._changed.notify_all()
