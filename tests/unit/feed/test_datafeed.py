"""What the function of a task sees of its feed: batches, columns, the end."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import numpy
import pytest

from launcher.errors import FeedError
from launcher.feed.partitions import partitions, rows
from launcher.feed.remote import data_feed as datafeed
from launcher.feed.remote import intake
from launcher.feed.remote.columns import columns
from launcher.feed.remote.data_feed import DataFeed
from tests.unit.feed.feeding import Tasks, until

MAPPING = {"b": "second", "a": "first"}
ARRAY = numpy.arange(6).reshape(3, 2)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([[(1, 2), (3, 4)], [(5, 6)]], {"first": [1, 3, 5], "second": [2, 4, 6]}),
        ([[[1, 2, 9]]], {"first": [1], "second": [2]}),
        ([[{"b": 2, "a": 1, "c": 0}]], {"first": [1], "second": [2]}),
        ([ARRAY[:1], ARRAY[1:]], {"first": [0, 2, 4], "second": [1, 3, 5]}),
        ([(ARRAY[:, 0], ARRAY[:, 1])], {"first": [0, 2, 4], "second": [1, 3, 5]}),
        ([{"b": ARRAY[:, 1], "a": ARRAY[:, 0]}], {"first": [0, 2, 4], "second": [1, 3, 5]}),
        ([[(7, 8)], ARRAY[:1]], {"first": [7, 0], "second": [8, 1]}),
        ([], {"first": [], "second": []}),
    ],
    ids=["tuples", "lists", "dicts", "array", "tuple of arrays", "dict of arrays", "mixed", "nothing"],
)
def test_columns_by_name(pieces: list[Any], expected: dict[str, list[int]]):
    found = columns(pieces, dict(sorted(MAPPING.items())))
    assert {name: list(column) for name, column in found.items()} == expected
    arrays = {type(column) for column in found.values()}
    assert arrays == ({numpy.ndarray} if pieces and not isinstance(pieces[0], list) else {list})


def test_one_name_can_mean_whole_rows_of_an_array():
    assert (columns([ARRAY], {"image": "x"})["x"] == ARRAY).all()
    assert columns([ARRAY[:, :1]], {"image": "x"})["x"].shape == (3,)


def test_columns_that_are_not_there_are_named():
    with pytest.raises(FeedError, match="do not have the columns a, b .* KeyError: 'b'"):
        columns([[{"a": 1}]], dict(sorted(MAPPING.items())))


def test_batches_with_a_mapping_come_from_the_feed():
    with Tasks(1) as tasks:
        feed = tasks.feed(input_mapping=MAPPING)
        fed = tasks.run(tasks.feeder.train, (ARRAY[:, 0], ARRAY[:, 1]))
        batch = feed.next_batch(10)
        assert batch["first"].tolist() == [0, 2, 4] and batch["second"].tolist() == [1, 3, 5]
        tasks.run(feed.next_batch, 1)
        fed.join(20)


def test_rows_of_arrays_are_rows():
    with Tasks(1) as tasks:
        feed = tasks.feed()
        tasks.run(tasks.feeder.train, (numpy.zeros((5, 4)), numpy.arange(5)))
        batch = feed.next_batch(3) + feed.next_batch(2)
        assert [(image.shape, label) for image, label in batch] == [((4,), n) for n in range(5)]
        tasks.feeder.fail(FeedError("over"))


def test_rows_count_as_consumed_when_the_next_batch_is_asked_for():
    with Tasks(1) as tasks:
        feed = tasks.feed()
        fed = tasks.run(tasks.feeder.train, [1, 2, 3])
        assert feed.next_batch(10) == [1, 2, 3]
        fed.join(0.3)
        assert fed.is_alive(), "the function may still be working on them"
        asked = tasks.run(lambda: feed.next_batch(1))
        fed.join(20)
        assert not fed.is_alive()
        tasks.feeder.finish()
        asked.join(20)
        assert feed.should_stop() and feed.next_batch(5) == []


def test_should_stop_says_it_when_the_feed_has_ended():
    with Tasks(1) as tasks:
        feed = tasks.feed()
        assert not feed.should_stop()
        tasks.feeder.finish()
        until(feed.should_stop)


def test_after_terminate_nothing_is_wanted():
    with Tasks(1) as tasks:
        feed = tasks.feed()
        fed = tasks.run(tasks.feeder.train, partitions([range(100_000)] * 100))
        assert len(feed.next_batch(10)) == 10
        feed.terminate()
        assert feed.should_stop() and feed.next_batch(10) == []
        fed.join(20)
        assert not fed.is_alive()
        feed.terminate()


def test_when_a_function_has_returned_its_feeds_want_nothing():
    with Tasks(1) as tasks:
        feed = tasks.feed()
        fed = tasks.run(tasks.feeder.train, rows(range(1000)))
        assert len(feed.next_batch(10)) == 10
        datafeed.end_all()
        fed.join(20)
        assert not fed.is_alive() and not tasks.faults


def test_two_that_are_made_for_one_feed_share_its_rows():
    with Tasks(1) as tasks:
        connect = tasks.connect(0)
        first, second = DataFeed(connect), DataFeed(connect, train_mode=False)
        fed = tasks.run(tasks.feeder.train, [1, 2, 3, 4])
        assert first.next_batch(2) + second.next_batch(1) + first.next_batch(1) == [1, 2, 3, 4]
        second.terminate()
        assert first.should_stop()
        fed.join(20)
        assert not fed.is_alive()
        first.close()
        second.close()


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"next_batch\(0\)"):
        DataFeed(lambda feed: socket.socket()).next_batch(0)


def test_a_feed_that_is_closed_while_it_connects_keeps_no_connection(monkeypatch: pytest.MonkeyPatch):
    coming, closing = threading.Event(), threading.Event()

    def connected(name: str) -> socket.socket:
        coming.set()
        closing.wait(40)
        return connect(name)

    with Tasks(1) as tasks:
        connect = tasks.connect(0)
        feed = DataFeed(connected)
        assert not feed.should_stop()
        assert coming.wait(40)
        thread = feed._stream().intake._thread

        def join(seconds: float) -> None:
            closing.set()  # nothing was there to hang up
            threading.Thread.join(thread, 20)

        monkeypatch.setattr(thread, "join", join)
        feed.close()
        assert not thread.is_alive()


def test_a_driver_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intake, "MOST_AWAY", 0.5)
    with Tasks(1) as tasks:
        gone = False
        connect = tasks.connect(0)

        def connected(name: str) -> socket.socket:
            if gone:
                raise ConnectionRefusedError("nobody there")
            return connect(name)

        feed = DataFeed(connected)
        assert not feed.should_stop()
        until(lambda: tasks.links)
        gone = True
        tasks.links[0].shutdown(socket.SHUT_RDWR)
        since = time.monotonic()
        with pytest.raises(FeedError, match="can't be reached any more: nobody there"):
            feed.next_batch(1)
        assert time.monotonic() - since < 30
        feed.close()


def test_a_driver_that_ends_is_an_error_at_once():
    with Tasks(1) as tasks:
        feed = tasks.feed()
        fed = tasks.run(tasks.feeder.train, [1])
        assert feed.next_batch(1) == [1]
        tasks.feeder.close()
        with pytest.raises(FeedError, match="no more rows"):
            feed.next_batch(1)
        fed.join(20)
        assert "closed" in str(tasks.faults[0])
