"""A clock for the tests of the writer, what fills its buffer, and readers of all kinds."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import termios
import threading
import time
from collections.abc import Callable

from launcher.output.writer import Writer

#: So many of them are a page, which is what a pipe can be made to hold.
LINE = b"x" * 63 + b"\n"
PAGE = LINE * 64

#: Of Linux: what a terminal keeps for whoever reads it next.
_N_TTY_BUF_SIZE = 4096


class Clock:
    """What writers tell the time by: it stands still unless a test moves it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def write_patiently(writer: Writer, fd: int, data: bytes) -> None:
    """As the orchestrator does: nothing is brought while the reader is behind."""
    while writer.full():
        time.sleep(0.0005)
    writer.write(fd, data)


def stuff(read: int, write: int) -> bytes:
    """Write what the kernel takes between the two ends of a pipe or a terminal, so that it takes no more."""
    own = os.open(f"/proc/self/fd/{write}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    taken = 0
    end = time.monotonic() + 20
    try:
        while True:
            there = _there(read)
            try:
                taken += os.write(own, LINE)
            except BlockingIOError:
                if there == _N_TTY_BUF_SIZE - 1 or not os.isatty(read):
                    return (LINE * (taken // len(LINE) + 1))[:taken]
                assert time.monotonic() < end, f"this terminal keeps {there} of {taken} bytes"
                time.sleep(0.001)
    finally:
        os.close(own)


def _there(read: int) -> int:
    """How much is at the end that is read: a terminal takes it there a moment later."""
    return int.from_bytes(fcntl.ioctl(read, termios.FIONREAD, bytes(4)), sys.byteorder)


class Reader(threading.Thread):
    """Reads to the end, at most ``size`` bytes at a time with a pause between."""

    def __init__(self, fd: int, pause: float = 0.0, size: int = 1 << 20):
        super().__init__(daemon=True)
        self.fd, self.pause, self.size, self.data = fd, pause, size, b""
        self.start()

    def run(self) -> None:
        while got := self.read():
            self.data += got
            if self.pause:
                time.sleep(self.pause)

    def read(self) -> bytes:
        try:
            return os.read(self.fd, self.size)
        except OSError as error:  # how a terminal's other end sees the end
            assert error.errno == errno.EIO
            return b""

    def to_the_end(self) -> bytes:
        """All it has read, once there is no more."""
        self.join(30)
        assert not self.is_alive()
        return self.data


class SlowReader(Reader):
    """Reads a page, at most, each time it is told to."""

    def __init__(self, fd: int):
        self.turns = threading.Semaphore(0)
        super().__init__(fd, size=len(PAGE))

    def read(self) -> bytes:
        self.turns.acquire()
        return super().read()

    def turn(self) -> None:
        """Let it read once."""
        before = len(self.data)
        self.turns.release()
        until(lambda: len(self.data) > before)


class TimedReader(Reader):
    """A page takes it a tenth of a second, by the writer's clock."""

    def __init__(self, fd: int, clock: Clock):
        self.clock = clock
        super().__init__(fd, size=len(PAGE))

    def read(self) -> bytes:
        self.clock.now += 0.1
        return super().read()
