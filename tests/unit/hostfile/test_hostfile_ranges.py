"""Host ranges: what they stand for, and that big ones cost nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.hostfile.ranges import Span, parse_pattern


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node", ["node"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("node[8-11]", ["node8", "node9", "node10", "node11"]),
        ("node[0-2].lab", ["node0.lab", "node1.lab", "node2.lab"]),
        ("node[1,3,5-7]", ["node1", "node3", "node5", "node6", "node7"]),
        ("node[01,2]", ["node01", "node2"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("[1-2][3-4]", ["13", "14", "23", "24"]),
        ("n[7-7]", ["n7"]),
    ],
)
def test_expansion(text: str, names: list[str]) -> None:
    pattern = parse_pattern(text)
    assert list(pattern.names()) == names
    assert pattern.size == len(names)
    assert pattern.longest == max(map(len, names))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n[", "brackets in pairs"),
        ("n]", "brackets in pairs"),
        ("n[[1]]", "brackets in pairs"),
        ("n[]", "numbers in the brackets"),
        ("n[1,]", "numbers in the brackets"),
        ("n[a]", "numbers in the brackets"),
        ("n[1-2-3]", "numbers in the brackets"),
        ("n[-1]", "numbers in the brackets"),
        ("n[٣]", "numbers in the brackets"),
        ("n[1234567890]", "numbers in the brackets"),
        ("n[5-1]", r"a range that goes up, as in \[1-5\]"),
        ("n[1-010]", "the same number of digits"),
        ("n[01-100]", "the same number of digits"),
    ],
)
def test_faults(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse_pattern(text)


def test_a_huge_range_is_only_counted() -> None:
    assert parse_pattern("n[1-999999999]x[0-999999999]").size == 999_999_999 * 1_000_000_000


def _span(low: int, length: int, padded: bool) -> Span:
    high = low + length
    return Span(low, high, len(str(high)) if padded else 1)


spans = st.builds(_span, st.integers(0, 2000), st.integers(0, 8), st.booleans())
parts = st.lists(
    st.one_of(st.text("abz.-", min_size=1, max_size=4), st.lists(spans, min_size=1, max_size=3)), max_size=4
)


@settings(max_examples=200, deadline=None)
@given(parts)
def test_what_is_written_is_read(written: list[str | list[Span]]) -> None:
    text = "".join(part if isinstance(part, str) else f"[{','.join(map(str, part))}]" for part in written)
    choices = [
        [part]
        if isinstance(part, str)
        else [str(n).zfill(span.width) for span in part for n in range(span.low, span.high + 1)]
        for part in written
    ]
    expected = ["".join(chosen) for chosen in itertools.product(*choices)]
    pattern = parse_pattern(text)
    assert list(pattern.names()) == expected
    assert pattern.size == len(expected)
    assert pattern.longest == max(map(len, expected))
