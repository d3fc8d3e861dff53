"""The writer: order, slow, stopped and closed readers."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.output.writer import Writer

LINE = b"x" * 99 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            pass


class Reader(threading.Thread):
    """Reads a pipe to its end, ``size`` bytes at a time."""

    def __init__(self, fd: int, size: int = 65536, pause: float = 0.0) -> None:
        super().__init__()
        self.data = b""
        self._fd, self._size, self._pause = fd, size, pause
        self.start()

    def run(self) -> None:
        while data := os.read(self._fd, self._size):
            self.data += data
            time.sleep(self._pause)


def test_everything_arrives_in_order_on_two_descriptors_of_one_pipe(pipe: tuple[int, int]):
    read, write = pipe
    other = os.dup(write)
    reader = Reader(read, 1000)
    writer = Writer()
    lines = [b"%d\n" % number for number in range(5000)]
    for number, line in enumerate(lines):
        writer.write(other if number % 3 else write, line, urgent=number % 7 == 0)
    assert writer.close()
    assert os.get_blocking(write)
    os.close(other)
    os.close(write)
    reader.join()
    assert reader.data == b"".join(lines)


@pytest.mark.parametrize("reopened", [True, False])
def test_a_slow_reader_loses_nothing_while_the_output_is_held(
    pipe: tuple[int, int], reopened: bool, monkeypatch: pytest.MonkeyPatch
):
    """Also where the pipe is another user's, and can't be opened again."""
    if not reopened:
        monkeypatch.setattr(os, "open", lambda *_: os.close(-1))
    read, write = pipe
    reader = Reader(read, 4000, 0.0005)
    writer = Writer(capacity=50_000)
    held = 0
    for number in range(20_000):
        while writer.holds():
            held += 1
            time.sleep(0.001)
            writer.flush()
        writer.write(write, b"%09d:%b" % (number, LINE))
    assert writer.close()
    os.close(write)
    reader.join()
    assert held
    assert reader.data == b"".join(b"%09d:%b" % (number, LINE) for number in range(20_000))


def test_in_a_hurry_a_full_queue_drops_lines_and_reports_their_number(pipe: tuple[int, int]):
    read, write = pipe
    writer = Writer("/logs", capacity=100_000)
    assert not writer.holds(ending=True, failed=True)
    for _ in range(5000):
        writer.write(write, LINE)
    writer.write(write, b"the end\n", urgent=True)
    assert not writer.holds()
    reader = Reader(read)
    assert writer.close()
    os.close(write)
    reader.join()
    lines = reader.data.decode().splitlines()
    shown = lines.count(LINE.decode().strip())
    notice = r"launch: ([\d,]+) lines were not shown here \(([\d,]+) bytes\): .* complete in /logs"
    dropped = [found for line in lines if (found := re.fullmatch(notice, line))]
    assert sum(int(found[1].replace(",", "")) for found in dropped) == 5000 - shown
    assert sum(int(found[2].replace(",", "")) for found in dropped) == 100 * (5000 - shown)
    assert lines[-1] == "the end" and len(lines) == shown + len(dropped) + 1


def test_a_stopped_reader_does_not_hold_up_another_file(pipe: tuple[int, int], tmp_path: Path):
    writer = Writer()
    for _ in range(20_000):
        writer.write(pipe[1], LINE)
    writer.flush()
    assert writer.blocked()
    with open(tmp_path / "out", "wb") as file:
        writer.write(file.fileno(), b"here\n")
        writer.flush()
        assert (tmp_path / "out").read_bytes() == b"here\n"
        writer.finish(lambda: True)
        writer.close()
