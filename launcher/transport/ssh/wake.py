"""A descriptor that one thread sleeps on and others wake."""

from __future__ import annotations

import os
import threading


class Wake:
    """Readable from `ring` to `clear`; safe to ring by anybody at any time, also after `close`."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._open = True
        self._rung = False

    def fileno(self) -> int:
        """For select and poll."""
        return self._fd

    def ring(self) -> None:
        """Wake who sleeps on it."""
        with self._lock:
            if self._open and not self._rung:
                self._rung = True
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Sleep again. To be called before looking at what there is, so that nothing is missed."""
        with self._lock:
            if self._open and self._rung:
                self._rung = False
                os.eventfd_read(self._fd)

    def close(self) -> None:
        """Let go of the descriptor."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._fd)
