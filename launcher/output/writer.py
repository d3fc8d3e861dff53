"""Bytes to stdout and stderr, in order, by a thread that may wait for a reader so that nobody else has to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from launcher.errors import LaunchError
from launcher.output.channel import Channel

#: How long the thread waits for a reader before it looks around again.
_LOOK = 0.05


class Writer:
    """A bounded buffer for each descriptor and one daemon thread, started by the first write.

    A reader that reads slowly loses nothing. One that accepts no byte for ``stall`` seconds
    while its buffer is full (a stopped terminal, a pager nobody turns) has the lines after
    that dropped and counted, until it has read half of what waits; then a notice says so.
    The same happens to a reader so slow that twice the buffer waits for it.

    Args:
        logs: where the complete output is, for the notice; empty if nowhere.
        notice: makes the notice from the number of lines.
        capacity: bytes that may wait for one descriptor.
        stall: seconds; also the longest a caller of ``write`` is held up.
    """

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
        self._closing = False

    def write(self, fd: int, data: bytes, urgent: bool = False) -> None:
        """Queue whole lines; waits only while the buffer is full, at most ``stall`` seconds.

        ``urgent`` lines (few: a report, a warning) are queued however much waits, and never skipped.
        """
        if not data:
            return
        with self._changed:
            channel = self._channel(fd)
            if urgent:
                self._resume(channel)
            elif channel.size >= self._capacity and not channel.skipping:
                self._wait_for_room(channel)
            if channel.broken is not None or self._closing:
                return
            if channel.skipping:
                channel.skipped += data.count(b"\n")
                return
            self._add(channel, data)

    def broken(self, fd: int) -> OSError | None:
        """Why this descriptor can't be written to any more, if so (``BrokenPipeError``: nobody reads)."""
        channel = self._channels.get(fd)
        return channel.broken if channel else None

    def waiting(self, fd: int) -> int:
        """How many bytes wait for this descriptor's reader."""
        channel = self._channels.get(fd)
        return channel.size if channel else 0

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all is written; ``timeout`` seconds in which nobody reads a byte end it.

        Returns:
            Whether all was written, or can't ever be.
        """
        with self._changed:
            self._tell_skipped()
            began = time.monotonic()
            while True:
                waiting = [channel for channel in self._channels.values() if channel.size]
                if not waiting:
                    return True
                latest = max(channel.accepted_at for channel in waiting)
                left = max(latest, began) + timeout - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.5))

    def close(self, timeout: float = 5.0) -> bool:
        """``flush``, then end the thread. Whatever comes later is dropped."""
        done = self.flush(timeout)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)
        return done

    def _channel(self, fd: int) -> Channel:
        channel = self._channels.get(fd)
        if channel is None:
            channel = self._channels[fd] = Channel(fd, time.monotonic())
        return channel

    def _add(self, channel: Channel, data: bytes) -> None:
        self._number += 1
        channel.add(self._number, data, time.monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="launch-writer", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                raise LaunchError(
                    f"no thread to write the output with: {error}; see ulimit -u and -v"
                ) from error
        self._changed.notify_all()

    def _wait_for_room(self, channel: Channel) -> None:
        """Wait for room while the reader reads; else go over to skipping. With the lock held."""
        end = time.monotonic() + self._stall
        while channel.size >= self._capacity and channel.broken is None:
            now = time.monotonic()
            if now - channel.accepted_at >= self._stall:
                channel.skipping = True
                return
            if now >= end:  # slow, not stopped
                channel.skipping = channel.size >= 2 * self._capacity
                return
            self._changed.wait(min(end - now, channel.accepted_at + self._stall - now))

    def _tell_skipped(self) -> None:
        """Queue the notices that are due at the very end."""
        for channel in self._channels.values():
            if channel.skipped:
                self._resume(channel)

    def _resume(self, channel: Channel) -> None:
        lines, channel.skipped, channel.skipping = channel.skipped, 0, False
        if lines:
            self._add(channel, self._notice(lines))

    def _run(self) -> None:
        while True:
            with self._changed:
                loaded = self._next()
                while not loaded and not self._closing:
                    self._changed.wait()
                    loaded = self._next()
                if self._closing:
                    break
            for place, channel in enumerate(loaded):
                self._send(channel, 0.0 if place else _LOOK)
        for channel in self._channels.values():
            channel.close()

    def _next(self) -> list[Channel]:
        """The channel with the oldest chunk, loaded; and those nobody reads, which hold up no other."""
        waiting = [channel for channel in self._channels.values() if channel.size]
        now = time.monotonic()
        stopped = [channel for channel in waiting if now - channel.accepted_at >= self._stall]
        flowing = sorted((c for c in waiting if c not in stopped), key=lambda c: c.order)
        for channel in flowing[1:]:  # its turn has not come: it is not to blame
            channel.accepted_at = now
        for channel in flowing[:1]:
            channel.load(flowing[1].order if len(flowing) > 1 else float("inf"))
        for channel in stopped:
            channel.load(float("inf"))
        return flowing[:1] + stopped

    def _send(self, channel: Channel, timeout: float) -> None:
        """Write once, without the lock; then note what was accepted."""
        error: OSError | None = None
        sent = 0
        try:
            sent = channel.send(timeout)
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
                return
            self._changed.notify_all()


def _notice(lines: int, logs: str) -> bytes:
    where = f"; they are complete in {logs}" if logs else ""
    were = "line was" if lines == 1 else "lines were"
    return f"launch: {lines:,} {were} not shown here while the output was stopped{where}\n".encode()
