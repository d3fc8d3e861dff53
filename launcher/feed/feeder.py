"""`Feeder`: rows to the tasks that have room, results back in order, no row lost.

Each feed of each task has a `WorkerChannel`; a call of `train` or `inference` is a `FeedCall`, from which the
channels take `Partition`s. One lock guards them all; it is not held while something is sent, or while the
user's code runs.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any

from launcher.errors import FeedError
from launcher.feed.call import LOOK, Feed, FeedCall, Tasks
from launcher.feed.channel import WorkerChannel
from launcher.feed.listener import Peer
from launcher.feed.lockstep import Dealer
from launcher.feed.remote.frames import Kind, send_frame
from launcher.feed.sources import Piece, pieces_of
from launcher.text import Waiting

#: Seconds for a thread to end, for the last frames of a task that has ended, for a task to take a refusal.
_THREAD, _LAST_FRAMES, _REFUSAL = 2.0, 0.3, 2.0
_OVER = "the driver feeds no more rows"


class Feeder:
    """All feeds of a cluster.

    Args:
        tasks: those that are fed, ``worker/0`` ..., in their order.
        feeds: the names of the feeds.
        exactly_once: a lost task is an error for `train`; its rows are not fed again.
        last_lines: of a task, for messages.
        notice: takes lines about long waits; default: stderr.
        warn: takes lines about what goes wrong and raises nothing; default: stderr.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        feeds: Sequence[str] = ("input",),
        *,
        exactly_once: bool = False,
        last_lines: Callable[[str], Sequence[str]] = lambda task: (),
        notice: Callable[[str], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._notice = notice or _to_stderr
        self._warn = warn or _to_stderr
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._tasks = Tasks(tasks)
        self._feeds = {
            name: Feed(name, self._lock, self._tasks, exactly_once, last_lines, self._notice)
            for name in feeds
        }
        self._error: BaseException | None = None
        self._finished = self._closed = False
        #: Channels whose threads may run, also of connections that were replaced.
        self._channels: list[WorkerChannel] = []

    # Events of the tasks.

    def add(self, peer: Peer) -> None:
        """Take over a connection on which a task opens a feed."""
        with self._lock:
            feed = self._feeds.get(peer.feed)
            refusal = "" if feed else f"there is no such feed; there is {', '.join(self._feeds)}"
            refusal = refusal or (_OVER if self._closed else self._tasks.admit(peer.task, peer.attempt))
            if feed is not None and not refusal:
                if peer.task in feed.channels:
                    self._drop(feed, peer.task, "the feed was opened again")
                channel = feed.channels[peer.task] = WorkerChannel(feed, peer.task, peer.sock)
                self._channels = [*(old for old in self._channels if old.sock is not None), channel]
                channel.start()
                return
        with peer.sock as sock, suppress(OSError):  # the task may have ended
            sock.settimeout(_REFUSAL)
            send_frame(sock, Kind.GONE, [refusal.encode()])
            sock.shutdown(socket.SHUT_WR)
            for _ in range(16):  # what the task has sent: unread, it would reset the connection
                if not sock.recv(1 << 16):
                    break

    def lost(self, task: str, attempt: int, reason: str, again: bool = False) -> None:
        """A task has ended: other tasks get what it did not consume.

        Waits a moment for the end of its connections, as its last frames may still be on their way.

        Args:
            attempt: the number of its start; a later one may open feeds.
            reason: for messages.
            again: whether it will be started once more: until then it is awaited.
        """
        with self._lock:
            deadline = time.monotonic() + _LAST_FRAMES
            for channel in [feed.channels[task] for feed in self._feeds.values() if task in feed.channels]:
                while channel.sock is not None and (left := deadline - time.monotonic()) > 0:
                    channel.wake.wait(left)
            self._tasks.ended(task, attempt, reason, again)
            for feed in self._feeds.values():
                if task in feed.channels:
                    self._drop(feed, task, reason)
                elif feed.call is not None:
                    feed.call.release(task, [], reason)

    def _drop(self, feed: Feed, task: str, reason: str) -> None:
        channel = feed.channels.pop(task)
        channel.close(reason)
        if feed.call is not None:
            feed.call.release(task, channel.take_away(), reason)

    def fail(self, error: BaseException) -> None:
        """The job has failed: present and later calls raise this."""
        with self._lock:
            self._error = self._error or error
            for feed in self._feeds.values():
                if feed.call is not None:
                    feed.call.fail(error)
            self._changed.notify_all()

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
        tasks = len(self._tasks.names)
        pieces = pieces_of(data, tasks, epochs)
        if equal is None:
            self._train(qname, pieces, feed_timeout)
            return
        if batch_size is None:
            raise FeedError(f"equal={equal!r} needs a batch_size: it makes batches of exactly so many rows")
        dealer = Dealer(pieces, tasks, batch_size, equal)
        try:
            self._train(qname, dealer.pieces(), feed_timeout, in_step=True)
        finally:
            dealer.end()

    def inference(self, data: Any, *, feed_timeout: float = 600.0, qname: str = "input") -> Iterator[Any]:
        """One result for each row, in the order of the rows; lazily.

        Args:
            data, feed_timeout, qname: as `train` has them.

        Raises:
            As `train` does.
        """
        pieces = pieces_of(data, len(self._tasks.names))
        call = self._begin(qname, pieces, feed_timeout, inference=True)
        try:
            while (results := self._results(call)) is not None:
                yield from results
        finally:
            self._end(call, qname)

    def finish(self, timeout: float | None = None) -> None:
        """Nothing more will be fed: ``should_stop()`` becomes true in the tasks.

        Waits for other threads that feed rows, or take results. An `inference` whose results no thread takes
        any more is ended: it raises `FeedError` if one does.

        Args:
            timeout: seconds to wait; ``None``: no limit.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting = Waiting()
        with self._lock:
            self._finished = True
            for feed in self._feeds.values():
                feed.finished = True
                feed.wake()
            while (going := self._going()) and not (self._closed or self._error is not None):
                if deadline is not None and time.monotonic() > deadline:
                    return
                if begun := waiting.due():
                    for name, call in going:
                        action = "takes results" if call.inference else "feeds rows"
                        limit = f"at most {call.timeout:g} s without any"
                        text = f"{begun} {call.taker.name}, which {action} of the feed {name!r} ({limit})"
                        self._notice(f"shutdown: {text}")
                self._changed.wait(LOOK)

    def _going(self) -> list[tuple[str, FeedCall]]:
        """End the calls whose results no thread takes; those that go on."""
        for name, feed in self._feeds.items():
            if feed.call is not None and (reason := feed.call.abandoned()):
                self._warn(
                    f"shutdown ends an inference() of the feed {name!r} before all its results: {reason}"
                )
                feed.call.fail(FeedError(f"feed {name!r}: shut down before all results were taken"))
                self._end(feed.call, name)
        return [(name, feed.call) for name, feed in self._feeds.items() if feed.call is not None]

    def close(self) -> None:
        """End all connections and threads. Unless `finish` was called, tasks get an error."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            for feed in self._feeds.values():
                orderly = self._finished and feed.call is None
                if feed.call is not None:
                    feed.call.fail(FeedError("the feeder was closed"))
                for channel in feed.channels.values():
                    channel.close("" if orderly else _OVER)
            channels = self._channels
        for channel in channels:
            channel.join(_THREAD)

    # Calls.

    def _train(self, qname: str, pieces: Generator[Piece], timeout: float, in_step: bool = False) -> None:
        call = self._begin(qname, pieces, timeout, in_step=in_step)
        try:
            with self._lock:
                call.wait(call.consumed)
                if remains := call.remains():
                    self._warn(f"feed {qname!r}: {remains}")
        finally:
            self._end(call, qname)

    def _results(self, call: FeedCall) -> list[Any] | None:
        with self._lock:
            return call.results()

    def _begin(
        self,
        qname: str,
        pieces: Generator[Piece],
        timeout: float,
        inference: bool = False,
        in_step: bool = False,
    ) -> FeedCall:
        with self._lock:
            if self._error is not None:
                raise self._error
            feed = self._feeds.get(qname)
            if feed is None:
                raise FeedError(f"there is no feed {qname!r}; there is {', '.join(self._feeds)}")
            if in_step and self._tasks.missing:
                missing = ", ".join(self._tasks.missing)
                raise FeedError(f"{missing} is lost, and equal batches are for all tasks or for none")
            if (call := feed.call) is not None:
                text = f"by train() in {call.taker.name}"
                if call.inference:
                    text = (
                        "there is an inference() whose results are not all taken (take them, or close() it)"
                    )
                raise FeedError(f"feed {qname!r} is being fed already: {text}")
            if self._finished or self._closed:
                raise FeedError(f"feed {qname!r} has ended: nothing can be fed after finish() or shutdown()")
            feed.call = FeedCall(feed, pieces, timeout, inference, in_step)
            feed.call.changed()
            return feed.call

    def _end(self, call: FeedCall, qname: str) -> None:
        with self._lock:
            call.end()
            if self._feeds[qname].call is call:
                self._feeds[qname].call = None
                self._changed.notify_all()


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
