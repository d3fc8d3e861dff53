"""Rows of classes that the tasks have no module of."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy
import pytest

from launcher.errors import FeedError
from launcher.feed.remote.codec import decode, encode
from launcher.feed.remote.own_modules import own_names


class Row:
    """Of a module that is not installed: this test's."""

    def __init__(self, number: int, more: object = None) -> None:
        self.number = number
        self.more = more


_CODE = b"Of a module that is not installed"


def whole(block: Any, named: bool) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode(block, named))


@pytest.mark.parametrize(
    "block",
    [
        [Row(1)],
        [(1, 2), (3, Row(4))],
        [Row],
        [Path(), {"deep": [[[[Row(1)]]]]}],
        (numpy.array([Row(1)], dtype=object), numpy.arange(3)),
    ],
    ids=["row", "plain at first", "class", "deep", "arrays"],
)
def test_they_travel_as_code_to_tasks_and_are_named_to_the_driver(block: Any):
    assert _CODE in whole(block, named=False)
    assert _CODE not in whole(block, named=True)
    assert __name__.encode() in whole(block, named=True)


def test_arrays_beside_them_travel_once():
    array = numpy.arange(1000)
    block = (numpy.array([Row(1)], dtype=object), array)
    buffers = encode(block)
    assert len(buffers) == 2 and len(buffers[0]) < 4000
    found: Any = decode([memoryview(bytearray(buffer)) for buffer in buffers])
    assert found[0][0].number == 1 and (found[1] == array).all()


def test_what_nobody_can_send_is_told_by_its_own_fault():
    with pytest.raises(FeedError, match="can't be sent to a task: cannot pickle") as caught:
        encode([Row(1, threading.Lock())])
    assert isinstance(caught.value.__cause__, TypeError)


def test_whose_modules_they_are():
    assert {"__main__", __name__} <= own_names()
    assert not {"json", "numpy", "launcher.feed.remote.codec", "pytest"} & own_names()
