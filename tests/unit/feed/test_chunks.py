"""Rows as they travel: what goes in comes out, fast forms and slow ones alike."""

from __future__ import annotations

import pickle
import sys
import threading
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from launcher.errors import FeedError
from launcher.feed import cutting
from launcher.feed.cutting import CHUNK, Cutter
from launcher.feed.partitions import partitions, partitions_of, rows
from launcher.feed.remote.blocks import as_rows
from launcher.feed.remote.codec import decode, encode

Point = namedtuple("Point", "x y")


def back(block: Any) -> Any:
    """As it comes out of a connection: in memory of its own."""
    return decode([memoryview(bytearray(buffer)) for buffer in encode(block)])


@pytest.mark.parametrize(
    "block",
    [
        [],
        ["a", "ü", "\ud800", ""],
        [b"", b"x"],
        [1, 2.5, None, True, 1 << 100],
        [(1, 0.5, "a"), (2, [1, (2,)], None)],
        [{"a": 1}, {"b": [2]}],
        [Point(1, 2), Path("/x")],
        [(1, 2), Point(1, 2), {3}],
        [[[[[1]]]], [[[Point(1, [2])]]]],
    ],
    ids=repr,
)
def test_rows_come_out_as_they_went_in(block: list[Any]):
    found = back(block)
    assert found == block
    assert [type(row) for row in found] == [type(row) for row in block]


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(12, dtype=numpy.float32).reshape(3, 4),
        numpy.arange(12).reshape(3, 4).T,
        numpy.arange(20)[::3],
        numpy.asfortranarray(numpy.arange(12).reshape(3, 4)),
        numpy.array(["a", "bb"]),
        numpy.array(["2026-01-01"], "datetime64[D]"),
        numpy.array([(1, 2.0)], [("a", int), ("b", float)]),
        numpy.array([{"a": 1}, None], dtype=object),
        numpy.zeros((0, 3)),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_arrays_come_out_as_arrays_that_can_be_written_to(array: Any):
    for block, pick in ((array, lambda found: found), ((array, array), lambda found: found[1])):
        found = pick(back(block))
        assert found.dtype == array.dtype and (found == array).all() and found.shape == array.shape
        assert found.flags.writeable
    assert (back({"a": array})["a"] == array).all()


def test_an_array_is_not_copied_into_the_pickle():
    [head, data] = encode(numpy.zeros(1000))
    assert len(head) < 500 and len(data) == 8000


def test_a_list_of_arrays_alike_goes_as_one_and_gives_the_same_rows():
    vectors = [numpy.full(784, n, numpy.float32) for n in range(10)]
    assert len(encode(vectors)) == 2
    for given, found in zip(vectors, as_rows(back(vectors)), strict=True):
        assert (given == found).all() and given.dtype == found.dtype and given.shape == found.shape


def test_tuples_with_arrays_go_as_columns_and_give_the_same_rows():
    rows = [(numpy.full((28, 28), n, numpy.uint8), n, f"{n}") for n in range(10)]
    assert len(encode(rows)) == 2
    for given, found in zip(rows, as_rows(back(rows)), strict=True):
        assert type(found) is tuple and (given[0] == found[0]).all() and found[0].dtype == numpy.uint8
        assert found[1:] == given[1:] and type(found[1]) is int


@pytest.mark.parametrize(
    "odd",
    [(numpy.zeros(3), 1), (numpy.zeros(4), 1, 2), (None, 1), [numpy.zeros(4), 1], Point(numpy.zeros(4), 1)],
    ids=repr,
)
def test_tuples_with_arrays_that_differ_stay_rows(odd: Any):
    found = back([(numpy.zeros(4), 1), odd])
    assert isinstance(found, list) and type(found[1]) is type(odd) and len(found[1]) == len(odd)


@pytest.mark.parametrize(
    "odd", [numpy.zeros(3), numpy.zeros(4, int), None, numpy.ma.array([1.0, 2, 3, 4]), numpy.float64(1)]
)
def test_lists_of_arrays_that_differ_stay_lists(odd: Any):
    found = back([numpy.zeros(4), odd])
    assert isinstance(found, list) and type(found[1]) is type(odd)


def test_what_pickle_finds_in_the_main_program_travels_with_its_code(monkeypatch: pytest.MonkeyPatch):
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("class Row:\n    def __init__(self, n): self.n = n\n    def twice(self): return 2 * self.n\n", space)
    monkeypatch.setattr(sys.modules["__main__"], "Row", space["Row"], raising=False)
    buffers = encode([space["Row"](4)])
    monkeypatch.delattr(sys.modules["__main__"], "Row")
    assert decode(buffers)[0].twice() == 8


def test_functions_of_functions_travel_with_their_code():
    def local(number: int) -> int:
        return number + 1

    assert back([local])[0](1) == 2
    assert back([(1, local)])[0][1](1) == 2


def test_a_row_that_contains_itself_travels():
    row: list[Any] = [1]
    row.append(row)
    [found] = back([row])
    assert found[1] is found


def test_what_cannot_be_sent_is_shown():
    for row in (threading.Lock(), (1, threading.Lock())):
        with pytest.raises(FeedError, match="rows such as .*lock.*can't be sent to a task"):
            encode([row])


def test_what_cannot_be_read_says_what_to_do():
    gone = b"cno_such_module\nRow\n."
    with pytest.raises(FeedError, match="no_such_module.*plain rows"):
        decode([gone])
    assert pickle.loads(b"I1\n.") == 1


@pytest.mark.parametrize(
    ("row", "least"),
    [("x" * 200, 4000), ([0.5] * 784, 100), ((1, 2.0), 10_000), ("x" * 3_000_000, 1)],
    ids=["text", "floats", "tuples", "huge"],
)
def test_chunks_have_about_a_mebibyte_or_some_thousand_rows(row: Any, least: int):
    many = 40 if isinstance(row, str) and len(row) > 1000 else 60_000 if least > 1000 else 3000
    cutter = Cutter()
    [partition] = partitions_of(partitions([[row] * many]), 1)
    chunks = list(cutter.cut(partition))
    assert sum(chunk.rows for chunk in chunks) == many
    assert all(chunk.size <= max(1.3 * CHUNK, 1.1 * len(row)) for chunk in chunks[1:])
    assert max(chunk.rows for chunk in chunks) >= least
    assert max(chunk.rows for chunk in chunks) <= cutting.MOST_ROWS


def test_small_blocks_travel_together_and_slow_ones_do_not_wait(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(cutting, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Slow:
        number, repeatable, remote = 0, True, None

        def blocks(self, most: int) -> Any:
            for number in range(40):
                if number >= 38:
                    now[0] += 0.03
                yield [number]

    sizes = [chunk.rows for chunk in Cutter().cut(Slow())]
    assert sum(sizes) == 40 and len(sizes) < 6 and sizes[-1] == 1


def test_partitions_of_arrays_are_cut_into_views():
    [partition] = partitions_of(partitions([numpy.zeros((5000, 784), numpy.float32)]), 1)
    chunks = list(Cutter().cut(partition))
    assert sum(chunk.rows for chunk in chunks) == 5000
    assert 5 < len(chunks) < 40
    assert list(Cutter().cut(next(iter(partitions_of(rows([1]), 1)))))[0].rows == 1
