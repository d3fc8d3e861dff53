"""A feeder and tasks over real connections: no row lost, results in order, bounded memory, clear errors."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from launcher.errors import FeedError, FeedTimeout, InputError
from launcher.feed import call
from launcher.feed.channel import WINDOW
from launcher.feed.remote import data_feed, frames
from launcher.feed.remote.frames import Kind, recv_frame, send_frame
from launcher.feed.sources import partitions, rows
from tests.local.seeing import soon
from tests.unit.feed.lab import Lab, connector, flat, uneven

MANY = 300_003


def endless() -> Iterator[range]:
    return (range(n, n + 1000) for n in itertools.count())


def double(row: int) -> int:
    return 2 * row


# ---------------------------------------------------------------------------------------- every row


@pytest.mark.parametrize("tcp", [False, True])
def test_every_row_arrives_once(tmp_path: Path, tcp: bool):
    with Lab(tmp_path, tcp=tcp) as lab:
        got = lab.read()
        lab.feeder.train(uneven(MANY))
        lab.finish()
    assert sorted(flat(got)) == list(range(MANY)) and all(got)
    assert len([1 for batches in got for batch in batches if len(batch) != 500]) <= 4  # the last ones


@pytest.mark.timeout(180)
@pytest.mark.parametrize("inference", [False, True])
def test_broken_connections_cost_no_row_and_no_result(tmp_path: Path, inference: bool):
    """Rows in flight may come twice; results are exact."""
    many, dice = 100_000, random.Random(1)
    with Lab(tmp_path) as lab:
        over = threading.Event()

        def break_connections() -> None:
            while not over.wait(dice.random() * 0.5):
                for peer in lab.peers[-2:]:
                    frames.hang_up(peer.sock)

        def parts() -> Iterator[range]:
            for part in uneven(many):
                yield part
                if part.start > many // 2:
                    soon(lambda: len(lab.peers) > 6)

        if inference:
            lab.answer(double)
        else:
            got = lab.read(batch=200)
        breaking = lab.run(break_connections)
        if inference:
            assert list(lab.feeder.inference(parts())) == [2 * row for row in range(many)]
        else:
            lab.feeder.train(parts())
        over.set()
        breaking.join()
        lab.finish()
    if not inference:
        assert set(flat(got)) == set(range(many))


@pytest.mark.parametrize("repeatable", [True, False])
def test_partitions_of_a_lost_task_are_fed_again_whole(tmp_path: Path, repeatable: bool):
    parts: list[Any] = [range(1000), range(1000, 2000), range(2000, 3000)]
    with Lab(tmp_path) as lab:
        lost, rest = lab.feed(0), lab.feed(1)
        fed = lab.run(lab.feeder.train, partitions(parts if repeatable else map(iter, parts)))
        assert lost.next_batch(300) + lost.next_batch(300) == list(range(600))
        lab.feeder.lost("worker/0", 1, "killed")
        got = [rest.next_batch(500) for _ in range(6)]
        lab.run(rest.next_batch, 1)
        fed.join(20)
        assert not fed.is_alive() and sorted(flat([got])) == list(range(3000))


def test_rows_of_a_lost_task_do_not_wait_for_the_source(tmp_path: Path):
    more = threading.Event()

    def live() -> Iterator[range]:
        yield range(10)
        more.wait(40)

    with Lab(tmp_path) as lab:
        first, second = lab.feed(0), lab.feed(1)
        fed = lab.run(lab.feeder.train, live())
        assert first.next_batch(5) == list(range(5))
        lab.run(first.next_batch, 10)
        lab.feeder.lost("worker/0", 1, "killed")
        assert second.next_batch(10) == list(range(10)) and not more.is_set()
        second.terminate()
        more.set()
        fed.join(20)
        lab.errors.clear()  # of the task that was lost


def test_exactly_once_raises_instead(tmp_path: Path):
    with Lab(tmp_path, exactly_once=True) as lab:
        feed = lab.feed(0)
        taken = lab.run(feed.next_batch, 10)
        fed = lab.run(lab.feeder.train, [range(100)])
        taken.join(20)
        lab.feeder.lost("worker/0", 1, "killed by signal 9")
        fed.join(20)
    assert "worker/0 is lost (killed by signal 9); it had not consumed all" in str(lab.errors[0])


def test_a_task_that_is_started_again_is_fed(tmp_path: Path):
    with Lab(tmp_path, 1) as lab:
        fed = lab.run(lab.feeder.train, partitions([range(1000)]))
        assert lab.feed(0).next_batch(10) == list(range(10))
        lab.feeder.lost("worker/0", 1, "killed")
        feed = lab.feed(0, attempt=2)
        assert feed.next_batch(2000) == list(range(1000))
        feed.terminate()
        fed.join(20)
        lab.feeder.lost("worker/0", 2, "killed")
        with pytest.raises(FeedError, match="no task is left to take its rows: worker/0 killed"):
            lab.feeder.train([1])
        with pytest.raises(FeedError, match="worker/0 has ended"):
            lab.feed(0, attempt=2).next_batch(1)


def test_a_new_attempt_waits_until_the_end_of_the_old_one_is_known(tmp_path: Path):
    with Lab(tmp_path, 1) as lab:
        fed = lab.run(lab.feeder.train, partitions([range(1000)]))
        assert lab.feed(0).next_batch(10) == list(range(10))
        feed, got = lab.feed(0, attempt=2), list[int]()
        lab.run(lambda: got.extend(feed.next_batch(1000)))
        soon(lambda: len(lab.peers) > 2)
        assert not got
        lab.feeder.started("worker/0", 2)
        soon(lambda: got == list(range(1000)))
        feed.terminate()
        fed.join(20)


def test_memory_is_bounded_when_the_function_is_slow(tmp_path: Path):
    made = 0

    def lines() -> Iterator[str]:
        nonlocal made
        for made in itertools.count():
            yield f"{made:07d}" + "x" * 193

    with Lab(tmp_path, 1) as lab:
        feed = lab.feed()
        lab.run(lab.feeder.train, partitions([lines()]))
        assert len(feed.next_batch(10)) == 10
        soon(lambda: made * 200 > WINDOW)
        before = -1
        while before != made:
            before = made
            time.sleep(0.3)
        assert made * 200 < WINDOW + (8 << 20)
        assert len(feed.next_batch(3 * WINDOW // 200)) == 3 * WINDOW // 200  # a batch larger than the window
        lab.feeder.fail(FeedError("enough"))


def test_calls_epochs_and_feeds(tmp_path: Path):
    with Lab(tmp_path, 1, feeds=("input", "tests")) as lab:
        [batches], [tests] = lab.read(1, batch=7), lab.read(1, qname_in="tests")
        other = lab.run(lab.feeder.train, uneven(5000), qname="tests")
        lab.feeder.train(list(range(10)), epochs=3)
        assert [len(batch) for batch in batches] == [7, 7, 7, 7, 2]  # short only where the call ends
        lab.feeder.train([lambda n=n: range(n, n + 5) for n in (0, 5)])
        other.join(20)
        lab.finish()
        with pytest.raises(FeedError, match="has ended"):
            lab.feeder.train([1])
    assert Counter(flat([batches])) == Counter([*range(10)] * 4)
    assert sorted(flat([tests])) == list(range(5000))


@pytest.mark.parametrize(("equal", "rounds"), [("drop", 8), ("pad", 9), ("repeat", 9)])
def test_equal_numbers_of_batches(tmp_path: Path, equal: str, rounds: int):
    with Lab(tmp_path, 3) as lab:
        got = lab.read(3, batch=4)
        lab.feeder.train(list(range(100)), equal=equal, batch_size=4)
        lab.finish()
    assert [[len(batch) for batch in batches if batch] for batches in got] == [[4] * rounds] * 3
    assert set(flat(got)) == set(range(96 if equal == "drop" else 100))


def test_small_data_go_to_all_tasks(tmp_path: Path):
    with Lab(tmp_path) as lab:
        first, second = lab.feed(0), lab.feed(1)
        lab.run(lab.feeder.train, range(16))
        assert first.next_batch(1) and second.next_batch(1)
        first.terminate()
        second.terminate()


def test_equal_batches_need_all_tasks(tmp_path: Path):
    with Lab(tmp_path) as lab:
        got = lab.read(batch=4)
        fed = lab.run(lab.feeder.train, rows(iter(range(1 << 40))), equal="drop", batch_size=4)
        soon(lambda: len(got[1]) > 20)
        lab.feeder.lost("worker/1", 1, "killed")
        fed.join(20)
        assert "worker/1 is lost (killed); equal batches" in str(lab.errors)
        with pytest.raises(FeedError, match="worker/1 is lost"):
            lab.feeder.train([1], equal="drop", batch_size=1)


def test_equal_batches_after_a_connection_has_broken(tmp_path: Path):
    with Lab(tmp_path) as lab:
        first, second = lab.feed(0), lab.feed(1)
        fed = lab.run(lab.feeder.train, list(range(4000)), equal="drop", batch_size=4)
        assert first.next_batch(4) and second.next_batch(4)
        frames.hang_up(lab.peers[0].sock)
        fed.join(20)
        assert re.search(r"worker/\d is lost \(.*\); equal batches", str(lab.errors))


@pytest.mark.parametrize("batches", [(1, 5, 30), (0, 0, 7), (20, 20, 20)])
def test_equal_batches_when_all_tasks_start_again(tmp_path: Path, batches: tuple[int, ...]):
    """The rounds that not all have consumed are fed to all again; some attempts have not consumed any."""
    with Lab(tmp_path, 3) as lab:
        fed = lab.run(lab.feeder.train, list(range(1200)), equal="drop", batch_size=4)
        consumed = []
        for worker, count in enumerate(batches):
            feed = lab.feed(worker)
            consumed.append([feed.next_batch(4) for _ in range(count)][:-1])
        assert fed.is_alive()
        lab.feeder.restarting({f"worker/{worker}": 1 for worker in range(3)})
        for peer in lab.peers:
            frames.hang_up(peer.sock)
        again = lab.read(3, batch=4, attempt=2)
        fed.join(20)
        lab.feeder.train(list(range(1200, 2400)), equal="drop", batch_size=4)
        lab.finish()
    numbers = {sum(map(bool, each)) for each in again}
    assert len(numbers) == 1 and numbers.pop() >= 200 - min(batches)
    assert {len(batch) for each in again for batch in each} <= {0, 4}
    assert set(flat(consumed)) | set(flat(again)) == set(range(2400))


def test_a_task_that_starts_again_is_waited_for(tmp_path: Path):
    """The wait before its start is not limited by ``feed_timeout``; from its start on the limit holds."""
    with Lab(tmp_path, 1) as lab:
        lab.run(lab.feed(0).next_batch, 1)
        fed = lab.run(lab.feeder.train, [range(10)], feed_timeout=0.5)
        soon(lambda: lab.peers)
        lab.feeder.restarting({"worker/0": 1})
        frames.hang_up(lab.peers[0].sock)
        fed.join(2.0)
        assert fed.is_alive()
        lab.feeder.started("worker/0", 2)
        fed.join(20)
        assert any(isinstance(error, FeedTimeout) for error in lab.errors)


def test_equal_batches_after_a_task_has_called_terminate(tmp_path: Path):
    with Lab(tmp_path) as lab:
        [got], other = lab.read(1, batch=4), lab.feed(1)
        fed = lab.run(lab.feeder.train, list(range(4000)), equal="drop", batch_size=4)
        assert len(other.next_batch(4)) == 4
        other.terminate()
        fed.join(20)
        lab.feeder.train(list(range(4000)), equal="drop", batch_size=4)
        lab.finish()
    assert [len(batch) for batch in got if batch] == [4] * 1000


# ---------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("rows", [30_003, 0, 1, 170])
def test_one_result_for_each_row_in_order(tmp_path: Path, rows: int):
    with Lab(tmp_path) as lab:
        lab.answer(double)
        assert list(lab.feeder.inference(uneven(rows))) == [2 * row for row in range(rows)]
        lab.feeder.train(uneven(1000))
        data = [lambda n=n: range(n, n + 999) for n in range(0, 4995, 999)]
        assert list(lab.feeder.inference(data)) == [2 * row for row in range(4995)]
        lab.finish()


def test_a_batch_of_inference_ends_with_its_partition(tmp_path: Path):
    with Lab(tmp_path, 1) as lab:
        feed = lab.feed(train_mode=False)
        results = lab.feeder.inference(partitions([range(150), range(150, 170)]))
        found: list[int] = []
        lab.run(lambda: found.extend(results))
        sizes = []
        for _ in range(3):
            batch = feed.next_batch(100)
            sizes.append(len(batch))
            feed.batch_results(batch)
        assert sizes == [100, 50, 20]
        soon(lambda: len(found) == 170)


def test_results_of_a_lost_task_are_kept(tmp_path: Path):
    with Lab(tmp_path) as lab:
        first, second = lab.feed(0, train_mode=False), lab.feed(1, train_mode=False)
        results = lab.feeder.inference(partitions([range(100)]))
        lab.run(lambda: first.batch_results([("first", row) for row in first.next_batch(30)]))
        found = list(itertools.islice(results, 30))
        lab.feeder.lost("worker/0", 1, "killed")
        lab.run(lambda: second.batch_results([("second", row) for row in second.next_batch(1000)]))
        assert [*found, *results] == [("first" if row < 30 else "second", row) for row in range(100)]


def test_rows_are_read_only_as_results_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(call, "MOST_RESULTS", 1 << 20)
    made = 0

    def data() -> Iterator[Any]:
        nonlocal made
        for made in itertools.count(1):
            yield range(made * 1000, made * 1000 + 1000)

    with Lab(tmp_path) as lab:
        lab.answer(double)
        results: Any = lab.feeder.inference(data())
        assert made == 0
        assert list(itertools.islice(results, 1500)) == [2 * row for row in range(1000, 2500)]
        before = -1
        while before != made:
            before = made
            time.sleep(0.3)
        assert made < 2000
        assert next(results) == 5000
        results.close()
        assert list(lab.feeder.inference(uneven(3000))) == [2 * row for row in range(3000)]
        lab.finish()


def test_results_beyond_the_limit_do_not_stop_the_next_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(call, "MOST_RESULTS", 20_000)

    def slow_at_first(row: int) -> int:
        time.sleep(0.002 if row < 200 else 0)
        return 2 * row

    with Lab(tmp_path) as lab:
        lab.answer(slow_at_first, batch=200)
        data = [range(n, n + 700) for n in range(0, 70_000, 700)]
        assert list(lab.feeder.inference(data)) == [2 * row for row in range(70_000)]
        lab.finish()


def test_too_many_results_or_none(tmp_path: Path):
    with Lab(tmp_path, 1) as lab:
        feed = lab.feed(train_mode=False)
        lab.run(lambda: list(lab.feeder.inference([range(10)], feed_timeout=0.5)))
        assert len(feed.next_batch(4)) == 4
        with pytest.raises(ValueError, match="5 results for 4 rows"):
            feed.batch_results(range(5))
        assert len(feed.next_batch(10)) == 6
        lab.run(feed.next_batch, 10)
        soon(lambda: lab.errors)
        assert "worker/0 asked for more rows, and for 0.5s results are missing" in str(lab.errors[0])


# ---------------------------------------------------------------------------------------- batches


def test_rows_count_as_consumed_when_the_next_batch_is_asked_for(tmp_path: Path):
    with Lab(tmp_path, 1) as lab:
        feed = lab.feed()
        fed = lab.run(lab.feeder.train, [1, 2, 3])
        assert feed.next_batch(10) == [1, 2, 3]
        fed.join(0.3)
        assert fed.is_alive()
        lab.run(feed.next_batch, 1)
        fed.join(20)
        assert not fed.is_alive()
        lab.finish()
        assert feed.should_stop() and feed.next_batch(5) == []


ARRAY = numpy.arange(6).reshape(3, 2)


@pytest.mark.parametrize(
    "data",
    [
        partitions([[(0, 1), (2, 3)], [(4, 5)]]),
        rows([[0, 1], [2, 3], [4, 5]]),
        [{"b": n + 1, "a": n, "c": 0} for n in (0, 2, 4)],
        ARRAY,
        (ARRAY[:, 0], ARRAY[:, 1]),
        {"b": ARRAY[:, 1], "a": ARRAY[:, 0]},
        partitions([[(0, 1)], ARRAY[1:]]),
    ],
    ids=["tuples", "lists", "dicts", "array", "tuple of arrays", "dict of arrays", "mixed"],
)
def test_columns_by_name(tmp_path: Path, data: Any):
    with Lab(tmp_path, 1) as lab:
        feed = lab.feed(input_mapping={"b": "second", "a": "first"})
        lab.run(lab.feeder.train, data)
        batch = feed.next_batch(3)
        expected = {"first": [0, 2, 4], "second": [1, 3, 5]}
        assert {name: list(column) for name, column in batch.items()} == expected
        assert isinstance(batch["first"], numpy.ndarray) is isinstance(data, numpy.ndarray | tuple | dict)
        with pytest.raises(ValueError, match=r"next_batch\(0\)"):
            feed.next_batch(0)
        feed.terminate()


def test_columns_that_rows_do_not_have():
    with pytest.raises(InputError, match="no 'b' in {'a': 1} .* expected the columns a, b of the input_map"):
        data_feed._columns([[{"a": 1}]], {"a": "x", "b": "y"})


def test_functions_that_want_no_more_end_the_call(tmp_path: Path):
    with Lab(tmp_path) as lab:
        feeds = [lab.feed(worker) for worker in (0, 1)]
        fed = lab.run(lab.feeder.train, partitions(endless()))
        for feed in feeds:
            assert len(feed.next_batch(10)) == 10
            feed.terminate()
            assert feed.should_stop() and feed.next_batch(10) == []
        fed.join(20)
        assert not fed.is_alive() and not lab.notices
        with pytest.raises(FeedError, match="terminate"):
            list(lab.feeder.inference([range(10)]))


def test_a_function_that_wants_no_more_gets_no_row_after_a_break(tmp_path: Path):
    with Lab(tmp_path) as lab:
        first, second = lab.feed(0), lab.feed(1)
        first.terminate()
        for connections in range(1, 4):
            soon(lambda number=connections: len(lab.peers) == number)  # type: ignore[misc]
            frames.hang_up(lab.peers[-1].sock)
        got: list[int] = []
        fed = lab.run(lab.feeder.train, partitions([range(30), range(30, 60)]))
        while fed.is_alive():
            got += second.next_batch(30)
            if len(got) == 60:
                second.terminate()
        assert sorted(got) == list(range(60))


# ---------------------------------------------------------------------------------------- errors


def raising(error: BaseException) -> Iterator[int]:
    yield 1
    raise error


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (lambda: partitions([raising(ZeroDivisionError("the user's"))]), ZeroDivisionError, "the user's"),
        (lambda: partitions(10 // n for n in (0,)), ZeroDivisionError, "by zero"),
        (lambda: raising(SystemExit("bad option")), FeedError, "reading the rows ended with SystemExit: bad"),
        (lambda: rows([threading.Lock()]), FeedError, "rows such as .*lock.* can't be sent"),
        (lambda: [bytes(2_000_000)], FeedError, "a row would have 2,000,0.. bytes; at most 983,040"),
        (lambda: 7, InputError, "has no rows"),
    ],
    ids=["rows", "partitions", "exit", "lock", "large", "number"],
)
def test_data_that_cannot_be_fed(
    tmp_path: Path, data: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(frames, "MOST_BYTES", 1 << 20)
    with Lab(tmp_path, 1) as lab:
        [got] = lab.read(1)
        with pytest.raises(error, match=message):
            lab.feeder.train(data())
        lab.feeder.train([5])
        lab.finish()
    assert flat([got])[-1] == 5 and len(lab.peers) == 1


def test_calls_that_are_refused(tmp_path: Path):
    with Lab(tmp_path, 1) as lab:
        with pytest.raises(FeedError, match="no feed 'other'; there is input"):
            lab.feeder.train([1], qname="other")
        with pytest.raises(InputError, match="equal='drop' with batch_size=None"):
            lab.feeder.train([1], equal="drop")
        with pytest.raises(FeedError, match="there is no such feed; there is input"):
            lab.feed(qname_in="other").next_batch(1)
        lab.answer(double, 1)
        results = lab.feeder.inference(range(10))
        next(results)
        with pytest.raises(FeedError, match="being fed already: there is an inference"):
            lab.feeder.train([1])


def test_results_that_the_driver_cannot_read(tmp_path: Path):
    with Lab(tmp_path, 1) as lab, connector(lab.address, 0)("input") as sock:
        sock.settimeout(20)

        def answer() -> None:
            send_frame(sock, Kind.PROGRESS, [bytes(16)])
            recv_frame(sock)
            send_frame(sock, Kind.RESULTS, [b"cnot_there\nOdd\n."])

        lab.run(answer)
        with pytest.raises(FeedError, match="worker/0: results can't be read by the driver .No module named"):
            list(lab.feeder.inference([range(5)]))
        frames_left = iter(lambda: recv_frame(sock), None)
        assert [b"".join(buffers) for kind, buffers in frames_left if kind == Kind.GONE]


@pytest.mark.parametrize("kind", [Kind.PROGRESS, Kind.RESULTS, 77])
def test_an_invalid_frame_is_the_fault_of_its_task(tmp_path: Path, kind: int):
    with Lab(tmp_path, 1) as lab, connector(lab.address, 0)("input") as sock:
        sock.settimeout(20)
        fed = lab.run(lab.feeder.train, partitions(endless()))
        send_frame(sock, Kind.PROGRESS, [bytes(16)])
        assert recv_frame(sock) is not None
        send_frame(sock, kind, [b"nonsense"])
        fed.join(20)
        assert str(lab.errors[0]).startswith("worker/0: ")


def test_a_job_that_fails_while_the_data_are_slow(tmp_path: Path):
    released = threading.Event()

    def stuck() -> Iterator[int]:
        yield 1
        released.wait(40)

    with Lab(tmp_path, 1) as lab:
        assert not lab.feed().should_stop()
        threading.Timer(0.2, lab.feeder.fail, [FeedError("worker/0 was killed")]).start()
        with pytest.raises(FeedError, match="was killed"):
            lab.feeder.train(partitions([stuck()]))
        assert not released.is_set()
        released.set()


def test_slow_rows_are_not_a_timeout(tmp_path: Path):
    def slow() -> Iterator[int]:
        for number in range(3):
            time.sleep(1.2)
            yield number

    with Lab(tmp_path, 1) as lab:
        got = lab.read(1)
        lab.feeder.train(partitions([slow()]), feed_timeout=1.0)
        lab.finish()
    assert flat(got) == [0, 1, 2]


def test_a_driver_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_feed, "MOST_AWAY", 0.5)
    with Lab(tmp_path, 1) as lab:
        feed = lab.feed()
        assert not feed.should_stop()
        soon(lambda: lab.peers)
        lab.listener.close()
        frames.hang_up(lab.peers[0].sock)
        with pytest.raises(FeedError, match="the driver cannot be reached"):
            feed.next_batch(1)


# ---------------------------------------------------------------------------------------- the end


def test_a_driver_that_ends_without_finish(tmp_path: Path):
    with Lab(tmp_path, 1) as lab:
        feed = lab.feed()
        lab.run(lab.feeder.train, [1])
        assert feed.next_batch(1) == [1]
        lab.feeder.close()
        with pytest.raises(FeedError, match="no more rows"):
            feed.next_batch(1)


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ("takes all", "waiting for my thread, which takes results of the feed 'input'"),
        ("ends", "not all were taken"),
        ("waits", "my thread has taken none for 0.5s"),
    ],
)
def test_another_thread_that_takes_results(tmp_path: Path, ends: str, text: str):
    with Lab(tmp_path, 1) as lab:
        lab.answer(double, 1)
        begun, go_on = threading.Event(), threading.Event()
        found: list[int] = []
        results = lab.feeder.inference(range(5000), feed_timeout=0.5 if ends == "waits" else 600)

        def take() -> None:
            with contextlib.suppress(FeedError):
                for result in results:
                    found.append(result)
                    begun.set()
                    if ends == "ends":
                        return
                    go_on.wait(40)

        taking = threading.Thread(target=take, name="my thread")
        taking.start()
        begun.wait(20)
        lab.run(lab.feeder.finish)
        assert soon(lambda: any(text in notice for notice in lab.notices))
        go_on.set()
        taking.join(20)
        lab.finish()
        assert len(found) == 5000 or ends != "takes all"
