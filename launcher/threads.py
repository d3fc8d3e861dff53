"""Starts threads, and reports it where the system starts no more (``ulimit -u``, ``pids.max``).

The launcher starts all its threads here, but programs on hosts start theirs themselves. For many threads at a
time, `new_pool` makes a pool of `launcher.thread_pool`.
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
    """Call a function in a new daemon thread.

    Args:
        function: The function.
        *args: Its arguments.
        name: The name of the thread.

    Returns:
        The thread, which has been started.

    Raises:
        TransportError: The system starts no more threads.
    """
    thread = threading.Thread(target=function, args=args, name=name, daemon=True)
    start(thread)
    return thread


def new_pool(max_threads: int, name: str) -> Pool:
    """Return a new pool of threads.

    Args:
        max_threads: The largest number of threads.
        name: The beginning of the names of the threads.
    """
    from launcher.thread_pool import Pool  # noqa: PLC0415 - takes 10 ms, and few commands need it

    return Pool(max_threads, name)


def in_thread(function: Callable[[], _T]) -> _T:
    """Call a function in another thread and wait for it, so that no signal handler interrupts it.

    Python runs signal handlers in the main thread only.

    Returns:
        The result of the function.

    Raises:
        TransportError: The system starts no more threads.
        Exception: The function raised it.
    """
    with new_pool(max_threads=1, name="work") as pool:
        result = pool.begin(function)
        if not pool.ensure_thread():
            raise TransportError(NO_THREAD_REASON)
        return result.result()


def is_no_thread(error: BaseException) -> bool:
    """Return whether an exception says that the system starts no more threads."""
    return isinstance(error, RuntimeError) and str(error).startswith("can't start new thread")
