"""One file descriptor to write to: what waits for it, and whether its reader still reads.

A write must never block for good, or the writer's thread could not tell a stopped reader from
a slow one. ``O_NONBLOCK`` on a descriptor we were given would be set for every process that
shares it (our shell!), so pipes and terminals are opened again: a description of our own.
"""

from __future__ import annotations

import os
import stat
from collections import deque

#: Queued chunks are joined up to this many bytes for one ``write``.
_JOINED = 1 << 20

#: What a pipe that polls writable takes without blocking, where it can't be opened again.
_PIPE_BUF = 4096


class Channel:
    """The queue of one descriptor. Not thread safe: the writer holds its lock (but during ``send``).

    Args:
        fd: where to write. It stays the caller's.
        now: the time, as the writer counts it.
    """

    def __init__(self, fd: int, now: float) -> None:
        self.fd = fd
        self.queue: deque[tuple[int, bytes]] = deque()
        #: Bytes not accepted yet.
        self.size = 0
        #: When it last accepted something, or had nothing to accept.
        self.accepted_at = now
        self.broken: OSError | None = None
        #: Nobody reads: new data is dropped, and the lines counted.
        self.skipping = False
        self.skipped = 0
        self._rest = memoryview(b"")
        self._own, self._nonblocking, self._blocks = _reopen(fd)

    @property
    def order(self) -> int:
        """The number of the oldest chunk that is not fully written (-1: one that was begun)."""
        return -1 if self._rest else self.queue[0][0]

    def add(self, number: int, data: bytes, now: float) -> None:
        """Queue a chunk."""
        if not self.size:
            self.accepted_at = now
        self.queue.append((number, data))
        self.size += len(data)

    def load(self, before: float) -> None:
        """Join the oldest chunks, up to chunk number ``before``, for the next ``send``."""
        if self._rest or not self.queue:
            return
        taken: list[bytes] = []
        room = _JOINED
        while self.queue and room > 0 and self.queue[0][0] < before:
            taken.append(self.queue.popleft()[1])
            room -= len(taken[-1])
        self._rest = memoryview(taken[0] if len(taken) == 1 else b"".join(taken))

    def send(self, timeout: float) -> int:
        """Write what is loaded; wait at most ``timeout`` for the reader. Returns the bytes accepted.

        Raises:
            OSError: it can't be written to, and never will be again.
        """
        if not self._nonblocking and self._blocks and not self._writable(timeout):
            return 0
        data = self._rest[:_PIPE_BUF] if not self._nonblocking and self._blocks else self._rest
        try:
            sent = os.write(self._own, data)
        except BlockingIOError:
            if not self._writable(timeout):
                return 0
            try:
                sent = os.write(self._own, data)
            except BlockingIOError:
                return 0
        self._rest = self._rest[sent:]
        return sent

    def _writable(self, timeout: float) -> bool:
        import select

        poll = select.poll()
        poll.register(self._own, select.POLLOUT)
        return bool(poll.poll(timeout * 1000))

    def give_up(self, error: OSError) -> None:
        """It can't be written to: forget what waits."""
        self.broken = error
        self.queue.clear()
        self.size = 0
        self._rest = memoryview(b"")

    def close(self) -> None:
        """Close the description that is ours."""
        if self._own != self.fd:
            os.close(self._own)
            self._own = self.fd


def _reopen(fd: int) -> tuple[int, bool, bool]:
    """A descriptor to write to, whether it is non-blocking (and ours), whether writes can block."""
    try:
        mode = os.fstat(fd).st_mode
        blocks = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
        if not blocks or stat.S_ISSOCK(mode) or not os.path.isdir("/proc/self/fd"):
            return fd, False, blocks
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), True, True
    except OSError:  # closed (the first write says so), no reader, or not ours to open
        return fd, False, True
