from __future__ import annotations

import errno
import fcntl
import itertools
import os
import pty
import threading
import time
from pathlib import Path

import pytest

from launcher.output import writer as writer_module
from launcher.output.channel import Channel
from launcher.output.writer import Writer
from tests.unit.output.output_readers import (
    LINE,
    PAGE,
    Clock,
    Reader,
    SlowReader,
    TimedReader,
    stuff,
    until,
    write_patiently,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(writer_module, "time", made)
    return made


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError as error:
            assert error.errno == errno.EBADF


def test_everything_arrives_in_order(pipe, clock):
    read, write = pipe
    reader = Reader(read)
    writer = Writer()
    lines = [b"line %d\n" % n for n in range(20_000)]
    for line in lines:
        writer.write(write, line)
    assert writer.close()
    os.close(write)
    assert reader.to_the_end() == b"".join(lines)


def test_two_descriptors_of_one_pipe_keep_the_order(pipe, clock):
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
    assert reader.to_the_end() == b"".join(lines)


def test_a_slow_reader_loses_nothing(pipe, clock):
    """It takes him seven seconds, and half of one in which he reads nothing would be too long."""
    read, write = pipe
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, len(PAGE))
    reader = TimedReader(read, clock)
    writer = Writer(capacity=20_000, stall=0.5)
    lines = [b"%05d %s\n" % (n, b"x" * 90) for n in range(3_000)]
    for line in lines:
        write_patiently(writer, write, line)
    assert writer.close()
    os.close(write)
    assert reader.to_the_end() == b"".join(lines)


def test_our_pipe_stays_blocking_for_others(pipe, clock):
    read, write = pipe
    writer = Writer()
    writer.write(write, b"x\n")
    assert writer.close()
    assert os.get_blocking(write)
    assert os.read(read, 9) == b"x\n"


def check_stopped(clock: Clock, read: int, write: int, logs: str) -> None:
    """There is no reader yet and the clock stands still: a write that waited for either would never end."""
    stall = 0.3
    stuffed = stuff(read, write)
    writer = Writer(logs, capacity=30_000, stall=stall)
    numbers = itertools.count()
    lines = (b"line %07d\n" % number for number in numbers)
    while not writer.full():
        writer.write(write, next(lines))
    clock.now += 0.9 * stall
    assert writer.full()
    clock.now += 0.1 * stall
    for line in itertools.islice(lines, 5_000):
        assert not writer.full()
        writer.write(write, line)
    number = next(numbers)
    reader = Reader(read)
    until(lambda: b"not shown" in reader.data)
    writer.write(write, b"the last line\n")
    assert writer.close()
    until(lambda: reader.data.endswith(b"the last line\n"))
    *shown, notice, _last = reader.data.removeprefix(stuffed).decode().splitlines()
    assert shown == [f"line {n:07}" for n in range(len(shown))]
    skipped = f"{number - len(shown):,}"
    assert notice == (
        f"launch: {skipped} lines were not shown here, for nobody read the output in time; "
        f"they are complete in {logs}"
    )


def test_a_stopped_reader_is_skipped_and_told_so(pipe, clock):
    read, write = pipe
    check_stopped(clock, read, write, "/runs/1/logs")


def test_a_stopped_terminal_is_skipped_and_told_so(clock):
    import tty

    master, slave = pty.openpty()
    tty.setraw(slave)
    try:
        check_stopped(clock, master, slave, "/runs/2/logs")
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


def test_an_urgent_line_is_not_skipped(pipe, clock):
    read, write = pipe
    writer = Writer(capacity=10_000, stall=0.1)
    stuff(read, write)
    while not writer.full():
        writer.write(write, LINE)
    clock.now += 0.1
    writer.write(write, b"skipped\n")
    writer.write(write, b"the report\n", urgent=True)
    reader = Reader(read)
    assert writer.close()
    until(lambda: reader.data.endswith(b"the report\n"))
    assert b"1 line was not shown" in reader.data.splitlines()[-2]


def test_closed_reader(pipe, clock):
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


def test_reader_that_closes_while_we_wait(pipe, clock):
    read, write = pipe
    writer = Writer(capacity=1000, stall=30)
    stuff(read, write)
    threading.Timer(0.1, os.close, (read,)).start()
    for _ in range(100):
        write_patiently(writer, write, b"x" * 10_000)
    assert isinstance(writer.broken(write), BrokenPipeError)
    assert writer.close()


def test_closed_descriptor_and_full_disk(clock):
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


def test_close_is_bounded_and_ends_the_thread(pipe, monkeypatch):
    """By what it is told, and by nothing else: the test would be over before these are."""
    for limit in ("TOTAL", "URGENT"):
        monkeypatch.setattr(Writer, limit, 1e6)
    _read, write = pipe
    writer = Writer()
    writer.write(write, b"x" * 200_000)
    assert not writer.close(0.2)
    until(lambda: not any(thread.name == "launch-writer" for thread in threading.enumerate()))
    writer.write(write, b"dropped\n")


def test_without_a_write_there_is_no_thread():
    before = threading.active_count()
    writer = Writer()
    writer.write(1, b"")
    assert threading.active_count() == before
    assert writer.close()


def test_fast():
    """A machine that is busy slows it down, and nothing makes it faster: its best counts."""
    fd = os.open("/dev/null", os.O_WRONLY)
    chunk = b"x" * 65536

    def speed() -> float:
        writer = Writer()
        began = time.perf_counter()
        for _ in range(1000):
            write_patiently(writer, fd, chunk)
        assert writer.close()
        return 1000 * len(chunk) / (time.perf_counter() - began)

    until(lambda: speed() > 200e6)  # measured: some GB/s
    os.close(fd)


def test_while_much_waits_it_says_so_until_half_is_read(pipe, clock):
    read, write = pipe
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, len(PAGE))
    stuff(read, write)
    writer = Writer(capacity=40_000, stall=30)
    assert not writer.full()
    while not writer.full():
        writer.write(write, LINE)
    assert writer.waiting(write) == 40_000
    reader = SlowReader(read)
    while writer.full():
        before = writer.waiting(write)
        assert before >= 20_000
        reader.turns.release()
        until(lambda before=before: writer.waiting(write) < before)  # type: ignore[misc]
    assert writer.waiting(write) < 20_000
    reader.turns.release(1000)
    assert writer.close()
    os.close(write)
    assert reader.to_the_end() == PAGE + LINE * 625


def test_a_reader_who_stops_after_a_while_is_skipped_too(pipe, clock):
    """With less than its capacity in the buffer, but more than half of it: it is still full."""
    read, write = pipe
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, len(PAGE))
    stuff(read, write)
    writer = Writer(capacity=40_000, stall=0.3)
    while not writer.full():
        writer.write(write, LINE)
    os.read(read, len(PAGE))
    until(lambda: writer.waiting(write) < 40_000)
    assert writer.full()
    clock.now += 0.3
    assert not writer.full()
    before = writer.waiting(write)
    writer.write(write, b"skipped\n")
    assert writer.waiting(write) == before
    writer.close(0)


def test_who_stood_still_himself_blames_no_reader(pipe, clock, monkeypatch: pytest.MonkeyPatch):
    read, write = pipe
    go, send = threading.Event(), Channel.send
    monkeypatch.setattr(Channel, "send", lambda channel: send(channel) if go.wait(60) else 0)
    writer = Writer(capacity=10_000, stall=0.3)
    while not writer.full():
        writer.write(write, LINE)
    clock.now += 100.0
    assert writer.full()
    writer.write(write, b"more\n")
    go.set()
    reader = Reader(read)
    assert writer.close()
    os.close(write)
    assert set(reader.to_the_end().splitlines(True)) == {LINE, b"more\n"}


def test_a_file_whose_disk_stands_still_is_skipped(tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch):
    go, send = threading.Event(), Channel.send
    monkeypatch.setattr(Channel, "send", lambda channel: send(channel) if go.wait(60) else 0)
    with open(tmp_path / "out", "wb") as file:
        writer = Writer(capacity=10_000, stall=0.3)
        while not writer.full():
            writer.write(file.fileno(), LINE)
        clock.now += 100.0
        assert not writer.full()
        writer.write(file.fileno(), b"skipped\n")
        go.set()
        assert writer.close()
    *_, last = (tmp_path / "out").read_bytes().splitlines()
    assert last.startswith(b"launch: 1 line was not shown here")


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
def test_the_last_flush_is_bounded_though_he_reads(pipe, clock, monkeypatch, why: str):
    """What is left out is counted, what is urgent is not; and all lines are whole."""
    read, write = pipe
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, len(PAGE))
    if why == "total":
        monkeypatch.setattr(Writer, "TOTAL", 0.5)
    monkeypatch.setattr(Writer, "HURRIED", 0.5)
    writer = Writer(capacity=500_000)
    lines = [b"line %06d %s\n" % (n, b"y" * 77) for n in range(6_000)]
    for line in lines:
        writer.write(write, line)
    reader = SlowReader(read)
    while len(reader.data) <= 2 * len(PAGE):
        reader.turn()
    if why == "hurry":
        writer.hurry()
    writer.write(write, b"the report\n", urgent=True)
    answers = iter([False, False, why == "asked"])

    def asked() -> bool:
        clock.now += 0.05
        reader.turns.release()
        return next(answers, False)

    assert not writer.flush(asked=asked)
    assert clock.now < 4, "to be read whole it takes more than six"
    reader.turns.release(1000)
    assert not writer.close()
    os.close(write)
    reader.to_the_end()
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
        until(lambda n=n: (tmp_path / "err").read_bytes().endswith(b"%d\n" % n))  # type: ignore[misc]
    assert not writer.close(0.1)
    os.close(other)
    os.close(write)
    reader.turns.release(1000)
    reader.to_the_end()
