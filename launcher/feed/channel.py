"""`WorkerChannel`: the connection of one task for one feed, with two threads: one sends, one receives.

What to send next is decided with the lock of the feeder. Making a chunk, which runs the user's code, and
sending it, which takes as long as the task does, are done without the lock.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from launcher.errors import FeedError
from launcher.feed.call import Feed, FeedCall
from launcher.feed.partition import Chunk, Partition
from launcher.feed.remote.codec import Buffer, decode
from launcher.feed.remote.frames import (
    RETURNED,
    FeedRefused,
    Kind,
    ReadAhead,
    hang_up,
    recv_frame,
    send_frame,
    unpack_numbers,
)
from launcher.feed.sources import run_user_code

#: Bytes sent to a task of which it has not begun to hand out rows.
WINDOW = 4 << 20
#: Seconds for the error that a task gets before its connection is closed.
_GOODBYE = 5.0
#: The error about results that cannot be unpickled; ``{why}`` is Python's message.
_UNREADABLE = (
    "results can't be read by the driver ({why}); make them of classes that the driver can import, "
    "or of texts, numbers and arrays"
)


@dataclass
class _Sent:
    """A chunk that is on its way, not consumed, or not answered."""

    number: int
    partition: Partition
    weight: int
    #: Inference: its rows (``None``: not known yet), and results that have come.
    rows: int | None
    answered: int = 0

    @property
    def missing(self) -> int:
        """Results that are missing, at least."""
        return 1 if self.rows is None else self.rows - self.answered


class WorkerChannel:
    """See the module. All methods but `join` are called with the lock.

    Args:
        feed: the feed.
        task: ``worker/0``.
        sock: the connection.
    """

    def __init__(self, feed: Feed, task: str, sock: socket.socket) -> None:
        self.feed = feed
        self.task = task
        self.wake = threading.Condition(feed.lock)
        self.since = time.monotonic()
        #: The connection; ``None``: it has ended, at this time.
        self.sock: socket.socket | None = sock
        self.broken_at = 0.0
        #: Whether the task has sent a frame: by then it is known whether its function takes rows.
        self._opened = False
        #: Whether the function waits for rows, and has all that were sent.
        self.hungry = False
        #: Whether the function takes no more rows; because it has returned.
        self.terminated = self.returned = False
        #: Partitions of which not all chunks are made, by number.
        self.partitions: dict[int, Partition] = {}
        #: Bytes of which the task has not begun to hand out rows.
        self.window = 0
        self._made = 0
        self._untaken: deque[_Sent] = deque()
        self._unconsumed: deque[_Sent] = deque()
        self._unanswered: deque[_Sent] = deque()
        #: Whether FLUSH was sent after the last chunk, and END.
        self._flushed = self._end_sent = False
        #: The error for the task before its connection is closed, empty if the feed has ended in an orderly
        #: way; ``None``: the connection stays open.
        self._goodbye: str | None = None
        self._receiver = threading.Thread(
            target=self._receive_all, args=[sock], name=f"feed from {task}", daemon=True
        )
        self._sender = threading.Thread(target=self._send_all, name=f"feed to {task}", daemon=True)

    def start(self) -> None:
        """Send and receive, until the connection ends."""
        self._sender.start()
        self._receiver.start()
        if self.feed.call is not None:
            self.feed.call.changed()

    @property
    def has_room(self) -> bool:
        """Whether the task could begin with another partition now."""
        return not (self.partitions or self.terminated or self._is_over) and self.window < WINDOW

    @property
    def unconsumed(self) -> int:
        """Chunks that are not consumed."""
        return len(self._unconsumed)

    @property
    def unanswered(self) -> int:
        """Results that are missing, at least."""
        return sum([sent.missing for sent in self._unanswered])

    @property
    def owes_anything(self) -> bool:
        """Whether partitions are not finished."""
        return bool(self._unconsumed or self._unanswered or self.partitions)

    def close(self, reason: str = "") -> None:
        """End the connection.

        Args:
            reason: the error for the task; empty: the feed has ended in an orderly way.
        """
        if self._goodbye is None:
            self._goodbye = reason
            self.wake.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the threads, after `close`."""
        self._sender.join(seconds)
        if (sock := self.sock) is not None:
            hang_up(sock)
        self._receiver.join(seconds)

    def take_away(self) -> list[Partition]:
        """Forget all that is on its way.

        Returns:
            Partitions that the task has not consumed, or owes results for; without those of which a thread is
            making a chunk now.
        """
        found = {id(sent.partition): sent.partition for sent in (*self._unconsumed, *self._unanswered)}
        found.update((id(partition), partition) for partition in self.partitions.values())
        for pending in (self._unconsumed, self._untaken, self._unanswered, self.partitions):
            pending.clear()
        self.window = 0
        return [partition for partition in found.values() if not partition.busy]

    # The thread that receives.

    def _receive_all(self, sock: socket.socket) -> None:
        try:
            ahead = ReadAhead(sock)
            while (frame := recv_frame(ahead)) is not None:
                self._received(*frame)
        except Exception as error:  # noqa: BLE001 - an invalid frame: the task would send it again
            if isinstance(error, FeedRefused) or not isinstance(error, OSError):
                self._refuse(error)
        finally:
            with self.wake:
                self.sock = None
                self.broken_at = time.monotonic()
                self.wake.notify_all()
                if self.feed.call is not None:
                    self.feed.call.changed()
            sock.close()

    def _refuse(self, error: Exception) -> None:
        """The call raises this, and so does the task's function."""
        reason = f"it sends an invalid frame: {type(error).__name__}: {error}"
        failed = FeedError(f"{self.task}: {error if isinstance(error, FeedError) else reason}")
        failed.__cause__ = error.__cause__ or error
        with self.wake:
            if self.feed.call is not None:
                self.feed.call.fail(failed)
            self.close(str(failed))
        self._sender.join(_GOODBYE)

    def _received(self, kind: int, buffers: list[memoryview]) -> None:
        results = decode(buffers, _UNREADABLE) if kind == Kind.RESULTS else None  # long: without the lock
        with self.wake:
            self._opened = True
            if results is not None:
                self._add_results(list(results), sum(map(len, buffers)))
            elif kind in (Kind.PROGRESS, Kind.HUNGRY):
                self._progressed(*unpack_numbers(buffers), kind == Kind.HUNGRY)
            elif kind == Kind.COUNTED:
                self._counted(*unpack_numbers(buffers))
            elif kind == Kind.TERMINATE:
                self._terminate(b"".join(buffers) == RETURNED)
            else:
                raise FeedRefused(f"kind {kind}")
            self.wake.notify_all()
            if self.feed.call is not None:
                self.feed.call.moved()

    def _terminate(self, returned: bool) -> None:
        """The function takes no more rows: those that it has count as consumed."""
        self.terminated = True
        self.returned |= returned
        for partition in self.take_away():
            partition.call.give_up(partition)
        if self.feed.call is not None:
            self.feed.call.refused(self)

    def _progressed(self, taken: int, consumed: int, hungry: bool) -> None:
        self.hungry = hungry and taken >= self._made
        while self._untaken and self._untaken[0].number <= taken:
            self.window -= self._untaken.popleft().weight
        while self._unconsumed and self._unconsumed[0].number <= consumed:
            partition = self._unconsumed.popleft().partition
            if not partition.call.inference:
                partition.pending -= 1
                partition.call.settle(partition)

    def _counted(self, chunk: int, rows: int) -> None:
        """A chunk of code has returned so many rows."""
        for sent in self._unanswered:
            if sent.number == chunk and sent.rows is None:
                sent.rows = rows
        self._drop_answered()

    def _add_results(self, results: list[Any], size: int) -> None:
        """Results belong to the oldest rows without."""
        while results and self._unanswered:
            sent = self._unanswered[0]
            some = results if sent.rows is None else results[: sent.missing]
            results = results[len(some) :]
            sent.answered += len(some)
            sent.partition.call.add_results(sent.partition, some, size)
            size = 0
            self._drop_answered()

    def _drop_answered(self) -> None:
        while self._unanswered and self._unanswered[0].missing <= 0:
            partition = self._unanswered.popleft().partition
            partition.pending -= 1
            partition.call.settle(partition)

    # The thread that sends.

    @property
    def _is_over(self) -> bool:
        return self.sock is None or self._goodbye is not None

    def _send_all(self) -> None:
        while True:
            with self.wake:
                while not self._is_over and (step := self._next_step()) is None:
                    self.wake.wait()
                if self._is_over:
                    break
            assert step is not None
            step()
        if self._goodbye:
            self._send(Kind.GONE, [self._goodbye.encode()])
        elif not self._end_sent:
            self._send(Kind.END)
        if (sock := self.sock) is not None:
            hang_up(sock)  # the receiving thread closes it

    def _next_step(self) -> Callable[[], None] | None:
        """What to do now, without the lock; ``None``: wait."""
        call = self.feed.call
        if call is not None and not call.over and call.error is None:
            return self._feed_step(call) if self._opened and not self.terminated else None
        if self.feed.finished and not self._end_sent:
            self._end_sent = True
            self.take_away()
            return partial(self._send, Kind.END)
        return None

    def _feed_step(self, call: FeedCall) -> Callable[[], None] | None:
        """Make a chunk, begin with a partition, or tell the task that there is no more for now."""
        if self.window >= WINDOW:
            return None
        if permitted := [number for number in self.partitions if call.permits(number)]:
            partition = self.partitions[min(permitted)]
            partition.busy = True
            return partial(self._make, call, partition)
        claimed = call.claim(self)
        if claimed == "fetch":
            return partial(self._fetch, call)
        if claimed is not None:
            self.partitions[claimed.number] = claimed
            return self._feed_step(call)
        pause = (call.all_given and not self.partitions) or (call.full and self.hungry)
        if pause and self._unconsumed and not self._flushed:
            self._flushed = True
            return partial(self._send, Kind.FLUSH)
        return None

    def _fetch(self, call: FeedCall) -> None:
        piece, error = run_user_code(call.fetch)
        with self.wake:
            partition = call.fetched(piece, error)
            if partition is not None and (self._is_over or self.terminated):
                call.feed_again(partition)
            elif partition is not None:
                self.partitions[partition.number] = partition

    def _make(self, call: FeedCall, partition: Partition) -> None:
        chunk, error = run_user_code(partition.make)
        with self.wake:
            partition.busy = False
            if error is not None:
                call.fail(error)
                return
            if self.terminated:
                call.give_up(partition)
                return
            if partition.number not in self.partitions:  # it was taken away meanwhile
                call.feed_again(partition, f"{self.task} is lost")
                return
            if self._is_over or call.over:
                return
            if chunk is None:
                partition.complete = True
                del self.partitions[partition.number]
                call.settle(partition)
                call.changed()
            else:
                self._add(partition, chunk)
                call.limit_kept(partition)
        if chunk is not None:
            self._send(Kind.CODE if chunk.rows is None else Kind.ROWS, chunk.buffers)
        elif call.inference:  # a batch ends with its partition
            self._send(Kind.FLUSH)

    def _add(self, partition: Partition, chunk: Chunk) -> None:
        self._made += 1
        sent = _Sent(self._made, partition, chunk.weight, chunk.rows)
        partition.sent += 1
        partition.pending += 1
        self.window += sent.weight
        self._untaken.append(sent)
        self._unconsumed.append(sent)
        if partition.call.inference:
            self._unanswered.append(sent)
        self.hungry = self._flushed = False

    def _send(self, kind: Kind, buffers: Sequence[Buffer] = ()) -> None:
        sock = self.sock
        if sock is None:
            return
        try:
            send_frame(sock, kind, buffers)
        except OSError:
            hang_up(sock)
