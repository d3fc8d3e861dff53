"""How long tasks, and rows, are waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import FeedTimeout
from launcher.feed import patience, waiting
from launcher.feed.partitions import partitions
from tests.unit.feed.feeding import Clock, Tasks, until

AWAITED = "waiting for {} to ask for rows of the feed 'input' (importing TensorFlow takes seconds)"


def test_a_consumer_that_stops_is_named_with_its_last_lines():
    with Tasks(2, last_lines=lambda task: [f"{task} thinks"]) as tasks:
        feed = tasks.feed(1)
        tasks.run(feed.next_batch, 10)
        until(lambda: tasks.asks(1))
        with pytest.raises(FeedTimeout) as caught:
            tasks.feeder.train([range(100_000)], feed_timeout=0.6)
    assert caught.value.task == "worker/1" and caught.value.last_lines == ("worker/1 thinks",)


def test_a_killed_process_that_nobody_reports_times_out(tmp_path: Path):
    with Tasks(1) as tasks:
        tasks.start(tmp_path, 0, "stall", "10")
        until(tasks.asks)
        with pytest.raises(FeedTimeout, match="worker/0 has taken no rows for 1 s"):
            tasks.feeder.train([range(100_000)], feed_timeout=1.0)


def test_nobody_who_comes_is_said_and_then_an_error():
    with Tasks(1) as tasks, pytest.raises(FeedTimeout, match="worker/0"):
        tasks.feeder.train([1, 2], feed_timeout=2.5)
    assert tasks.said == [AWAITED.format("worker/0")]


@pytest.mark.parametrize("alone", [False, True])
def test_slow_rows_are_no_timeout_and_do_not_wait_for_others(monkeypatch: pytest.MonkeyPatch, alone: bool):
    """Rows of one partition, and rows that are a partition each."""
    clock = Clock(monkeypatch)
    got: list[Any] = []

    def pause(before: int) -> None:
        until(lambda: tasks.asks() and (not alone or len(got) == before))
        clock.ahead += 1000
        now = clock.monotonic()
        until(lambda: tasks.moved > now)

    def slow() -> Iterator[int]:
        for number in range(4):
            pause(number)
            yield number

    with Tasks(1) as tasks:
        feed = tasks.feed()
        data = ([row] for row in slow()) if alone else [slow()]
        fed = tasks.run(tasks.feeder.train, partitions(data))
        while len(got) < 4:
            got += feed.next_batch(1)
        tasks.run(feed.next_batch, 1)
        fed.join(20)
        assert not fed.is_alive() and not tasks.faults
    assert got == [0, 1, 2, 3]


def test_a_task_that_never_comes_is_awaited_for_a_while_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting, "FIRST", 0.1)
    monkeypatch.setattr(patience, "GATHERING", 900.0)
    clock = Clock(monkeypatch)
    with Tasks(2) as tasks:
        [batches] = tasks.collect(1)
        tasks.here(0)
        tasks.run(clock.later, lambda: tasks.said and tasks.asks())
        for _ in range(2):  # the second time nobody puts the clock on
            tasks.feeder.train(partitions([range(10), range(10, 20)]), feed_timeout=1e6)
        assert tasks.said == [AWAITED.format("worker/1")]
        tasks.finish()
    assert [row for batch in batches for row in batch] == [*range(20)] * 2
