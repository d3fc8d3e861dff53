"""A line that is rewritten at its end, against the plain way of doing it."""

from __future__ import annotations

import re
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.output.cells import Cells
from launcher.output.lines import LineCutter


def plain_back(text: str, at: int, count: int) -> int:
    """The place so many characters before another; colours take no room."""
    cells = re.findall(r"\x1b\[[0-9;:]*m|.", text[:at], re.DOTALL)
    while cells and count:
        cell = cells.pop()
        at -= len(cell)
        count -= len(cell) == 1
    return at


STEPS = st.one_of(
    st.tuples(st.just("text"), st.text("abcé", max_size=600)),
    st.tuples(st.just("colour"), st.sampled_from(["\x1b[1m", "\x1b[0m", "\x1b[38;5;1m"])),
    st.tuples(st.just("back"), st.integers(1, 700)),
    st.tuples(st.just("look"), st.just(0)),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_it_is_the_same_text(steps):
    cells, text = Cells(), ""
    for what, how in steps:
        if what == "text":
            cells.append(how)
            text += how
        elif what == "colour":
            cells.append_colours(how)
            text += how
        elif what == "look":
            assert str(cells) == text
        else:
            place = cells.back(len(cells), how)
            assert place == plain_back(text, len(text), how)
            assert cells.back(place, 3) == plain_back(text, place, 3)
            assert cells.cut(place) == text[place:]
            text = text[:place]
        assert len(cells) == len(text)
    assert str(cells) == text


def test_rewriting_the_end_of_a_long_line_takes_no_longer():
    """It was forty times slower at 60,000 characters than at 100."""

    def seconds(length: int) -> float:
        cutter = LineCutter(b"| ", b"+ ")
        cutter.feed(b"x" * length, 0.0)
        began = time.process_time()
        cutter.feed((b"%06d" % 7 + b"\b" * 6) * 5000, 0.0)
        return time.process_time() - began

    assert min(seconds(60_000) for _ in range(3)) < 5 * min(seconds(100) for _ in range(3)) + 0.02
