"""A child process that finds something out, while the agent goes on; it has so long and may say so much."""

from __future__ import annotations

import os
import selectors
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple

#: Bytes it may say.
_LIMIT = 64 * 1024


class Inquiry:
    """One of them; ``output`` is ``None`` when there is none or it has said all.

    Args:
        pid, output: the child, and where it speaks; ``None``: it could not be started.
        patience: seconds it may take.
    """

    def __init__(self, pid: Optional[int], output: Optional[int], patience: float) -> None:
        #: Its process, until that is reaped.
        self.pid = pid
        self.output = output
        self._said = b""
        self._until = time.monotonic() + patience

    def read(self) -> bool:
        """Take what it printed; whether that was the last of it."""
        if self.output is None:
            return False
        try:
            data = os.read(self.output, _LIMIT)
        except BlockingIOError:
            return False
        self._said = (self._said + data)[:_LIMIT]
        return not data

    def next_end(self) -> Optional[float]:
        """When to `close` at the latest (monotonic); ``None``: it is closed."""
        return None if self.output is None else self._until

    def reaped(self, pid: int) -> None:
        """This child of ours is over: its number may be somebody else's from now on."""
        if pid == self.pid:
            self.pid = None

    def close(self) -> bytes:
        """It has said all, or its time is up: what it said."""
        if self.output is not None:
            os.close(self.output)
            self.output = None
        if self.pid is not None and time.monotonic() >= self._until:
            os.kill(self.pid, signal.SIGKILL)  # ours and not reaped: nobody else has this pid
        return self._said


class Inquiries:
    """Those that run, in the agent's loop.

    Args:
        selector: wakes us when one has something to say.
        ignore: told the pid of each: it is nobody's orphan.
    """

    def __init__(self, selector: selectors.BaseSelector, ignore: Callable[[int], None]) -> None:
        self._selector = selector
        self._ignore = ignore
        self._running: List[Tuple[Inquiry, Callable[[bytes], None]]] = []

    def begin(self, inquiry: Inquiry, tell: Callable[[bytes], None]) -> None:
        """Follow one; ``tell`` gets what it said, once. One that could not be started says nothing."""
        if inquiry.output is None or inquiry.pid is None:
            return
        self._ignore(inquiry.pid)
        self._running.append((inquiry, tell))
        self._selector.register(inquiry.output, selectors.EVENT_READ, lambda: self._read(inquiry))

    def next_end(self) -> Optional[float]:
        """When `on_time` is due (monotonic); ``None``: never."""
        return min((until for inquiry, _ in self._running if (until := inquiry.next_end())), default=None)

    def on_time(self, now: float) -> None:
        """Close those whose time is up."""
        for inquiry, _ in list(self._running):
            until = inquiry.next_end()
            if until is not None and until <= now:
                self._over(inquiry)

    def reaped(self, pid: int) -> None:
        """This child of ours is over."""
        for inquiry, _ in self._running:
            inquiry.reaped(pid)

    def _read(self, inquiry: Inquiry) -> None:
        if inquiry.read():
            self._over(inquiry)

    def _over(self, inquiry: Inquiry) -> None:
        if inquiry.output is not None:
            self._selector.unregister(inquiry.output)
        tell = next(tell for other, tell in self._running if other is inquiry)
        self._running = [pair for pair in self._running if pair[0] is not inquiry]
        tell(inquiry.close())
