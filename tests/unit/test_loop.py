"""The loop of a launch: descriptors, times, other threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from launcher import loop as module
from launcher.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as made:
        yield made


def test_a_function_may_end_the_watching_of_another_descriptor(loop: Loop):
    first, second = os.eventfd(1), os.eventfd(1)
    called = []

    def ready(fd: int, other: int) -> None:
        called.append(fd)
        loop.watch(other)

    loop.watch(first, lambda: ready(first, second))
    loop.watch(second, lambda: ready(second, first))
    loop.turn(1.0)
    assert len(called) == 1
    for fd in (first, second):
        loop.watch(fd)
        os.close(fd)


def test_what_can_be_written_is_not_told_again(loop: Loop):
    reading, writing = os.pipe()
    called: list[str] = []

    def write() -> None:
        called.append("write")
        loop.watch(writing)

    loop.watch(writing, write=write)
    loop.watch(reading, lambda: called.append(os.read(reading, 1).decode()))
    loop.turn(1.0)
    os.write(writing, b"r")
    loop.turn(1.0)
    loop.turn(0.0)
    assert called == ["write", "r"]
    loop.watch(reading)
    os.close(reading)
    os.close(writing)


def test_times_come_in_order_and_one_that_sets_itself_anew_does_not_hold_up_others(loop: Loop):
    called: list[str] = []
    now = time.monotonic()

    def again() -> None:
        called.append("again")
        loop.at(now, again)

    loop.at(now + 0.02, lambda: called.append("late"))
    cancelled = loop.at(now + 0.01, lambda: called.append("cancelled"))
    loop.at(now, again)
    cancelled.cancel()
    assert loop.until(lambda: "late" in called, 5.0)
    assert called[-1] == "late" and set(called) == {"again", "late"}


def test_other_threads_wake_it(loop: Loop):
    ended = threading.Event()
    threading.Timer(0.05, lambda: loop.call(ended.set)).start()
    assert loop.until(ended.is_set, 20.0)
    found: list[int] = []
    loop.work(threading.get_ident, lambda made: found.append(made.result()))
    assert loop.until(lambda: bool(found), 20.0)
    assert found != [threading.get_ident()]


@pytest.mark.parametrize(
    ("passed", "cpu", "suspended"), [(60.0, 0.0, 60.0), (60.0, 59.0, 0.0), (2.0, 0.0, 0.0)]
)
def test_a_suspension_is_time_in_which_we_did_not_work(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, passed: float, cpu: float, suspended: float
):
    clocks = {"clock": time.clock_gettime(time.CLOCK_BOOTTIME), "cpu": time.process_time()}
    monkeypatch.setattr(
        module,
        "time",
        SimpleNamespace(
            monotonic=time.monotonic,
            CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
            clock_gettime=lambda _: clocks["clock"],
            process_time=lambda: clocks["cpu"],
        ),
    )
    loop.turn(0.0)
    clocks["clock"] += passed
    clocks["cpu"] += cpu
    loop.turn(0.0)
    assert loop.suspended == pytest.approx(suspended, abs=1.0)
