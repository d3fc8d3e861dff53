"""Starts threads, and says it where the system starts no more: `ulimit -u`, ``pids.max``.

All single threads of the launcher are started here; `launcher.thread_pool` has many of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from launcher.common.errors import TransportError
from launcher.common.text import NO_THREAD_REASON

if TYPE_CHECKING:
    from launcher.thread_pool import Pool

_T = TypeVar("_T")


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        TransportError: The system starts no more threads.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if not is_no_thread(error):
            raise
        raise TransportError(NO_THREAD_REASON) from error


def start_function(function: Callable[..., object], *args: object, name: str) -> threading.Thread:
    """Call a function in a daemon thread, which has this name.

    Raises:
        TransportError: The system starts no more threads.
    """
    thread = threading.Thread(target=function, args=args, name=name, daemon=True)
    start(thread)
    return thread


def new_pool(most: int, name: str) -> Pool:
    """Return a pool of so many threads at most, whose names begin with this one."""
    from launcher.thread_pool import Pool  # noqa: PLC0415 - with logging and queue: 10 ms

    return Pool(most, name)


def in_thread(function: Callable[[], _T]) -> _T:
    """Call a function in another thread: a signal, which this thread gets, does not interrupt it.

    Returns:
        Its result.

    Raises:
        TransportError: The system starts no more threads.
        Exception: What the function raises.
    """
    with new_pool(1, "work") as pool:
        result = pool.begin(function)
        if not pool.can_work():
            raise TransportError(NO_THREAD_REASON)
        return result.result()


def is_no_thread(error: BaseException) -> bool:
    """Return whether Python says that the system starts no more threads."""
    return isinstance(error, RuntimeError) and str(error).startswith("can't start new thread")
