"""`Feeder`: rows to the tasks that have room, results back in order, no row lost.

Each feed of each task has a `WorkerChannel`; a call of `train` or `inference` is a `FeedCall`, from which the
channels take `Partition`s. One lock guards them all; it is not held while something is sent, or while the
user's code runs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from launcher.errors import FeedError
from launcher.feed.call import FeedCall, Options, Tasks
from launcher.feed.channel import Feed, WorkerChannel
from launcher.feed.lockstep import Dealer
from launcher.feed.remote.connect import keep_alive
from launcher.feed.remote.frames import FeedBroken, hang_up, recv_frame, send_frame
from launcher.feed.remote.messages import RETURNED, WANTED, Kind, only
from launcher.feed.sources import Piece, pieces_of
from launcher.feed.waiting import Waiting

if TYPE_CHECKING:
    import socket

    from launcher.feed.listener import Peer

#: Seconds for a task to say which feed it opens.
_OPENING = 10.0
#: Seconds for a thread to end; for the last frames of a task that has ended; between two looks at the end.
_THREAD, _LAST_FRAMES, _LOOK = 2.0, 0.3, 0.25
_OVER = "the driver feeds no more rows"


class Feeder:
    """All feeds of a cluster.

    Args:
        tasks: those that are fed, ``worker/0`` ..., in their order.
        feeds: the names of the feeds.
        exactly_once: a lost task is an error for `train`; its rows are not fed again.
        last_lines: of a task, for messages.
        say: takes lines about long waits; default: stderr.
        warn: takes lines about what goes wrong and raises nothing; default: stderr.
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
        self._changed = threading.Condition(self._lock)
        self._tasks = Tasks(tasks)
        self._feeds = {name: Feed(name, self._lock) for name in feeds}
        self._error: BaseException | None = None
        self._finished = self._closed = False
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._end_watch: threading.Thread | None = None

    # What happens to the tasks.

    def add(self, peer: Peer) -> None:
        """Take over a connection on which a task opens a feed."""
        name = f"feed from {peer.task}"
        thread = threading.Thread(target=self._serve, args=[peer], name=name, daemon=True)
        with self._lock:
            self._connections = {old: sock for old, sock in self._connections.items() if old.is_alive()}
            self._connections[thread] = peer.sock
            thread.start()

    def lost(self, task: str, attempt: int, why: str, again: bool = False) -> None:
        """A task has ended: other tasks get what it did not consume.

        Waits a moment for the end of its connections, as its last frames may still be on their way.

        Args:
            attempt: the number of its start; a later one may open feeds.
            why: for messages.
            again: whether it will be started once more: until then it is awaited.
        """
        with self._lock:
            deadline = time.monotonic() + _LAST_FRAMES
            channels = [feed.channels[task] for feed in self._feeds.values() if task in feed.channels]
            for channel in channels:
                while channel.sock is not None and (left := deadline - time.monotonic()) > 0:
                    channel.wake.wait(left)
            self._tasks.ended(task, attempt, why, again)
            for feed in self._feeds.values():
                if task in feed.channels:
                    self._drop(feed, feed.channels.pop(task), why)
                elif feed.call is not None and feed.call.options.in_step:
                    error = f"{task} is lost ({why}), and equal batches are for all tasks or for none"
                    feed.call.fail(FeedError(error))
                elif feed.call is not None:
                    feed.call.changed()

    def fail(self, error: BaseException) -> None:
        """The job has failed: present and later calls raise this."""
        with self._lock:
            self._error = self._error or error
            for feed in self._feeds.values():
                if feed.call is not None:
                    feed.call.fail(error)

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
        pieces = pieces_of(data, len(self._tasks.names), epochs)
        if equal is None:
            self._train(qname, self._options(feed_timeout), pieces)
            return
        if batch_size is None:
            raise FeedError(f"equal={equal!r} needs a batch_size: it makes batches of exactly so many rows")
        dealer = Dealer(pieces, len(self._tasks.names), batch_size, equal)
        try:
            self._train(qname, self._options(feed_timeout, in_step=True), dealer.pieces())
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
        call = self._begin(qname, self._options(feed_timeout, inference=True), pieces)
        try:
            while (results := self._results(call)) is not None:
                yield from results
        finally:
            self._end(call, qname)

    def finish(self) -> None:
        """Nothing more will be fed: ``should_stop()`` becomes true in the tasks.

        A feed that another thread still feeds, or takes results of, ends when that is done. An `inference`
        whose results no thread takes any more is ended: it raises `FeedError` if one does.
        """
        with self._lock:
            self._finished = True
            for feed in self._feeds.values():
                feed.finished = True
            if self._going() and self._end_watch is None:
                self._end_watch = threading.Thread(target=self._watch, name="end of the feeds", daemon=True)
                self._end_watch.start()
            for feed in self._feeds.values():
                if feed.call is None:
                    feed.cut_off()
                feed.wake()

    def close(self) -> None:
        """End all connections and threads. Unless `finish` was called, tasks get an error."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            channels = [channel for feed in self._feeds.values() for channel in feed.channels.values()]
            for feed in self._feeds.values():
                orderly = self._finished and feed.call is None
                if feed.call is not None:
                    feed.call.fail(FeedError("the feeder was closed"))
                for channel in feed.channels.values():
                    channel.close("" if orderly else _OVER)
            connections = dict(self._connections)
        if self._end_watch is not None:
            self._end_watch.join(_THREAD)
        for channel in channels:
            channel.join(_THREAD)
        for thread, sock in connections.items():
            hang_up(sock)
            thread.join(_THREAD)

    # Connections.

    def _serve(self, peer: Peer) -> None:
        """Open the feed for a task, and serve its connection until it ends; a thread."""
        sock = peer.sock
        try:
            sock.settimeout(_OPENING)
            keep_alive(sock)
            frame = recv_frame(sock, 1 << 16)
            if frame is None or frame[0] != Kind.OPEN:
                raise FeedBroken("the connection did not open a feed")
            wanted = only(frame[1])
            with self._lock:
                refusal = self._refusal(peer)
                channel = None if refusal else self._open(peer, wanted)
            if channel is None:
                send_frame(sock, Kind.GONE, [refusal.encode()])
        except OSError:  # the task connects again, or is lost
            channel = None
        if channel is None:
            sock.close()
        else:
            channel.run()

    def _refusal(self, peer: Peer) -> str:
        """Why a task cannot open a feed; empty: it can."""
        if peer.feed not in self._feeds:
            return f"there is no such feed; there is {', '.join(self._feeds)}"
        return _OVER if self._closed else self._tasks.admit(peer.task, peer.attempt)

    def _open(self, peer: Peer, wanted: bytes) -> WorkerChannel:
        feed = self._feeds[peer.feed]
        if peer.task in feed.channels:
            self._drop(feed, feed.channels[peer.task], "the feed was opened again")
        channel = feed.channels[peer.task] = WorkerChannel(feed, peer.task, peer.sock)
        if wanted != WANTED:
            channel.terminate(wanted == RETURNED)
        return channel

    def _drop(self, feed: Feed, channel: WorkerChannel, why: str) -> None:
        channel.close(why)
        if feed.call is not None:
            feed.call.release(channel, why)

    # Calls.

    def _options(self, timeout: float, inference: bool = False, in_step: bool = False) -> Options:
        return Options(timeout, inference, self._exactly_once, self._last_lines, self._say, in_step)

    def _train(self, qname: str, options: Options, pieces: Generator[Piece]) -> None:
        call = self._begin(qname, options, pieces)
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

    def _begin(self, qname: str, options: Options, pieces: Generator[Piece]) -> FeedCall:
        with self._lock:
            if self._error is not None:
                raise self._error
            feed = self._feeds.get(qname)
            if feed is None:
                raise FeedError(f"there is no feed {qname!r}; there is {', '.join(self._feeds)}")
            if options.in_step and self._tasks.missing:
                missing = ", ".join(self._tasks.missing)
                raise FeedError(f"{missing} is lost, and equal batches are for all tasks or for none")
            if feed.call is not None:
                raise FeedError(f"feed {qname!r} is being fed already: {feed.call.described()}")
            if self._finished or self._closed:
                raise FeedError(f"feed {qname!r} has ended: nothing can be fed after finish() or shutdown()")
            feed.abandoned = False
            feed.call = FeedCall(feed, self._tasks, pieces, options)
            feed.call.changed()
            return feed.call

    def _end(self, call: FeedCall, qname: str) -> None:
        with self._lock:
            call.end()
            feed = self._feeds[qname]
            if feed.call is call:
                feed.call = None
                feed.abandoned = call.options.inference
                self._changed.notify_all()
                if self._finished:
                    feed.cut_off()

    # The end.

    def _going(self) -> list[tuple[str, FeedCall]]:
        """End the calls whose results no thread takes; those that go on."""
        for name, feed in self._feeds.items():
            if feed.call is not None and (why := feed.call.abandoned()):
                self._warn(f"shutdown ends an inference() of the feed {name!r} before all its results: {why}")
                feed.call.fail(FeedError(f"feed {name!r}: shut down before all results were taken"))
                self._end(feed.call, name)
        return [(name, feed.call) for name, feed in self._feeds.items() if feed.call is not None]

    def _watch(self) -> None:
        """See the last calls to their end; a thread."""
        waiting = Waiting()
        with self._changed:
            while not self._closed and (going := self._going()):
                if begun := waiting.due():
                    for name, call in going:
                        action = "takes results" if call.options.inference else "feeds rows"
                        limit = f"at most {call.options.timeout:g} s without any"
                        text = f"{begun} {call.taker.name}, which {action} of the feed {name!r} ({limit})"
                        self._say(f"shutdown: {text}")
                self._changed.wait(_LOOK)


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
