"""Results: one a row, in order, lazily, whatever becomes of the tasks."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import FeedError
from launcher.feed import answers
from launcher.feed.partitions import partitions
from launcher.feed.remote.data_feed import DataFeed
from tests.unit.feed.feeding import Clock, Tasks, uneven, until


def double(row: int) -> int:
    return 2 * row


@pytest.mark.parametrize("train_mode", [False, True])
def test_one_result_a_row_in_order(train_mode: bool):
    with Tasks(3) as tasks:
        tasks.answer(double, 3, batch=170)
        for rows in (200_003, 0, 1, 170):
            assert list(tasks.feeder.inference(uneven(rows))) == [2 * row for row in range(rows)]
        tasks.finish()


def test_results_are_in_order_when_a_worker_is_killed(tmp_path: Path):
    with Tasks(2) as tasks:
        processes = [tasks.start(tmp_path, worker, "answer", "100") for worker in range(2)]
        results = tasks.feeder.inference([range(n, n + 5000) for n in range(0, 300_000, 5000)])
        found = list(itertools.islice(results, 10_000))
        processes[0].kill()
        processes[0].wait()
        tasks.feeder.lost("worker/0", 0, "killed")
        found += results
        tasks.feeder.finish()
        assert processes[1].wait(40) == 0
    assert found == [2 * row for row in range(300_000)]


def test_a_task_that_dies_within_a_partition_leaves_its_results():
    with Tasks(2) as tasks:
        first, second = tasks.feed(0, train_mode=False), tasks.feed(1, train_mode=False)
        results = tasks.feeder.inference(partitions([range(100)]))
        tasks.run(lambda: first.batch_results([("first", row) for row in first.next_batch(30)]))
        found = list(itertools.islice(results, 30))
        tasks.feeder.lost("worker/0", 0, "killed")
        tasks.run(lambda: second.batch_results([("second", row) for row in second.next_batch(1000)]))
        found += results
    assert found == [("first" if row < 30 else "second", row) for row in range(100)]


def test_rows_are_read_only_as_results_are_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "MOST_RESULTS", 1 << 20)
    made = 0

    def endless() -> Iterator[Any]:
        nonlocal made
        for made in itertools.count(1):
            yield range(made * 1000, made * 1000 + 1000)

    with Tasks(2) as tasks:
        tasks.answer(double)
        results: Any = tasks.feeder.inference(endless())
        time.sleep(0.05)
        assert made == 0, "nothing is read before the first result is asked for"
        assert list(itertools.islice(results, 1500)) == [2 * row for row in range(1000, 2500)]
        before = -1
        while before != made:
            before = made
            time.sleep(0.2)
        assert made < 2000
        assert next(results) == 5000
        results.close()
        assert list(tasks.feeder.inference(uneven(3000))) == [2 * row for row in range(3000)]
        tasks.finish()


def test_more_results_than_may_wait_do_not_stop_the_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "MOST_RESULTS", 20_000)

    def slow_at_first(row: int) -> int:
        if row < 200:
            time.sleep(0.002)
        return 2 * row

    with Tasks(2) as tasks:
        tasks.answer(slow_at_first, batch=200)
        found = []
        for result in tasks.feeder.inference([range(n, n + 700) for n in range(0, 70_000, 700)]):
            found.append(result)
        tasks.finish()
    assert found == [2 * row for row in range(70_000)]


@pytest.mark.parametrize("train_mode", [False, True])
def test_a_lost_task_while_results_wait_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, train_mode: bool
):
    """What it had is next, and those who take it over are in the middle of something else."""
    monkeypatch.setattr(answers, "MOST_RESULTS", 20_000)
    with Tasks(3) as tasks:
        held = tasks.feed(0, train_mode=False)
        results = tasks.feeder.inference([range(n, n + 30_000) for n in range(0, 300_000, 30_000)])
        tasks.run(held.next_batch, 10)
        found: list[int] = []
        first = tasks.run(lambda: found.append(next(results)))
        until(lambda: held._stream().rows.given)
        for worker in (1, 2):
            tasks.run(_answer_all, tasks.feed(worker, train_mode=train_mode), 1007)
        until(lambda: tasks.feeder._feeds["input"].flow.full)  # type: ignore[union-attr]
        tasks.feeder.lost("worker/0", 0, "killed")
        first.join(20)
        found += results
        tasks.finish()
    assert found == [2 * row for row in range(300_000)]


def _answer_all(feed: Any, batch: int) -> None:
    while not feed.should_stop():
        feed.batch_results([2 * row for row in feed.next_batch(batch)])


def test_code_that_makes_rows_beside_the_task_has_its_results_in_order():
    with Tasks(2) as tasks:
        tasks.answer(double, batch=70)
        data = [lambda start=start: range(start, start + 999) for start in range(0, 9990, 999)]
        assert list(tasks.feeder.inference(data)) == [2 * row for row in range(9990)]
        tasks.finish()


def test_too_many_results_are_refused_where_they_are_given():
    with Tasks(1) as tasks:
        feed = tasks.feed(train_mode=False)
        asked = tasks.run(lambda: list(tasks.feeder.inference([range(10)])))
        assert len(feed.next_batch(4)) == 4
        with pytest.raises(ValueError, match="5 results for 4 rows"):
            feed.batch_results(range(5))
        feed.batch_results(range(4))
        feed.batch_results(feed.next_batch(100))
        asked.join(20)
        assert not asked.is_alive() and not tasks.faults


def test_a_function_that_gives_no_results_is_named(monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    with Tasks(1) as tasks:
        tasks.collect(1)
        tasks.run(clock.later, lambda: tasks.at_rest(lambda: tasks.all_given and tasks.asks()))
        with pytest.raises(FeedError, match="worker/0: 10 results are missing .* batch_results"):
            list(tasks.feeder.inference([range(10)]))
        tasks.finish()


@pytest.mark.parametrize(
    ("rows", "missing", "what"),
    [(1, 1, "worker/[01]: 1 result is"), (30_000, 2, "worker/0, worker/1: 2 results are")],
)
def test_results_that_are_missing_are_named_so(
    rows: int, missing: int, what: str, monkeypatch: pytest.MonkeyPatch
):
    """Of a batch in the midst of others."""
    clock = Clock(monkeypatch)
    with Tasks(2) as tasks:

        def short(feed: DataFeed) -> None:
            batch = feed.next_batch(100)
            feed.batch_results(batch[1:])
            _answer_all(feed, 100)

        for worker in (1, 0):
            tasks.run(short, tasks.feed(worker, train_mode=False))

        def nothing_comes() -> bool:
            return tasks.all_given and tasks.owed == missing and tasks.asks(0) and tasks.asks(1)

        tasks.run(clock.later, lambda: tasks.at_rest(nothing_comes))
        with pytest.raises(FeedError, match=f"^{what} missing in the feed 'input'"):
            list(tasks.feeder.inference(range(rows)))
        tasks.finish()


def test_a_function_that_wants_no_more_gives_no_results():
    with Tasks(1) as tasks:
        tasks.feed().terminate()
        with pytest.raises(FeedError, match="terminate"):
            list(tasks.feeder.inference([range(10)]))


def test_training_and_inference_take_turns():
    with Tasks(2) as tasks:
        tasks.answer(double)
        for _ in range(3):
            tasks.feeder.train(uneven(1000))
            assert list(tasks.feeder.inference(uneven(2000))) == [2 * row for row in range(2000)]
        tasks.finish()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("inference", [False, True])
def test_broken_connections_come_back_and_each_row_comes_once(inference: bool):
    many = 150_000 if inference else 500_000
    dice = random.Random(1)
    with Tasks(2) as tasks:
        over = False

        def breaks() -> None:
            while not over:
                time.sleep(dice.random() * 0.01)
                for sock in tasks.links[-2:]:
                    try:
                        sock.shutdown(2)
                    except OSError:
                        pass

        def parts() -> Iterator[range]:
            for part in uneven(many):
                yield part
                if part.start > many // 2:
                    until(lambda: len(tasks.links) > 4)  # it was broken some times

        if inference:
            tasks.answer(double, batch=200)
        else:
            got = tasks.collect(batch=200)
        breaking = tasks.run(breaks)
        if inference:
            found = list(tasks.feeder.inference(parts()))
        else:
            tasks.feeder.train(parts())
        over = True
        breaking.join()
        tasks.finish()
    if inference:
        assert found == [2 * row for row in range(many)]
    else:
        assert sorted(row for batches in got for batch in batches for row in batch) == list(range(many))


def test_results_that_cannot_be_sent_are_an_error_of_the_task():
    with Tasks(1) as tasks:
        feed = tasks.feed(train_mode=False)
        tasks.run(lambda: list(tasks.feeder.inference([range(10)])))
        feed.next_batch(1)
        with pytest.raises(FeedError, match="can't be sent"):
            feed.batch_results([threading.Lock()])
        tasks.feeder.fail(FeedError("over"))
