"""The agent's end of the link never blocks, keeps the order, and says how much waits."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher import events, wire
from launcher.agent.pipe import Pipe
from launcher.job import TaskId

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
                assert isinstance(message, events.TaskOutput)
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
    pipe.fact(events.AgentClosed("here", 0.0))
    assert pipe.pending == 0


def test_hanging_up_is_the_end_of_the_link(ends: tuple[int, int]):
    reading, writing = ends
    pipe = Pipe(writing)
    pipe.fact(events.AgentClosed("here", 0.0))
    pipe.hang_up()
    decoder = wire.Decoder("here", magic=True)
    assert decoder.feed(os.read(reading, 1 << 16)) == [events.AgentClosed("here", 0.0)]
    assert os.read(reading, 1) == b""
    pipe.fact(events.AgentClosed("here", 0.0))
    assert pipe.pending == 0


def _messages(reading: int, pipe: Pipe) -> list[events.Event]:
    """All that comes."""
    decoder = wire.Decoder("here", magic=True)
    found: list[events.Event] = []
    while True:
        try:
            data = os.read(reading, 1 << 20)
        except BlockingIOError:
            return found
        found += decoder.feed(data)  # type: ignore[arg-type]
        pipe.flush()


def _exited(task: TaskId) -> events.TaskExited:
    return events.TaskExited("here", 1.0, task, 1, 7, None, 0, 0.0)


def test_facts_overtake_output_but_not_within_a_task_s_own_end(ends: tuple[int, int]):
    reading, writing = ends
    pipe, other = Pipe(writing), TaskId("worker/1")
    for n in range(40):
        pipe.output(TASK, 1, b"%05d" % n * 10_000)
    pipe.fact_after_output(events.TaskGone("here", 2.0, TASK, 1))
    pipe.output(other, 1, b"the last of the other")
    pipe.fact(_exited(other))
    came = _messages(reading, pipe)
    kinds = [type(message).__name__ for message in came]
    assert kinds.index("TaskExited") < 5, "behind what the link held already, no more"
    said = [message.data for message in came if isinstance(message, events.TaskOutput)]
    assert said == [b"%05d" % n * 10_000 for n in range(40)] + [b"the last of the other"]
    assert kinds.index("TaskGone") == 41
    assert pipe.pending == 0


def test_held_output_stays_and_facts_go(ends: tuple[int, int]):
    reading, writing = ends
    pipe = Pipe(writing)
    pipe.hold(True)
    pipe.output(TASK, 1, b"hello")
    pipe.fact_after_output(events.TaskGone("here", 2.0, TASK, 1))
    pipe.fact(_exited(TASK))
    assert _messages(reading, pipe) == [_exited(TASK)]
    assert not pipe.waiting and pipe.pending > 0
    pipe.hold(False)
    assert not pipe.pending
    decoder = wire.Decoder("here", magic=True)
    decoder.feed(wire.MAGIC)
    assert [type(m).__name__ for m in decoder.feed(os.read(reading, 1 << 16))] == ["TaskOutput", "TaskGone"]
