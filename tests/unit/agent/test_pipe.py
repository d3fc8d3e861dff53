"""The agent's end of the link never blocks, keeps the order, and says how much waits."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import wire
from launcher.agent.pipe import Pipe
from launcher.model import facts
from launcher.model.task import TaskId

TASK = TaskId("worker/0")


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """A pipe."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(writing)
    if os.path.exists(f"/proc/self/fd/{reading}"):
        os.close(reading)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=100_000), max_size=20), st.integers(4096, 200_000))
def test_everything_arrives_in_order(pieces: list[bytes], step: int):
    reading, writing = os.pipe()
    try:
        pipe, decoder = Pipe(writing), wire.Decoder("here", magic=True)
        for data in pieces:
            pipe.output(TASK, 1, data)
        pipe.flush()
        came = b""
        while True:
            for message in decoder.feed(os.read(reading, step)):
                assert isinstance(message, facts.TaskOutput)
                came += message.data
            pipe.flush()
            if came == b"".join(pieces) and not pipe.pending:
                break
    finally:
        os.close(reading)
        os.close(writing)


def test_what_waits_is_counted(ends: tuple[int, int]):
    reading, writing = ends
    pipe = Pipe(writing)
    for _ in range(40):
        pipe.output(TASK, 1, b"x" * 10_000)
    assert 300_000 < pipe.pending < 410_000
    before = pipe.pending
    pipe.output(TASK, 1, b"x")
    assert pipe.pending > before
    taken = len(os.read(reading, 1 << 20))
    pipe.flush()
    assert pipe.pending < before
    while pipe.pending:
        taken += len(os.read(reading, 1 << 20))
        pipe.flush()
    assert taken > 0


def test_a_broken_link_takes_everything_and_keeps_nothing(ends: tuple[int, int]):
    reading, writing = ends
    pipe = Pipe(writing)
    for _ in range(40):
        pipe.output(TASK, 1, b"x" * 10_000)
    os.close(reading)
    pipe.flush()
    assert pipe.broken
    pipe.output(TASK, 1, b"x" * 10_000)
    pipe.fact(facts.AgentClosed("here", 0.0))
    assert pipe.pending == 0


def test_hanging_up_is_the_end_of_the_link(ends: tuple[int, int]):
    reading, writing = ends
    pipe = Pipe(writing)
    pipe.fact(facts.AgentClosed("here", 0.0))
    pipe.hang_up()
    decoder = wire.Decoder("here", magic=True)
    assert decoder.feed(os.read(reading, 1 << 16)) == [facts.AgentClosed("here", 0.0)]
    assert os.read(reading, 1) == b""
    pipe.fact(facts.AgentClosed("here", 0.0))
    assert pipe.pending == 0
