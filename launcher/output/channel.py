"""One file descriptor to write to: what waits for it, and whether its reader still reads.

A write must never block for good, or the writer's thread could not tell a stopped reader from
a slow one. ``O_NONBLOCK`` on a descriptor we were given would be set for every process that
shares it (our shell!), so pipes and terminals are opened again: a description of our own.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

#: Queued chunks are joined up to this many bytes for one ``write``.
_JOINED = 1 << 20

#: What a pipe takes as a whole or not at all, and takes if it polls writable.
_PIPE_BUF = 4096


class Chunk(NamedTuple):
    """Whole lines that wait; ``number`` rises with each that was queued for any descriptor."""

    number: int
    data: bytes
    #: It may not be left out to catch up.
    urgent: bool


class Channel:
    """The queue of one descriptor. Not thread safe: the writer holds its lock (but during ``send``).

    Args:
        fd: where to write. It stays the caller's.
        now: the time, as the writer counts it.
    """

    def __init__(self, fd: int, now: float) -> None:
        self.fd = fd
        self.queue: deque[Chunk] = deque()
        #: Bytes not accepted yet.
        self.size = 0
        #: When it last accepted something, or had nothing to accept.
        self.accepted_at = now
        self.broken: OSError | None = None
        #: Much waits: nothing more should be brought until it is half of that.
        self.full = False
        #: New data is dropped, and the lines counted.
        self.skipping = False
        self.skipped = 0
        #: Write whole lines only, where that is possible: nobody knows how long its reader stays.
        self.careful = False
        self._rest = memoryview(b"")
        self._rest_urgent = False
        self._torn = False  # the last byte written was not the end of a line
        self._own, self._nonblocking, self._blocks, self.place = _reopen(fd)

    @property
    def order(self) -> int:
        """The number of the oldest chunk that is not fully written (-1: one that was begun)."""
        return -1 if self._rest else self.queue[0].number

    def add(self, number: int, data: bytes, now: float, urgent: bool = False) -> None:
        """Queue a chunk."""
        if not self.size:
            self.accepted_at = now
        self.queue.append(Chunk(number, data, urgent))
        self.size += len(data)

    def load(self, before: float) -> None:
        """Join the oldest chunks, up to chunk number ``before``, for the next ``send``."""
        if self._rest or not self.queue:
            return
        taken: list[bytes] = []
        room = _JOINED
        self._rest_urgent = self.queue[0].urgent
        while self.queue and room > 0 and self._goes_with(self.queue[0], before):
            taken.append(self.queue.popleft().data)
            room -= len(taken[-1])
        self._rest = memoryview(taken[0] if len(taken) == 1 else b"".join(taken))

    @property
    def has_room(self) -> bool:
        """Whether its reader would take something now; not so for files, which poll writable in any case."""
        return self._blocks and wait_for_any((self,), 0.0)

    def _goes_with(self, chunk: Chunk, before: float) -> bool:
        return chunk.number < before and chunk.urgent == self._rest_urgent

    def send(self) -> int:
        """Write what is taken of what is loaded; never waits. Returns the bytes accepted.

        Raises:
            OSError: it can't be written to, and never will be again.
        """
        if not self._nonblocking and self._blocks and not wait_for_any((self,), 0.0):
            return 0
        data = self._piece()
        try:
            sent = os.write(self._own, data)
        except BlockingIOError:
            return 0
        if sent:
            self._torn = data[sent - 1] != ord("\n")
        self._rest = self._rest[sent:]
        return sent

    def _piece(self) -> memoryview:
        """What to write at once."""
        if not self._nonblocking and self._blocks:
            return self._rest[:_PIPE_BUF]
        if not self.careful or not self._blocks:
            return self._rest
        head = bytes(self._rest[:_PIPE_BUF])
        return self._rest[: (head.find(b"\n") if self._torn else head.rfind(b"\n")) + 1 or _PIPE_BUF]

    def leave_out(self) -> int:
        """Forget what waits, but the rest of a line that was begun, and what is urgent.

        Returns:
            How many lines that are.
        """
        lines = 0
        if not self._rest_urgent:
            cut = bytes(self._rest).find(b"\n") + 1 if self._torn else 0
            lines = bytes(self._rest[cut:]).count(b"\n")
            self._rest = self._rest[:cut]
        lines += sum(chunk.data.count(b"\n") for chunk in self.queue if not chunk.urgent)
        self.queue = deque(chunk for chunk in self.queue if chunk.urgent)
        self.size = len(self._rest) + sum(len(chunk.data) for chunk in self.queue)
        return lines

    def put_first(self, number: int, data: bytes) -> None:
        """Queue an urgent chunk before all others."""
        self.queue.appendleft(Chunk(min([number, *(chunk.number for chunk in self.queue)]), data, True))
        self.size += len(data)

    def fileno(self) -> int:
        """What is written to, for poll."""
        return self._own

    def give_up(self, error: OSError) -> None:
        """It can't be written to: forget what waits."""
        self.broken = error
        self.full = False
        self.queue.clear()
        self.size = 0
        self._rest = memoryview(b"")

    def close(self) -> None:
        """Close the description that is ours."""
        if self._own != self.fd:
            os.close(self._own)
            self._own = self.fd


def wait_for_any(channels: Sequence[Channel], seconds: float) -> bool:
    """Whether one of them can be written to (or never will be), within so many seconds."""
    import select

    poll = select.poll()
    for channel in channels:
        poll.register(channel.fileno(), select.POLLOUT)
    return bool(poll.poll(seconds * 1000))


def _reopen(fd: int) -> tuple[int, bool, bool, object]:
    """A descriptor to write to, whether it is non-blocking (and ours), whether writes block, which file."""
    place: object = fd
    try:
        status = os.fstat(fd)
        place = (status.st_dev, status.st_ino)
        mode = status.st_mode
        blocks = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
        if not blocks or stat.S_ISSOCK(mode) or not os.path.isdir("/proc/self/fd"):
            return fd, False, blocks, place
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        return own, True, True, place
    except OSError:  # closed (the first write says so), no reader, or not ours to open
        return fd, False, True, place
