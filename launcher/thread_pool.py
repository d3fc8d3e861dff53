"""A pool of threads that goes on where the system has no thread left.

`launcher.threads.new_pool` imports this module late: it brings logging and queue along.
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
    """Threads for work that blocks, fewer than asked for where the system starts no more."""

    def begin(self, function: Callable[[], _T]) -> Future[_T]:
        """Call a function in one of the threads, as soon as one is free.

        Returns:
            Its result. It is a TransportError if the function itself can't start a thread.
        """
        result: Future[_T] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001 - who asks for the result gets it
                result.set_exception(TransportError(NO_THREAD_REASON) if is_no_thread(error) else error)

        self._put(run)
        return result

    def can_work(self) -> bool:
        """Return whether there is a thread; if not, try to start one."""
        if not self._threads:
            self._put(lambda: None)
        return bool(self._threads)

    def wait(self, futures: Iterable[Future[Any]], seconds: float) -> Collection[Future[Any]]:
        """Wait for results, for so long at most. Returns those that are not there yet."""
        return wait(futures, seconds).not_done

    def _put(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # no thread is left: the function is in the queue all the same
            self.submit(function)
