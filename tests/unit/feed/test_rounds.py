"""Every worker gets as many batches as any other, all of one size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import InputError
from launcher.feed.partitions import partitions, partitions_of
from launcher.feed.remote.blocks import as_rows, join, size
from launcher.feed.rounds import rounds


def dealt(data, workers: int, batch_size: int, how: str, epochs: int = 1) -> list[tuple[list[object], ...]]:
    """Each round's batches, as lists of rows."""
    found = rounds(partitions_of(data, workers, epochs), workers, batch_size, how)
    return [tuple(map(as_rows, blocks)) for blocks in found]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(0, 30), max_size=6), st.integers(1, 4), st.integers(1, 7),
    st.sampled_from(["pad", "repeat"]), st.booleans(),
)  # fmt: skip
def test_all_rows_come_in_order_in_whole_rounds(sizes, workers, batch_size, how, columnar):
    counter = itertools.count()
    parts = [[next(counter) for _ in range(many)] for many in sizes]
    total = sum(sizes)
    data = partitions([np.array(part, dtype=int) for part in parts] if columnar else parts)
    found = dealt(data, workers, batch_size, how)
    assert all(len(blocks) == workers for blocks in found)
    assert all(len(block) == batch_size for blocks in found for block in blocks)
    rows = [row for blocks in found for block in blocks for row in block]
    assert rows[:total] == list(range(total))
    extra = rows[total:]
    assert len(extra) < workers * batch_size
    first = list(range(min(total, workers * batch_size)))
    expected = (
        [total - 1] * len(extra)
        if how == "pad"
        else list(itertools.islice(itertools.cycle(first or [0]), len(extra)))
    )
    assert extra == expected


def test_drop_leaves_out_what_makes_no_whole_round():
    assert dealt(list(range(10)), 2, 2, "drop") == [([0, 1], [2, 3]), ([4, 5], [6, 7])]


def test_epochs_follow_each_other_without_a_gap():
    assert dealt([1, 2, 3], 1, 2, "drop", epochs=2) == [([1, 2],), ([3, 1],), ([2, 3],)]


def test_drop_with_too_few_rows_for_one_round_is_an_error():
    with pytest.raises(InputError, match="3 rows for 2 batches of 2; expected more"):
        dealt([1, 2, 3], 2, 2, "drop")


def test_nothing_gives_no_round():
    assert [dealt([], 2, 2, how) for how in ("drop", "pad", "repeat")] == [[], [], []]


def test_columns_stay_columns():
    data = {"x": np.arange(5), "y": np.arange(5) * 2}
    found = list(rounds(partitions_of(data, 2), 2, 2, "pad"))
    assert [size(block) for blocks in found for block in blocks] == [2, 2, 2, 2]
    assert join([block for blocks in found for block in blocks])["y"].tolist() == [0, 2, 4, 6, 8, 8, 8, 8]


def test_partitions_of_several_forms_become_rows():
    mixed = partitions([np.arange(2), [2, 3], (np.arange(2), np.arange(2))])
    assert dealt(mixed, 1, 6, "pad") == [([0, 1, 2, 3, (0, 0), (1, 1)],)]


@pytest.mark.parametrize(("how", "batch_size"), [("cut", 2), ("pad", 0), ("pad", None)])
def test_bad_words_are_refused_at_once(how, batch_size):
    with pytest.raises(InputError, match="equal="):
        rounds([], 2, batch_size, how)


def test_rounds_are_dealt_lazily():
    counter = itertools.count()
    found = rounds(partitions_of(((n, n) for n in counter), 2), 2, 10, "drop")
    next(found)
    assert next(counter) <= 2 * 16384
