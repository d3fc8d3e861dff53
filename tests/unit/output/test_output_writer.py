from __future__ import annotations

import os
import threading
import time
from itertools import accumulate

import pytest

from launcher.output.writer import Writer

LINE = b"x" * 99 + b"\n"


def test_a_slow_reader_of_a_pipe_has_complete_lines_at_any_time():
    reading, writing = os.pipe()
    writer, got = Writer(), []
    try:
        writer.write(writing, LINE * 30_000)
        writer.flush()
        got.append(os.read(reading, 1 << 20))
        while writer.blocked():
            writer.flush()
            got.append(os.read(reading, 1 << 20))
        writer.close()
    finally:
        os.close(reading)
        os.close(writing)
    assert b"".join(got) == LINE * 30_000
    _, *ends = accumulate(map(len, got))
    assert all(end % len(LINE) == 0 for end in ends)


def test_a_reader_that_was_suspended_with_launch_is_not_slow(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-Z in ``launch | less`` suspends both: the time of neither counts."""
    reading, writing = os.pipe()
    got, looks = bytearray(), 0

    def read() -> None:
        while data := os.read(reading, 1 << 20):
            got.extend(data)

    def suspended() -> float:
        """The clock: a minute passes between two looks."""
        nonlocal looks
        looks += 1
        if looks == 3:
            reader.start()
        return looks * 60.0

    reader = threading.Thread(target=read, daemon=True)
    writer = Writer()
    monkeypatch.setattr(time, "monotonic", suspended)
    try:
        writer.write(writing, LINE * 30_000)
        assert writer.finish()
        writer.close()
    finally:
        monkeypatch.undo()
        os.close(writing)
    reader.join()
    os.close(reading)
    assert bytes(got) == LINE * 30_000
