"""The feeds end while somebody still feeds them, or has lost interest."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.errors import FeedError
from launcher.feed.partitions import partitions, rows
from launcher.feed.remote import data_feed as datafeed
from tests.unit.feed.feeding import Tasks, until


def test_an_inference_not_taken_to_its_end_is_ended_with_its_feed():
    with Tasks(2) as tasks:
        tasks.answer(str)
        tasks.here(0, 1)
        results = tasks.feeder.inference(range(200))
        assert next(results) == "0"
        tasks.finish()
        with pytest.raises(FeedError, match="'input': shut down before all results were taken"):
            list(results)
    [said] = tasks.said
    assert "before all its results: not all were taken" in said


def test_tasks_need_not_work_off_what_nobody_wants():
    looked = 0

    def slow(row: int) -> int:
        nonlocal looked
        looked += 1
        time.sleep(0.01)
        return row

    with Tasks(1) as tasks:
        tasks.answer(slow, workers=1, batch=10)
        results = tasks.feeder.inference(range(10_000))
        assert next(results) == 0
        tasks.finish()
    assert looked < 1000


@pytest.mark.parametrize("before", [False, True])
def test_results_that_are_closed_let_the_tasks_go(before: bool):
    """Before the feeds end, and after."""

    def endless() -> Iterator[int]:
        return itertools.count()

    with Tasks(2) as tasks:
        tasks.answer(str)
        tasks.here(0, 1)
        results: Any = tasks.feeder.inference([endless, endless])  # code beside the tasks, which never ends
        assert next(results) == "0"
        if before:
            results.close()
        tasks.finish()
        results.close()
    assert len(tasks.said) == (0 if before else 1)


def test_what_another_thread_still_takes_is_awaited():
    with Tasks(2) as tasks:
        tasks.answer(str)
        tasks.here(0, 1)
        begun, go_on, found = threading.Event(), threading.Event(), []

        def take() -> None:
            for result in tasks.feeder.inference(range(5000)):
                found.append(result)
                begun.set()
                go_on.wait(40)

        taking = threading.Thread(target=take, name="my thread")
        taking.start()
        begun.wait(20)
        tasks.feeder.finish()
        until(lambda: tasks.said)
        assert (
            "shutdown: waiting for my thread, which still takes results of the feed 'input'" in tasks.said[0]
        )
        go_on.set()
        taking.join(20)
        tasks.finish()
        assert found == [str(number) for number in range(5000)]


@pytest.mark.parametrize("how", ["ended", "idle"])
def test_who_takes_results_no_more_is_not_awaited(how: str):
    with Tasks(1) as tasks:
        tasks.answer(str, workers=1)
        results = tasks.feeder.inference(range(5000))
        begun, end = threading.Event(), threading.Event()

        def take() -> None:
            next(results)
            begun.set()
            if how == "idle":
                end.wait(40)

        taking = tasks.run(take)
        begun.wait(20)
        if how == "ended":
            taking.join(20)
        flow = tasks.feeder._feeds["input"].flow
        assert flow is not None
        flow.terms = flow.terms._replace(timeout=0.3)
        tasks.feeder.finish()
        wanted = "has taken none for 0.3 s" if how == "idle" else "not all were taken"
        until(lambda: any(wanted in text for text in tasks.said))
        end.set()
        tasks.finish()


def test_rows_left_by_functions_that_return_are_told_of():
    with Tasks(2) as tasks:
        feeds = [tasks.feed(worker) for worker in (0, 1)]
        for feed in feeds:
            tasks.run(feed.next_batch, 10)
        tasks.here(0, 1)
        fed = tasks.run(tasks.feeder.train, range(1000))
        until(lambda: tasks.all_given and all(feed._stream().rows.given == 10 for feed in feeds))
        datafeed.end_all()
        fed.join(20)
        tasks.feeder.train([1, 2])  # later: nobody is there to take them
        assert not tasks.faults
    who = "the function has returned in worker/0, worker/1 ("
    assert len(tasks.said) == 2
    assert f"'input': rows were left: {who}" in tasks.said[0]
    assert f"'input': rows may be left: {who}" in tasks.said[1]


@pytest.mark.parametrize("way", ["all taken", "terminate"])
def test_a_function_that_returns_as_it_should_is_not_told_of(way: str):
    with Tasks(1) as tasks:
        feed = tasks.feed()
        assert not feed.should_stop()
        tasks.here(0)
        data = rows(range(10)) if way == "all taken" else partitions([range(10)] * 100)
        fed = tasks.run(tasks.feeder.train, data)
        assert len(feed.next_batch(20 if way == "all taken" else 10)) == 10
        if way == "terminate":
            feed.terminate()
        datafeed.end_all()
        fed.join(20)
        assert not fed.is_alive() and not tasks.faults
    assert tasks.said == []
