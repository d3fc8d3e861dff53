"""A pool of threads that continues with fewer threads where the system starts no more.

`launcher.threads.new_pool` is the only one to import this module, and does so late, because the import of
`concurrent.futures` takes time. Work that is queued must never get lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, TypeVar

from launcher.common.errors import TransportError
from launcher.common.text import NO_THREAD_REASON
from launcher.threads import is_no_thread

_T = TypeVar("_T")


class Pool(ThreadPoolExecutor):
    """A pool of threads for functions that block.

    Where the system starts no more threads, the pool does its work with those that it has.
    """

    def begin(self, function: Callable[[], _T]) -> Future[_T]:
        """Call a function in one of the threads, as soon as one is free.

        Returns:
            The future result of the function. If the function itself needs a thread that the system does not
            start, the result is a TransportError.
        """
        result: Future[_T] = Future()

        def run() -> None:
            """Call the function, and store its result or its exception in the future."""
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001 - the caller gets it from the future
                result.set_exception(TransportError(NO_THREAD_REASON) if is_no_thread(error) else error)

        self._put(run)
        return result

    def ensure_thread(self) -> bool:
        """Start a thread if the pool has none. Return whether it has one now."""
        if not self._threads:
            self._put(lambda: None)  # The executor starts a thread when it receives work.
        return bool(self._threads)

    def wait(self, futures: Iterable[Future[Any]], seconds: float) -> Collection[Future[Any]]:
        """Wait until all functions have returned or the time is over.

        Args:
            futures: The results to wait for, from `begin`.
            seconds: The longest time to wait.

        Returns:
            The results that are still missing. It is empty if all functions have returned.
        """
        return wait(futures, seconds).not_done

    def _put(self, function: Callable[[], object]) -> None:
        """Queue a function for the threads, and start another thread if the system allows it."""
        # Where the system starts no thread, `submit` raises, but only after it has queued the function.
        with suppress(RuntimeError):
            self.submit(function)
