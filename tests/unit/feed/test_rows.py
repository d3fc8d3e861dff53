"""Rows as they travel: frames, blocks, chunks."""

from __future__ import annotations

import math
import socket
import struct
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from launcher.common.errors import FeedError
from launcher.feed import call
from launcher.feed.call import CHUNK_BYTES, MAX_ROWS, Chunker
from launcher.feed.remote.codec import as_rows, decode, encode
from launcher.feed.remote.frames import FeedBrokenError, check_size, reader, recv_frame
from launcher.feed.sources import pieces_of
from tests.conftest import examples

Point = namedtuple("Point", "x y")
anything = settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    for sock in (one, other):
        sock.settimeout(10)
    with one, other:
        yield one, other


@pytest.mark.parametrize(
    ("data", "message"),
    [
        *((struct.pack("<BIQ", 3, 1, 3)[:n], "within a frame") for n in (1, 5, 12)),
        (struct.pack("<BIQ", 3, 1, 3) + b"ab", "within a frame"),
        (struct.pack("<BIQ", 3, 1, 1 << 60), f"{1 << 60:,} bytes; at most 2,147,483,648"),
        (struct.pack("<BI", 3, 1 << 31), "buffers"),
    ],
)
def test_frames_that_are_torn_or_too_large(
    pair: tuple[socket.socket, socket.socket], data: bytes, message: str
):
    pair[0].sendall(data)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(FeedBrokenError, match=message):
        recv_frame(reader(pair[1]))
    with pytest.raises(FeedError, match="rows would have 0 bytes in 70,000 pieces"):
        check_size([b""] * 70_000, "rows")


def back(block: Any) -> Any:
    """A block as it arrives: in memory of its own."""
    return decode([memoryview(bytearray(buffer)) for buffer in encode(block)])


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@anything
@example(["\ud800"])
@example([(1, 2), Point(1, 2), {3}, Path("/x")])
@example([[[[[1]]]], [[[Point(1, [2])]]]])
@given(st.lists(PLAIN, max_size=12))
def test_rows_arrive_as_they_were(rows: list[Any]):
    found = back(rows)
    assert found == rows and [type(row) for row in found] == [type(row) for row in rows]


A = numpy.arange(12)


@pytest.mark.parametrize(
    "array",
    [
        *(A.astype(numpy.float32).reshape(3, 4), A.reshape(3, 4).T, A[::3], numpy.asfortranarray([A, A])),
        *(numpy.array(["a", "bb"]), numpy.array(["2026-01-01"], "datetime64[D]"), numpy.zeros((0, 3))),
        *(numpy.array([(1, 2.0)], [("a", int), ("b", float)]), numpy.array([{"a": 1}, None], dtype=object)),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_arrays_arrive_as_writable_arrays(array: Any):
    for found in (back(array), back((array, array))[1], back({"a": array})["a"]):
        assert found.dtype == array.dtype and (found == array).all() and found.shape == array.shape
        assert found.flags.writeable


def test_lists_of_arrays_that_differ_stay_lists():
    others = numpy.zeros(3), numpy.zeros(4, int), numpy.zeros((4, 1)), numpy.zeros(()), numpy.zeros(4, object)
    for odd in (*others, None, numpy.ma.array([1.0, 2, 3, 4]), numpy.float64(1)):
        found = back([numpy.zeros(4), odd])
        assert isinstance(found, list) and type(found[1]) is type(odd)
        assert getattr(found[1], "dtype", None) == getattr(odd, "dtype", None)
        assert type(as_rows(back([(numpy.zeros(4), 1), (odd, 1)]))[1][0]) is type(odd)


@pytest.mark.parametrize("kind", ["float32", ">f4", "U3", "datetime64[s]", [("a", int), ("b", float)]])
@pytest.mark.parametrize("shape", [(4,), (0,), (2, 3), (0, 3)])
def test_lists_of_arrays_that_are_alike_arrive_as_one(kind: Any, shape: tuple[int, ...]):
    array = numpy.arange(math.prod(shape)).astype(kind).reshape(shape)
    for rows in ([array] * 3, [array.copy("F")] * 3, [array, array.copy("F"), array]):
        found, expected = back(rows), numpy.array(rows)
        assert found.dtype == expected.dtype and found.shape == (3, *shape) and (found == expected).all()


def test_arrays_travel_beside_the_pickle():
    [head, data] = encode(numpy.zeros(1000))
    assert len(head) < 500 and len(data) == 8000
    vectors = [numpy.full(784, n, numpy.float32) for n in range(10)]
    assert len(encode(vectors)) == 2
    assert all((sent == found).all() for sent, found in zip(vectors, as_rows(back(vectors)), strict=True))
    pairs = [(numpy.full((28, 28), n, numpy.uint8), n, f"{n}") for n in range(10)]
    assert len(encode(pairs)) == 2
    for sent, found in zip(pairs, as_rows(back(pairs)), strict=True):
        assert type(found) is tuple and (sent[0] == found[0]).all() and found[1:] == sent[1:]


class Row:
    """A class of a module that is not installed: this test's."""

    def __init__(self, number: int, more: object = None) -> None:
        self.number = number
        self.more = more


def test_rows_that_cannot_be_sent_or_read():
    for row in (threading.Lock(), (1, threading.Lock()), Row(1, threading.Lock())):
        with pytest.raises(FeedError, match=r"rows such as .*cannot be sent to a task: cannot pickle"):
            encode([row])
    with pytest.raises(FeedError, match="no_such_module.*must be there too"):
        decode([b"cno_such_module\nRow\n."])


@pytest.mark.parametrize(
    ("row", "many", "least"),
    [
        ("x" * 200, 60_000, 4000),
        ([0.5] * 784, 3000, 100),
        ((1, 2.0), 60_000, 10_000),
        ("x" * 3_000_000, 40, 1),
    ],
    ids=["text", "floats", "tuples", "large"],
)
def test_chunks_have_about_a_mebibyte(row: Any, many: int, least: int):
    [piece] = pieces_of([iter([row] * many)], 1)
    chunks = list(Chunker().chunks(piece))
    assert sum(chunk.rows or 0 for chunk in chunks) == many
    assert all(chunk.weight <= max(1.3 * CHUNK_BYTES, 1.1 * len(row)) for chunk in chunks[1:])
    assert least <= max(chunk.rows or 0 for chunk in chunks) <= MAX_ROWS


def test_chunks_of_rows_that_grow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(call, "FAR_TOO_BIG_BYTES", 4 << 20)
    [piece] = pieces_of([iter([b"x"] * 5000 + [bytes(1_000_000)] * 100)], 1)
    chunks = list(Chunker().chunks(piece))
    assert sum(chunk.rows or 0 for chunk in chunks) == 5100
    assert all(chunk.weight <= 4 << 20 for chunk in chunks)
