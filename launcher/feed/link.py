"""The driver's end of a feed to one task: what is on the way, and the connection, if there is one.

A link outlives its connection: what the task has not taken is kept, and sent again when it is back. It has a
thread that sends (`launcher.feed.sender`), its connection one that hears (`launcher.feed.hearing`).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from launcher.feed.ledger import Ledger
from launcher.feed.remote.frames import hang_up
from launcher.feed.sender import WINDOW, Sender

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from launcher.feed.flow import Flow
    from launcher.feed.remote.messages import Opening, Progress
    from launcher.feed.share import Share


class Link:
    """See the module. All but `close` is called by who holds the lock of the feeder.

    Args:
        task: ``worker/0``.
        session: of its `Intake`.
        lock: the feeder's.
        flow: gives the present flow of the feed.
        ended: says whether the feed has ended.
        on_lost: called when the connection does not come back.
    """

    def __init__(
        self,
        task: str,
        session: str,
        lock: threading.RLock,
        flow: Callable[[], Flow | None],
        ended: Callable[[], bool],
        on_lost: Callable[[Link, str], None],
    ) -> None:
        self.task = task
        self.session = session
        self.wake = threading.Condition(lock)
        #: When the feed was opened.
        self.since = time.monotonic()
        #: Whether it was ever connected so far that rows can be sent.
        self.opened = False
        #: Whether it waits for rows, and has all that were sent.
        self.hungry = False
        self.terminated = False
        #: Whether it wants no more because its function has returned.
        self.returned = False
        #: Whether nothing more goes to it; and what it is told of that: empty if that is as it should be.
        self.over, self.gone = False, ""
        #: Whether the results of what it has are not wanted.
        self.is_cut_off = False
        self.ledger = Ledger()
        self.sock: socket.socket | None = None
        self._away_since = time.monotonic()
        self._flow = flow
        self._on_lost = on_lost
        self._sender = Sender(self, flow, ended)

    @property
    def has_room(self) -> bool:
        """Whether the task could begin with another partition now."""
        free = not (self.ledger.shares or self.terminated or self.over) and self.sock is not None
        return free and self.ledger.window < WINDOW

    def away_for(self, now: float) -> float:
        """Seconds since the connection broke."""
        return now - self._away_since if self.sock is None else 0.0

    # Its connection.

    def detach(self) -> int:
        """The task is about to be back: whatever connection it had is of no use any more.

        Returns:
            How many results it has given.
        """
        if self.sock is not None:
            hang_up(self.sock)
            self.lost_connection(self.sock)
        return self.ledger.answers

    def attach(self, sock: socket.socket, opening: Opening) -> None:
        """The task is here, or back."""
        if opening.terminated:
            self.terminate()
        for chunk, rows in opening.counted.items():
            self.ledger.counted(chunk, rows)
        self.progressed(opening.progress)
        self.ledger.reconnected(opening.received)
        self.sock = sock
        self.opened = True
        self._sender.begin()
        if (flow := self._flow()) is not None:
            flow.changed()

    def lost_connection(self, sock: socket.socket) -> None:
        """This one has ended; perhaps there is another by now."""
        if self.sock is sock:
            self.sock = None
            self._away_since = time.monotonic()
            self.wake.notify_all()

    def wait_for_end(self, deadline: float) -> None:
        """Wait until the connection has ended, so that all is heard that the task has said."""
        self.wake.wait_for(lambda: self.sock is None or self.over, max(0.0, deadline - time.monotonic()))

    # What becomes of it.

    def forget(self) -> None:
        """The call that is served is over: nothing more of its partitions is sent."""
        self.ledger.shares.clear()
        self.wake.notify_all()

    def cut_off(self) -> None:
        """The feed ends, and results of what the task has are not wanted: it need not look at it."""
        self.is_cut_off = True
        self.ledger.take_away(None)
        self.wake.notify_all()

    def lose(self, why: str) -> None:
        """Give up on it."""
        self._on_lost(self, why)

    def dismiss(self, why: str) -> list[tuple[Flow, Share]]:
        """Nothing more goes to this task.

        Args:
            why: told to it; empty if that is as it should be.

        Returns:
            What it had and did not consume.
        """
        self.over, self.gone = True, why
        self.wake.notify_all()
        return self.ledger.take_away(self._flow())

    def close(self, patience: float) -> None:
        """End connection and threads; without the lock."""
        with self.wake:
            self.over = True
            self.wake.notify_all()
        self._sender.join(patience)
        if (sock := self.sock) is not None:
            hang_up(sock)

    # What the task says.

    def progressed(self, progress: Progress) -> None:
        """It has come so far."""
        self.hungry = progress.hungry and progress.taken >= self.ledger.numbered
        self.ledger.progressed(progress)
        self._moved()

    def answered(self, first: int, results: list[object], size: int) -> None:
        """It gives results: numbered from ``first``, of so many bytes."""
        self.ledger.answered(first, results, size)
        self._sender.confirm(self.ledger.answers)
        self._moved()

    def terminate(self, returned: bool = False) -> None:
        """It wants no more rows: what it has counts as consumed."""
        self.terminated = True
        self.returned |= returned
        flow = self._flow()
        for its, share in self.ledger.take_away(flow):
            its.give_up(share)
        self._moved()
        if flow is not None:
            flow.refused(self)

    def fail(self, error: BaseException) -> None:
        """It says what can't be understood."""
        if (flow := self._flow()) is not None:
            flow.fail(error)

    def _moved(self) -> None:
        self.wake.notify_all()
        if (flow := self._flow()) is not None:
            flow.moved()
