"""A feeder and tasks over real connections: no row lost, results in order, bounded memory, clear errors."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from launcher.common.errors import FeedError, InputError
from launcher.feed.remote import columns, connection, frames
from launcher.feed.remote.frames import Kind, reader, recv_frame, send_frame
from launcher.feed.sources import partitions, rows
from tests.seeing import soon
from tests.unit.feed.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as lab:
        yield lab


def endless() -> Iterator[range]:
    return (range(n, n + 1000) for n in itertools.count())


def double(row: int) -> int:
    return 2 * row


# ---------------------------------------------------------------------------------------- every row


def test_calls_epochs_and_feeds(lab: Lab):
    batches, tests = lab.read(batch=7), lab.read(qname_in="tests")
    other = lab.run(lab.feeder.train, [range(3), range(3, 3), range(3, 5000)], qname="tests")
    lab.feeder.train(list(range(10)), epochs=3)
    assert [len(batch) for batch in batches] == [7, 7, 7, 7, 2]  # short only where the call ends
    lab.feeder.train([lambda n=n: range(n, n + 5) for n in (0, 5)])
    other.join(20)
    lab.finish()
    with pytest.raises(FeedError, match="has ended"):
        lab.feeder.train([1])
    assert Counter(itertools.chain.from_iterable(batches)) == Counter([*range(10)] * 4)
    assert sorted(itertools.chain.from_iterable(tests)) == list(range(5000))


# ---------------------------------------------------------------------------------------- results


def test_a_batch_of_inference_ends_with_its_partition(lab: Lab):
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


def test_too_many_results(lab: Lab):
    feed = lab.feed(train_mode=False)
    lab.run(lambda: list(lab.feeder.inference([range(10)])))
    assert len(feed.next_batch(4)) == 4
    with pytest.raises(ValueError, match="5 results for 4 rows"):
        feed.batch_results(range(5))
    lab.feeder.fail(FeedError("enough"))


# ---------------------------------------------------------------------------------------- batches


def test_rows_count_as_consumed_when_the_next_batch_is_asked_for(lab: Lab):
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
Pair: Any = namedtuple("Pair", ["b", "a"])  # noqa: PYI024 - as the programs of users have it
Single: Any = namedtuple("Single", ["index"])  # noqa: PYI024
STRUCTURED = numpy.array([(1, 0), (3, 2), (5, 4)], [("b", int), ("a", int)])
NAMED = {
    "dicts": [{"b": n + 1, "a": n, "c": 0} for n in (0, 2, 4)],
    "dict of arrays": {"b": ARRAY[:, 1], "a": ARRAY[:, 0]},
    "named tuples": [Pair(n + 1, n) for n in (0, 2, 4)],
    "named tuple of arrays": Pair(ARRAY[:, 1], ARRAY[:, 0]),
    "structured array": STRUCTURED,
    "records": rows(list(STRUCTURED)),
    "mixed names": partitions([[Pair(1, 0)], STRUCTURED[1:2], [{"a": 4, "b": 5}]]),
}
UNNAMED = {
    "tuples": partitions([[(0, 1), (2, 3)], [(4, 5)]]),
    "lists": rows([[0, 1], [2, 3], [4, 5]]),
    "array": ARRAY,
    "tuple of arrays": (ARRAY[:, 0], ARRAY[:, 1]),
    "mixed": partitions([[(0, 1)], ARRAY[1:]]),
}


@pytest.mark.promise("columns of fed rows are never exchanged")
@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("form", [*NAMED, *UNNAMED])
def test_columns_by_name(lab: Lab, form: str, order: str):
    """Rows without names have columns in the order of a sorted mapping; any other order is refused."""
    data = (NAMED | UNNAMED)[form]
    mapping = {"a": "first", "b": "second"}
    feed = lab.feed(input_mapping={name: mapping[name] for name in order})
    lab.run(lab.feeder.train, data)
    if form in UNNAMED and order == "ba":
        with pytest.raises(InputError, match="without names.*expected it sorted.*'a': 'first', 'b'"):
            feed.next_batch(3)
    else:
        batch = feed.next_batch(3)
        expected = {"first": [0, 2, 4], "second": [1, 3, 5]}
        assert {name: list(column) for name, column in batch.items()} == expected
        assert isinstance(batch["first"], numpy.ndarray) is isinstance(data, numpy.ndarray | tuple | dict)
    with pytest.raises(ValueError, match=r"next_batch\(0\)"):
        feed.next_batch(0)
    feed.terminate()


@pytest.mark.promise("columns of fed rows are never exchanged")
@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ([{"a": 1}], "no 'b' in {'a': 1}"),
        ([(1, 2, 3)], "3 columns without names"),
        ([(1, 2), (1, 2, 3)], "3 columns without names"),
        (ARRAY[:, :1], "1 column without names"),
        ((ARRAY[:, 0],) * 3, "3 columns without names"),
        (["ab"], "'ab' has no columns"),
        ([1], "1 has no columns"),
        (numpy.arange(2), "has no columns"),
        ([(0, 1), Pair(1, 0)], "with and without names"),
        ([Pair(1, 0), (0, 1)], "with and without names"),
        ([(0, 1), {"a": 0, "b": 1}], "with and without names"),
        ([Single(1)], "no 'a' in Single"),
        (STRUCTURED[["b"]], "no 'a' in"),
    ],
)
def test_columns_that_rows_do_not_have(block: Any, problem: str):
    with pytest.raises(InputError, match=problem) as caught:
        columns.named_columns([block], {"a": "x", "b": "y"})
    assert "input_mapping" in str(caught.value)


@pytest.mark.parametrize(
    ("block", "mapping", "expected"),
    [
        (["ab", "c"], {"a": "x"}, {"x": ["ab", "c"]}),
        ([1, 2], {"a": "x"}, {"x": [1, 2]}),
        ([(1,), (2,)], {"a": "x"}, {"x": [1, 2]}),
        (numpy.arange(2), {"a": "x"}, {"x": [0, 1]}),
        (ARRAY[:, :1], {"a": "x"}, {"x": [0, 2, 4]}),
        (ARRAY[:1], {"a": "x"}, {"x": [[0, 1]]}),
        ([{"a": 3, "b": 4}], {"a": "x"}, {"x": [3]}),
        ([Single(7)], {"index": "x"}, {"x": [7]}),
        ([(5, 6)], {2: "two", 10: "ten"}, {"two": [5], "ten": [6]}),
    ],
)
def test_columns(block: Any, mapping: Any, expected: Any):
    """Where it is the only one of the mapping, values that are not tuples or lists are this column."""
    found = columns.named_columns([block], mapping)
    assert {name: numpy.array(column).tolist() for name, column in found.items()} == expected


def test_a_method_of_tuples_is_no_column():
    with pytest.raises(InputError, match="no 'count' in Single"):
        columns.named_columns([[Single(7)]], {"count": "x"})


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
        (lambda: rows([threading.Lock()]), FeedError, "rows such as .*lock.* cannot be sent"),
        (lambda: [bytes(2_000_000)], FeedError, "a row would have 2,000,0.. bytes; at most 983,040"),
        (lambda: 7, InputError, "has no rows"),
    ],
    ids=["rows", "partitions", "exit", "lock", "large", "number"],
)
def test_data_that_cannot_be_fed(
    lab: Lab, data: Any, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(frames, "MAX_BYTES", 1 << 20)
    batches = lab.read()
    with pytest.raises(error, match=message):
        lab.feeder.train(data())
    lab.feeder.train([5])
    lab.finish()
    assert [*itertools.chain.from_iterable(batches)][-1] == 5 and len(lab.peers) == 1


def test_calls_that_are_refused(lab: Lab):
    with pytest.raises(FeedError, match="no feed 'other'; there is input, tests"):
        lab.feeder.train([1], qname="other")
    with pytest.raises(FeedError, match="unknown feed; expected one of input, tests"):
        lab.feed(qname_in="other").next_batch(1)
    lab.answer(double)
    results = lab.feeder.inference(range(10))
    next(results)
    with pytest.raises(FeedError, match="being fed already: there is an inference"):
        lab.feeder.train([1])


def test_results_that_the_driver_cannot_read(lab: Lab):
    with lab.connect() as sock:
        sock.settimeout(20)
        file = reader(sock)

        def answer() -> None:
            send_frame(sock, Kind.PROGRESS, [bytes(16)])
            recv_frame(file)
            send_frame(sock, Kind.RESULTS, [b"cnot_there\nOdd\n."])

        lab.run(answer)
        with pytest.raises(FeedError, match="worker/0: results cannot be read by .* .No module named"):
            list(lab.feeder.inference([range(5)]))
        frames_left = iter(lambda: recv_frame(file), None)
        assert [b"".join(buffers) for kind, buffers in frames_left if kind == Kind.GONE]


@pytest.mark.parametrize("kind", [Kind.PROGRESS, Kind.RESULTS, 77])
def test_an_invalid_frame_is_the_fault_of_its_task(lab: Lab, kind: int):
    with lab.connect() as sock:
        sock.settimeout(20)
        fed = lab.run(lab.feeder.train, partitions(endless()))
        send_frame(sock, Kind.PROGRESS, [bytes(16)])
        assert recv_frame(reader(sock)) is not None
        send_frame(sock, kind, [b"nonsense"])
        fed.join(20)
        assert str(lab.errors[0]).startswith("worker/0: ")


def test_a_driver_that_is_gone(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection, "MAX_AWAY_SECONDS", 0.5)
    feed = lab.feed()
    assert not feed.should_stop()
    soon(lambda: lab.peers)
    lab.listener.close()
    frames.hang_up(lab.peers[0].sock)
    with pytest.raises(FeedError, match="the driver cannot be reached"):
        feed.next_batch(1)


# ---------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ("takes all", "waiting for my thread, which takes results of the feed 'input'"),
        ("ends", "not all were taken"),
        ("waits", "my thread has taken none for 0.5s"),
    ],
)
def test_another_thread_that_takes_results(lab: Lab, ends: str, text: str):
    lab.answer(double)
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
    soon(lambda: any(text in line for line in lab.told.lines))
    go_on.set()
    taking.join(20)
    lab.finish()
    if ends == "ends":
        with pytest.raises(FeedError, match="shut down before all results were taken"):
            list(results)
    assert len(found) == 5000 or ends != "takes all"
