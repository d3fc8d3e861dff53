"""The event loop of a launch.

It calls functions when descriptors are ready, at given times, and on behalf of other threads. It runs in the
main thread and drives all links to agents, each of which is a state machine over a descriptor. The same loop
runs while files are copied before and after the job. A function that it calls must never block: logins and
starts of commands run in threads (`EventLoop.run_in_thread`).
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

if TYPE_CHECKING:  # These import logging and queue, which takes 15 ms.
    from concurrent.futures import Future

    from _typeshed import FileDescriptorLike

    from launcher.thread_pool import Pool

_T = TypeVar("_T")
_Function = Callable[[], object]
#: Many threads may wait at the same time, each for a host that does not answer.
_MAX_THREADS = 128
#: The pause before another try to start a thread where the system starts none now.
_NO_THREAD_PAUSE_SECONDS = 0.2
#: How long a turn is delayed so that the rest of a message can arrive, see `EventLoop.delay_next_turn`.
_TURN_DELAY_SECONDS = 0.001


def await_readable(file: FileDescriptorLike, seconds: float) -> None:
    """Wait until something can be read from a descriptor, or its other end is closed.

    Args:
        file: The descriptor. Numbers above 1023, which `select.select` refuses, are allowed.
        seconds: The longest time to wait.
    """
    poll = select.poll()
    poll.register(file, select.POLLIN)
    # With one more millisecond the time is surely over when this returns without anything to read.
    poll.poll(max(0.0, seconds) * 1000 + 1)


#: The size of a block by which glibc is made to keep freed memory (mallopt(3), M_MMAP_THRESHOLD).
_KEPT_BYTES = 2 << 20


class TimerHandle:
    """A function that the loop calls at a given time, which `EventLoop.call_at` returns for `cancel`.

    Args:
        due: The time of the call in monotonic seconds.
        function: The function, without arguments.
    """

    __slots__ = ("due", "function")

    def __init__(self, due: float, function: _Function) -> None:
        self.due = due
        #: None once the call was cancelled.
        self.function: _Function | None = function

    def __lt__(self, other: TimerHandle) -> bool:
        """Return whether this call is due first, for the heap of timers."""
        return self.due < other.due

    def cancel(self) -> None:
        """Prevent the call of the function, unless it has already happened."""
        self.function = None


class EventLoop:
    """An event loop that calls functions one after the other, in the thread that made it.

    Other threads may use only `call_soon`. The loop is a context manager: leaving it waits for the functions
    that still run in threads.
    """

    def __init__(self) -> None:
        # Once a large block was freed, glibc keeps that much memory for later blocks. Without this, each read
        # of output would get its memory from the kernel and return it.
        bytes(_KEPT_BYTES)
        self._selector = selectors.DefaultSelector()
        #: By descriptor: the function to call when it is readable, and the one for writable.
        self._watched: dict[int, tuple[_Function | None, _Function | None]] = {}
        #: A heap, whose first timer is due first. Cancelled timers stay in it until they are due.
        self._timers: list[TimerHandle] = []
        #: The functions of `call_soon` that wait for the next turn.
        self._calls: deque[_Function] = deque()
        #: The number of the thread that has made the loop and runs it.
        self._thread = threading.get_ident()
        #: Guards `_wake`, so that no thread writes to it after it was closed.
        self._lock = threading.Lock()
        #: The descriptor by which other threads end the loop's wait. It is -1 when the loop is closed.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._wake, lambda: os.eventfd_read(self._wake))
        #: The threads of `run_in_thread`. None until it is first used.
        self._pool: Pool | None = None
        #: Whether the next turn begins with a short pause, see `delay_next_turn`.
        self._is_turn_delayed = False

    def __enter__(self) -> EventLoop:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the functions in threads, and close the loop. `call_soon` has no effect afterwards."""
        if self._pool is not None:
            self._pool.shutdown()
        self._selector.close()
        with self._lock:
            os.close(self._wake)
            self._wake = -1

    # ------------------------------------------------------------------ requests for calls

    def watch(self, fd: int, read: _Function | None = None, write: _Function | None = None) -> None:
        """Call functions in each turn in which a descriptor is ready.

        The functions replace those of an earlier call for the descriptor. Without functions the loop stops
        watching the descriptor, which must happen before it is closed.

        Args:
            fd: The descriptor.
            read: The function to call while it is readable.
            write: The function to call while it is writable.
        """
        events = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        before = self._watched.pop(fd, None)
        if events:
            self._watched[fd] = read, write
        if before is None and events:
            self._selector.register(fd, events)
        elif before is not None and not events:
            self._selector.unregister(fd)
        # Other functions for the same events are no change for the selector.
        elif before is not None and [*map(bool, before)] != [bool(read), bool(write)]:
            self._selector.modify(fd, events)

    def call_at(self, due: float, function: _Function) -> TimerHandle:
        """Call a function at a given time, in monotonic seconds.

        Returns:
            The handle that cancels the call.
        """
        timer = TimerHandle(due, function)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon(self, function: _Function) -> None:
        """Call a function in the next turn. Any thread may use this."""
        self._calls.append(function)
        # The loop's own thread is not waiting now. Any other thread has to end its wait.
        if threading.get_ident() != self._thread:
            with self._lock:
                # A loop that was closed no longer calls anything, so there is nothing to wake.
                if self._wake >= 0:
                    os.eventfd_write(self._wake, 1)

    def delay_next_turn(self) -> None:
        """Let the next turn begin with a short pause. Call it when only a part of a message has arrived.

        Its sender is still writing. A turn for each small piece would cost more CPU time than one for all.
        """
        self._is_turn_delayed = True

    def run_in_thread(self, function: Callable[[], _T], done: Callable[[Future[_T]], object]) -> None:
        """Call a function that blocks in another thread.

        Args:
            function: The function, without arguments.
            done: Called afterwards by the loop, with the future that contains the result or the exception.
        """
        if self._pool is None:
            self._pool = new_pool(_MAX_THREADS, "work")
        future = self._pool.begin(function)
        self._await_thread()  # The pool may have no thread yet, and the system may start none now.
        future.add_done_callback(lambda _: self.call_soon(lambda: done(future)))

    def _await_thread(self) -> None:
        """See that the pool has a thread for its work, and try again later if the system starts none now.

        The job continues in the meantime, and the work waits in the pool.
        """
        if self._pool is not None and not self._pool.ensure_thread():
            self.call_at(time.monotonic() + _NO_THREAD_PAUSE_SECONDS, self._await_thread)

    # ------------------------------------------------------------------ turns

    def run_once(self, seconds: float | None = None) -> None:
        """Run one turn: wait for something to do, and call the functions that are due.

        Args:
            seconds: The longest time to wait. None waits until something is due.
        """
        # The rest of a message is on its way. After a short pause one turn reads all of it.
        if self._is_turn_delayed:
            self._is_turn_delayed = False
            time.sleep(_TURN_DELAY_SECONDS)
        ready = self._selector.select(self._seconds_to_wait(seconds))
        for key, events in ready:
            # A function may stop the watching of any descriptor, so each is looked up when its turn comes.
            read, write = self._watched.get(key.fd, (None, None))
            if read is not None and events & selectors.EVENT_READ:
                read()
                read, write = self._watched.get(key.fd, (None, None))
            if write is not None and events & selectors.EVENT_WRITE:
                write()
            # Commands to hosts must not wait until the output of all other hosts was read.
            self._run_calls()
        for timer in self._pop_due():
            if timer.function is not None:  # Another timer may have cancelled this one.
                timer.function()
        self._run_calls()

    def _run_calls(self) -> None:
        """Call the functions of `call_soon`. What they add has to wait for the next call."""
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def run_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Run turns until a condition is true or the time is over.

        Args:
            condition: Checked before each turn.
            seconds: The longest time to run.

        Returns:
            Whether the condition is true.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                return False
            self.run_once(seconds_left)
        return True

    def _pop_due(self) -> list[TimerHandle]:
        """Remove and return the timers that are due.

        All are removed before any is called, because the function of a timer may set another timer.
        """
        now, due = time.monotonic(), []
        while self._timers and self._timers[0].due <= now:
            due.append(heapq.heappop(self._timers))
        return due

    def _seconds_to_wait(self, seconds: float | None) -> float | None:
        """Return how long a turn may wait for descriptors.

        Args:
            seconds: The longest time that the caller allows. None means no limit.

        Returns:
            The seconds until the next call or timer, but at most the given ones. None means that the turn
            waits for descriptors only.
        """
        if self._calls:
            return 0.0
        while self._timers and self._timers[0].function is None:  # These timers were cancelled.
            heapq.heappop(self._timers)
        if not self._timers:
            return seconds
        seconds_left = max(0.0, self._timers[0].due - time.monotonic())
        return seconds_left if seconds is None else min(seconds_left, seconds)
