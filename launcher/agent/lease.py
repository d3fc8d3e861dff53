"""The lease, in memory that porter and guardian share, so that a porter which is stopped can't outlast it.

The porter says there until when it is sure to have looked at the clock again. While all is well the guardian
wakes every few seconds, and reads eight bytes.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from typing import TYPE_CHECKING

from launcher.processes import kernel

if TYPE_CHECKING:
    from typing import Optional

#: Seconds that the porter may be late, and that it is given once more when it was: the whole machine may have
#: slept, and the guardian be the first to wake.
_LATE, _AGAIN = 1.0, 1.0
#: Seconds between two looks, at most: the lease may have become shorter.
_LONGEST = 5.0
#: Seconds for it to begin.
_BEGINNING = 10.0
_MOMENT = struct.Struct("d")


class Lease:
    """Made by the porter before it has children; from then on it has some seconds for the first `hold`."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _MOMENT.size)
        self._holder = os.getpid()
        #: What was read when it was over.
        self._seen: Optional[float] = None
        self.hold(time.monotonic() + _BEGINNING)

    def hold(self, until: float) -> None:
        """By the porter: it will look at the clock by then."""
        _MOMENT.pack_into(self._memory, 0, until)

    def look(self, now: float) -> Optional[float]:
        """By the guardian: see whether the porter is late, and end it if it stays so.

        The end of the porter is the end of the agent's orders, so it ends everything.

        Returns:
            When to look again; ``None``: never.
        """
        until: float = _MOMENT.unpack_from(self._memory, 0)[0]
        if now < until + _LATE:
            return min(until + _LATE, now + _LONGEST)
        if self._seen != until:
            self._seen = until
            return now + _AGAIN
        self._end_holder()
        return None

    def _end_holder(self) -> None:
        """Nobody else has this pid: whose parent it is sees it until it is gone."""
        porter = kernel.look_at(self._holder)
        if porter is not None and os.getppid() == self._holder:
            kernel.send(porter, signal.SIGKILL)
