from __future__ import annotations

import os
from itertools import accumulate

from launcher.output.writer import Writer

LINE = b"x" * 99 + b"\n"


def test_a_slow_reader_of_a_pipe_has_complete_lines_at_any_time():
    reading, writing = os.pipe()
    writer, got = Writer(), []
    try:
        writer.write(writing, LINE * 10_000)
        writer.flush()
        got.append(os.read(reading, 1 << 20))
        while writer.blocked():
            writer.flush()
            got.append(os.read(reading, 1 << 20))
        writer.close()
    finally:
        os.close(reading)
        os.close(writing)
    assert b"".join(got) == LINE * 10_000
    _, *ends = accumulate(map(len, got))
    assert all(end % len(LINE) == 0 for end in ends)
