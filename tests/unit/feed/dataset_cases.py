"""A ``tf.data.Dataset`` over a feed, with a feed that only pretends. Run by `test_dataset`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from launcher.errors import InputError
from launcher.feed.remote.data_feed import DataFeed, columns, dataset


class Pretended(DataFeed):
    """Gives these blocks, a batch each, whatever is asked for."""

    def __init__(self, *batches: Any) -> None:
        self.batches = list(batches)
        self.asked: list[int] = []

    def next_blocks(self, rows: int) -> list[Any]:
        self.asked.append(rows)
        block = self.batches.pop(0)
        return [block[:1], block[1:]] if isinstance(block, list) and len(block) > 1 else [block] * bool(block)

    def should_stop(self) -> bool:
        return not self.batches


@pytest.fixture(scope="module")
def tf() -> Iterator[Any]:
    tensorflow = pytest.importorskip("tensorflow", exc_type=ImportError)
    yield tensorflow


def taken(data: Any) -> list[Any]:
    return list(data.as_numpy_iterator())


def test_rows_of_numbers(tf):
    feed = Pretended([1, 2, 3], [], [4])
    found = taken(dataset(feed, tf.TensorSpec([], tf.int64), 3))
    assert [batch.tolist() for batch in found] == [[1, 2, 3], [4]]
    assert feed.asked == [3, 3, 3]


def test_rows_of_tuples_with_texts(tf):
    signature = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.string))
    ((numbers, texts),) = taken(dataset(Pretended([([1, 2], "é"), ((3, 4), b"b")]), signature, 5))
    assert numbers.tolist() == [[1, 2], [3, 4]] and numbers.dtype == np.float32
    assert texts.tolist() == ["é".encode(), b"b"]


def test_rows_of_dicts_and_columns_of_dicts(tf):
    signature = {"x": tf.TensorSpec([], tf.int32), "y": tf.TensorSpec([2], tf.int32)}
    rows = [{"x": 1, "y": [1, 2], "z": None}, {"x": 2, "y": [3, 4], "z": None}]
    by_name = {"x": np.array([1, 2]), "y": np.array([[1, 2], [3, 4]])}
    found = taken(dataset(Pretended(rows, by_name), signature, 2))
    assert [{name: array.tolist() for name, array in batch.items()} for batch in found] == [
        {"x": [1, 2], "y": [[1, 2], [3, 4]]}
    ] * 2


def test_arrays_and_columns_are_taken_as_they_are(tf):
    pair = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int64))
    images, labels = np.ones((3, 2), np.float32), np.arange(3)
    assert columns((images, labels), pair)[0] is images
    assert columns(images, pair[0]) is images
    assert columns(images, (pair[1], pair[1]))[0].tolist() == [1, 1, 1]


def test_what_differs_in_length_is_filled_up(tf):
    signature = (tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, 2], tf.float32))
    rows = [([1], [[1, 1]]), ([1, 2, 3], [[1, 1], [2, 2]])]
    ((ids, pairs),) = taken(dataset(Pretended(rows), signature, 2))
    assert ids.tolist() == [[1, 0, 0], [1, 2, 3]]
    assert pairs.tolist() == [[[1, 1], [0, 0]], [[1, 1], [2, 2]]]
    assert columns([["a"], ["b", "c"]], tf.TensorSpec([None], tf.string)).tolist() == [["a", ""], ["b", "c"]]


def test_the_element_spec_says_batches(tf):
    made = dataset(Pretended(), (tf.TensorSpec([28, None], tf.uint8),), 4)
    assert made.element_spec == (tf.TensorSpec([None, 28, None], tf.uint8),)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([([1, 2],)], "no 1 in"),
        ([7], "no 0 in 7"),
        ([([1, 2, 3], 1)], r"a row has the shape \(3,\); expected \(2,\)"),
        ([([1, 2], "x")], "rows are not TensorSpec"),
    ],
)
def test_rows_that_are_not_as_said(tf, rows, expected: str):
    signature = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.int64))
    with pytest.raises(InputError, match=expected):
        columns(rows, signature)
    with pytest.raises(tf.errors.OpError, match=expected):
        taken(dataset(Pretended(rows), signature, 2))


def test_a_signature_that_is_none(tf):
    for bad in (tf.TensorSpec(None), tf.int32):
        with pytest.raises(InputError, match="output_signature has"):
            dataset(Pretended(), bad, 2)


def test_it_goes_through_a_function_and_map(tf):
    made = dataset(Pretended(list(range(4)), [4]), tf.TensorSpec([], tf.int64), 4).map(lambda x: x * 2)

    @tf.function
    def total(data):
        return data.reduce(np.int64(0), lambda found, batch: found + tf.reduce_sum(batch))

    assert int(total(made)) == 20
