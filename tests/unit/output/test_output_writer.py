"""The writer: order, slow, stopped and closed readers."""

from __future__ import annotations

import os
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
