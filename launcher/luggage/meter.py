"""How far the copying is, over all hosts: counted by the threads that do it, shown by one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple


class Reading(NamedTuple):
    """What a meter shows at one moment; bytes are those of the files, before they are shrunk."""

    size: int
    moved: int
    files: int
    files_moved: int
    #: Hosts that are not done.
    waiting: tuple[str, ...]


class Meter:
    """Counts. For several threads.

    Args:
        hosts: all that take part.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._waiting = dict.fromkeys(hosts)
        self._size = self._moved = self._files = self._files_moved = 0

    def expect(self, size: int, files: int) -> None:
        """So much more is to be moved."""
        with self._lock:
            self._size += size
            self._files += files

    def move(self, size: int, files: int) -> None:
        """So much was moved."""
        with self._lock:
            self._moved += size
            self._files_moved += files

    def done(self, host: str) -> None:
        """A host is done, or has failed."""
        with self._lock:
            self._waiting.pop(host, None)

    def read(self) -> Reading:
        """What it shows."""
        with self._lock:
            return Reading(self._size, self._moved, self._files, self._files_moved, tuple(self._waiting))
