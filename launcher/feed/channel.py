"""`WorkerChannel`: the connection of one task for one feed, with two threads: one sends, one receives.
`Partition`: the rows that it sends.

The sending thread takes partitions of the present call, makes their chunks, and sends them. It holds the
lock for neither: making a chunk runs the user's code, and sending one lasts until the task takes it.
When the connection has ended, the partitions that are not finished go back to their call.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from launcher.errors import FeedError
from launcher.feed.remote import frames
from launcher.feed.remote.codec import Block, Buffer, as_rows, decode, encode, encode_code, part, size
from launcher.feed.sources import Piece, run_user_code
from launcher.record import Record

if TYPE_CHECKING:
    from launcher.feed.call import Feed, FeedCall

#: Bytes and rows of a chunk.
CHUNK, MOST_ROWS = 1 << 20, 16384
#: Bytes of a chunk that is split once more: its rows are much larger than those before.
FAR_TOO_BIG = 64 << 20
#: The factor by which a chunk may have more rows than the one before: the first rows may be small ones.
_GROWTH = 8
#: The weight of a chunk of code, in bytes: it will make many rows.
_CODE_WEIGHT = 2 << 20
#: Bytes sent to a task of which it has not begun to hand out rows.
WINDOW = 4 << 20
#: Seconds after a break until partitions are fed again, so that the reason of a loss is known.
_BROKEN = 1.0
#: The error about results that cannot be unpickled; ``{why}`` is Python's message.
_UNREADABLE = (
    "results can't be read by the driver ({why}); make them of classes that the driver can import, "
    "or of texts, numbers and arrays"
)


class Chunk(Record):
    """Some rows, or the code that returns them, ready to be sent."""

    #: Their number; ``None``: it is code.
    rows: int | None
    weight: int
    buffers: Sequence[Buffer]


class Chunker:
    """Cuts partitions into chunks of about a mebibyte; learns from each how many rows that is."""

    def __init__(self) -> None:
        self.rows = 1  # the first row may have any size

    def chunks(self, piece: Piece) -> Iterator[Chunk]:
        """The rows of a partition, encoded.

        Raises:
            FeedError: they cannot be sent. Any exception of the user's code.
        """
        for block in piece.blocks(lambda: self.rows):
            yield from self._encoded(block)

    def _encoded(self, block: Block) -> Iterator[Chunk]:
        rows = size(block)
        if not rows:
            return
        buffers = encode(block)
        weight = sum([len(buffer) for buffer in buffers])
        self.rows = max(1, min(rows * CHUNK // max(1, weight), max(self.rows, rows * _GROWTH), MOST_ROWS))
        if rows > 1 and weight > FAR_TOO_BIG:
            buffers.clear()
            yield from self._encoded(part(block, 0, rows // 2))
            yield from self._encoded(part(block, rows // 2, rows))
            return
        frames.check_size(buffers, "a row" if rows == 1 else f"{rows} rows")
        yield Chunk(rows, weight, buffers)


class Partition:
    """Some rows that are fed: their chunks, and how far the present task is with them.

    All but `make` is called with the lock of the feeder.

    Args:
        call: feeds it.
        number: from 0.
        piece: gives its rows; if it can do so only once, the chunks are kept.
        task: gets it; empty: any task.
    """

    def __init__(self, call: FeedCall, number: int, piece: Piece, task: str = "") -> None:
        self.call = call
        self.number = number
        self.task = task
        #: Results in order that were not taken yet; of how many bytes.
        self.results: list[Any] = []
        self.result_bytes = 0
        self.kept_bytes = 0
        #: Whether all its rows are consumed, or answered.
        self.done = False
        self._piece = piece
        #: Chunks kept for a second time; ``None``: the piece can give its rows again, or they are too many.
        self._kept: list[Chunk] | None = None if piece.repeatable else []
        self._fresh: Iterator[Chunk] | None = None
        #: The number of results known from all tasks.
        self._known = 0
        self._begin()

    def _begin(self) -> None:
        self._chunks = self._all_chunks()
        #: Whether all chunks were made; the number of the last one on its connection (0: there is none).
        self.complete = False
        self.last = 0
        #: Rows sent, results received; whether the number of rows is not known yet: code returns them.
        self._rows = self._answered = 0
        self._uncounted = False

    def _all_chunks(self) -> Iterator[Chunk]:
        if self._piece.remote is not None:
            code = encode_code(self._piece.remote)
            frames.check_size([code], f"the callable of partition {self.number}")
            yield Chunk(None, len(code) + _CODE_WEIGHT, [code])
            return
        yield from list(self._kept or ())
        if self._fresh is None or self._piece.repeatable:
            self._fresh = self.call.chunker.chunks(self._piece)
        for chunk in self._fresh:
            if (kept := self._kept) is not None:
                kept.append(chunk)
                self.kept_bytes += chunk.weight
            yield chunk

    def make(self) -> Chunk | None:
        """The next chunk; ``None`` after the last. Runs the user's code."""
        return next(self._chunks, None)

    def sent(self, chunk: Chunk, number: int) -> None:
        """A chunk is sent, the one of this number on its connection."""
        self.last = number
        self._rows += chunk.rows or 0
        self._uncounted = chunk.rows is None

    def counted(self, number: int, rows: int) -> None:
        """The code in a chunk of this number has returned so many rows."""
        if self._uncounted and self.last == number:
            self._rows, self._uncounted = rows, False

    @property
    def missing(self) -> int:
        """Results that are missing for rows sent, at least."""
        return 1 if self._uncounted else self._rows - self._answered

    def is_finished(self, consumed: int) -> bool:
        """Whether all its chunks are consumed, up to this number, or all its rows are answered."""
        return self.complete and (self.missing <= 0 if self.call.inference else self.last <= consumed)

    def answer(self, results: list[Any]) -> tuple[list[Any], int]:
        """Take the results of its rows, except those that a lost task has given before.

        Returns:
            The results that belong to later partitions; how many new ones were taken.
        """
        taken = results if self._uncounted else results[: self.missing]
        new = taken[max(0, self._known - self._answered) :]
        self._answered += len(taken)
        self._known += len(new)
        self.results += new
        return results[len(taken) :], len(new)

    def restart(self) -> None:
        """Begin again, for another task.

        Raises:
            FeedError: its rows are gone.
        """
        if self._kept is None and not self._piece.repeatable:
            raise FeedError(
                f"partition {self.number} can't be fed again: it can be iterated only once, and is too "
                "big to be kept; feed lists, callables that read the data, or smaller partitions"
            )
        self._begin()

    def fresh(self) -> Partition:
        """The same partition, with nothing sent. A thread that still sends this one has no effect then."""
        return Partition(self.call, self.number, self._piece, self.task)

    def forget(self) -> None:
        """Drop the chunks kept for a second time."""
        self._kept, self.kept_bytes = None, 0


class WorkerChannel:
    """The connection of one task for one feed. All methods but `join` are called with the lock.

    Args:
        feed: the feed.
        task: ``worker/0``.
        attempt: the number of its start.
        sock: the connection.
    """

    def __init__(self, feed: Feed, task: str, attempt: int, sock: socket.socket) -> None:
        self.feed = feed
        self.task = task
        self.attempt = attempt
        self.wake = threading.Condition(feed.lock)
        self.since = time.monotonic()
        self.connected = True
        #: Whether the function waits for rows, and has all that were sent.
        self.hungry = False
        #: Whether the function takes no more rows; because it has returned.
        self.terminated = self.returned = False
        #: Bytes of which the task has not begun to hand out rows.
        self.window = 0
        self._sock = sock
        #: Why the connection is closed, the error for the task; empty: the feed has ended in an orderly way.
        self._reason: str | None = None
        #: Whether the task has sent a frame: by then it is known whether its function takes rows.
        self._opened = False
        #: Chunks sent, and the last consumed one; weights of those of which no row is handed out.
        self._sent = self._consumed = 0
        self._unread: deque[int] = deque()
        #: The partition that is being sent; partitions with rows that are not consumed, or not answered.
        self._sending: Partition | None = None
        self._unconsumed: deque[Partition] = deque()
        self._unanswered: deque[Partition] = deque()
        #: Whether FLUSH was sent after the last chunk, and END.
        self._flushed, self._end_sent = True, False
        self._receiver = threading.Thread(target=self._receive_all, name=f"feed from {task}", daemon=True)
        self._sender = threading.Thread(target=self._send_all, name=f"feed to {task}", daemon=True)
        self._receiver.start()
        self._sender.start()

    @property
    def over(self) -> bool:
        """Whether no more rows can be sent on this connection."""
        return not self.connected or self._reason is not None

    @property
    def has_room(self) -> bool:
        """Whether the task could begin with another partition now."""
        return not (self._sending or self.terminated or self.over) and self.window < WINDOW

    @property
    def late(self) -> bool:
        """Whether the task has rows, or owes results."""
        waits = self._sent > self._consumed and not self.hungry
        return not self.terminated and (waits or any(it.missing > 0 for it in self._unanswered))

    def close(self, reason: str = "", ended: bool = False) -> None:
        """End the connection. Frames that the task has sent are still received.

        Args:
            reason: the error for the task; empty: the feed has ended in an orderly way.
            ended: whether the task has ended.
        """
        self._reason = self._reason or reason
        self.wake.notify_all()
        if ended:
            frames.hang_up(self._sock)

    def join(self, seconds: float) -> None:
        """Wait for the threads, after `close`."""
        self._sender.join(seconds)
        frames.hang_up(self._sock)
        self._sender.join(seconds)

    def add(self, partition: Partition) -> None:
        """The next partition to be sent."""
        self._sending = partition
        (self._unanswered if partition.call.inference else self._unconsumed).append(partition)

    def call_ended(self) -> None:
        """Nothing more is sent of partitions of the call that has ended."""
        for partition in (*self._unconsumed, *self._unanswered):
            partition.complete = True
        self._finish_partitions()
        self.wake.notify_all()

    def _changed(self) -> None:
        self.wake.notify_all()
        if self.feed.call is not None:
            self.feed.call.changed()

    def _finish_partitions(self) -> None:
        """Report the partitions of which all chunks are consumed, or answered."""
        for partitions in (self._unconsumed, self._unanswered):
            while partitions and partitions[0].is_finished(self._consumed):
                partition = partitions.popleft()
                partition.call.finished(partition)

    def _give_back(self) -> None:
        """Give the partitions that are not finished back, but the one that is being sent."""
        loss = f"{self.task} is lost ({self._reason or 'its connection broke'})"
        for partition in [*self._unconsumed, *self._unanswered]:
            if partition is not self._sending:
                (self._unanswered if partition.call.inference else self._unconsumed).remove(partition)
                partition.call.given_back(partition, "" if self.terminated else loss)

    # The thread that receives.

    def _receive_all(self) -> None:
        reason: Exception | None = None
        try:
            ahead = frames.ReadAhead(self._sock)
            while (frame := frames.recv_frame(ahead)) is not None:
                self._received(*frame)
        except Exception as error:  # noqa: BLE001 - an invalid frame: the task would send it again
            if isinstance(error, frames.FeedRefused) or not isinstance(error, OSError):
                reason = error
        with self.wake:
            self.connected = False
            if reason is not None:
                known = isinstance(reason, FeedError)
                text = str(reason) if known else f"it sends an invalid frame: {reason!r}"
                failed = FeedError(f"{self.task}: {text}")
                failed.__cause__ = reason.__cause__ or reason
                self.close(str(failed))
                if self.feed.call is not None:
                    self.feed.call.fail(failed)
            self._changed()
            self.wake.wait_for(lambda: self._reason is not None, _BROKEN)
            self._give_back()

    def _received(self, kind: int, buffers: list[memoryview]) -> None:
        # This takes long: without the lock.
        results = as_rows(decode(buffers, _UNREADABLE)) if kind == frames.Kind.RESULTS else None
        with self.wake:
            self._opened = True
            if results is not None:
                size = sum(map(len, buffers))
                for partition in self._unanswered:
                    results, new = partition.answer(results)
                    partition.call.answered(partition, new, size)
                    if not results:
                        break
                    size = 0
            elif kind in (frames.Kind.PROGRESS, frames.Kind.HUNGRY):
                read, self._consumed = frames.unpack_numbers(buffers)
                while self._unread and self._sent - len(self._unread) < read:
                    self.window -= self._unread.popleft()
                self.hungry = kind == frames.Kind.HUNGRY and read >= self._sent
            elif kind == frames.Kind.COUNTED:
                number, rows = frames.unpack_numbers(buffers)
                for partition in self._unanswered:
                    partition.counted(number, rows)
            elif kind == frames.Kind.TERMINATE:
                self.terminated = True
                self.returned |= b"".join(buffers) == frames.RETURNED
                if self.feed.call is not None:
                    self.feed.call.refused(self)
            else:
                raise frames.FeedRefused(f"kind {kind}")
            self._finish_partitions()
            self.wake.notify_all()
            if self.feed.call is not None:
                self.feed.call.moved()

    # The thread that sends.

    def _send_all(self) -> None:
        try:
            with suppress(OSError):  # the receiving thread notices that, too
                for kind, buffers in self._frames():
                    frames.send_frame(self._sock, kind, buffers)
                if self._reason:
                    frames.send_frame(self._sock, frames.Kind.GONE, [self._reason.encode()])
                elif not self._end_sent:
                    frames.send_frame(self._sock, frames.Kind.END)
        finally:
            frames.hang_up(self._sock)
            self._receiver.join()  # frames that came before the end count
            with self.wake:
                self._sending = None
                self._give_back()
                self._changed()
            self._sock.close()

    def _frames(self) -> Iterator[tuple[frames.Kind, Sequence[Buffer]]]:
        """The frames to send; ends with the connection."""
        while (work := self._next_work()) is not None:
            if isinstance(work, frames.Kind):
                yield work, ()
            elif (partition := work.take(self)) is not None:
                yield from self._frames_of(partition)

    def _next_work(self) -> FeedCall | frames.Kind | None:
        """Wait for a call that has a partition for this task, or a frame to send; ``None``: it is over."""
        with self.wake:
            while not self.over:
                call = self.feed.call
                if self.terminated:
                    self._give_back()
                elif call is not None and self._opened:
                    if call.offers(self):
                        return call
                    if call.all_given(self) and not self._flushed:
                        self._flushed = True
                        return frames.Kind.FLUSH
                if call is None and self.feed.finished and not self._end_sent:
                    self._end_sent = True
                    return frames.Kind.END
                self.wake.wait()
        return None

    def _frames_of(self, partition: Partition) -> Iterator[tuple[frames.Kind, Sequence[Buffer]]]:
        """Make the chunks of a partition, as the task has room for them."""
        call = partition.call

        def stopped() -> bool:
            return self.over or self.terminated or call.over or call.error is not None

        def ready() -> bool:
            return stopped() or (self.window < WINDOW and call.permits(partition.number))

        while True:
            with self.wake:
                self.wake.wait_for(ready)
                if stopped():
                    break
            chunk, error = run_user_code(partition.make)
            with self.wake:
                if error is not None:
                    call.fail(error)
                if stopped():
                    break
                if chunk is None:
                    partition.complete = True
                    self._flushed |= call.inference  # a batch ends with its partition
                    self._finish_partitions()
                    break
                self._sent += 1
                partition.sent(chunk, self._sent)
                self._unread.append(chunk.weight)
                self.window += chunk.weight
                self.hungry = self._flushed = False
                call.limit_kept(partition)
            yield frames.Kind.CODE if chunk.rows is None else frames.Kind.ROWS, chunk.buffers
        with self.wake:
            self._sending = None
            call.changed()
        if partition.complete and call.inference:
            yield frames.Kind.FLUSH, ()
