"""Bytes to stdout and stderr, in order, by a thread that may wait for a reader so that nobody else has to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from launcher.errors import LaunchError
from launcher.output.channel import Channel, wait_for_any

#: How long the thread waits for a reader before it looks around again.
_LOOK = 0.05
#: Seconds between two looks at whether the last flush is wanted at once.
_ASK = 0.1
#: Where this many times its capacity waits although nobody should bring anything, lines are skipped.
_FAR_TOO_MUCH = 16


class Writer:
    """A bounded buffer for each descriptor and one daemon thread, started by the first write.

    Nothing here waits for a reader but `flush`. While much waits for one that reads slowly it says that it
    is ``full``: whoever heeds that loses nothing. A reader that accepts no byte for ``stall`` seconds while
    his buffer is full (a stopped terminal, a pager nobody turns) has the lines after that dropped and
    counted, until he has read half of what waits; then a notice says so. In a ``hurry`` that happens at once.

    Args:
        logs: where the complete output is, for the notice; empty if nowhere.
        notice: makes the notice from the number of lines.
        capacity: bytes that may wait for one descriptor.
        stall: seconds.
    """

    #: Seconds for the last lines: in all, without progress, in a hurry, for what is urgent after that.
    TOTAL, IDLE, HURRIED, URGENT = 30.0, 5.0, 1.0, 1.0

    def __init__(
        self,
        logs: str = "",
        notice: Callable[[int], bytes] | None = None,
        capacity: int = 4 << 20,
        stall: float = 2.0,
    ) -> None:
        self._notice = notice or (lambda lines: _notice(lines, logs))
        self._capacity = capacity
        self._stall = stall
        self._channels: dict[int, Channel] = {}
        self._number = 0
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._hurried = False
        #: The last flush has begun; it is over what is not urgent; that is to be left out.
        self._last = self._given_up = self._leaving_out = False
        self._closing = False

    def write(self, fd: int, data: bytes, urgent: bool = False) -> None:
        """Queue whole lines. ``urgent`` ones (few: a report, a warning) are never skipped."""
        if not data:
            return
        with self._changed:
            channel = self._channel(fd)
            if urgent:
                self._resume(channel)
            else:
                self._look_at(channel)
            if channel.broken is not None or self._closing:
                return
            if channel.skipping:
                channel.skipped += data.count(b"\n")
                return
            self._add(channel, data, urgent)

    def full(self) -> bool:
        """Whether so much waits for a reader that nothing more should be brought for now."""
        with self._changed:
            for channel in self._channels.values():
                self._look_at(channel)
            return any(channel.full and not channel.skipping for channel in self._channels.values())

    def hurry(self) -> None:
        """Rather skip lines than wait for a slow reader from now on."""
        self._hurried = True

    def broken(self, fd: int) -> OSError | None:
        """Why this descriptor can't be written to any more, if so (``BrokenPipeError``: nobody reads)."""
        channel = self._channels.get(fd)
        return channel.broken if channel else None

    def waiting(self, fd: int) -> int:
        """How many bytes wait for this descriptor's reader."""
        channel = self._channels.get(fd)
        return channel.size if channel else 0

    def flush(self, idle: float = IDLE, asked: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all is written, a bounded time; what is urgent is tried last.

        Args:
            idle: seconds in which nobody reads a byte end it.
            asked: whether somebody wants it to end at once.

        Returns:
            Whether all was written, or can't ever be.
        """
        with self._changed:
            self._last = True
            self._tell_skipped()
            if not self._given_up:
                if self._wait(self.HURRIED if self._hurried else self.TOTAL, idle, asked):
                    return True
                self._given_up = self._leaving_out = True
                self._changed.notify_all()
            self._wait(self.URGENT, min(idle, self.URGENT), asked)
            return False

    def close(self, idle: float = IDLE) -> bool:
        """``flush``, then end the thread. Whatever comes later is dropped."""
        done = self.flush(idle)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)
        return done

    def _wait(self, total: float, idle: float, asked: Callable[[], bool]) -> bool:
        """Wait until nothing is left; with the lock held."""
        began = time.monotonic()
        while True:
            waiting = [channel for channel in self._channels.values() if channel.size]
            if not waiting:
                return True
            latest = max(channel.accepted_at for channel in waiting)
            left = min(max(latest, began) + idle, began + total) - time.monotonic()
            if left <= 0 or asked():
                return False
            self._changed.wait(min(left, _ASK))

    def _channel(self, fd: int) -> Channel:
        channel = self._channels.get(fd)
        if channel is None:
            channel = self._channels[fd] = Channel(fd, time.monotonic())
        return channel

    def _look_at(self, channel: Channel) -> None:
        """Note whether it is full, and go over to skipping where that is to be."""
        channel.full = channel.size >= (self._capacity // 2 if channel.full else self._capacity)
        if not channel.full or channel.broken is not None:
            return
        stopped = time.monotonic() - channel.accepted_at >= self._stall
        if stopped and channel.has_room:  # it was our thread that stood still
            stopped = False
        if self._hurried or stopped or channel.size >= _FAR_TOO_MUCH * self._capacity:
            channel.skipping = True

    def _add(self, channel: Channel, data: bytes, urgent: bool) -> None:
        self._number += 1
        channel.add(self._number, data, time.monotonic(), urgent)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="launch-writer", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                raise LaunchError(
                    f"no thread to write the output with: {error}; see ulimit -u and -v"
                ) from error
        self._changed.notify_all()

    def _tell_skipped(self) -> None:
        """Queue the notices that are due at the very end."""
        for channel in self._channels.values():
            if channel.skipped:
                self._resume(channel)

    def _resume(self, channel: Channel) -> None:
        lines, channel.skipped, channel.skipping = channel.skipped, 0, False
        if lines:
            self._add(channel, self._notice(lines), urgent=True)

    def _leave_out(self) -> None:
        """Only what is urgent is waited for any more."""
        self._leaving_out = False
        for channel in self._channels.values():
            lines = channel.leave_out()
            if lines:
                channel.put_first(self._number, self._notice(lines))

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._leaving_out:  # here, where nothing is being written
                    self._leave_out()
                loaded = self._next()
                while not loaded and not self._closing:
                    self._changed.wait()
                    loaded = self._next()
                if self._closing:
                    break
            if not sum(map(self._send, loaded)):
                wait_for_any(loaded, _LOOK)
        for channel in self._channels.values():
            channel.close()

    def _next(self) -> list[Channel]:
        """Those to write to, loaded: for each file the one with the oldest chunk; those nobody reads, too."""
        waiting = [channel for channel in self._channels.values() if channel.size]
        for channel in waiting:
            channel.careful = channel.full or self._hurried or self._last
        now = time.monotonic()
        stopped = [channel for channel in waiting if now - channel.accepted_at >= self._stall]
        flowing = sorted((c for c in waiting if c not in stopped), key=lambda c: c.order)
        first: dict[object, Channel] = {}
        for channel in flowing:
            if first.setdefault(channel.place, channel) is not channel:
                channel.accepted_at = now  # its turn has not come: it is not to blame
        for place, channel in first.items():
            others = (c.order for c in flowing if c.place == place and c is not channel)
            channel.load(min(others, default=float("inf")))
        for channel in stopped:
            channel.load(float("inf"))
        return [*first.values(), *stopped]

    def _send(self, channel: Channel) -> bool:
        """Write once, without the lock; then note what was accepted. Whether something came of it."""
        error: OSError | None = None
        sent = 0
        try:
            sent = channel.send()
        except OSError as caught:
            error = caught
        with self._changed:
            if error is not None:
                channel.give_up(error)
            elif sent:
                channel.size -= sent
                channel.accepted_at = time.monotonic()
                if channel.skipping and channel.size <= self._capacity // 2:
                    self._resume(channel)
            else:
                return False
            self._changed.notify_all()
            return True


def _notice(lines: int, logs: str) -> bytes:
    where = f"; they are complete in {logs}" if logs else ""
    were = "line was" if lines == 1 else "lines were"
    return f"launch: {lines:,} {were} not shown here, for nobody read the output in time{where}\n".encode()
