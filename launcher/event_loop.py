"""The loop of a launch: it calls functions when descriptors are ready, at times, and for other threads.

It runs in the main thread, and drives all links of a launch: a link is a state machine over a descriptor.
While files are copied, before and after the job, the same loop runs. Threads do only what blocks: logins, and
starts of commands.
"""

from __future__ import annotations

import heapq
import os
import select
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from launcher.threads import new_pool

if TYPE_CHECKING:  # with logging and queue: 15 ms
    from concurrent.futures import Future

    from _typeshed import FileDescriptorLike

    from launcher.thread_pool import Pool

_T = TypeVar("_T")
_Function = Callable[[], object]
#: Threads for work that blocks, at most. A thread may wait for a host that does not answer.
_MAX_THREADS = 128
#: Seconds until a thread is started again, if this system starts none now.
_NO_THREAD_PAUSE_SECONDS = 0.2
#: Seconds to wait for the rest of a message, see `EventLoop.await_rest`.
_REST_SECONDS = 0.001


def await_readable(file: FileDescriptorLike, seconds: float) -> None:
    """Wait until something can be read from a descriptor, or it is at its end.

    Args:
        file: the descriptor; it may be above 1023.
        seconds: the time limit.
    """
    poll = select.poll()
    poll.register(file, select.POLLIN)
    poll.poll(max(0.0, seconds) * 1000 + 1)


#: Bytes of freed memory that the process keeps at least, see `mallopt`: M_MMAP_THRESHOLD.
_KEPT_BYTES = 2 << 20


class TimerHandle:
    """A function that is called at a time (monotonic seconds)."""

    __slots__ = ("due", "function")

    def __init__(self, due: float, function: _Function) -> None:
        self.due = due
        self.function: _Function | None = function

    def __lt__(self, other: TimerHandle) -> bool:
        return self.due < other.due

    def cancel(self) -> None:
        """Do not call the function."""
        self.function = None


class EventLoop:
    """Calls functions, one after the other, in the thread that made it. Other threads may use `call_soon`.

    A context: leaving it waits for work that has begun.
    """

    def __init__(self) -> None:
        # From the first large block that is freed on, glibc keeps that much memory for the next ones. Without
        # it each read of output would get its memory from the kernel, and give it back.
        bytes(_KEPT_BYTES)
        self._selector = selectors.DefaultSelector()
        #: What is called when a descriptor is readable, and writable.
        self._watched: dict[int, tuple[_Function | None, _Function | None]] = {}
        self._timers: list[TimerHandle] = []
        self._calls: deque[_Function] = deque()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._wake, lambda: os.eventfd_read(self._wake))
        self._pool: Pool | None = None
        self._rest_comes = False

    def __enter__(self) -> EventLoop:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._selector.close()
        with self._lock:
            os.close(self._wake)
            self._wake = -1

    # ------------------------------------------------------------------ what is called

    def watch(self, fd: int, read: _Function | None = None, write: _Function | None = None) -> None:
        """Call functions while a descriptor is readable, and writable. Without functions, stop watching it.

        Call it before the descriptor is closed.
        """
        events = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        known = self._watched.pop(fd, None)
        if events:
            self._watched[fd] = read, write
        if known is None and events:
            self._selector.register(fd, events)
        elif known is not None and not events:
            self._selector.unregister(fd)
        elif known is not None and [*map(bool, known)] != [bool(read), bool(write)]:
            self._selector.modify(fd, events)

    def call_at(self, due: float, function: _Function) -> TimerHandle:
        """Call a function at a time (monotonic seconds)."""
        timer = TimerHandle(due, function)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon(self, function: _Function) -> None:
        """Call a function in the next turn. Any thread may ask for that."""
        self._calls.append(function)
        if threading.get_ident() != self._thread:
            with self._lock:
                if self._wake >= 0:
                    os.eventfd_write(self._wake, 1)

    def await_rest(self) -> None:
        """Begin the next turn `_REST_SECONDS` later, because only a part of a message has come."""
        self._rest_comes = True

    def run_in_thread(self, function: Callable[[], _T], done: Callable[[Future[_T]], object]) -> None:
        """Call a function that blocks in another thread, then ``done`` in this one."""
        if self._pool is None:
            self._pool = new_pool(_MAX_THREADS, "work")
        future = self._pool.begin(function)
        self._await_thread()
        future.add_done_callback(lambda _: self.call_soon(lambda: done(future)))

    def _await_thread(self) -> None:
        """Try again later if this system starts no thread now: a job goes on meanwhile."""
        if self._pool is not None and not self._pool.can_work():
            self.call_at(time.monotonic() + _NO_THREAD_PAUSE_SECONDS, self._await_thread)

    # ------------------------------------------------------------------ turns

    def run_once(self, seconds: float | None = None) -> None:
        """Wait for so long at most, and call what is due.

        Args:
            seconds: ``None``: until something is due.
        """
        if self._rest_comes:
            self._rest_comes = False
            time.sleep(_REST_SECONDS)
        ready = self._selector.select(self._seconds_to_wait(seconds))
        for key, events in ready:  # a function may end the watching of another descriptor
            read, write = self._watched.get(key.fd, (None, None))
            if read is not None and events & selectors.EVENT_READ:
                read()
                read, write = self._watched.get(key.fd, (None, None))
            if write is not None and events & selectors.EVENT_WRITE:
                write()
            self._call()  # so that a command is not sent later because other hosts print much
        for timer in self._due():
            if timer.function is not None:
                timer.function()
        self._call()

    def _call(self) -> None:
        """Call what was asked for; what that asks for is called later."""
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def run_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Run turns until a condition is true, for so long at most. Returns whether it is true."""
        deadline = time.monotonic() + seconds
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.run_once(left)
        return True

    def _due(self) -> list[TimerHandle]:
        """Remove and return the timers whose time has come: a function may set another one."""
        now, due = time.monotonic(), []
        while self._timers and self._timers[0].due <= now:
            due.append(heapq.heappop(self._timers))
        return due

    def _seconds_to_wait(self, seconds: float | None) -> float | None:
        if self._calls:
            return 0.0
        while self._timers and self._timers[0].function is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return seconds
        left = max(0.0, self._timers[0].due - time.monotonic())
        return left if seconds is None else min(left, seconds)
