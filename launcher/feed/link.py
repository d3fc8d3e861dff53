"""The driver's end of a feed to one task: a thread that sends, one that hears, and what is on the way.

A link outlives its connection: what the task has not taken is kept, and sent again when it is back.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from launcher.errors import FeedError
from launcher.feed.chunks import decode
from launcher.feed.frames import FeedBroken, Kind, ReadAhead, recv_frame, send_frame
from launcher.feed.ledger import Ledger
from launcher.feed.messages import AT_ONCE, Progress, number, only, to_counted, to_number
from launcher.model.records import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from launcher.feed.chunks import Buffer
    from launcher.feed.flow import Flow
    from launcher.feed.messages import Opening
    from launcher.feed.share import Made, Share

#: Bytes that a task may have without having begun with them.
WINDOW = 4 << 20


class Link:
    """See the module. What is not said to be a thread's is called by who holds the lock of the feeder.

    Args:
        task: ``worker/0``.
        attempt: of that task.
        session: of its `Intake`.
        lock: the feeder's.
        flow: gives the present flow of the feed.
        ended: says whether the feed has ended.
        on_lost: called when the connection does not come back.
    """

    def __init__(
        self,
        task: str,
        attempt: int,
        session: str,
        lock: threading.RLock,
        flow: Callable[[], Flow | None],
        ended: Callable[[], bool],
        on_lost: Callable[[Link, str], None],
    ) -> None:
        self.task = task
        self.attempt = attempt
        self.session = session
        self.wake = threading.Condition(lock)
        #: When the feed was opened.
        self.since = time.monotonic()
        #: Whether it was ever connected so far that rows can be sent.
        self.opened = False
        self.hungry = False
        self.terminated = False
        #: Whether it wants no more because its function has returned.
        self.returned = False
        self.over = False
        self.ledger = Ledger()
        self._flow = flow
        self._ended = ended
        self._on_lost = on_lost
        self._sock: socket.socket | None = None
        self._away_since = time.monotonic()
        self._words: deque[tuple[Kind, Sequence[Buffer]]] = deque()
        self._flushed = True
        self._end_sent = self._cut_off = False
        self._gone = ""
        self._thread = threading.Thread(target=self._send_all, name=f"feed to {task}", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether the task could begin with another partition now."""
        free = not (self.ledger.shares or self.terminated or self.over) and self._sock is not None
        return free and self.ledger.window < WINDOW

    def away_for(self, now: float) -> float:
        """Seconds since the connection broke."""
        return now - self._away_since if self._sock is None else 0.0

    def forget(self) -> None:
        """The call that is served is over: nothing more of its partitions is sent."""
        self.ledger.shares.clear()
        self.wake.notify_all()

    def cut_off(self) -> None:
        """The feed ends, and results of what the task has are not wanted: it need not look at it."""
        self._cut_off = True
        self.ledger.take_away(None)
        self.wake.notify_all()

    def detach(self) -> int:
        """The task is about to be back: whatever connection it had is of no use any more.

        Returns:
            How many results it has given.
        """
        if self._sock is not None:
            _shut(self._sock)
            self._lost_connection()
        return self.ledger.answers

    def wait_for_end(self, deadline: float) -> None:
        """Wait until the connection has ended, so that all is heard that the task has said."""
        self.wake.wait_for(lambda: self._sock is None or self.over, max(0.0, deadline - time.monotonic()))

    def lose(self, why: str) -> None:
        """Give up on it."""
        self._on_lost(self, why)

    def attach(self, sock: socket.socket, opening: Opening) -> None:
        """The task is here, or back."""
        if opening.terminated:
            self._terminate()
        for chunk, rows in opening.counted.items():
            self.ledger.counted(chunk, rows)
        self._progressed(opening.progress)
        self.ledger.reconnected(opening.received)
        self._sock = sock
        self.opened = True
        self._flushed = self._end_sent = False
        self._flow_changed()

    def dismiss(self, why: str) -> list[tuple[Flow, Share]]:
        """Nothing more goes to this task.

        Args:
            why: told to it; empty if that is as it should be.

        Returns:
            What it had and did not consume.
        """
        self.over, self._gone = True, why
        self.wake.notify_all()
        return self.ledger.take_away(self._flow())

    def close(self, patience: float) -> None:
        """End connection and threads; without the lock."""
        with self.wake:
            self.over = True
            self.wake.notify_all()
        self._thread.join(patience)
        if (sock := self._sock) is not None:
            _shut(sock)

    # The thread that sends.

    def _send_all(self) -> None:
        while True:
            with self.wake:
                while (step := self._step()) is None:
                    self.wake.wait()
            if not step():
                return

    def _step(self) -> Callable[[], bool] | None:
        """What to do now, without the lock; ``None``: wait."""
        if self.over:
            return self._farewell
        sock = self._sock
        if sock is None:
            return None
        if self._words:
            kind, buffers = self._words.popleft()
            return lambda: self._send(sock, kind, buffers)
        if (frame := self.ledger.to_send()) is not None:
            return lambda: self._send(sock, *frame)
        flow = self._flow()
        if flow is not None and not flow.over and flow.error is None:
            return None if self.terminated else self._feed(flow, sock)
        if self._ended() and not self._end_sent:
            self._end_sent = True
            return lambda: self._send(sock, Kind.END, [AT_ONCE] if self._cut_off else [])
        return None

    def _feed(self, flow: Flow, sock: socket.socket) -> Callable[[], bool] | None:
        """Make a chunk, begin with a partition, or say that there is no more for now."""
        ledger = self.ledger
        if ledger.window >= WINDOW:
            return None
        if permitted := [number for number in ledger.shares if flow.permits(number)]:
            share = ledger.shares[min(permitted)]
            share.busy = True
            return lambda: self._make(flow, share)
        if (claimed := flow.claim(self)) is not None:
            ledger.shares[claimed.number] = claimed
            return lambda: True
        if flow.must_fetch(self):
            flow.begin_fetching(self)
            return lambda: self._fetch(flow)
        stuck = (flow.all_given and not ledger.shares) or (flow.full and self.hungry)
        if stuck and ledger.unconsumed and not self._flushed:
            self._flushed = True
            return lambda: self._send(sock, Kind.FLUSH)
        return None

    def _fetch(self, flow: Flow) -> bool:
        try:
            partition = flow.fetch()
        except Exception as error:  # noqa: BLE001 - the user's; whoever called train() gets it
            with self.wake:
                flow.fail(error)
            return True
        with self.wake:
            share = flow.fetched(partition)
            if share is not None and (self.over or self.terminated):
                flow.feed_again(share)
            elif share is not None and not flow.over:
                self.ledger.shares[share.number] = share
        return True

    def _make(self, flow: Flow, share: Share) -> bool:
        try:
            made = share.make()
        except Exception as error:  # noqa: BLE001 - the user's; whoever called train() gets it
            with self.wake:
                share.busy = False
                flow.fail(error)
            return True
        with self.wake:
            share.busy = False
            if self.over:
                flow.feed_again(share)
            elif self.terminated:
                flow.give_up(share)
            elif not flow.over:
                self._made(flow, share, made)
        return True

    def _made(self, flow: Flow, share: Share, made: Made | None) -> None:
        if made is None:
            share.complete = True
            self.ledger.shares.pop(share.number, None)
            flow.settle(share)
            flow.changed()
            return
        self.ledger.add(flow, share, made)
        self.hungry = self._flushed = False
        flow.made(share)

    def _send(self, sock: socket.socket, kind: Kind, buffers: Sequence[Buffer] = ()) -> bool:
        try:
            send_frame(sock, kind, buffers)
        except OSError:
            _shut(sock)
            with self.wake:
                if self._sock is sock:
                    self._lost_connection()
        return True

    def _farewell(self) -> bool:
        sock = self._sock
        if sock is not None and not self._end_sent:
            kind = Kind.GONE if self._gone else Kind.END
            self._send(sock, kind, [self._gone.encode()] if self._gone else [])
        if sock is not None:
            _shut(sock)
        return False

    # The thread that hears.

    def hear(self, sock: socket.socket) -> None:
        """Take what the task says until its connection ends; a thread's."""
        try:
            ahead = ReadAhead(sock)
            while (frame := recv_frame(ahead)) is not None:
                self._heard(*frame)
        except OSError:
            pass
        except FeedError as error:
            with self.wake:
                self._fail(error)
        finally:
            with self.wake:
                if self._sock is sock:
                    self._lost_connection()
            sock.close()

    def _lost_connection(self) -> None:
        self._sock = None
        self._away_since = time.monotonic()
        self.wake.notify_all()

    def _heard(self, kind: int, buffers: list[memoryview]) -> None:
        if kind == Kind.RESULTS:
            first, results = to_number(buffers[0]), decode(buffers[1:])
            with self.wake:
                self.ledger.answered(first, list(results), sum(map(len, buffers)))
                self._words.append((Kind.KEPT, [number(self.ledger.answers)]))
                self._moved()
            return
        with self.wake:
            if kind == Kind.PROGRESS:
                self._progressed(Progress.unpack(only(buffers)))
            elif kind == Kind.COUNTED:
                self.ledger.counted(*to_counted(only(buffers)))
            elif kind == Kind.TERMINATE:
                self._terminate(returned=bool(buffers))
            else:
                raise FeedBroken(f"a frame of kind {kind} was not expected")

    def _progressed(self, progress: Progress) -> None:
        self.hungry = progress.hungry and progress.taken >= self.ledger.numbered
        self.ledger.progressed(progress)
        self._moved()

    def _moved(self) -> None:
        self.wake.notify_all()
        flow = self._flow()
        if flow is not None:
            flow.moved()

    def _terminate(self, returned: bool = False) -> None:
        """The task wants no more rows: what it has counts as consumed."""
        self.terminated = True
        self.returned |= returned
        flow = self._flow()
        for its, share in self.ledger.take_away(flow):
            its.give_up(share)
        self._moved()
        if flow is not None:
            flow.refused(self)

    def _flow_changed(self) -> None:
        flow = self._flow()
        if flow is not None:
            flow.changed()

    def _fail(self, error: BaseException) -> None:
        flow = self._flow()
        if flow is not None:
            flow.fail(error)


def _shut(sock: socket.socket) -> None:
    """Let whoever waits at it see its end."""
    try:
        sock.shutdown(2)
    except OSError:  # it has ended already
        pass
