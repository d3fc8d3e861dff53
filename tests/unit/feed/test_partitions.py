"""What is taken as what, and that no row is lost or doubled on the way."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections import deque
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import FeedError, InputError
from launcher.feed import grouping
from launcher.feed.partitions import partitions, partitions_of, rows
from launcher.feed.remote.blocks import as_rows, size
from launcher.feed.remote.codec import encode
from launcher.feed.sources import blocks_of
from tests.unit.feed.feeding import until

#: However long it takes.
anything = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def taken(data, workers: int = 2, epochs: int = 1, many: int = 3):
    """The rows of each partition."""
    found = partitions_of(data, workers, epochs)
    return [[row for block in p.blocks(many) for row in as_rows(block)] for p in found]


def flat(data, **named):
    return list(itertools.chain.from_iterable(taken(data, **named)))


LINES = ["one", "two", "three"]
PAIRS = [(1, "a"), (2, "b"), (3, "c")]

ROWS: dict[str, Any] = {
    "a list of numbers": list(range(7)),
    "a list of texts": LINES,
    "a list of tuples": PAIRS,
    "a list of dicts": [{"x": 1}, {"x": 2}],
    "a tuple of numbers": (1, 2, 3),
    "a range": range(7),
    "a generator of texts": (line for line in LINES),
    "a generator of tuples": (pair for pair in PAIRS),
    "a dict's items": dict(PAIRS).items(),
    "a set of numbers": {1, 2, 3},
    "objects": [object(), object()],
}


@pytest.mark.parametrize("what", ROWS)
def test_rows(what: str):
    first, second = itertools.tee(ROWS[what]) if "generator" in what else (ROWS[what], ROWS[what])
    assert flat(first) == list(second)


PARTITIONS = {
    "a generator of lists of numbers": lambda: (list(range(n)) for n in (1, 5)),
    "a generator of ranges": lambda: (range(n) for n in (1, 5)),
    "a generator of generators": lambda: ((x for x in range(n)) for n in (1, 5)),
    "a list of ranges": lambda: [range(1), range(5)],
    "a list of deques": lambda: [deque(range(1)), deque(range(5))],
    "a list of callables": lambda: [partial(range, 1), partial(range, 5)],
    "said so": lambda: partitions([[0], [0, 1, 2, 3, 4]]),
    "arrays, said so": lambda: partitions([np.arange(1), np.arange(5)]),
    "a generator of arrays": lambda: (np.arange(n) for n in (1, 5)),
    "a generator of rows()": lambda: (rows(range(n), per_partition=9) for n in (1, 5)),
}


@pytest.mark.parametrize("what", PARTITIONS)
def test_partitions(what: str):
    assert taken(PARTITIONS[what]()) == [[0], [0, 1, 2, 3, 4]]


def test_lists_of_tuples_or_lists_in_a_list_are_partitions():
    assert taken([PAIRS[:1], PAIRS[1:]]) == [PAIRS[:1], PAIRS[1:]]
    assert taken([[[1, 2]], [[3, 4], [5, 6]]]) == [[[1, 2]], [[3, 4], [5, 6]]]


@pytest.mark.parametrize("data", [[[1, 2], [3]], [["a"], ["b"]], [[]], [np.zeros(3), np.zeros(3)]])
def test_what_can_be_read_in_two_ways_is_refused_with_both_words(data):
    with pytest.raises(InputError, match=r"launcher.rows\(data\) or launcher.partitions\(data\)"):
        partitions_of(data, 2)
    assert flat(rows(data)) == data
    assert len(taken(partitions(data))) == len(data)


@pytest.mark.parametrize("data", [None, 7, "text", b"bytes", {"x": 1}, {"x": [1, 2]}])
def test_what_has_no_rows_is_refused_at_once(data):
    with pytest.raises(InputError, match="data: .* has no rows; expected"):
        partitions_of(data, 2)


@pytest.mark.parametrize("data", [np.array(3), np.float32(3)])
def test_one_number_is_no_data(data):
    with pytest.raises(InputError, match="has no rows; expected"):
        partitions_of(data, 2)
    with pytest.raises(InputError, match="as a partition"):
        taken(partitions([data]))
    assert flat([data, data]) == [data, data]
    assert flat(iter([data, data])) == [data, data]


def test_a_partition_that_is_text_is_refused():
    with pytest.raises(InputError, match="'abc' as a partition"):
        taken(partitions(["abc"]))


@anything
@given(st.integers(0, 100), st.integers(1, 9), st.integers(1, 20))
def test_a_list_is_split_evenly_and_in_order(many: int, workers: int, at_once: int):
    found = taken(list(range(many)), workers, many=at_once)
    assert list(itertools.chain.from_iterable(found)) == list(range(many))
    assert len(found) <= workers * 4
    assert all(map(len, found))
    assert not found or max(map(len, found[:-1]), default=0) - min(map(len, found[:-1]), default=0) == 0


@anything
@given(st.integers(0, 100), st.integers(1, 9), st.integers(1, 20))
def test_blocks_are_no_longer_than_asked_for(many: int, workers: int, at_once: int):
    for data in (list(range(many)), np.arange(many), iter(range(many)), (np.arange(many), np.ones(many))):
        blocks = [b for p in partitions_of(data, workers) for b in p.blocks(at_once)]
        assert all(1 <= size(block) <= at_once for block in blocks)
        assert sum(map(size, blocks)) == many


def test_arrays_stay_arrays_and_are_views():
    images, labels = np.arange(40.0).reshape(10, 4), np.arange(10)
    for data in (images, (images, labels), {"x": images, "y": labels}):
        blocks = [block for p in partitions_of(data, 1) for block in p.blocks(2)]
        columns = blocks[0].values() if isinstance(data, dict) else blocks[0]
        columns = [blocks[0]] if data is images else columns
        assert all(np.shares_memory(column, images) or np.shares_memory(column, labels) for column in columns)
        assert sum(map(size, blocks)) == 10


def test_rows_of_columns_are_tuples_or_dicts():
    x, y = np.arange(2), np.array(["a", "b"])
    assert flat((x, y)) == [(0, "a"), (1, "b")]
    assert flat({"x": x, "y": y}) == [{"x": 0, "y": "a"}, {"x": 1, "y": "b"}]


def test_columns_of_different_length_are_refused():
    with pytest.raises(InputError, match="columns have 3, 4 rows; expected one length"):
        partitions_of((np.arange(3), np.arange(4)), 2)


def test_pandas():
    frame = pandas.DataFrame({"age": [1, 2, 3], "name": ["a", "b", "c"]})
    first = next(partitions_of(frame, 1))
    assert all(isinstance(column, np.ndarray) for column in next(first.blocks(2)).values())
    assert flat(frame) == [{"age": n, "name": name} for n, name in zip((1, 2, 3), "abc", strict=True)]
    assert flat(frame["age"]) == [1, 2, 3]


def test_epochs_come_one_after_the_other_and_are_numbered_through():
    found = list(partitions_of([1, 2], 1, epochs=3))
    assert [p.number for p in found] == [0, 1, 2, 3, 4, 5]
    assert flat([1, 2], epochs=3) == [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize(
    "data", [iter([1, 2]), [iter([1]), iter([2])], rows(iter([1])), partitions(iter([[1]]))]
)
def test_what_can_be_read_once_is_not_taken_for_two_epochs(data):
    with pytest.raises(InputError, match="only once"):
        partitions_of(data, 2, epochs=2)


def test_what_is_iterated_anew_can_have_several_epochs():
    class Anew:
        def __iter__(self):
            return (range(n) for n in (1, 2))

    assert flat(Anew(), epochs=2) == [0, 0, 1, 0, 0, 1]


def test_a_frame_with_a_name_twice_is_refused():
    frame = pandas.DataFrame([[1, 2]], columns=["age", "age"])
    with pytest.raises(InputError, match="columns age, age; expected each name once"):
        partitions_of(frame, 1)


def test_frames_that_are_read_in_pieces():
    frames = (pandas.DataFrame({"pieces": [n], "once": [n]}) for n in range(3))
    assert flat(frames) == [{"pieces": n, "once": n} for n in range(3)]


@pytest.mark.parametrize("word", [rows, partitions])
@pytest.mark.parametrize("data", ["text", 7, None, {"a": 1}])
def test_what_is_not_iterated_is_neither_rows_nor_partitions(word, data):
    with pytest.raises(InputError, match=rf"{word.__name__}\(\) of a {type(data).__name__}"):
        word(data)


def test_a_name_of_a_file_is_not_taken_for_rows():
    with pytest.raises(InputError, match=r"expected TextFiles\(\.\.\.\)"):
        partitions_of("logs/*.txt", 2)


@pytest.mark.parametrize("epochs", [0, -1])
def test_epochs_begin_at_one(epochs: int):
    with pytest.raises(InputError, match="epochs"):
        partitions_of([1], 2, epochs)


def test_nothing_is_read_before_it_is_asked_for():
    seen: list[int] = []

    def endless():
        for number in itertools.count():
            seen.append(number)
            yield range(number)

    found = partitions_of(endless(), 2)
    assert seen == []
    assert next(found).number == 0
    assert len(seen) <= 2


def test_rows_that_come_one_by_one_are_grouped_by_their_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grouping, "_SECONDS", 60.0)

    def sizes(rows, partitions: int) -> list[int]:
        found = itertools.islice(partitions_of(rows, 2), partitions)
        return [sum(map(size, p.blocks(1000))) for p in found]

    assert sizes(((n, n) for n in itertools.count()), 2) == [16384, 16384]
    assert sizes(("x" * 1000 for _ in itertools.count()), 2) == [2061, 2061]
    growing = itertools.chain(["x"] * 5000, ("x" * 300_000 for _ in itertools.count()))
    assert sizes(growing, 2) == [5062, 7]


def test_rows_before_a_pause_are_not_kept_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grouping, "_SECONDS", 0.1)
    more = threading.Event()

    def live():
        yield from range(100)
        more.wait(40)
        yield from range(100, 150)

    found = partitions_of(live(), 1)
    seen: list[int] = []
    while len(seen) < 100:
        seen += next(found).blocks(1000).__next__()
    more.set()
    seen += [row for partition in found for block in partition.blocks(1000) for row in block]
    assert seen == list(range(150))


def test_who_wants_no_more_rows_leaves_no_thread():
    read: list[int] = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield number

    found = partitions_of(endless(), 1)
    next(found)
    assert any(thread.name == "rows of a feed" for thread in threading.enumerate())
    del found
    until(lambda: not any(thread.name == "rows of a feed" for thread in threading.enumerate()))
    assert len(read) < 3 * 16384


def test_what_ends_a_program_is_raised_where_rows_are_taken():
    def ending():
        yield 1
        raise SystemExit("bad option")

    with pytest.raises(FeedError, match="reading the rows ended with SystemExit: bad option"):
        list(partitions_of(rows(ending()), 1))


def test_rows_that_can_not_be_pickled_plainly_are_grouped_too():
    assert len(flat((lambda n=n: n, n) for n in range(200))) == 200


def test_rows_in_partitions_of_a_given_size():
    assert taken(rows([1, 2, 3], per_partition=2)) == [[1, 2], [3]]
    assert taken(rows(iter([1, 2, 3]), per_partition=2)) == [[1, 2], [3]]
    with pytest.raises(InputError, match="per_partition=0"):
        rows([1], per_partition=0)


def test_what_can_be_repeated_says_so_and_is():
    for data in ([1, 2, 3], [range(3)], [partial(range, 3)], (list(range(3)) for _ in "a"), np.arange(3)):
        for found in partitions_of(data, 1):
            assert found.repeatable
            first, second = (list(map(as_rows, found.blocks(2))) for _ in "ab")
            assert first == second
    (once,) = partitions_of([iter([1, 2])], 1)
    assert not once.repeatable


def test_callables_are_run_beside_the_worker():
    (one, two) = partitions_of([partial(range, 3), partial(iter, [1, 2])], 2)
    assert one.remote is not None and two.remote is not None
    assert list(blocks_of(one.remote(), 2)) == [[0, 1], [2]]
    assert list(blocks_of(two.remote(), 2)) == [[1, 2]]
    (alone,) = partitions_of(partial(range, 3), 2)
    assert alone.remote is not None


def test_a_callable_may_return_arrays():
    blocks = list(blocks_of((np.arange(5), np.ones(5)), 2))
    assert [size(block) for block in blocks] == [2, 2, 1]
    assert all(isinstance(block, tuple) for block in blocks)


def test_a_generator_that_fails_fails_where_it_is_read():
    def broken():
        yield 1
        raise RuntimeError("the database is gone")

    (found,) = partitions_of([broken()], 1)
    with pytest.raises(RuntimeError, match="database"):
        list(found.blocks(10))


def test_another_thread_may_be_importing_numpy_and_pandas(monkeypatch: pytest.MonkeyPatch):
    """Both are there by then, and have nothing in them."""
    for name in ("numpy", "pandas"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for data in ([1, 2], PAIRS, iter([[1], [2]]), range(3), {1}, [object()]):
        found = [block for partition in partitions_of(data, 1) for block in partition.blocks(2)]
        assert found and all(encode(block) for block in found)
    with pytest.raises(InputError, match="has no rows"):
        partitions_of(3, 1)


def test_numpy_is_not_imported_for_plain_rows():
    code = (
        "import sys; from launcher.feed.partitions import partitions_of\n"
        "print([list(p.blocks(2)) for p in partitions_of([1, 2], 1)], 'numpy' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert ended.stdout == "[[[1]], [[2]]] False\n", ended.stderr
