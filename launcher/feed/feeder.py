"""``Feeder``: sends rows to the tasks that have room, and returns results in order. No row may be lost.

`launcher.api` calls `Feeder`. Each feed has a `FeedState`, which decides. Each connection of a task has a
`FeedChannel` with a thread that sends and one that receives. With the lock of all feeds they tell the state
what has happened, and do what it commands. They must not hold the lock while they send or receive, nor while
code of the user runs: to read the source, to make a chunk, to unpickle results. A call of `train` or
`inference` waits in the thread of the user.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from queue import SimpleQueue
from typing import Any

from launcher.common.errors import FeedError, TransportError
from launcher.common.text import Waiting, join_names
from launcher.feed.call import Call, Partition
from launcher.feed.link import FeedLink
from launcher.feed.listener import FeedPeer
from launcher.feed.outputs import OutputFolder
from launcher.feed.remote import frames
from launcher.feed.remote.codec import Buffer, as_rows, decode
from launcher.feed.sources import pieces_of, rounds, run_user_code
from launcher.feed.state import IN_STEP_MESSAGE, CloseFeed, FeedState, Flush, LastLines, Leave, Make, Read
from launcher.messages import say
from launcher.threads import start_function

# How long tasks may take to close their connections when the feeder closes.
_LEAVE_TIMEOUT_SECONDS = 2.0
POLL_SECONDS = 0.25
_FEEDER_CLOSED = "the driver feeds no more rows"
# How long a thread may take to end when its connection has ended.
_THREAD_END_SECONDS = 2.0
# The error about results that cannot be unpickled. ``{why}`` stands for Python's message.
_UNREADABLE_RESULTS = (
    "results cannot be read by the driver ({why}); make them of classes that the driver can import, "
    "or of texts, numbers and arrays"
)


class Feed:
    """One feed, with the threads of its connections.

    Args:
        state: Decides what the threads do. It is used only with the lock.
        lock: The lock of all feeds of a cluster.
    """

    def __init__(self, state: FeedState, lock: threading.RLock) -> None:
        """Make a feed that no task has opened."""
        self.state = state
        #: Wakes the thread of the user, which waits for the end of the call or for results.
        self.news = threading.Condition(lock)
        #: The connections that have threads, by what the state knows about each.
        self.channels: dict[FeedLink, FeedChannel] = {}
        #: The thread of the user that feeds rows or takes results.
        self.taker = threading.current_thread()
        #: When that thread last took results, by `time.monotonic`. Infinity while it waits for some.
        self.taken_at = 0.0
        #: Says when the user is to be told that the call waits.
        self.waiting = Waiting()

    @contextmanager
    def event(self) -> Iterator[float]:
        """Yield the time, with the lock held, so that the caller can tell the state what has happened.

        At the end of the context the commands of the state are passed to the threads of the connections.
        """
        # `news` is a condition that shares the lock of all feeds.
        with self.news:
            now = time.monotonic()
            yield now
            # The user's thread waits for this in `Feeder._wait`.
            if self.state.is_ready():
                self.news.notify_all()
            for command in self.state.commands(now):
                self.channels[command.link].do(command)

    def why_results_stay(self, timeout: float) -> str:
        """Return why no thread will take the remaining results of an inference.

        Args:
            timeout: The number of seconds after which a thread that takes no results has forgotten them.

        Returns:
            The reason, or an empty text if a thread may still take them.
        """
        # This thread is shutting the cluster down, so it takes no more results.
        if self.taker is threading.current_thread() or not self.taker.is_alive():
            return "not all were taken"
        is_idle = time.monotonic() - self.taken_at > timeout
        return f"{self.taker.name} has taken none for {timeout:g}s" if is_idle else ""

    def open(self, link: FeedLink, sock: socket.socket) -> None:
        """Serve a new connection in threads. Call this within `event`.

        If the system has no thread left, the connection is closed and the call fails.

        Args:
            link: What the state knows about the connection.
            sock: The socket of the connection.
        """
        try:
            self.channels[link] = FeedChannel(self, link, sock)
        except TransportError as error:
            # If the first of the two threads runs already, this wakes and ends it.
            frames.hang_up(sock)
            # There is no thread to tell the state that the connection has ended, so it is told here.
            failure = FeedError(f"{link.task.name} cannot be fed: {error}")
            self.state.on_broken(link, failure, time.monotonic())
            self.state.on_left(link)


class FeedChannel:
    """One connection of a task, with a thread that sends and one that receives.

    Args:
        feed: The feed that the task has opened.
        link: What the state knows about the connection.
        sock: The socket of the connection, which is closed here.
    """

    def __init__(self, feed: Feed, link: FeedLink, sock: socket.socket) -> None:
        """Start the two threads of a connection, one that sends and one that receives."""
        self._feed, self._link, self._sock = feed, link, sock
        #: The commands for the thread that sends.
        self._commands: SimpleQueue[Read | Make | Flush | Leave] = SimpleQueue()
        name = link.task.name
        self._receiver = start_function(self._receive, name=f"feed from {name}")
        self._sender = start_function(self._serve, name=f"feed to {name}")

    def do(self, command: Read | Make | Flush | Leave | CloseFeed) -> None:
        """Do what the state has decided, in the thread that sends. A `CloseFeed` is done at once."""
        if isinstance(command, CloseFeed):
            frames.hang_up(self._sock)
        else:
            self._commands.put(command)

    def join(self, deadline: float) -> None:
        """Wait until the thread that sends has ended.

        Args:
            deadline: When the connection is closed if the thread has not ended, by `time.monotonic`.
        """
        # This thread itself waits for the one that receives, which ends with the connection.
        self._sender.join(max(0.0, deadline - time.monotonic()))
        frames.hang_up(self._sock)
        self._sender.join(_THREAD_END_SECONDS)

    def _serve(self) -> None:
        """Do what the state commands, until it commands to leave. This runs in the thread that sends.

        - `Read`: read the next item of the user's source.
        - `Flush`: send a frame that ends a batch.
        - `Make`: make and send chunks (some rows each) of a partition.
        - `Leave`: tell the task why nothing more comes, wait for the end of the connection, and close it.

        The state gives the next command only after it was told that the last one is done.
        """
        state, link = self._feed.state, self._link
        while not isinstance(command := self._commands.get(), Leave):
            if isinstance(command, Read):
                # This tells the state itself that it is done.
                self._read(command.call)
                continue
            if isinstance(command, Flush):
                self._send(frames.Kind.FLUSH)
            else:
                # A Make: several chunks at once, as long as the state allows it.
                while self._send_chunk(command.partition):
                    pass
            with self._feed.event():
                state.on_sent(link)
        # An empty reason stands for the end of the feed.
        reason = link.reason or ""
        self._send(frames.Kind.GONE if reason else frames.Kind.END, [reason.encode()])
        self._receiver.join()  # until the task closes the connection, because frames that come before count
        # What is not consumed by now is fed to other tasks. No command for this connection can follow.
        with self._feed.event():
            state.on_left(link)
            del self._feed.channels[link]
        self._sock.close()

    def _read(self, call: Call) -> None:
        """Read the next item of the user's source, which runs code of the user, and tell the state."""
        item, error = run_user_code(lambda: next(call.source, None))
        with self._feed.event() as now:
            self._feed.state.on_read(self._link, call, item, error, now)
        # A call that has ended meanwhile could not close the source while it was read.
        if call.is_over:
            call.source.close()

    def _send_chunk(self, partition: Partition) -> bool:
        """Make a chunk, which runs code of the user, and send it.

        Returns:
            Whether the next chunk may be made at once.
        """
        state, link = self._feed.state, self._link
        chunk, error = run_user_code(partition.make)
        with self._feed.news:  # only the lock, because an event follows when everything is sent
            is_wanted = state.on_made(link, partition, chunk, error)
        if chunk is None or not is_wanted:
            return False
        self._send(frames.Kind.CODE if chunk.rows is None else frames.Kind.ROWS, chunk.buffers)
        with self._feed.news:
            return state.may_make(link)

    def _send(self, kind: frames.Kind, buffers: Sequence[Buffer] = ()) -> None:
        """Send a frame. If the connection has broken, wake the thread that receives, which reports it.

        Args:
            kind: The kind of the frame.
            buffers: The bytes in it.
        """
        try:
            frames.send_frame(self._sock, kind, buffers)
        except OSError:
            frames.hang_up(self._sock)

    def _receive(self) -> None:
        """Tell the state which frames come, until the connection ends, in the thread that receives."""
        failure = None
        try:
            file = frames.reader(self._sock)
            while (frame := frames.recv_frame(file)) is not None:
                self._handle_frame(*frame)
        except Exception as error:  # noqa: BLE001 - an invalid frame, which the task would send again
            # `FeedRefusedError` says that a frame is invalid. Any other OSError means that the connection has
            # broken, and the task may connect again. Results may also fail to unpickle, by any exception.
            if isinstance(error, frames.FeedRefusedError) or not isinstance(error, OSError):
                is_clear = isinstance(error, FeedError)
                text = str(error) if is_clear else f"it sends an invalid frame: {error!r}"
                failure = FeedError(f"{self._link.task.name}: {text}")
                failure.__cause__ = error.__cause__ or error
        with self._feed.event() as now:
            self._feed.state.on_broken(self._link, failure, now)

    def _handle_frame(self, kind: int, buffers: list[memoryview]) -> None:
        """Tell the state about a frame, with the results unpickled if it contains some.

        Args:
            kind: The kind of the frame.
            buffers: The bytes in it.
        """
        size, content = sum(map(len, buffers)), buffers
        if kind == frames.Kind.RESULTS:
            content = as_rows(decode(buffers, _UNREADABLE_RESULTS))  # slow, so without the lock
        with self._feed.event() as now:
            self._feed.state.on_frame(self._link, kind, content, size, now)


class Feeder:
    """All feeds of a cluster.

    Any thread may call it. Its methods `train` and `inference` wait in the thread of the user.

    Args:
        tasks: The names of the tasks that are fed, in their order.
        feeds: The names of the feeds.
        exactly_once: Whether the loss of a task is an error, so no row is fed twice.
        last_lines: Returns the last lines of a task, for messages.
        quiet: Whether the user is not told about long waits. Problems that raise nothing are told in any
            case.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        feeds: Sequence[str] = ("input",),
        *,
        exactly_once: bool = False,
        last_lines: LastLines = lambda task: (),
        quiet: bool = False,
    ) -> None:
        """Make the feeds of a cluster, which no task has opened."""
        self._quiet = quiet
        self._last_lines = last_lines
        #: Guards the states of all feeds, and the attributes of this object.
        self._lock = threading.RLock()
        self._tasks = list(tasks)
        self._feeds: dict[str, Feed] = {}
        for name in feeds:
            state = FeedState(name, self._tasks, exactly_once=exactly_once, last_lines=last_lines)
            self._feeds[name] = Feed(state, self._lock)
        #: Why the job has failed, which every call raises. None while it has not.
        self._error: BaseException | None = None
        #: Whether `close` was called, so tasks which connect are refused.
        self._is_closed = False

    # Events of the tasks.

    def add(self, peer: FeedPeer) -> None:
        """Take over a connection on which a task opens a feed.

        The connection is closed if the task has to connect again later. If there is no feed with the name
        that the task asks for, the task is told so.

        Args:
            peer: The task that has connected, with the socket and the name of the feed.
        """
        # A connection that is refused needs a feed, too, whose threads tell the task the reason. Any will do,
        # so the first one is used.
        any_feed = next(iter(self._feeds.values()))
        feed = self._feeds.get(peer.feed, any_feed)
        with feed.event() as now:
            refusal = _FEEDER_CLOSED if self._is_closed else ""
            if peer.feed not in self._feeds:
                refusal = f"unknown feed; expected one of {', '.join(self._feeds)}"
            if (link := feed.state.on_connected(peer.task, peer.attempt, now, refusal)) is not None:
                # A link with a refusal is opened, too, so that its thread tells the task the reason.
                feed.open(link, peer.sock)
            else:
                # The end of the task's last start is not known yet. The task connects again by itself.
                peer.sock.close()

    def on_lost(self, task: str, attempt: int, reason: str) -> None:
        """Give other tasks the rows that a task which has ended did not consume.

        Args:
            task: The name of the task.
            attempt: Which start of the task has ended. A later one may open feeds.
            reason: How the task has ended, for messages.
        """
        for feed in self._feeds.values():
            with feed.event() as now:
                feed.state.on_lost(task, attempt, reason, now)

    def on_restarting(self, attempts: Mapping[str, int]) -> None:
        """Note that tasks are to start again. They accept rows until they end.

        Args:
            attempts: The number of the last start of each task, by its name. A later one may open feeds.
        """
        for feed in self._feeds.values():
            with feed.event() as now:
                feed.state.on_restarting(attempts, now)

    def on_started(self, task: str, attempt: int) -> None:
        """Note that a task has started. All processes of its last attempt, if there was one, have ended.

        Args:
            task: The name of the task. Tasks that are not fed are ignored.
            attempt: Which start of the task this is.
        """
        if task not in self._tasks:
            return
        for feed in self._feeds.values():
            with feed.event():
                feed.state.on_started(task, attempt)

    def fail(self, error: BaseException) -> None:
        """Let present and later calls raise this error, because the job has failed."""
        with self._lock:
            self._error = self._error or error
            for feed in self._feeds.values():
                # The event wakes a thread of the user that waits for the call, which then raises the error.
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
        batch_size: int = 1,
    ) -> None:
        """Feed all rows, and return when they are consumed, or when no task accepts more.

        Args:
            data: The rows, see `launcher.feed.sources`.
            epochs: How many times all rows are fed.
            feed_timeout: The number of seconds in which some task must take some row.
            qname: The name of the feed.
            equal: ``drop``, ``pad`` or ``repeat`` if every task is to receive the same number of batches, see
                `rounds`.
            batch_size: The number of rows in each of these batches.

        Raises:
            FeedTimeout: No task took a row within the time limit.
            FeedError: Rows cannot be sent, or no task is left to take them.
            InputError: The data contains no rows.
            Exception: Whatever iterating the data raises, and the error passed to `fail`.
        """
        tasks = len(self._tasks)
        source: Generator[Any] = pieces_of(data, tasks, epochs)
        # Equal batches are read as rounds, each with a batch for every task. The call is then "in step".
        if equal is not None:
            source = rounds(source, tasks, batch_size, equal)
        call = Call(source, self._tasks, feed_timeout, is_in_step=equal is not None)
        with self._serving(qname, call) as feed, self._lock:
            self._wait(feed, call)
            # A function may have returned before all rows were read. That is no error.
            if warning := feed.state.unread_warning():
                say(f"feed {qname!r}: {warning}")

    def inference(
        self,
        data: Any,
        *,
        feed_timeout: float = 600.0,
        qname: str = "input",
        output: OutputFolder | None = None,
    ) -> Iterator[Any]:
        """Yield one result for each row, in the order of the rows. Rows are read as results are taken.

        Args:
            data: The rows, see `launcher.feed.sources`.
            feed_timeout: The number of seconds in which a task with unread rows must take some.
            qname: The name of the feed.
            output: Where the tasks store the results. The names of the files are yielded in their place.

        Raises:
            FeedTimeout: No task took a row within the time limit.
            FeedError: Rows cannot be sent, results are missing or cannot be read, or no task is left.
            InputError: The data contains no rows.
            Exception: Whatever iterating the data raises, and the error passed to `fail`.
        """
        pieces = pieces_of(data, len(self._tasks))
        source = pieces if output is None else output.pieces(pieces)
        call = Call(source, self._tasks, feed_timeout, is_inference=True)
        with self._serving(qname, call) as feed:
            while (results := self._results(feed, call)) is not None:
                yield from results

    def finish(self, timeout: float | None = None) -> None:
        """Close the feeds, so that ``should_stop()`` becomes true in the tasks.

        This waits for other threads that feed rows or take results. If no thread takes the results of an
        `inference` any longer, it is stopped, and raises `FeedError` to a thread that does take them later.

        Args:
            timeout: The longest time to wait in seconds, or None if there is no limit.
        """
        deadline = inf if timeout is None else time.monotonic() + timeout
        waiting = Waiting()
        with self._lock:
            # From now on no call can begin. A feed whose call is over ends at once, and the others after it.
            for feed in self._feeds.values():
                with feed.event():
                    feed.state.is_finished = True
            # Nobody needs to be waited for if the feeder is closed or the job has failed: the calls raise.
            while not (self._is_closed or self._error is not None or time.monotonic() > deadline):
                running = [feed for feed in self._feeds.values() if self._is_call_running(feed)]
                if not running:
                    return
                beginning = waiting.due()  # It is empty most of the time, so the user is told rarely.
                for feed in running if beginning else ():
                    action = "takes results" if feed.state.call.is_inference else "feeds rows"
                    text = f"{beginning} {feed.taker.name}, which {action} of the feed {feed.state.name!r}"
                    limit = f"at most {feed.state.call.timeout:g}s without any"
                    self._say_unless_quiet(f"shutdown: {text} ({limit})")
                # The next round checks all feeds, so it does not matter whose news ends this wait.
                running[0].news.wait(POLL_SECONDS)

    def _say_unless_quiet(self, text: str) -> None:
        """Tell the user about a long wait, unless the user has asked for quiet."""
        if not self._quiet:
            say(text)

    def _is_call_running(self, feed: Feed) -> bool:
        """Return whether the call of a feed runs, after stopping an inference whose results nobody takes.

        The user is told about an inference that is stopped, and it raises an error to a thread that takes its
        results later.
        """
        call, name = feed.state.call, feed.state.name
        if not call.is_over and call.is_inference and (reason := feed.why_results_stay(call.timeout)):
            say(f"shutdown stops an inference() of the feed {name!r} before all its results: {reason}")
            call.fail(FeedError(f"feed {name!r}: shut down before all results were taken"))
            self._end(feed, call)
        return not call.is_over

    def close(self) -> None:
        """Close all connections, and end their threads. Tasks receive an error unless `finish` was called."""
        with self._lock:
            self._is_closed = True
            channels = [channel for feed in self._feeds.values() for channel in feed.channels.values()]
            for feed in self._feeds.values():
                with feed.event():
                    feed.state.stop(_FEEDER_CLOSED)
        # Without the lock, which the threads need before they end. All of them share the time limit.
        deadline = time.monotonic() + _LEAVE_TIMEOUT_SECONDS
        for channel in channels:
            channel.join(deadline)

    # Calls.

    @contextmanager
    def _serving(self, qname: str, call: Call) -> Iterator[Feed]:
        """Serve a call of `train` or `inference` within this context, which yields the feed.

        A feed serves one call at a time. When the context is left, the call is over.

        Args:
            qname: The name of the feed.
            call: The call.

        Raises:
            FeedError: The feed does not exist, serves another call, or has ended, or a task has missed equal
                batches.
            BaseException: The error passed to `fail`.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            feed = self._feeds.get(qname)
            if feed is None:
                raise FeedError(f"there is no feed {qname!r}; there is {', '.join(self._feeds)}")
            # With equal batches (the call is "in step") no other task may take the rows of a lost one.
            lost = [task.name for task in feed.state.tasks.values() if not task.is_alive]
            if call.is_in_step and lost:
                raise FeedError(f"{', '.join(lost)} is lost; {IN_STEP_MESSAGE}")
            if not feed.state.call.is_over:
                how = f"by train() in {feed.taker.name}"
                if feed.state.call.is_inference:
                    how = "there is an inference(): take all its results, or close() it"
                raise FeedError(f"feed {qname!r} is being fed already: {how}")
            if feed.state.is_finished or self._is_closed:
                raise FeedError(f"feed {qname!r} has ended: nothing can be fed after finish() or shutdown()")
            # At the end of this context the threads of the connections get their first commands.
            with feed.event() as now:
                feed.taker, feed.taken_at = threading.current_thread(), now
                feed.waiting = Waiting()
                feed.state.begin(call, now)
        # The lock is not held here, because a caller of `inference` may do anything between two results.
        try:
            yield feed
        finally:
            self._end(feed, call)

    def _end(self, feed: Feed, call: Call) -> None:
        """Stop serving a call, and close its source, unless the call is over.

        Args:
            feed: The feed that serves the call.
            call: The call.
        """
        with self._lock:
            if not call.is_over:
                with feed.event():
                    feed.state.end()
                # A generator cannot be closed while another thread runs it. That thread closes it afterwards.
                if not call.is_reading:
                    call.source.close()  # this stops the thread that reads ahead, if there is one

    def _results(self, feed: Feed, call: Call) -> list[Any] | None:
        """Wait for the next results of a call, and return them in the order of the rows.

        Args:
            feed: The feed that serves the call.
            call: The call, an inference.

        Returns:
            The results, or None if no results are left.
        """
        with self._lock:
            # When the cluster is shut down, an inference is stopped if nobody has taken results for a long
            # time. A thread that waits here has not forgotten them.
            feed.taker, feed.taken_at = threading.current_thread(), inf
            try:
                self._wait(feed, call)
                with feed.event():
                    return call.take_results()
            finally:
                feed.taken_at = time.monotonic()

    def _wait(self, feed: Feed, call: Call) -> None:
        """Wait until a call is finished, or has results, and tell the user what it waits for.

        This runs in the thread of the user, which holds the lock except while it sleeps.

        Args:
            feed: The feed that serves the call.
            call: The call.

        Raises:
            FeedTimeout: No task has taken a row within the time limit.
            FeedError: No task is left, or the call has failed in another thread.
            BaseException: The error passed to `fail`.
        """
        while call.error is None and not feed.state.is_ready():
            # Some commands are due at a time and not after an event. They are passed on here.
            with feed.event() as now:
                feed.state.check(now)
            if warning := feed.state.silence_warning(now):
                say(warning)
            awaited = feed.state.awaited_tasks(now)
            # `due` returns how a message about the wait begins, or an empty text most of the time.
            if awaited and (beginning := feed.waiting.due()):
                hint = "importing TensorFlow takes seconds"
                if lines := self._last_lines(awaited[0]):
                    hint = f"last line of {awaited[0]}: {lines[-1]}"
                subject = f"{join_names(awaited)} to ask for rows of the feed {feed.state.name!r}"
                self._say_unless_quiet(f"{beginning} {subject} ({hint})")
            feed.news.wait(POLL_SECONDS)
        if call.error is not None:
            raise call.error
