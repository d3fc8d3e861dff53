from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.output.lines import LineCutter
from tests.conftest import examples

PIECES = [
    *(b"\n", b"\r", b"\b", b"\r\n", b"\b\b\b", b"\t", b"\x00", b"\x07", b"\x7f", b"\x1b", b"\x0e"),
    *(b"a", b"hello world", b"x" * 30, b"m", b"[", b"\xc3", b"\xa9", "é".encode(), "日本".encode(), b"\xff"),
    *(b"\x1b[31m", b"\x1b[0m", b"\x1b[m", b"\x1b[2J", b"\x1b[1;", b"\x1b]0;title\x07", b"\x1b]0;", b"\x1b\\"),
    *(b"\xc2\x9b31m", b"\xc2\x85", b"\x9b", b"\x1b(B", b"\x1bc", b"\xf0\x9f\x98\x80", b"\xf0\x9f"),
]
STREAMS = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=6)), max_size=40).map(b"".join)


def cut(data: bytes, places: list[int], keep: bool, limit: int) -> bytes:
    cutter = LineCutter(b"w/0 | ", b"w/0 + ", limit, keep_colours=keep)
    places = sorted({0, len(data), *(place for place in places if place < len(data))})
    out = [cutter.feed(data[a:b], 5.0) for a, b in zip(places, places[1:], strict=False)]
    return b"".join([*out, cutter.end()])


@settings(max_examples=examples(600), deadline=None)
@given(STREAMS, st.lists(st.integers(0, 200)), st.booleans())
def test_where_it_is_cut_makes_no_difference(data: bytes, places: list[int], keep: bool):
    whole = cut(data, [], keep, 65536)
    assert cut(data, places, keep, 65536) == whole
    assert cut(data, list(range(len(data))), keep, 65536) == whole


@settings(max_examples=examples(600), deadline=None)
@given(STREAMS, st.lists(st.integers(0, 200)), st.booleans(), st.sampled_from([4, 17, 65536]))
def test_every_line_has_its_prefix_and_nothing_a_terminal_obeys(
    data: bytes, places: list[int], keep: bool, limit: int
):
    out = cut(data, places, keep, limit)
    assert not out or out.endswith(b"\n")
    for line in out.decode().split("\n")[:-1]:
        assert line.startswith(("w/0 | ", "w/0 + "))
        text = re.sub(r"\x1b\[[0-9;:]*m", "", line) if keep else line
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
        colours = re.findall(r"\x1b\[[0-9;:]*m", line)
        assert not colours or colours[-1] in ("\x1b[m", "\x1b[0m")


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"a\nb\n", ["a", "b"]),
        (b"no newline", ["no newline"]),
        (b"\n\n", ["", ""]),
        (b"windows\r\n", ["windows"]),
        (b"10%\r20%\r30%\n", ["30%"]),
        (b"10%\r20%\r", ["20%"]),
        (b"downloading 99%\rdone\n", ["done"]),
        (b"1/9\b\b\b2/9\b\b\b\r3/9\n", ["3/9"]),
        (b"abc\b\n", ["abc"]),
        (b"N\bNA\bA\n", ["A"]),
        (b"tab\there\n", ["tab\there"]),
        (b"bad \xff byte\n", ["bad � byte"]),
        (b"cut \xc3", ["cut �"]),
        (b"\x1b[2J\x1b[Hclear\x1b]0;title\x07ed\n", ["cleared"]),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", ["link"]),
        (b"\x1b]never ended\nnext\n", ["never ended", "next"]),
        (b"\x1b[31mred\x1b[0m bell\x07\n", ["red bell"]),
        (b"nul\x00l\n", ["null"]),
    ],
)
def test_the_form_of_lines(data: bytes, expected: list[str]):
    out = cut(data, [], False, 65536).decode()
    assert out.split("\n")[:-1] == [f"w/0 | {line}" for line in expected]


def test_colours_are_kept_and_closed():
    assert cut(b"\x1b[31mred\nnext\n", [], True, 99) == b"w/0 | \x1b[31mred\x1b[0m\nw/0 | next\n"
    assert cut(b"\x1b[32mgo\x1b[0m\n", [], True, 99) == b"w/0 | \x1b[32mgo\x1b[0m\n"
    assert cut(b"\x1b[32m10%\r20%\n", [], True, 99) == b"w/0 | 20%\n"


def test_a_line_whose_start_was_shown_and_is_rewritten_comes_whole():
    cutter = LineCutter(b"| ", b"+ ")
    assert cutter.feed(b"10%", 0.0) + cutter.snapshot(2.0) == b"| 10%\n"
    assert cutter.feed(b"\r20%\n", 3.0) == b"| 20%\n"
    assert cutter.feed(b"  \x1b[0m", 3.0) + cutter.snapshot(9.0) == b""  # nothing to see
    assert cutter.feed(b"\x1b[31ma", 9.0) + cutter.end() == b"|   a\n"


@settings(max_examples=examples(100), deadline=None)
@given(STREAMS, STREAMS, st.booleans(), st.integers(0, 40))
def test_a_start_that_is_shown_makes_no_other_difference(first: bytes, second: bytes, keep: bool, place: int):
    """However both halves are cut, and every line still has its prefix."""
    outs = set()
    for step in (1, place + 1, 10_000):
        cutter = LineCutter(b"w/0 | ", b"w/0 + ", keep_colours=keep)
        out = [cutter.feed(first[at : at + step], 5.0) for at in range(0, len(first), step)]
        out.append(cutter.snapshot(7.0))
        out += [cutter.feed(second[at : at + step], 7.0) for at in range(0, len(second), step)]
        outs.add(b"".join([*out, cutter.end()]))
    assert len(outs) == 1
    assert all(line.startswith((b"w/0 | ", b"w/0 + ")) for line in outs.pop().split(b"\n")[:-1])
