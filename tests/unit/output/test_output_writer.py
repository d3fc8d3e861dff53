from __future__ import annotations

import os
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
    writer, got, looks = Writer(), [], 0

    def suspended() -> float:
        """The clock: a minute passes between two looks, and the reader goes on at the third."""
        nonlocal looks
        looks += 1
        if looks >= 3:
            got.append(os.read(reading, 1 << 20))
        return looks * 60.0

    monkeypatch.setattr(time, "monotonic", suspended)
    try:
        writer.write(writing, LINE * 30_000)
        assert writer.finish()
    finally:
        monkeypatch.undo()
        writer.close()
        os.close(writing)
    with open(reading, "rb") as file:
        assert b"".join(got) + file.read() == LINE * 30_000


def test_a_notice_about_dropped_lines_is_not_in_the_middle_of_an_urgent_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Writer, "URGENT_SECONDS", 0.0)
    reading, writing = os.pipe()
    writer, got = Writer(), []
    try:
        writer.write(writing, LINE * 30_000, is_urgent=True)
        writer.write(writing, b"dropped\n")
        assert not writer.finish(lambda: True)
        while writer.blocked():
            got.append(os.read(reading, 1 << 20))
            writer.flush()
        writer.close()
    finally:
        os.close(writing)
    with open(reading, "rb") as file:
        lines = (b"".join(got) + file.read()).splitlines(keepends=True)
    (notice,) = (line for line in lines if line != LINE)
    assert lines.count(LINE) == 30_000
    assert b" 1 line " in notice
