"""The loop of a launch: descriptors, times, other threads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from launcher.event_loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    with EventLoop() as made:
        yield made


def test_a_function_may_end_the_watching_of_another_descriptor(loop: EventLoop):
    first, second = os.eventfd(1), os.eventfd(1)
    called = []

    def ready(fd: int, other: int) -> None:
        called.append(fd)
        loop.watch(other)

    loop.watch(first, lambda: ready(first, second))
    loop.watch(second, lambda: ready(second, first))
    loop.run_once(1.0)
    assert len(called) == 1
    for fd in (first, second):
        loop.watch(fd)
        os.close(fd)


def test_what_can_be_written_is_not_told_again(loop: EventLoop):
    reading, writing = os.pipe()
    called: list[str] = []

    def write() -> None:
        called.append("write")
        loop.watch(writing)

    loop.watch(writing, write=write)
    loop.watch(reading, lambda: called.append(os.read(reading, 1).decode()))
    loop.run_once(1.0)
    os.write(writing, b"r")
    loop.run_once(1.0)
    loop.run_once(0.0)
    assert called == ["write", "r"]
    loop.watch(reading)
    os.close(reading)
    os.close(writing)


def test_times_come_in_order_and_one_that_sets_itself_anew_does_not_hold_up_others(loop: EventLoop):
    called: list[str] = []
    now = time.monotonic()

    def again() -> None:
        called.append("again")
        loop.call_at(now, again)

    loop.call_at(now + 0.02, lambda: called.append("late"))
    cancelled = loop.call_at(now + 0.01, lambda: called.append("cancelled"))
    loop.call_at(now, again)
    cancelled.cancel()
    assert loop.run_until(lambda: "late" in called, 5.0)
    assert called[-1] == "late" and set(called) == {"again", "late"}
