"""`Feed`: the state of a feed with its lock. `FeedChannel`: a connection, a thread that sends, one that
receives.

The threads tell the state what has happened, with the lock. They hold it neither while they send or receive,
nor while the user's code runs: to read the source, to make a chunk, to unpickle results.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from launcher.common.errors import FeedError, TransportError
from launcher.common.text import Waiting
from launcher.feed.call import Call
from launcher.feed.link import FeedLink
from launcher.feed.partition import Partition
from launcher.feed.remote import frames
from launcher.feed.remote.codec import Buffer, as_rows, decode
from launcher.feed.sources import run_user_code
from launcher.feed.state import CloseFeed, FeedState, Flush, Leave, Make, Read
from launcher.threads import start

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
