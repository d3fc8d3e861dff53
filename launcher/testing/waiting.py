"""Waiting for what a test expects, and the errors of the plug-in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from launcher.errors import LaunchError

_T = TypeVar("_T")

#: Seconds between two looks.
LOOK = 0.01


class WaitFailed(AssertionError):
    """What a test waited for did not happen in time, or cannot happen any more."""


class ClusterError(LaunchError):
    """What a test asks for can't be done; the message says why."""


class CannotStart(ClusterError):
    """The launch ended before one of its tasks was started.

    Args:
        exit_code: that of ``launch``: 2 for bad input, 126 or 127 for a program that can't be run...
        output: all that it printed.
    """

    def __init__(self, exit_code: int, output: str) -> None:
        super().__init__(f"the cluster did not start, launch ended with {exit_code}:\n{output.rstrip()}")
        self.exit_code = exit_code
        self.output = output


def wait_for(
    look: Callable[[], _T | None],
    seconds: float,
    hopeless: Callable[[], str],
    failed: Callable[[str], Exception],
) -> _T:
    """Look again and again until there is something.

    Args:
        look: ``None``: not there yet.
        seconds: how long at most.
        hopeless: why it can't come any more; empty: it still can.
        failed: makes the exception from the reason.

    Raises:
        Exception: made by ``failed``: it is too late, or hopeless.
    """
    __tracebackhide__ = True
    until = time.monotonic() + seconds
    while True:
        late = time.monotonic() > until
        reason = hopeless()  # before the last look: what came until then counts
        found = look()
        if found is not None:
            return found
        if reason or late:
            raise failed(reason or f"not within {seconds:g} s")
        time.sleep(LOOK)
