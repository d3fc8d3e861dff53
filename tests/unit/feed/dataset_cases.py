"""A ``tf.data.Dataset`` over a feed, with a feed that only pretends. Run by `test_dataset`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from launcher.common.errors import InputError
from launcher.feed.remote.columns import columns
from launcher.feed.remote.data_feed import DataFeed, dataset

tf = pytest.importorskip("tensorflow", exc_type=ImportError)
NUMBER, PAIR = tf.TensorSpec([], tf.int64), tf.TensorSpec([2], tf.float32)
TEXT = tf.TensorSpec([], tf.string)
RAGGED = tf.TensorSpec([None], tf.int32)


class Pretended(DataFeed):
    """Gives these blocks, a batch each, whatever is asked for."""

    def __init__(self, *batches: Any) -> None:
        self.batches = list(batches)

    def next_blocks(self, rows: int) -> list[Any]:
        block = self.batches.pop(0)
        return [block[:1], block[1:]] if isinstance(block, list) and len(block) > 1 else [block] * bool(block)

    def should_stop(self) -> bool:
        return not self.batches


def plain(value: Any) -> Any:
    """Arrays as lists."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return tuple(map(plain, value)) if isinstance(value, tuple) else value.tolist()


@pytest.mark.parametrize(
    ("batches", "signature", "expected"),
    [
        ([[1, 2, 3], [], [4]], NUMBER, [[1, 2, 3], [4]]),
        ([[([1, 2], "é"), ((3, 4), b"b")]], (PAIR, TEXT), [([[1, 2], [3, 4]], ["é".encode(), b"b"])]),
        (
            [[{"x": 1, "y": [1, 2], "z": None}], {"x": np.array([3]), "y": np.array([[5, 6]])}],
            {"x": NUMBER, "y": PAIR},
            [{"x": [1], "y": [[1, 2]]}, {"x": [3], "y": [[5, 6]]}],
        ),
        ([[([1], 7)], [([1, 2, 3], 8)]], (RAGGED, NUMBER), [([[1]], [7]), ([[1, 2, 3]], [8])]),
    ],
    ids=["numbers", "tuples with texts", "dicts and columns", "other lengths"],
)
def test_batches(batches: Any, signature: Any, expected: Any):
    found = dataset(Pretended(*batches), signature, 3).as_numpy_iterator()
    assert [plain(batch) for batch in found] == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([([1, 2],)], "no 1 in"),
        ([7], "no 0 in 7"),
        ([([1, 2], 1, 2)], "rows of 3 columns; expected 2, rows as in output_signature"),
        ([([1, 2, 3], 1)], r"a row has the shape \(3,\)"),
        ([([1, 2], "x")], "rows are not TensorSpec"),
    ],
)
def test_rows_that_do_not_fit_the_signature(rows: Any, expected: str):
    with pytest.raises(InputError, match="rows are not TensorSpec"):
        columns([[1], [1, 2]], RAGGED)
    with pytest.raises(InputError, match=expected):
        columns(rows, (PAIR, NUMBER))
    with pytest.raises(tf.errors.OpError, match=expected):
        list(dataset(Pretended(rows), (PAIR, NUMBER), 2))


def test_signatures():
    assert dataset(Pretended(), (RAGGED,), 4).element_spec == (tf.TensorSpec([None, None], tf.int32),)
    for bad in (tf.TensorSpec(None), tf.int32):
        with pytest.raises(InputError, match="output_signature has"):
            dataset(Pretended(), bad, 2)
