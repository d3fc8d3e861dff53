"""The end of feeds that are still being fed: calls that nobody goes on with are ended, others awaited."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from launcher.feed.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.feed.flow import Flow

#: Seconds between two looks.
_LOOK = 0.25


class Closing:
    """Sees out the calls that are going on when the feeds are to end; has a thread if there are any.

    Args:
        lock: the feeder's.
        going: gives the names of the feeds that are being fed, and by which call.
        cut_off: ends such a call, for a reason.
        say: takes remarks.
    """

    def __init__(
        self,
        lock: threading.RLock,
        going: Callable[[], list[tuple[str, Flow]]],
        cut_off: Callable[[str, str], None],
        say: Callable[[str], None],
    ) -> None:
        self._changed = threading.Condition(lock)
        self._going = going
        self._cut_off = cut_off
        self._say = say
        self._over = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """End what is abandoned, and begin to wait for the rest; with the lock."""
        if self._look() and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="end of the feeds", daemon=True)
            self._thread.start()

    def end(self, patience: float) -> None:
        """Wait for nothing any more; without the lock."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(patience)

    def _look(self) -> bool:
        """Whether there is something to wait for, once all that is abandoned has been ended."""
        for name, flow in self._going():
            why = flow.abandoned()
            if why:
                self._cut_off(name, why)
        return bool(self._going())

    def _run(self) -> None:
        waiting = Waiting()
        with self._changed:
            while not self._over and self._look():
                if begun := waiting.due():
                    self._remark(begun)
                self._changed.wait(_LOOK)

    def _remark(self, begun: str) -> None:
        for name, flow in self._going():
            what = "takes results" if flow.terms.inference else "feeds rows"
            bound = f" (at most {flow.terms.timeout:g} s without any)"
            self._say(f"shutdown: {begun} {flow.taker.name}, which still {what} of the feed {name!r}{bound}")
