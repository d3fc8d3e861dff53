from __future__ import annotations

import errno
import fcntl
import os
import pty
import threading
import time
from collections.abc import Callable

import pytest

from launcher.output.writer import Writer


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


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


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError as error:
            assert error.errno == errno.EBADF


def test_everything_arrives_in_order(pipe):
    read, write = pipe
    reader = Reader(read)
    writer = Writer()
    lines = [b"line %d\n" % n for n in range(20_000)]
    for line in lines:
        writer.write(write, line)
    assert writer.close()
    os.close(write)
    reader.join(10)
    assert reader.data == b"".join(lines)


def test_two_descriptors_of_one_pipe_keep_the_order(pipe):
    read, write = pipe
    other = os.dup(write)
    reader = Reader(read, 0.0005, 4096)
    writer = Writer(capacity=50_000)
    lines = [b"line %d\n" % n for n in range(20_000)]
    for n, line in enumerate(lines):
        writer.write(other if n % 7 == 0 else write, line)
    assert writer.close()
    os.close(write)
    os.close(other)
    reader.join(10)
    assert reader.data == b"".join(lines)


def test_a_slow_reader_loses_nothing(pipe):
    read, write = pipe
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    reader = Reader(read, 0.01, 4096)
    writer = Writer(capacity=20_000, stall=0.5)
    lines = [b"%05d %s\n" % (n, b"x" * 90) for n in range(3_000)]
    for line in lines:
        writer.write(write, line)
    assert writer.close()
    os.close(write)
    reader.join(10)
    assert reader.data == b"".join(lines)


def test_our_pipe_stays_blocking_for_others(pipe):
    read, write = pipe
    writer = Writer()
    writer.write(write, b"x\n")
    assert writer.close()
    assert os.get_blocking(write)
    assert os.read(read, 9) == b"x\n"


def check_stopped(read: int, write: int, logs: str) -> None:
    stall = 0.3
    writer = Writer(logs, capacity=30_000, stall=stall)
    number, longest = 0, 0.0
    began = time.monotonic()
    while time.monotonic() - began < 3 * stall or number < 5_000:
        before = time.monotonic()
        writer.write(write, b"line %07d\n" % number)
        longest = max(longest, time.monotonic() - before)
        number += 1
    assert longest < stall + 1.0
    reader = Reader(read)
    until(lambda: b"not shown" in reader.data)
    writer.write(write, b"the last line\n")
    assert writer.close()
    until(lambda: reader.data.endswith(b"the last line\n"))
    *shown, notice, _last = reader.data.decode().splitlines()
    assert shown == [f"line {n:07}" for n in range(len(shown))]
    skipped = f"{number - len(shown):,}"
    assert notice == (
        f"launch: {skipped} lines were not shown here while the output was stopped; "
        f"they are complete in {logs}"
    )


def test_a_stopped_reader_is_skipped_and_told_so(pipe):
    read, write = pipe
    check_stopped(read, write, "/runs/1/logs")


def test_a_stopped_terminal_is_skipped_and_told_so():
    import tty

    master, slave = pty.openpty()
    tty.setraw(slave)
    try:
        check_stopped(master, slave, "/runs/2/logs")
    finally:
        os.close(slave)  # ends the reader
        until(lambda: not any(isinstance(thread, Reader) for thread in threading.enumerate()))
        os.close(master)


def test_a_stopped_reader_does_not_hold_up_the_other(pipe, tmp_path):
    _read, write = pipe
    other = os.open(tmp_path / "err", os.O_WRONLY | os.O_CREAT)
    writer = Writer(capacity=1 << 20, stall=0.2)
    writer.write(write, b"x" * 300_000)
    writer.write(other, b"important\n")
    until(lambda: (tmp_path / "err").read_bytes() == b"important\n")
    assert not writer.close(0.1)
    os.close(other)


def test_an_urgent_line_is_not_skipped(pipe):
    read, write = pipe
    writer = Writer(capacity=10_000, stall=0.1)
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        writer.write(write, b"x" * 99 + b"\n")
    writer.write(write, b"the report\n", urgent=True)
    reader = Reader(read)
    assert writer.close()
    until(lambda: reader.data.endswith(b"the report\n"))
    assert b"lines were not shown" in reader.data.splitlines()[-2]


def test_closed_reader(pipe):
    read, write = pipe
    os.close(read)
    writer = Writer()
    assert writer.broken(write) is None
    writer.write(write, b"x\n")
    assert writer.flush()
    assert isinstance(writer.broken(write), BrokenPipeError)
    for _ in range(1000):
        writer.write(write, b"x" * 10_000)
    assert writer.close()


def test_reader_that_closes_while_we_wait(pipe):
    read, write = pipe
    writer = Writer(capacity=1000, stall=30)
    threading.Timer(0.1, os.close, (read,)).start()
    for _ in range(100):
        writer.write(write, b"x" * 10_000)
    assert isinstance(writer.broken(write), BrokenPipeError)
    assert writer.close()


def test_closed_descriptor_and_full_disk():
    writer = Writer()
    full = os.open("/dev/full", os.O_WRONLY)
    fd = os.open("/dev/null", os.O_WRONLY)
    os.close(fd)
    writer.write(fd, b"x\n")
    writer.write(full, b"x\n")
    assert writer.flush()
    bad, no_space = writer.broken(fd), writer.broken(full)
    assert bad and bad.errno == errno.EBADF
    assert no_space and no_space.errno == errno.ENOSPC
    assert writer.close()
    os.close(full)


def test_close_is_bounded_and_ends_the_thread(pipe):
    _read, write = pipe
    writer = Writer()
    writer.write(write, b"x" * 200_000)
    began = time.monotonic()
    assert not writer.close(0.2)
    assert time.monotonic() - began < 2
    until(lambda: not any(thread.name == "launch-writer" for thread in threading.enumerate()))
    writer.write(write, b"dropped\n")


def test_without_a_write_there_is_no_thread():
    before = threading.active_count()
    writer = Writer()
    writer.write(1, b"")
    assert threading.active_count() == before
    assert writer.close()


def test_fast():
    fd = os.open("/dev/null", os.O_WRONLY)
    writer = Writer()
    chunk = b"x" * 65536
    began = time.perf_counter()
    for _ in range(4000):
        writer.write(fd, chunk)
    assert writer.close()
    assert 4000 * 65536 / (time.perf_counter() - began) > 200e6  # measured: some GB/s
    os.close(fd)
