"""Waiting for something that a test expects: never without a bound, never longer than there is hope."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

#: Seconds between two looks.
LOOK = 0.01


def wait_for(
    look: Callable[[], _T | None],
    seconds: float,
    hopeless: Callable[[], str],
    failed: Callable[[str], Exception],
) -> _T:
    """Look until there is something.

    Args:
        look: what is waited for; ``None``: not there yet.
        seconds: how long at most.
        hopeless: why it can't come any more; empty: it still can.
        failed: makes the exception, from the reason.

    Raises:
        Exception: the one that ``failed`` made: it is too late, or hopeless.
    """
    __tracebackhide__ = True
    until = time.monotonic() + seconds
    while True:
        late = time.monotonic() > until
        reason = hopeless()  # asked first: what came up to then is looked at once more
        found = look()
        if found is not None:
            return found
        if reason or late:
            raise failed(reason or f"not within {seconds:g} s")
        time.sleep(LOOK)
