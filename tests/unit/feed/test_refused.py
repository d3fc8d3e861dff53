"""What can't be sent or can't be understood: an error on both sides, at once, and no endless coming again."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from launcher.api.serialize import dumps
from launcher.errors import FeedError, LaunchError
from launcher.feed import cutting
from launcher.feed.cutting import Cutter
from launcher.feed.partitions import partitions_of
from launcher.feed.remote import frames
from launcher.feed.remote.frames import Kind, check_size, send_frame
from tests.unit.feed.feeding import Tasks, until


def test_the_first_rows_may_be_as_big_as_they_like():
    [partition] = partitions_of([iter([bytes(3_000_000)] * 20)], 1)
    assert [chunk.rows for chunk in Cutter().cut(partition)] == [1] * 20


def test_rows_that_grow_are_cut_once_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cutting, "FAR_TOO_BIG", 4 << 20)
    rows = [b"x"] * 5000 + [bytes(1_000_000)] * 100
    [partition] = partitions_of([iter(rows)], 1)
    chunks = list(Cutter().cut(partition))
    assert sum(chunk.rows for chunk in chunks) == len(rows)
    assert all(chunk.size <= 4 << 20 for chunk in chunks)


def test_a_row_that_no_frame_holds_is_an_error_of_train(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames, "MOST_BYTES", 1 << 20)
    with Tasks(1) as tasks:
        tasks.collect(1)
        with pytest.raises(FeedError, match="a row would have 2,000,0.. bytes; at most 983,040 bytes"):
            tasks.feeder.train([bytes(2_000_000)])
        tasks.feeder.train([b"small"])
        tasks.finish()
        assert len(tasks.links) == 1


def test_results_and_arguments_that_no_frame_holds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames, "MOST_BYTES", 1 << 20)
    with Tasks(1) as tasks:
        feed = tasks.feed(train_mode=False)
        tasks.run(lambda: list(tasks.feeder.inference([range(10)])))
        feed.next_batch(1)
        with pytest.raises(FeedError, match="1 results would have 2,000,0.. bytes"):
            feed.batch_results([bytes(2_000_000)])
        tasks.feeder.fail(FeedError("over"))
    with pytest.raises(LaunchError, match="its arguments can't be sent .* it would have 2,000,0.. bytes"):
        dumps("run", "its arguments", bytes(2_000_000))


def test_too_many_pieces():
    with pytest.raises(FeedError, match="rows would have 0 bytes in 70,000 pieces"):
        check_size([b""] * 70_000, "rows")


def test_a_frame_that_can_not_be_is_an_error_of_the_task():
    with Tasks(1) as tasks:
        feed = tasks.feed()
        assert not feed.should_stop()
        until(lambda: tasks.feeder._feeds["input"].links)
        link = tasks.feeder._feeds["input"].links["worker/0"]
        until(lambda: link.sock)
        assert link.sock is not None
        send_frame(link.sock, Kind.CHUNK, [b"no head"])
        with pytest.raises(FeedError, match="what the driver sends can't be understood: a frame that can't"):
            feed.next_batch(1)
        assert len(tasks.links) == 1


def unreadable(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An object of a class that whoever reads it has not."""
    module = ModuleType("not_with_the_driver")
    module.Odd = type("Odd", (), {"__module__": module.__name__})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.Odd()


def test_results_that_the_driver_can_not_read(monkeypatch: pytest.MonkeyPatch):
    with Tasks(1) as tasks:
        feed = tasks.feed(train_mode=False)

        def answer() -> None:
            feed.batch_results([unreadable(monkeypatch) for _ in feed.next_batch(5)])
            feed.next_batch(5)

        monkeypatch.setattr("launcher.feed.remote.intake.send_frame", late(monkeypatch))
        tasks.run(answer)
        with pytest.raises(FeedError, match="worker/0: results that came can't be read by the driver"):
            list(tasks.feeder.inference([range(5)], feed_timeout=30))
        until(lambda: tasks.faults)
        assert "can't be read by the driver (No module named 'not_with" in str(tasks.faults[0])
        assert len(tasks.links) <= 3


def late(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`send_frame` that lets results go only when their class is here no more."""

    def send(sock: Any, kind: int, buffers: Any = ()) -> None:
        if kind == Kind.RESULTS:
            sys.modules.pop("not_with_the_driver", None)
        send_frame(sock, kind, buffers)

    return send


def test_rows_that_would_end_a_program_are_an_error_of_train():
    def rows() -> Any:
        yield (1,)
        raise SystemExit("bad --data option")

    def skipped() -> Any:
        pytest.skip("not today")

    with Tasks(1) as tasks:
        tasks.feed().should_stop()
        with pytest.raises(FeedError, match="reading the rows ended with SystemExit: bad --data") as caught:
            tasks.feeder.train(rows(), feed_timeout=20)
        assert isinstance(caught.value.__cause__, SystemExit)
        with pytest.raises(FeedError, match="ended with Skipped: not today"):
            tasks.feeder.train((skipped() for _ in "a"), feed_timeout=20)


def test_rows_before_a_pause_of_their_source_arrive():
    with Tasks(1) as tasks:
        [got] = tasks.collect(1, batch=1)
        done: list[int] = []

        def live() -> Any:
            yield from range(5)
            until(lambda: sum(map(len, got)) == 5)
            done.append(1)

        tasks.feeder.train(live(), feed_timeout=45)
        tasks.finish()
        assert done
