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
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.errors import FeedError
from launcher.feed.grouping import run_user_code
from launcher.feed.partition import Chunk, Partition
from launcher.feed.remote.codec import Buffer, decode
from launcher.feed.remote.frames import FeedRefused, ReadAhead, hang_up, recv_frame, send_frame
from launcher.feed.remote.messages import AT_ONCE, REMOTE, RETURNED, Kind, Progress, only, unpack_counted

if TYPE_CHECKING:
    from launcher.feed.call import FeedCall

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
class Feed:
    """One feed: its tasks, and the call that is served. Used with the lock."""

    name: str
    lock: threading.RLock
    #: The last channel of each task; its connection may have broken.
    channels: dict[str, WorkerChannel] = field(default_factory=dict)
    call: FeedCall | None = None
    #: Whether nothing more will be fed.
    finished: bool = False
    #: Whether tasks may have rows whose results are not wanted any more.
    abandoned: bool = False

    def cut_off(self) -> None:
        """The feed ends; rows whose results are not wanted are dropped by the tasks."""
        if self.abandoned:
            for channel in self.channels.values():
                channel.cut_off()

    def wake(self) -> None:
        """Let all channels look for something to do."""
        for channel in self.channels.values():
            channel.wake.notify_all()


@dataclass
class _Sent:
    """A chunk that is on its way, or not consumed."""

    number: int
    partition: Partition
    weight: int
    #: Inference: results that are missing; ``None``: not known yet.
    left: int | None


class WorkerChannel:
    """See the module. All methods but `run` and `join` are called with the lock.

    Args:
        feed: the feed.
        task: ``worker/0``.
        sock: the connection; the task has opened the feed on it.
    """

    def __init__(self, feed: Feed, task: str, sock: socket.socket) -> None:
        self.feed = feed
        self.task = task
        self.wake = threading.Condition(feed.lock)
        self.since = time.monotonic()
        #: The connection; ``None``: it has ended, at this time.
        self.sock: socket.socket | None = sock
        self.broken_at = 0.0
        #: Whether the task knows that the feed is open.
        self.opened = False
        #: Whether the function waits for rows, and has all that were sent.
        self.hungry = False
        #: Whether the function wants no more rows; because it has returned.
        self.terminated = self.returned = False
        #: Partitions of which not all chunks are made, by number.
        self.partitions: dict[int, Partition] = {}
        #: Bytes of which the task has not begun to hand out rows.
        self.window = 0
        self._made = 0
        self._untaken: deque[_Sent] = deque()
        self._unconsumed: deque[_Sent] = deque()
        self._unanswered: deque[_Sent] = deque()
        #: Whether FLUSH was sent after the last chunk, and END; rows sent are not wanted any more.
        self._flushed = self._end_sent = self._is_cut_off = False
        #: What is sent before the connection is closed; ``None``: it stays open.
        self._goodbye: tuple[Kind, list[bytes]] | None = None
        self._sender = threading.Thread(target=self._send_all, name=f"feed to {task}", daemon=True)

    @property
    def has_room(self) -> bool:
        """Whether the task could begin with another partition now."""
        free = self.opened and not (self.partitions or self.terminated or self._is_over)
        return free and self.window < WINDOW

    @property
    def unconsumed(self) -> int:
        """Chunks that are not consumed."""
        return len(self._unconsumed)

    @property
    def unanswered(self) -> int:
        """Results that are missing, at least."""
        return sum([1 if sent.left is None else sent.left for sent in self._unanswered])

    # Its end.

    def forget(self) -> None:
        """The call is over: nothing more of its partitions is sent."""
        self.partitions.clear()
        self.wake.notify_all()

    def cut_off(self) -> None:
        """The feed ends, and the task is to drop the rows that it has."""
        self._is_cut_off = True
        self.take_away()
        self.wake.notify_all()

    def close(self, reason: str = "") -> None:
        """End the connection.

        Args:
            reason: the error for the task; empty: the feed has ended in an orderly way.
        """
        if self._goodbye is None:
            self._goodbye = (Kind.GONE, [reason.encode()]) if reason else (Kind.END, [])
            self.wake.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the sending thread, after `close`."""
        if self._sender.is_alive():
            self._sender.join(seconds)
        if (sock := self.sock) is not None:
            hang_up(sock)

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

    # What the task sends.

    def run(self) -> None:
        """Tell the task that the feed is open, then send and receive until the connection ends."""
        sock = self.sock
        assert sock is not None
        try:
            send_frame(sock, Kind.WELCOME)
            sock.settimeout(None)
            with self.wake:
                self.opened = True
                self._sender.start()
                if self.feed.call is not None:
                    self.feed.call.changed()
            ahead = ReadAhead(sock)
            while (frame := recv_frame(ahead)) is not None:
                self._received(*frame)
        except FeedError as error:
            self._refuse(str(error), error.__cause__)
        except FeedRefused as error:
            self._refuse(f"it sends an invalid frame: {error}", error)
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is: the task would send the same again
            self._refuse(f"it sends an invalid frame: {type(error).__name__}: {error}", error)
        finally:
            with self.wake:
                self.sock = None
                self.broken_at = time.monotonic()
                self.wake.notify_all()
                if self.feed.call is not None:
                    self.feed.call.changed()
            sock.close()

    def _refuse(self, why: str, cause: BaseException | None) -> None:
        """The call raises this, and so does the task's function."""
        error = FeedError(f"{self.task}: {why}")
        error.__cause__ = cause
        with self.wake:
            if self.feed.call is not None:
                self.feed.call.fail(error)
            self.close(why)
        self._sender.join(_GOODBYE)

    def _received(self, kind: int, buffers: list[memoryview]) -> None:
        if kind == Kind.RESULTS:
            results = list(decode(buffers, _UNREADABLE))  # takes long: without the lock
            with self.wake:
                self._add_results(results, sum(map(len, buffers)))
                self._moved()
            return
        with self.wake:
            if kind == Kind.PROGRESS:
                self._progressed(Progress.unpack(buffers))
            elif kind == Kind.COUNTED:
                self._counted(*unpack_counted(buffers))
            elif kind == Kind.TERMINATE:
                self.terminate(only(buffers) == RETURNED)
            else:
                raise FeedRefused(f"kind {kind}")
            self._moved()

    def _moved(self) -> None:
        self.wake.notify_all()
        if self.feed.call is not None:
            self.feed.call.moved()

    def terminate(self, returned: bool) -> None:
        """The function wants no more rows: those that it has count as consumed."""
        self.terminated = True
        self.returned |= returned
        for partition in self.take_away():
            partition.call.give_up(partition)
        if self.feed.call is not None:
            self.feed.call.refused(self)

    def _progressed(self, progress: Progress) -> None:
        self.hungry = progress.hungry and progress.taken >= self._made
        while self._untaken and self._untaken[0].number <= progress.taken:
            self.window -= self._untaken.popleft().weight
        while self._unconsumed and self._unconsumed[0].number <= progress.consumed:
            partition = self._unconsumed.popleft().partition
            partition.out -= 1
            partition.call.settle(partition)

    def _counted(self, chunk: int, rows: int) -> None:
        """A chunk of code has made so many rows."""
        sent = next((sent for sent in self._unanswered if sent.number == chunk), None)
        if sent is not None and sent.left is None:
            sent.partition.counted(rows)
            sent.left = rows - sent.partition.answered
            sent.partition.call.settle(sent.partition)
            self._drop_answered()

    def _add_results(self, results: list[Any], size: int) -> None:
        """Results belong to the oldest rows without."""
        while results and self._unanswered:
            sent = self._unanswered[0]
            some = results if sent.left is None else results[: sent.left]
            results = results[len(some) :]
            sent.left = None if sent.left is None else sent.left - len(some)
            sent.partition.call.add_results(sent.partition, some, size)
            size = 0
            self._drop_answered()

    def _drop_answered(self) -> None:
        while self._unanswered and self._unanswered[0].left is not None and self._unanswered[0].left <= 0:
            self._unanswered.popleft()

    # The thread that sends.

    def _send_all(self) -> None:
        while True:
            with self.wake:
                while (step := self._next_step()) is None:
                    self.wake.wait()
                last = self._is_over
            step()
            if last:
                return

    def _next_step(self) -> Callable[[], None] | None:
        """What to do now, without the lock; ``None``: wait."""
        if self.sock is None:
            return lambda: None
        if self._goodbye is not None:
            return self._say_goodbye
        call = self.feed.call
        if call is not None and not call.over and call.error is None:
            return None if self.terminated else self._feed_step(call)
        if self.feed.finished and not self._end_sent:
            self._end_sent = True
            return partial(self._send, Kind.END, [AT_ONCE] if self._is_cut_off else [])
        return None

    def _feed_step(self, call: FeedCall) -> Callable[[], None] | None:
        """Make a chunk, begin with a partition, or tell the task that there is no more for now."""
        if self.window >= WINDOW:
            return None
        if permitted := [number for number in self.partitions if call.permits(number)]:
            partition = self.partitions[min(permitted)]
            partition.busy = True
            return partial(self._make, call, partition)
        if (claimed := call.claim(self)) == "fetch":
            return partial(self._fetch, call)
        if isinstance(claimed, Partition):
            self.partitions[claimed.number] = claimed
            return lambda: None
        pause = (call.all_given and not self.partitions) or (call.full and self.hungry)
        if pause and self._unconsumed and not self._flushed:
            self._flushed = True
            return partial(self._send, Kind.FLUSH)
        return None

    def _fetch(self, call: FeedCall) -> None:
        try:
            piece = run_user_code(call.fetch)
        except Exception as error:  # noqa: BLE001 - the user's; train() or inference() raises it
            with self.wake:
                call.fetch_failed(error)
            return
        with self.wake:
            partition = call.fetched(piece)
            if partition is not None and (self._is_over or self.terminated):
                call.feed_again(partition)
            elif partition is not None and not call.over:
                self.partitions[partition.number] = partition

    def _make(self, call: FeedCall, partition: Partition) -> None:
        chunk, error = None, None
        try:
            chunk = run_user_code(partition.make)
        except Exception as raised:  # noqa: BLE001 - the user's; train() or inference() raises it
            error = raised
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
                self.partitions.pop(partition.number, None)
                call.settle(partition)
                call.changed()
                return
            self._add(partition, chunk)
            call.made(partition)
        self._send(Kind.CHUNK, [bytes([chunk.flags]), *chunk.buffers])

    @property
    def _is_over(self) -> bool:
        return self.sock is None or self._goodbye is not None

    def _add(self, partition: Partition, chunk: Chunk) -> None:
        self._made += 1
        sent = _Sent(self._made, partition, chunk.weight, None if chunk.flags & REMOTE else chunk.rows)
        partition.sent(chunk)
        self.window += sent.weight
        self._untaken.append(sent)
        self._unconsumed.append(sent)
        if partition.call.options.inference and sent.left != 0:
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

    def _say_goodbye(self) -> None:
        assert self._goodbye is not None
        if not self._end_sent:
            self._send(*self._goodbye)
        if (sock := self.sock) is not None:
            hang_up(sock)  # the receiving thread closes it
