"""Data of any kind -> pieces: rows or partitions, each row once, lazily."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.common.errors import InputError
from launcher.feed import sources
from launcher.feed.remote.codec import as_rows, size
from launcher.feed.sources import partitions, pieces_of, rounds, rows
from tests.conftest import examples
from tests.seeing import soon
from tests.unit.feed.pieces import flat, taken

anything = settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
PAIRS = [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (list(range(7)), list(range(7))),
        (["one", "two"], ["one", "two"]),
        (PAIRS, PAIRS),
        ([{"x": 1}, {"x": 2}], [{"x": 1}, {"x": 2}]),
        ((1, 2, 3), [1, 2, 3]),
        (range(7), list(range(7))),
        (iter(["one", "two"]), ["one", "two"]),
        (iter(PAIRS), PAIRS),
        (dict(PAIRS).items(), PAIRS),
        ({1}, [1]),
        ([np.float32(3), np.array(3)], [3, 3]),
        ((np.arange(2), np.array(["a", "b"])), [(0, "a"), (1, "b")]),
        ({"x": np.arange(2), "y": np.arange(2)}, [{"x": 0, "y": 0}, {"x": 1, "y": 1}]),
        (((lambda n=n: n, n)[1] for n in range(200)), list(range(200))),
    ],
)
def test_rows(data: Any, expected: list[Any]):
    assert flat(data) == expected


def test_frames():
    import pandas  # takes a third of a second, which other processes of the tests do not need

    frame = pandas.DataFrame({"a": [1, 2]})
    assert flat(frame) == [{"a": 1}, {"a": 2}]
    assert flat(frame["a"]) == [1, 2]
    assert flat(pandas.DataFrame({"a": [n]}) for n in range(2)) == [{"a": 0}, {"a": 1}]
    with pytest.raises(InputError, match="columns age, age; expected each name once"):
        taken(pandas.DataFrame([[1, 2]], columns=["age", "age"]))


@pytest.mark.parametrize(
    "data",
    [
        (list(range(n)) for n in (1, 5)),
        (range(n) for n in (1, 5)),
        ((x for x in range(n)) for n in (1, 5)),
        [range(1), range(5)],
        [deque(range(1)), deque(range(5))],
        [partial(range, 1), partial(range, 5)],
        partitions([[0], [0, 1, 2, 3, 4]]),
        partitions([np.arange(1), np.arange(5)]),
        (np.arange(n) for n in (1, 5)),
        (rows(range(n), per_partition=9) for n in (1, 5)),
    ],
)
def test_partitions(data: Any):
    assert taken(data) == [[0], [0, 1, 2, 3, 4]]


def test_lists_in_a_list():
    assert taken([PAIRS[:1], PAIRS[1:]]) == [PAIRS[:1], PAIRS[1:]]
    refused: list[Any] = [[[1, 2], [3]], [["a"], ["b"]], [[]], [np.zeros(3), np.zeros(3)]]
    for data in refused:
        with pytest.raises(InputError, match=r"launcher.rows\(data\) or launcher.partitions\(data\)"):
            pieces_of(data, 2)
        assert flat(rows(data)) == data and len(taken(partitions(data))) == len(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *((data, "data: .* has no rows; expected") for data in (None, 7, b"x", {"x": 1}, np.array(3))),
        ("logs/*.txt", r"expected TextFiles\(\.\.\.\)"),
        ((np.arange(3), np.arange(4)), "columns of 3, 4 rows; expected one length"),
        (partitions(["abc"]), "'abc' as a partition"),
        (partitions([np.array(3)]), "as a partition"),
    ],
)
def test_data_without_rows_are_refused(data: Any, message: str):
    with pytest.raises(InputError, match=message):
        taken(data)


def test_functions_and_epochs_are_checked():
    for function, data in itertools.product((rows, partitions), ("text", 7, None, {"a": 1})):
        with pytest.raises(InputError, match=rf"{function.__name__}\(\) of a {type(data).__name__}"):
            function(data)
    for call, message in (
        (lambda: rows([1], per_partition=0), "per_partition=0"),
        (lambda: pieces_of([iter([1]), iter([2])], 2, 2), "only once"),
        (lambda: pieces_of(rows(iter([1])), 2, 2), "only once"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    assert flat([1, 2], epochs=3) == [1, 2] * 3


def test_data_are_split_evenly():
    data = np.arange(100)
    for form in (data, list(data), (data, data)):
        blocks = [list(piece.blocks(lambda: 9)) for piece in pieces_of(form, 3)]
        assert [sum(map(size, piece)) for piece in blocks] == [9] * 11 + [1]
    assert all(np.shares_memory(column, data) for column in blocks[0][0])


def test_rows_that_come_one_by_one_are_grouped_by_their_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "_GROUP_SECONDS", 60.0)

    def sizes(data: Any) -> list[int]:
        return [
            sum(map(size, piece.blocks(lambda: 1000))) for piece in itertools.islice(pieces_of(data, 2), 2)
        ]

    assert sizes((n, n) for n in itertools.count()) == [16447, 16447]
    assert sizes("x" * 1000 for _ in itertools.count()) == [2061, 2061]
    assert sizes(itertools.chain(["x"] * 5000, ("x" * 300_000 for _ in itertools.count()))) == [5062, 7]


def test_a_pause_holds_no_row_and_closing_ends_the_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "_GROUP_SECONDS", 0.1)
    more, read = threading.Event(), []

    def live() -> Any:
        yield from range(100)
        more.wait(40)
        for number in itertools.count(100):
            read.append(number)
            yield number

    found = pieces_of(live(), 1)
    assert not read
    seen: list[int] = []
    while len(seen) < 100:
        seen += next(next(found).blocks(lambda: 1000))
    assert seen == list(range(100))
    more.set()
    next(found)
    found.close()
    soon(lambda: not any(thread.name == "rows of a feed" for thread in threading.enumerate()))
    assert len(read) < 3 * 16384


def test_numpy_and_pandas_that_are_being_imported_or_missing(monkeypatch: pytest.MonkeyPatch):
    for name in ("numpy", "pandas"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert flat([1, 2]) == [1, 2] and flat(iter([[1], [2]])) == [1, 2]


# ---------------------------------------------------------------------------------------- in step


def dealt(data: Any, workers: int, batch_size: int, equal: str, epochs: int = 1) -> list[tuple[Any, ...]]:
    """The batches of each round, as lists of rows."""
    found = rounds(pieces_of(data, workers, epochs), workers, batch_size, equal)
    return [tuple(map(as_rows, blocks)) for blocks in found]


@anything
@given(
    st.lists(st.integers(0, 30), max_size=6), st.integers(1, 4), st.integers(1, 7),
    st.sampled_from(["pad", "repeat"]), st.booleans(),
)  # fmt: skip
def test_all_rows_come_in_whole_rounds(
    sizes: list[int], workers: int, batch_size: int, equal: str, columnar: bool
):
    counter = itertools.count()
    parts = [[next(counter) for _ in range(many)] for many in sizes]
    total, whole = sum(sizes), workers * batch_size
    data = partitions([np.array(part, dtype=int) for part in parts] if columnar else parts)
    found = dealt(data, workers, batch_size, equal)
    assert all([len(block) for block in blocks] == [batch_size] * workers for blocks in found)
    dealt_rows = [row for blocks in found for block in blocks for row in block]
    extra = dealt_rows[total:]
    assert dealt_rows[:total] == list(range(total)) and len(extra) < whole
    first = itertools.cycle(range(min(total, whole)) or [0])
    assert extra == (
        [total - 1] * len(extra) if equal == "pad" else list(itertools.islice(first, len(extra)))
    )


def test_rounds():
    assert dealt([1, 2, 3], 1, 2, "drop", epochs=2) == [([1, 2],), ([3, 1],), ([2, 3],)]
    mixed = partitions([np.arange(2), [2, 3], (np.arange(2), np.arange(2))])
    assert dealt(mixed, 1, 6, "pad") == [([0, 1, 2, 3, (0, 0), (1, 1)],)]
    with pytest.raises(InputError, match="3 rows for 2 batches of 2; expected more"):
        dealt([1, 2, 3], 2, 2, "drop")
