"""Wording that all packages share."""

from __future__ import annotations

import pytest

from launcher.common import text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (-1, "0.0s"), (0.32, "0.3s"), (9.96, "10s"), (12, "12s"), (59.7, "1m00s"), (185, "3m05s")]
    + [(3600, "1h00m"), (3725, "1h02m"), (100_000, "1d03h")],
)
def test_durations(seconds: float | None, shown: str):
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (512_000, "512 kB"), (999_700, "1 MB"), (1_250_000, "1.2 MB")]
    + [(12_345_678, "12 MB"), (3_400_000_000, "3.4 GB"), (5 * 10**15, "5000 TB")],
)
def test_byte_sizes(size: int | None, shown: str):
    assert text.byte_size(size) == shown


def test_counts_and_lists():
    assert text.plural(1, "task") == "1 task"
    assert text.plural(2013, "task") == "2,013 tasks"
    assert text.plural(2, "process", "processes") == "2 processes"
    assert text.join_names(("a", "b")) == "a, b"
    assert text.join_names(tuple("abcdefg")) == "a, b, c, d and 3 more"
