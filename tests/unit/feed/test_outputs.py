"""Results as files, by a feeder and a task over real connections: what breaks, and what no file contains."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.common.errors import InputError, LaunchError
from launcher.feed.outputs import output_folder
from launcher.feed.remote import outputs
from launcher.feed.remote.frames import hang_up
from launcher.feed.remote.outputs import OutputFile, OutputPartition
from launcher.feed.sources import partitions
from tests.conftest import examples
from tests.seeing import soon
from tests.unit.feed.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as lab:
        yield lab


def infer(lab: Lab, data: Any, folder: Path, names: list[str]) -> None:
    with output_folder("inference", str(folder)) as output:
        names += map(output.name_of, lab.feeder.inference(data, output=output))


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples(40))
@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=8), st.integers(1, 40), st.integers(0, 60)
)
def test_any_partitions(sizes: list[tuple[int, bool]], batch: int, lag: int):
    """However the function cuts batches, and however late its results come, each file has its own."""
    ends = [0, *itertools.accumulate(size for size, _ in sizes)]
    parts = [range(first, last) for first, last in itertools.pairwise(ends)]
    data = [part if sent else lambda part=part: part for part, (_, sent) in zip(parts, sizes, strict=True)]
    names: list[str] = []
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder)) as lab:
        feed = lab.feed(train_mode=False)
        call = lab.run(infer, lab, partitions(data), Path(folder, "out"), names)
        late: list[int] = []
        read = 0
        while read < ends[-1]:
            late += (rows := feed.next_batch(batch))
            read += len(rows)
            # With the last row all results must come, because no more rows will.
            ready = len(late) if read == ends[-1] else max(0, len(late) - lag)
            feed.batch_results(late[:ready])
            del late[:ready]
        lab.run(feed.next_batch, 1)
        call.join(20)
        lab.finish()
        found = [[int(line) for line in Path(name).read_text().split()] for name in names]
    assert found == [[*part] for part in parts if part]


def test_a_connection_that_breaks_begins_a_partition_again(lab: Lab, tmp_path: Path):
    """Also one whose rows were all read, and one whose results are half there."""
    names: list[str] = []
    feed, target = lab.feed(train_mode=False), tmp_path / "out"
    data = [range(10), lambda: range(10, 30), range(30, 40)]
    call = lab.run(infer, lab, partitions(data), target, names)
    assert feed.next_batch(20) == [*range(10)]
    assert feed.next_batch(20) == [*range(10, 30)]
    feed.batch_results([*range(10), *range(10, 15)])
    soon(lambda: os.listdir(target) == ["part-00000.txt"])
    hang_up(lab.peers[-1].sock)
    soon(lambda: len(lab.peers) == 2)
    feed.batch_results(["of the old connection"] * 15)
    for rows in (range(10, 30), range(30, 40)):
        assert feed.next_batch(20) == [*rows]
        feed.batch_results([f"again {row}" for row in rows])
    lab.run(feed.next_batch, 1)
    call.join(20)
    lab.finish()
    assert names == [str(target / f"part-0000{number}.txt") for number in range(3)]
    found = [line for name in names for line in Path(name).read_text().splitlines()]
    assert found == [*map(str, range(10)), *(f"again {row}" for row in range(10, 40))]
    assert len(os.listdir(target)) == 3


def test_results_of_rows_that_are_not_stored_come_first(lab: Lab, tmp_path: Path):
    """The program has ended an inference before its results came, and begins one with files."""
    names: list[str] = []
    feed = lab.feed(train_mode=False)
    results = lab.feeder.inference(partitions([range(4)]))
    first = lab.run(next, results)
    assert feed.next_batch(4) == [*range(4)]
    feed.batch_results([0])
    first.join(20)
    results.close()  # type: ignore[attr-defined]
    call = lab.run(infer, lab, partitions([range(5), range(5, 8)]), tmp_path / "out", names)
    assert feed.next_batch(9) == [*range(5)]
    assert feed.next_batch(9) == [*range(5, 8)]
    feed.batch_results(["owed"] * 3 + ["new"] * 7)
    feed.batch_results(["new"])
    lab.run(feed.next_batch, 1)
    call.join(20)
    lab.finish()
    assert [Path(name).read_text() for name in names] == ["new\n" * 5, "new\n" * 3]


@pytest.fixture
def file() -> Iterator[OutputFile]:
    file = OutputFile(OutputPartition(list, "file:///x", ""), first=0)
    file.rows = 3
    yield file
    file.close()


@pytest.mark.parametrize(
    ("results", "problem"),
    [
        ([None], "results of type NoneType; expected with output=: texts"),
        ([["a"]], "results of type list"),
        ([numpy.zeros(2)], "results of type ndarray"),
        ([1, b"x"], "results of several kinds in one partition, such as 1"),
        (["a", "b\nc"], r"'b\\nc' contains a line end"),
        (["a\r"], r"'a\\r' contains a line end"),
        (["\ud800"], "surrogates not allowed"),
        ([{"a": b"x"}], "bytes is no type of JSON"),
        ([{"a": {1, 2}}], "set is no type of JSON"),
        ([{(1, 2): 3}], "keys must be str"),
        ([{"a": float("nan")}], "not JSON compliant"),
    ],
)
def test_results_that_no_file_contains(file: OutputFile, results: list[Any], problem: str):
    with pytest.raises(InputError, match=problem):
        file.add(results)


def test_kinds_differ_between_batches(file: OutputFile):
    file.add([{}])
    with pytest.raises(InputError, match="several kinds in one partition, such as 'text'"):
        file.add(["text"])


def test_records_need_checksums(file: OutputFile, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outputs, "crc32c_function", lambda: None)
    with pytest.raises(LaunchError, match="checksums need google-crc32c .*pip install google-crc32c"):
        file.add([b"x"])


def test_messages_do_not_contain_the_url():
    partition = OutputPartition(list, "hdfs://me:secret@host/x", "")
    assert "secret" not in f"{partition!r} {partition}"
