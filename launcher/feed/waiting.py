"""When to explain a wait: after two seconds, after thirty, and then each time after twice as long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds after which a wait is explained first, and for the second time.
FIRST, ODD = 2.0, 30.0


class Waiting:
    """One wait, which begins now.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._next = FIRST

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return self._clock() - self._began

    def due(self) -> str:
        """How to begin a sentence about it, ``waiting for`` or the like; empty: it is not time for one."""
        waited = self.seconds
        if waited < self._next:
            return ""
        first = self._next == FIRST
        self._next = ODD if waited < ODD else 2 * waited
        return "waiting for" if first else f"still waiting, after {waited:.0f} s, for"
