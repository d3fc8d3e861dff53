"""How far the copying is, over all hosts: counted by the threads that do it, shown by one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple


class Reading(NamedTuple):
    """What a meter shows at one moment: bytes of files, of all hosts together, before they are shrunk."""

    size: int
    moved: int
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
        self._size = self._moved = 0
        self._news: list[str] = []

    def expect(self, size: int) -> None:
        """So much more is to be moved."""
        with self._lock:
            self._size += size

    def move(self, size: int) -> None:
        """So much was moved."""
        with self._lock:
            self._moved += size

    def again(self, hosts: Iterable[str]) -> None:
        """These are visited once more."""
        with self._lock:
            self._waiting = dict.fromkeys(hosts)

    def done(self, host: str) -> None:
        """A host is done, or has failed."""
        with self._lock:
            self._waiting.pop(host, None)

    def say(self, text: str) -> None:
        """Something the user should know now."""
        with self._lock:
            self._news.append(text)

    def news(self) -> list[str]:
        """What was said, each once."""
        with self._lock:
            news, self._news = self._news, []
            return news

    def read(self) -> Reading:
        """What it shows."""
        with self._lock:
            return Reading(self._size, self._moved, tuple(self._waiting))


class VisitCount:
    """What one visit to a host counts: the rest of it is expected no more if it breaks off.

    Args:
        meter: counts it too.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._left = 0

    def expect(self, size: int) -> None:
        """See `Meter.expect`."""
        self._left += size
        self._meter.expect(size)

    def move(self, size: int) -> None:
        """See `Meter.move`."""
        self._left -= size
        self._meter.move(size)

    def drop(self) -> None:
        """It broke off."""
        self._meter.expect(-self._left)
        self._left = 0
