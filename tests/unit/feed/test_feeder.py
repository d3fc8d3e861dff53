"""Rows from the driver to tasks: each once, bounded, and with errors that say what is the matter."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import FeedError, InputError
from launcher.feed import patience
from launcher.feed.link import Link
from launcher.feed.partitions import partitions, rows
from launcher.feed.remote.data_feed import DataFeed
from launcher.feed.sender import WINDOW
from tests.unit.feed.feeding import Tasks, numbers, tcp_pair, uneven, until

MANY = 1_000_003


def flat(got: list[list[Any]]) -> list[Any]:
    return [row for batches in got for batch in batches for row in batch]


def _lose(tasks: Tasks, task: str, when: Callable[[], Any]) -> None:
    until(when)
    tasks.feeder.lost(task, 0, "killed by signal 9")


def test_each_of_a_million_rows_arrives_exactly_once():
    with Tasks() as tasks:
        got = tasks.collect(batch=500)
        tasks.feeder.train(uneven(MANY))
        tasks.finish()
    assert sorted(flat(got)) == list(range(MANY))
    short = [len(batch) for batches in got for batch in batches if len(batch) != 500]
    assert all(got) and len(short) <= 4, (
        "only the last batch of a worker is short, and an empty one may follow"
    )


@pytest.mark.timeout(180)
def test_none_of_a_million_rows_is_lost_when_a_worker_is_killed(tmp_path: Path):
    files = [tmp_path / f"{worker}" for worker in range(2)]
    with Tasks() as tasks:
        processes = [
            tasks.start(tmp_path, worker, "write", str(files[worker]), "500", *most)
            for worker, most in enumerate([["250000"], []])
        ]

        def kill() -> None:
            until(lambda: files[0].exists() and files[0].stat().st_size > 8 * 100_000)
            processes[0].kill()
            processes[0].wait()
            tasks.feeder.lost("worker/0", 0, "killed")

        killer = tasks.run(kill)
        tasks.feeder.train(uneven(MANY))
        killer.join()
        tasks.feeder.finish()
        assert processes[1].wait(40) == 0
        assert not tasks.faults
    seen = Counter([*numbers(files[0]), *numbers(files[1])])
    assert seen.keys() == set(range(MANY))
    assert 100_000 < len(numbers(files[0])) < MANY // 2, "it was killed in the middle"
    assert sum(seen.values()) < MANY + 300_000, "only what was not finished came again"


@pytest.mark.parametrize("repeatable", [True, False])
def test_partitions_of_a_lost_task_are_fed_again_whole(repeatable: bool):
    parts: list[Any] = [range(1000), range(1000, 2000), range(2000, 3000)]
    with Tasks(2) as tasks:
        lost = tasks.feed(0)
        seen: list[Any] = []
        tasks.run(lambda: seen.extend(lost.next_batch(300) + lost.next_batch(300)))
        fed = tasks.run(tasks.feeder.train, parts if repeatable else [iter(part) for part in parts])
        until(lambda: len(seen) == 600)
        tasks.feeder.lost("worker/0", 0, "killed")
        rest = tasks.feed(1)
        got = list(itertools.islice(iter(lambda: rest.next_batch(500), None), 6))
        tasks.run(lambda: rest.next_batch(1))
        fed.join(20)
        assert not fed.is_alive()
        assert sorted(flat([got])) == list(range(3000))
        assert seen == list(range(600))


def test_exactly_once_raises_instead_of_feeding_again():
    with Tasks(2, exactly_once=True) as tasks:
        feed = tasks.feed(0)
        tasks.run(feed.next_batch, 10)
        tasks.run(_lose, tasks, "worker/0", lambda: feed._stream().rows.given)
        with pytest.raises(FeedError, match="exactly_once"):
            tasks.feeder.train([range(100)])


def test_memory_is_bounded_when_the_consumer_is_slow():
    made = 0

    def lines() -> Iterator[str]:
        nonlocal made
        for made in range(10_000_000):
            yield f"{made:07d}" + "x" * 193

    with Tasks(1) as tasks:
        feed = tasks.feed()
        fed = tasks.run(tasks.feeder.train, partitions([lines()]))
        assert len(feed.next_batch(10)) == 10
        until(lambda: made * 200 > WINDOW)
        before = -1
        while before != made:
            before = made
            time.sleep(0.3)
        assert made * 200 < WINDOW + (8 << 20)
        feed.next_batch(20_000)
        until(lambda: made > before)
        tasks.feeder.fail(FeedError("enough"))
        fed.join(20)
    assert [str(error) for error in tasks.faults] == ["enough"]


def test_a_batch_can_be_bigger_than_the_window():
    many = 3 * WINDOW // 200
    with Tasks(1) as tasks:
        feed = tasks.feed()
        fed = tasks.run(tasks.feeder.train, ["x" * 200] * many)
        assert len(feed.next_batch(many - 7)) == many - 7
        assert len(feed.next_batch(many)) == 7
        tasks.run(feed.next_batch, 1)
        fed.join(20)
        assert not fed.is_alive()


def echo(feed: DataFeed) -> None:
    while not feed.should_stop():
        feed.batch_results(feed.next_batch(1000))


def test_rows_and_results_go_over_the_network():
    with Tasks(1) as tasks:
        feed = DataFeed(tasks.connect(0, pair=tcp_pair), train_mode=False)
        tasks.run(echo, feed)
        assert list(tasks.feeder.inference(uneven(30_000))) == list(range(30_000))
        options = [sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for sock in tasks.links]
        assert options == [1]
        tasks.finish()
        feed.close()


def test_two_feeds_at_once():
    with Tasks(2, feeds=("input", "validation")) as tasks:
        train = tasks.collect(qname_in="input")
        check = tasks.collect(qname_in="validation")
        other = tasks.run(lambda: tasks.feeder.train(uneven(50_000), qname="validation"))
        tasks.feeder.train(uneven(100_000))
        other.join(20)
        tasks.finish()
    assert sorted(flat(train)) == list(range(100_000))
    assert sorted(flat(check)) == list(range(50_000))


def test_small_data_go_to_all_tasks_even_if_one_comes_late():
    with Tasks(2) as tasks:
        first = tasks.feed(0)
        got: list[list[Any]] = [[], []]

        def read(feed: Any, into: list[Any]) -> None:
            while not feed.should_stop():
                into += feed.next_batch(10)
                until(lambda: got[1])

        tasks.run(read, first, got[0])
        fed = tasks.run(tasks.feeder.train, partitions([range(n * 10, n * 10 + 10) for n in range(20)]))
        until(lambda: got[0])
        tasks.run(read, tasks.feed(1), got[1])
        fed.join(20)
        tasks.finish()
    assert sorted(got[0] + got[1]) == list(range(200))
    assert got[0] and got[1]


def test_tasks_that_want_no_more_end_the_call():
    with Tasks(2) as tasks:
        taken = []

        def some(worker: int) -> None:
            feed = tasks.feed(worker)
            taken.append(feed.next_batch(10))
            feed.terminate()
            assert feed.should_stop() and feed.next_batch(10) == []

        tasks.run(some, 0)
        tasks.run(some, 1)
        tasks.feeder.train(partitions(range(n, n + 1000) for n in itertools.count()))
        tasks.finish()
        tasks.feeder.close()
    assert [len(batch) for batch in taken] == [10, 10]


def test_tasks_that_want_no_more_and_end_at_once_end_the_call():
    with Tasks(1) as tasks:
        feed = tasks.feed(0)
        fed = tasks.run(tasks.feeder.train, partitions(range(n, n + 1000) for n in itertools.count()))
        assert len(feed.next_batch(10)) == 10
        with tasks.feeder._lock:  # the one who waits sees both at once
            feed.terminate()
            link = tasks.feeder._feeds["input"].links["worker/0"]
            link.terminate()
            tasks.feeder.lost("worker/0", 0, "ended with 0")
        fed.join(20)
        assert not fed.is_alive() and not tasks.faults


def test_a_task_that_wants_no_more_and_ends_while_rows_are_made_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Link, "wait_for_end", lambda *_: None)  # the one who waits sees both at once
    entered, released = threading.Event(), threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        entered.set()
        released.wait(40)
        yield 2

    with Tasks(1) as tasks:
        feed = tasks.feed(0)
        fed = tasks.run(tasks.feeder.train, partitions([range(1000), slow()]))
        assert len(feed.next_batch(10)) == 10
        assert entered.wait(40)
        with tasks.feeder._lock:
            feed.terminate()
            tasks.feeder._feeds["input"].links["worker/0"].terminate()
            tasks.feeder.lost("worker/0", 0, "ended with 0")
        released.set()
        fed.join(20)
        assert not fed.is_alive() and not tasks.faults


def test_what_a_lost_task_had_is_not_wanted_once_the_last_one_wants_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Link, "wait_for_end", lambda *_: None)  # the one who waits sees all at once
    with Tasks(2) as tasks:
        feeds = tasks.feed(0), tasks.feed(1)
        fed = tasks.run(tasks.feeder.train, partitions(range(n, n + 1000) for n in itertools.count()))
        assert [len(feed.next_batch(10)) for feed in feeds] == [10, 10]
        with tasks.feeder._lock:
            tasks.feeder._feeds["input"].links["worker/0"].terminate()
            tasks.feeder.lost("worker/1", 0, "killed")
            tasks.feeder.lost("worker/0", 0, "ended with 0")
        fed.join(20)
        assert not fed.is_alive() and not tasks.faults


def test_what_iterating_the_data_raises_is_raised():
    def wrong() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError("the user's")

    with Tasks(1) as tasks:
        tasks.feed().should_stop()
        with pytest.raises(ZeroDivisionError, match="the user's"):
            tasks.feeder.train(partitions([wrong()]))
        with pytest.raises(ZeroDivisionError, match="by zero"):
            tasks.feeder.train(partitions(range(10 // n) for n in [5, 0]))


def test_a_job_that_fails_is_known_while_the_data_are_slow():
    released, late = threading.Event(), []

    def stuck() -> Iterator[int]:
        yield 1
        late.append(not released.wait(40))

    with Tasks(1) as tasks:
        tasks.feed().should_stop()
        timer = threading.Timer(0.2, tasks.feeder.fail, [FeedError("worker/0 was killed")])
        timer.start()
        with pytest.raises(FeedError, match="was killed"):
            tasks.feeder.train(partitions([stuck()]))
        assert not late
        released.set()
        timer.join()


def test_when_no_task_is_left_it_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(patience, "LONELY", 0.4)
    with Tasks(1) as tasks:
        threading.Thread(target=tasks.feeder.lost, args=["worker/0", 0, "killed"]).start()
        with pytest.raises(FeedError, match="no task is left to take its rows: worker/0 killed"):
            tasks.feeder.train([range(10)])


def test_rows_that_cannot_be_sent_are_shown():
    with Tasks(1) as tasks:
        tasks.feed().should_stop()
        with pytest.raises(FeedError, match="rows such as .*lock.* can't be sent"):
            tasks.feeder.train(rows([threading.Lock()]))


def test_epochs_and_calls_follow_each_other():
    with Tasks(1) as tasks:
        [batches] = tasks.collect(1, batch=7)
        tasks.feeder.train(list(range(10)), epochs=3)
        assert [len(batch) for batch in batches] == [7, 7, 7, 7, 2], "short only where the call ends"
        tasks.feeder.train(list(range(5)))
        tasks.finish()
        with pytest.raises(FeedError, match="has ended"):
            tasks.feeder.train([1])
    assert sorted(flat([batches])) == sorted([*range(10)] * 3 + [*range(5)])


def test_what_can_not_be_is_refused_at_once():
    with Tasks(1) as tasks:
        with pytest.raises(FeedError, match="no feed 'other'; there is input"):
            tasks.feeder.train([1], qname="other")
        with pytest.raises(FeedError, match="batch_size"):
            tasks.feeder.train([1], equal="drop")
        with pytest.raises(InputError):
            tasks.feeder.train(7)
        with pytest.raises(FeedError, match="there is no such feed; there is input"):
            tasks.feed(qname_in="other").next_batch(1)
        with pytest.raises(FeedError, match="worker/5 is not fed"):
            tasks.feed(5).next_batch(1)


def test_partitions_that_are_code_run_beside_the_task():
    with Tasks(2) as tasks:
        got = tasks.collect(batch=50)
        tasks.feeder.train(
            [lambda start=start: range(start, start + 1234) for start in range(0, 12340, 1234)]
        )
        tasks.finish()
    assert sorted(flat(got)) == list(range(12340))


@pytest.mark.parametrize(("how", "rounds"), [("drop", 8), ("pad", 9), ("repeat", 9)])
def test_equal_numbers_of_batches(how: str, rounds: int):
    with Tasks(3) as tasks:
        got = tasks.collect(3, batch=4)
        tasks.feeder.train(list(range(100)), equal=how, batch_size=4)
        tasks.finish()
    sizes = [[len(batch) for batch in batches if batch] for batches in got]
    assert sizes == [[4] * rounds] * 3
    assert set(flat(got)) == set(range(96 if how == "drop" else 100))


@pytest.mark.parametrize("batches", [0, 20])
def test_equal_batches_can_not_do_without_a_task(batches: int):
    with Tasks(2) as tasks:
        got = tasks.collect(2, batch=4)
        tasks.run(_lose, tasks, "worker/1", lambda: len(got[1]) >= batches)
        with pytest.raises(FeedError, match=r"worker/1 is lost( \(killed by signal 9\))?, and equal batches"):
            tasks.feeder.train(rows(iter(range(1 << 40))), equal="drop", batch_size=4)
        tasks.feeder.close()
    assert {type(fault) for fault in tasks.faults} == {FeedError}, tasks.faults


def test_a_task_that_is_started_again_gets_rows_again():
    with Tasks(1) as tasks:
        fed = tasks.run(tasks.feeder.train, partitions([range(1000)]))
        assert tasks.feed(0).next_batch(10) == list(range(10))
        tasks.feeder.lost("worker/0", 0, "killed", again=True)
        feed = tasks.feed(0, attempt=1)
        assert feed.next_batch(2000) == list(range(1000))
        tasks.run(feed.next_batch, 1)
        fed.join(20)
        assert not fed.is_alive()


def test_a_task_that_has_ended_for_good_can_still_be_started_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(patience, "LONELY", 0.4)
    with Tasks(1) as tasks:
        tasks.feeder.lost("worker/0", 1, "killed")
        with pytest.raises(FeedError, match="no task is left"):
            tasks.feeder.train([1])
        with pytest.raises(FeedError, match="worker/0 has ended"):
            tasks.feed(0, attempt=1).next_batch(1)
        [batches] = tasks.collect(1, attempt=2)
        until(lambda: tasks.feeder._feeds["input"].links)
        tasks.feeder.train([1, 2, 3])
        tasks.finish()
    assert flat([batches]) == [1, 2, 3]
