"""Rows of an iterable -> groups of moderate size, as they come: a pause of the source holds no row.

`next` of a user's generator cannot be interrupted, so a thread iterates, at most one group ahead.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from launcher.errors import FeedError

Result = TypeVar("Result")

#: Bytes and rows of a group; rows whose size is estimated by that of the first of them.
_BYTES, _ROWS, _STEP = 2 << 20, 16384, 64
#: Seconds after which rows that come slowly are a group, however few; seconds between two looks.
_SECONDS, _LOOK = 1.0, 0.25


def run_user_code(call: Callable[[], Result]) -> Result:
    """The result of a call in a thread of ours.

    Raises:
        FeedError: instead of SystemExit and the like, which would end the thread silently.
        Exception: any other that it raises.
    """
    try:
        return call()
    except Exception:
        raise
    except BaseException as error:
        raise FeedError(f"reading the rows ended with {type(error).__name__}: {error}") from error


def groups(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """All rows, in lists; nothing is read before the first is asked for.

    Raises:
        FeedError: see `run_user_code`. Any exception of the iterator.
    """
    reader = _Reader(rows)
    try:
        while group := reader.take():
            yield group
    finally:
        reader.leave()


class _Reader:
    """Iterates in a thread until a group is full; goes on when it is taken."""

    def __init__(self, rows: Iterator[Any]) -> None:
        self._rows = rows
        self._changed = threading.Condition()
        #: Appended to by the thread and emptied by `take`, both without the lock: a million rows a second.
        self._group: deque[Any] = deque()
        self._full = self._ended = self._left = False
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="rows of a feed", daemon=True).start()

    def take(self) -> list[Any]:
        """The next rows: a full group, or those that came within a second; empty: there are no more."""
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
        """No more rows are wanted; the thread ends after the row that it waits for."""
        with self._changed:
            self._left = True
            self._changed.notify_all()

    def _run(self) -> None:
        error = None
        try:
            run_user_code(self._read)
        except Exception as raised:  # noqa: BLE001 - the user's; `take` raises it
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
            self._group.extend(islice(self._rows, some - 1))  # each can be taken as soon as it comes
            waiting = min(count + some, len(self._group))  # fewer: some were taken, as they came slowly
            weight = weight + some * one if waiting > some else waiting * one
            count, step = waiting, min(2 * step, _STEP)
            if weight >= _BYTES or count >= _ROWS:
                with self._changed:
                    self._full = bool(self._group)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: not self._full or self._left)
                count, weight, step = 0, 0, 1
            if self._left:
                return


def _weight(row: Any) -> int:
    """The bytes of a row as a pickle; an estimate if it cannot be pickled plainly."""
    try:
        return len(pickle.dumps(row, pickle.HIGHEST_PROTOCOL))
    except (pickle.PicklingError, TypeError, AttributeError):
        return _BYTES // _STEP
