"""Rows that are iterated -> groups of moderate size, as they come: a source that pauses keeps none back.

Whoever wants rows can't wait for `next` of a user's generator only so long; so a thread of its own iterates,
one group ahead at most.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from launcher.feed.usercode import read_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Bytes and rows of a group; how many rows are weighed by one.
_BYTES, _ROWS, _STEP = 2 << 20, 16384, 64
#: Seconds after which rows that come slowly are a group, however few they are; and between two looks.
_SECONDS, _LOOK = 1.0, 0.25


def groups(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """All rows, in lists; nothing is read before the first is asked for.

    Raises:
        FeedError: iterating them ends with what would end a program. Whatever else it raises.
    """
    reader = _Reader(rows)
    try:
        while group := reader.take():
            yield group
    finally:
        reader.leave()


class _Reader:
    """Iterates in a thread, until a group is full; goes on when it is taken."""

    def __init__(self, rows: Iterator[Any]) -> None:
        self._rows = rows
        self._changed = threading.Condition()
        #: Appended to by the thread and emptied by who takes, neither with a lock: a million rows a second.
        self._group: deque[Any] = deque()
        self._full = self._ended = self._left = False
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="rows of a feed", daemon=True).start()

    def take(self) -> list[Any]:
        """The next rows: a full group, or what has come within a second; none: there are no more."""
        until = time.monotonic() + _SECONDS
        with self._changed:
            while not (self._full or self._ended or (self._group and time.monotonic() >= until)):
                self._changed.wait(_LOOK if time.monotonic() >= until else _SECONDS)
            if self._error is not None:
                raise self._error
            group = [self._group.popleft() for _ in range(len(self._group))]
            self._full = False
            self._changed.notify_all()
        return group

    def leave(self) -> None:
        """Nobody wants more; the thread ends with the row that it waits for."""
        with self._changed:
            self._left = True
            self._changed.notify_all()

    def _run(self) -> None:
        error = None
        try:
            read_by(self._read)
        except Exception as raised:  # noqa: BLE001 - the user's; whoever takes gets it
            error = raised
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def _read(self) -> None:
        count, weight, step = 0, 0, 1
        for first in self._rows:
            self._group.append(first)
            one = max(1, _weight(first))
            some = max(1, min(step, (_BYTES - weight) // one, _ROWS - count))
            self._group.extend(islice(self._rows, some - 1))  # each is there as soon as it comes
            lies = min(count + some, len(self._group))  # fewer: some were taken, as they came slowly
            weight = weight + some * one if lies > some else lies * one
            count, step = lies, min(2 * step, _STEP)
            if weight >= _BYTES or count >= _ROWS:
                self._fill()
                count, weight, step = 0, 0, 1
            if self._left:
                return

    def _fill(self) -> None:
        with self._changed:
            self._full = bool(self._group)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._full or self._left)


def _weight(row: Any) -> int:
    """How many bytes it has, about, on its way; it may have other means to travel if there is no saying."""
    try:
        return len(pickle.dumps(row, pickle.HIGHEST_PROTOCOL))
    except (pickle.PicklingError, TypeError, AttributeError):
        return _BYTES // _STEP
