"""`Feeder`: rows to the tasks that have room, results back in order, no row lost.

`launcher.api` calls `Feeder`. Each feed has a `FeedState`, which decides. Each connection of a task has a
`FeedChannel` with a thread that sends and one that receives: they tell the state what has happened, with
the lock of all feeds, and do what it commands. They hold the lock neither while they send or receive, nor
while the code of the user runs: to read the source, to make a chunk, to unpickle results. A call of `train`
or `inference` waits in the thread of the user.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from queue import SimpleQueue
from typing import Any

from launcher.common.errors import FeedError, TransportError
from launcher.common.text import Waiting, join_names
from launcher.feed.call import Call, Partition
from launcher.feed.link import FeedLink
from launcher.feed.listener import FeedPeer
from launcher.feed.remote import frames
from launcher.feed.remote.codec import Buffer, as_rows, decode
from launcher.feed.sources import pieces_of, rounds, run_user_code
from launcher.feed.state import IN_STEP_MESSAGE, CloseFeed, FeedState, Flush, Leave, Make, Read
from launcher.messages import say
from launcher.threads import start

#: Seconds for tasks to end their connections.
_LEAVE_TIMEOUT_SECONDS = 2.0
#: Seconds between two looks at the time.
POLL_SECONDS = 0.25
_FEEDER_CLOSED = "the driver feeds no more rows"


class Feeder:
    """All feeds of a cluster.

    Args:
        tasks: those that are fed, ``worker/0`` ..., in their order.
        feeds: the names of the feeds.
        exactly_once: a lost task is an error for `train`; its rows are not fed again.
        last_lines: of a task, for messages.
        quiet: Whether the user is not told about long waits. Problems that raise nothing are told anyway.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        feeds: Sequence[str] = ("input",),
        *,
        exactly_once: bool = False,
        last_lines: Callable[[str], Sequence[str]] = lambda task: (),
        quiet: bool = False,
    ) -> None:
        self._quiet = quiet
        self._last_lines = last_lines
        self._lock = threading.RLock()
        self._tasks = list(tasks)
        self._feeds = {
            name: Feed(FeedState(name, self._tasks, exactly_once, last_lines), self._lock) for name in feeds
        }
        self._error: BaseException | None = None
        self._closed = False

    # Events of the tasks.

    def add(self, peer: FeedPeer) -> None:
        """Take over a connection on which a task opens a feed."""
        feed = self._feeds.get(peer.feed) or next(iter(self._feeds.values()))
        with feed.event() as now:
            refusal = _FEEDER_CLOSED if self._closed else ""
            if peer.feed not in self._feeds:
                refusal = f"unknown feed; expected one of {', '.join(self._feeds)}"
            if (link := feed.state.connected(peer.task, peer.attempt, now, refusal)) is not None:
                feed.open(link, peer.sock)
            else:
                peer.sock.close()

    def lost(self, task: str, attempt: int, reason: str) -> None:
        """A task has ended: other tasks get the rows that it did not consume.

        Args:
            attempt: the number of its start; a later one may open feeds.
            reason: for messages.
        """
        for feed in self._feeds.values():
            with feed.event() as now:
                feed.state.lost(task, attempt, reason, now)

    def restarting(self, attempts: Mapping[str, int]) -> None:
        """Tasks are to start again: they are waited for. They take rows until they end.

        Args:
            attempts: by task the number of its last start; a later one may open feeds.
        """
        for feed in self._feeds.values():
            with feed.event() as now:
                feed.state.restarting(attempts, now)

    def started(self, task: str, attempt: int) -> None:
        """A task has started; if it has started again, all processes of its last attempt have ended.

        Args:
            attempt: the number of its start.
        """
        for feed in self._feeds.values() if task in self._tasks else ():
            with feed.event():
                feed.state.started(task, attempt)

    def fail(self, error: BaseException) -> None:
        """The job has failed: present and later calls raise this."""
        with self._lock:
            self._error = self._error or error
            for feed in self._feeds.values():
                with feed.event():
                    feed.state.call.fail(error)

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
        call = Call(source, self._tasks, feed_timeout, in_step=equal is not None)
        with self._begun(qname, call) as feed, self._lock:
            self._wait(feed, call)
            if remains := feed.state.remains():
                say(f"feed {qname!r}: {remains}")

    def inference(self, data: Any, *, feed_timeout: float = 600.0, qname: str = "input") -> Iterator[Any]:
        """One result for each row, in the order of the rows; lazily.

        Args:
            data, feed_timeout, qname: as `train` has them.

        Raises:
            As `train` does.
        """
        call = Call(pieces_of(data, len(self._tasks)), self._tasks, feed_timeout, inference=True)
        with self._begun(qname, call) as feed:
            while (results := self._results(feed, call)) is not None:
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
                with feed.event():
                    feed.state.finished = True
            while not (self._closed or self._error is not None or time.monotonic() > deadline):
                going = [feed for feed in self._feeds.values() if self._check_call(feed)]
                if not going:
                    return
                begun = waiting.due()
                for feed in going if begun else ():
                    action = "takes results" if feed.state.call.inference else "feeds rows"
                    text = f"{begun} {feed.taker.name}, which {action} of the feed {feed.state.name!r}"
                    limit = f"at most {feed.state.call.timeout:g}s without any"
                    self._say_unless_quiet(f"shutdown: {text} ({limit})")
                going[0].news.wait(POLL_SECONDS)

    def _say_unless_quiet(self, text: str) -> None:
        if not self._quiet:
            say(text)

    def _check_call(self, feed: Feed) -> bool:
        """Whether there is a call; it is ended if no thread takes its results."""
        call, name = feed.state.call, feed.state.name
        if not call.over and call.inference and (reason := feed.no_taker(call.timeout)):
            say(f"shutdown stops an inference() of the feed {name!r} before all its results: {reason}")
            call.fail(FeedError(f"feed {name!r}: shut down before all results were taken"))
            self._end(feed, call)
        return not call.over

    def close(self) -> None:
        """End all connections and threads. Unless `finish` was called, tasks get an error."""
        with self._lock:
            self._closed = True
            channels = [channel for feed in self._feeds.values() for channel in feed.channels.values()]
            for feed in self._feeds.values():
                with feed.event():
                    feed.state.stop(_FEEDER_CLOSED)
        deadline = time.monotonic() + _LEAVE_TIMEOUT_SECONDS
        for channel in channels:
            channel.join(deadline)

    # Calls.

    @contextmanager
    def _begun(self, qname: str, call: Call) -> Iterator[Feed]:
        """A call is served within this context."""
        with self._lock:
            if self._error is not None:
                raise self._error
            feed = self._feeds.get(qname)
            if feed is None:
                raise FeedError(f"there is no feed {qname!r}; there is {', '.join(self._feeds)}")
            lost = [task.name for task in feed.state.tasks.values() if not task.is_alive]
            if call.in_step and lost:
                raise FeedError(f"{', '.join(lost)} is lost; {IN_STEP_MESSAGE}")
            if not feed.state.call.over:
                text = "there is an inference(): take all its results, or close() it"
                text = text if feed.state.call.inference else f"by train() in {feed.taker.name}"
                raise FeedError(f"feed {qname!r} is being fed already: {text}")
            if feed.state.finished or self._closed:
                raise FeedError(f"feed {qname!r} has ended: nothing can be fed after finish() or shutdown()")
            with feed.event() as now:
                feed.taker, feed.taken, feed.waiting = threading.current_thread(), now, Waiting()
                feed.state.begin(call, now)
        try:
            yield feed
        finally:
            self._end(feed, call)

    def _end(self, feed: Feed, call: Call) -> None:
        with self._lock:
            if not call.over:
                with feed.event():
                    feed.state.end()
                if not call.reading:
                    call.source.close()  # ends the thread that reads ahead, if there is one

    def _results(self, feed: Feed, call: Call) -> list[Any] | None:
        """Wait for the next results, and return them in order; ``None``: no results are left."""
        with self._lock:
            feed.taker, feed.taken = threading.current_thread(), inf
            try:
                self._wait(feed, call)
                with feed.event():
                    return call.take_results()
            finally:
                feed.taken = time.monotonic()

    def _wait(self, feed: Feed, call: Call) -> None:
        """Wait until a call is finished, or has results.

        Raises:
            FeedTimeout: no task takes a row. FeedError: no task is left. The error given to `fail`.
        """
        while call.error is None and not feed.state.is_ready():
            with feed.event() as now:
                feed.state.check(now)
            if text := feed.state.results_missing(now):
                say(text)
            missing = feed.state.missing(now)
            if missing and (begun := feed.waiting.due()):
                hint = "importing TensorFlow takes seconds"
                if lines := self._last_lines(missing[0]):
                    hint = f"last line of {missing[0]}: {lines[-1]}"
                what = f"{join_names(missing)} to ask for rows of the feed {feed.state.name!r}"
                self._say_unless_quiet(f"{begun} {what} ({hint})")
            feed.news.wait(POLL_SECONDS)
        if call.error is not None:
            raise call.error


#: Seconds for a thread to end, when its connection has.
_THREAD_END_SECONDS = 2.0
#: The error about results that cannot be unpickled; ``{why}`` is Python's message.
_UNREADABLE_RESULTS = (
    "results can't be read by the driver ({why}); make them of classes that the driver can import, "
    "or of texts, numbers and arrays"
)


class Feed:
    """A feed.

    Args:
        state: used with the lock only.
        lock: of all feeds.
    """

    def __init__(self, state: FeedState, lock: threading.RLock) -> None:
        self.state = state
        #: Something has happened for the thread that waits for the end of the call, or takes results.
        self.news = threading.Condition(lock)
        self.channels: dict[FeedLink, FeedChannel] = {}
        #: That thread; when it has taken results (infinity: it waits for some); its messages about waits.
        self.taker = threading.current_thread()
        self.taken = 0.0
        self.waiting = Waiting()

    @contextmanager
    def event(self) -> Iterator[float]:
        """Tell the state something within this context, which has the time; then do what it decides."""
        with self.news:
            now = time.monotonic()
            yield now
            if self.state.is_ready():
                self.news.notify_all()
            for command in self.state.commands(now):
                self.channels[command.link].do(command)

    def no_taker(self, timeout: float) -> str:
        """Why no thread will take the results that are left; empty: a thread may."""
        if self.taker is threading.current_thread() or not self.taker.is_alive():
            return "not all were taken"
        idle = time.monotonic() - self.taken > timeout
        return f"{self.taker.name} has taken none for {timeout:g}s" if idle else ""

    def open(self, link: FeedLink, sock: socket.socket) -> None:
        """Serve a connection, in threads; within `event`. The call fails if there are none for it."""
        try:
            self.channels[link] = FeedChannel(self, link, sock)
        except TransportError as error:
            frames.hang_up(sock)
            self.state.broke(link, FeedError(f"{link.task.name} can't be fed: {error}"), time.monotonic())
            self.state.left(link)


class FeedChannel:
    """A connection of a task, and its threads.

    Args:
        feed: the feed.
        link: what is known of it.
        sock: the connection.
    """

    def __init__(self, feed: Feed, link: FeedLink, sock: socket.socket) -> None:
        self._feed, self._link, self._sock = feed, link, sock
        #: What the sending thread is to do, one thing at a time.
        self._commands: SimpleQueue[Read | Make | Flush | Leave] = SimpleQueue()
        name = link.task.name
        self._receiver = threading.Thread(target=self._receive, name=f"feed from {name}", daemon=True)
        self._sender = threading.Thread(target=self._serve, name=f"feed to {name}", daemon=True)
        start(self._receiver)
        start(self._sender)

    def do(self, command: Read | Make | Flush | Leave | CloseFeed) -> None:
        """Do it, in the thread that sends."""
        if isinstance(command, CloseFeed):
            frames.hang_up(self._sock)
        else:
            self._commands.put(command)

    def join(self, deadline: float) -> None:
        """Wait for the thread that sends, which leaves; at this time end the connection."""
        self._sender.join(max(0.0, deadline - time.monotonic()))
        frames.hang_up(self._sock)
        self._sender.join(_THREAD_END_SECONDS)

    def _serve(self) -> None:
        """Do what the state decides, until it leaves."""
        state, link = self._feed.state, self._link
        while not isinstance(command := self._commands.get(), Leave):
            if isinstance(command, Read):
                self._read(command.call)
                continue
            if isinstance(command, Flush):
                self._send(frames.Kind.FLUSH)
            else:
                while self._send_chunk(command.partition):
                    pass
            with self._feed.event():
                state.was_sent(link)
        reason = link.reason or ""
        self._send(frames.Kind.GONE if reason else frames.Kind.END, [reason.encode()])
        self._receiver.join()  # the task ends the connection, or has; frames that it has sent before count
        with self._feed.event():
            state.left(link)
            del self._feed.channels[link]
        self._sock.close()

    def _read(self, call: Call) -> None:
        """Read the source, the user's code."""
        item, error = run_user_code(lambda: next(call.source, None))
        with self._feed.event() as now:
            self._feed.state.was_read(self._link, call, item, error, now)
        if call.over:
            call.source.close()

    def _send_chunk(self, partition: Partition) -> bool:
        """Make a chunk, the user's code, and send it; whether the next one may be made at once."""
        state, link = self._feed.state, self._link
        chunk, error = run_user_code(partition.make)
        with self._feed.news:  # only the lock; an event follows when all is sent
            wanted = state.was_made(link, partition, chunk, error)
        if chunk is None or not wanted:
            return False
        self._send(frames.Kind.CODE if chunk.rows is None else frames.Kind.ROWS, chunk.buffers)
        with self._feed.news:
            return state.may_make(link)

    def _send(self, kind: frames.Kind, buffers: Sequence[Buffer] = ()) -> None:
        try:
            frames.send_frame(self._sock, kind, buffers)
        except OSError:
            frames.hang_up(self._sock)  # the receiving thread notices that

    def _receive(self) -> None:
        """Tell the state what comes, until the connection ends."""
        failed = None
        try:
            file = frames.reader(self._sock)
            while (frame := frames.recv_frame(file)) is not None:
                self._received(*frame)
        except Exception as error:  # noqa: BLE001 - an invalid frame: the task would send it again
            if isinstance(error, frames.FeedRefusedError) or not isinstance(error, OSError):
                known = isinstance(error, FeedError)
                text = str(error) if known else f"it sends an invalid frame: {error!r}"
                failed = FeedError(f"{self._link.task.name}: {text}")
                failed.__cause__ = error.__cause__ or error
        with self._feed.event() as now:
            self._feed.state.broke(self._link, failed, now)

    def _received(self, kind: int, buffers: list[memoryview]) -> None:
        size, content = sum(map(len, buffers)), buffers
        if kind == frames.Kind.RESULTS:
            content = as_rows(decode(buffers, _UNREADABLE_RESULTS))  # takes long: without the lock
        with self._feed.event() as now:
            self._feed.state.received(self._link, kind, content, size, now)
