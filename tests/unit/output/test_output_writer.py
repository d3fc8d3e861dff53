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


def write_patiently(writer: Writer, fd: int, data: bytes) -> None:
    """As the orchestrator does: nothing is brought while the reader is behind."""
    while writer.full():
        time.sleep(0.0005)
    writer.write(fd, data)


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
        write_patiently(writer, other if n % 7 == 0 else write, line)
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
        write_patiently(writer, write, line)
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
        until(lambda: not writer.full())
        before = time.monotonic()
        writer.write(write, b"line %07d\n" % number)
        longest = max(longest, time.monotonic() - before)
        number += 1
    assert longest < 0.2, "nothing waits for a reader"
    reader = Reader(read)
    until(lambda: b"not shown" in reader.data)
    writer.write(write, b"the last line\n")
    assert writer.close()
    until(lambda: reader.data.endswith(b"the last line\n"))
    *shown, notice, _last = reader.data.decode().splitlines()
    assert shown == [f"line {n:07}" for n in range(len(shown))]
    skipped = f"{number - len(shown):,}"
    assert notice == (
        f"launch: {skipped} lines were not shown here, for nobody read the output in time; "
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
        write_patiently(writer, write, b"x" * 99 + b"\n")
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
        write_patiently(writer, write, b"x" * 10_000)
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
        write_patiently(writer, fd, chunk)
    assert writer.close()
    assert 4000 * 65536 / (time.perf_counter() - began) > 200e6  # measured: some GB/s
    os.close(fd)


class SlowReader(Reader):
    """Reads a page each time it is told to."""

    def __init__(self, fd: int):
        self.turns = threading.Semaphore(0)
        super().__init__(fd, size=4096)

    def read(self) -> bytes:
        self.turns.acquire()
        return super().read()


def test_while_much_waits_it_says_so_until_half_is_read(pipe):
    read, write = pipe
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    writer = Writer(capacity=40_000, stall=30)
    assert not writer.full()
    while not writer.full():
        writer.write(write, b"x" * 99 + b"\n")
    assert 40_000 <= writer.waiting(write) <= 40_200
    reader = SlowReader(read)
    while writer.waiting(write) >= 20_000:
        assert writer.full()
        before = writer.waiting(write)
        reader.turns.release()
        until(lambda before=before: writer.waiting(write) < before)  # type: ignore[misc]
    assert not writer.full()
    for _ in range(20):
        reader.turns.release()
    assert writer.close()
    os.close(write)
    reader.turns.release()
    reader.join(10)
    assert set(reader.data.splitlines()) == {b"x" * 99}


def test_a_reader_who_stops_after_a_while_is_skipped_too(pipe):
    """With less than its capacity in the buffer, but more than half of it: it is still full."""
    read, write = pipe
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    writer = Writer(capacity=40_000, stall=0.3)
    while not writer.full():
        writer.write(write, b"x" * 99 + b"\n")
    before = writer.waiting(write)
    os.read(read, 4096)
    until(lambda: writer.waiting(write) < min(before, 40_000))
    assert writer.full()
    until(lambda: not writer.full(), 5)
    writer.write(write, b"skipped\n")
    assert writer.waiting(write) < 40_000
    writer.close(0.1)


def test_in_a_hurry_lines_are_skipped_at_once(pipe):
    _read, write = pipe
    writer = Writer(capacity=10_000, stall=30)
    writer.hurry()
    for _ in range(2000):
        writer.write(write, b"x" * 99 + b"\n")
        assert not writer.full()
    assert writer.waiting(write) < 11_000
    writer.close(0.1)


def test_without_anybody_to_heed_it_what_waits_is_bounded(pipe):
    _read, write = pipe
    writer = Writer(capacity=10_000, stall=30)
    for _ in range(5000):
        writer.write(write, b"x" * 99 + b"\n")
    assert writer.waiting(write) < 200_000
    writer.close(0.1)


@pytest.mark.parametrize("why", ["total", "asked", "hurry"])
def test_the_last_flush_is_bounded_though_he_reads(pipe, monkeypatch, why: str):
    """What is left out is counted, what is urgent is not; and all lines are whole."""
    read, write = pipe
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    if why == "total":
        monkeypatch.setattr(Writer, "TOTAL", 0.5)
    monkeypatch.setattr(Writer, "HURRIED", 0.5)
    writer = Writer(capacity=500_000)
    lines = [b"line %06d %s\n" % (n, b"y" * 77) for n in range(6_000)]
    for line in lines:
        writer.write(write, line)
    reader = Reader(read, 0.05, 4096)
    until(lambda: len(reader.data) > 8192)
    if why == "hurry":
        writer.hurry()
    writer.write(write, b"the report\n", urgent=True)
    began = time.monotonic()
    asked = iter([False, False, why == "asked"])
    assert not writer.flush(asked=lambda: next(asked, False))
    assert time.monotonic() - began < 4, "to be read whole it takes more than six"
    assert not writer.close()
    os.close(write)
    reader.join(10)
    *shown, notice, report = reader.data.splitlines(keepends=True)
    assert shown == lines[: len(shown)]
    assert report == b"the report\n"
    skipped = int(notice.split()[1].replace(b",", b""))
    assert len(shown) + skipped == len(lines)


def test_two_files_do_not_wait_for_each_other(pipe, tmp_path):
    """Order is kept within a file; a slow reader of one holds up no line for another."""
    read, write = pipe
    other = os.open(tmp_path / "err", os.O_WRONLY | os.O_CREAT)
    writer = Writer(stall=30)
    writer.write(write, b"x" * 300_000)
    reader = SlowReader(read)
    for n in range(5):
        reader.turns.release()
        writer.write(other, b"%d\n" % n)
        until(lambda n=n: (tmp_path / "err").read_bytes().endswith(b"%d\n" % n), 2.0)  # type: ignore[misc]
    assert not writer.close(0.1)
    os.close(other)
    os.close(write)
    for _ in range(300):
        reader.turns.release()
    reader.join(10)
