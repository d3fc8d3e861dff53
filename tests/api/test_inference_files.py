"""Results of inference as files: what they contain, that each is whole and there once, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from launcher import (
    InputError,
    InputMode,
    LaunchError,
    TaskFailed,
    TextFiles,
    TFCluster,
    TFRecordFiles,
    partitions,
)
from tests.seeing import ROOT, soon
from tests.storage.servers import Servers
from tests.storage.stores import Bucket, Hdfs

FED: dict[str, Any] = {"input_mode": InputMode.FEED, "quiet": True}
pytestmark = pytest.mark.timeout(180)


def echo(args: Any, ctx: Any) -> None:
    """Return each row as its result."""
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results(feed.next_batch(100))


@pytest.fixture
def cluster() -> Iterator[TFCluster]:
    with TFCluster.run(echo, None, 2, **FED) as cluster:
        yield cluster


def lines(names: list[str]) -> list[str]:
    return [line for name in names for line in Path(name).read_text().splitlines()]


@pytest.mark.promise("`inference(output=)` stores each partition as one whole file, also after a restart")
def test_each_partition_becomes_a_file_of_its_kind(cluster: TFCluster, tmp_path: Path):
    target = tmp_path / "new folder" / "100%"
    records = [b"", b"\0\n", numpy.bytes_(b"x")]
    names = cluster.inference(
        partitions(
            [
                ["a", "ä €", "", numpy.str_("z")],
                [],
                [1, 2.5, True, numpy.float32(0.1), numpy.int64(-7), numpy.bool_(False), "and text"],
                lambda: iter(()),
                records,
                [{"a": numpy.arange(3), "b\n": [numpy.float32(0.5), None, "ö"]}, {}],
                numpy.arange(3.0),
            ]
        ),
        output=target,
    )
    assert names == [
        str(target / f"part-{name}")
        for name in ("00000.txt", "00001.txt", "00003.tfrecord", "00004.jsonl", "00005.txt")
    ]
    assert sorted(os.listdir(target)) == [Path(name).name for name in names]
    contents = [Path(name).read_bytes().decode() for name in names if not name.endswith("tfrecord")]
    assert contents[0] == "a\nä €\n\nz\n"
    assert contents[1].split("\n") == ["1", "2.5", "True", "0.1", "-7", "False", "and text", ""]
    rows = [json.loads(line) for line in contents[2].splitlines()]
    assert rows == [{"a": [0, 1, 2], "b\n": [0.5, None, "ö"]}, {}]
    assert contents[3] == "0.0\n1.0\n2.0\n"
    assert list(cluster.inference(TFRecordFiles(names[2]))) == records


def test_order_and_size(cluster: TFCluster, tmp_path: Path):
    """Of many partitions, of rows that are cut, and of results that do not fit into memory."""
    sizes = [number % 5 * 37 for number in range(60)]
    data: list[Any] = [range(1000 * number, 1000 * number + size) for number, size in enumerate(sizes)]
    expected = [str(row) for part in data for row in part]
    forms: list[Any] = [list, iter, numpy.array, lambda part: lambda: part]
    data = [forms[number % 4](part) for number, part in enumerate(data)]
    url = f"file://{tmp_path}/many"
    names = cluster.inference(partitions(data), output=url)
    assert all(name.startswith(f"{url}/part-") for name in names) and len(names) == sum(map(bool, sizes))
    assert lines([name[len("file://") :] for name in names]) == expected
    long = [f"{number}{'x' * 1_000_000}" for number in range(40)]
    names = cluster.inference(partitions([iter(long)]), output=tmp_path / "long")
    assert lines(names) == long and len(names) == 2
    assert lines(cluster.inference(TextFiles(names, read_on_worker=True), output=tmp_path / "again")) == long
    assert lines(cluster.inference((str(n) for n in range(500)), output=tmp_path / "rows")) == [
        str(n) for n in range(500)
    ]


def test_targets_that_are_refused(cluster: TFCluster, tmp_path: Path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".hidden").touch()
    refused: list[tuple[str, Any]] = [
        ("full' is not empty; expected a folder that is empty", tmp_path / "full"),
        ("hidden' is not empty", f"file://{tmp_path}/full/.hidden"),
        ("output=3; expected a text or a path", 3),
        ("cannot be written to a web server", "http://localhost:1/x"),
    ]
    for problem, output in refused:
        with pytest.raises(InputError, match=problem):
            cluster.inference([1], output=output)
    with pytest.raises(LaunchError, match=r"nosuch://x/y: .*Protocol not known: nosuch"):
        cluster.inference([1], output="nosuch://x/y")
    (tmp_path / "empty").mkdir()
    assert lines(cluster.inference([1], output=tmp_path / "empty")) == ["1"], "nothing was fed before"


def test_results_that_cannot_be_stored(tmp_path: Path):
    with (
        pytest.raises(
            TaskFailed, match="several kinds in one partition, such as b'x'; expected with output="
        ),
        TFCluster.run(echo, None, 1, **FED) as cluster,
    ):
        cluster.inference(partitions([[1, 2], [*["a"] * 200, b"x"]]), output=tmp_path / "out")
    assert set(os.listdir(tmp_path / "out")) <= {"part-00000.txt"}


def answer_slowly(args: Any, ctx: Any) -> None:
    """Return a result in 0.4 s."""
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        rows = feed.next_batch(1000)
        for row in rows:
            time.sleep(0.4)
            feed.batch_results([row])


def test_a_long_partition_is_progress(tmp_path: Path):
    with TFCluster.run(answer_slowly, None, 1, **FED) as cluster:
        assert lines(cluster.inference(partitions([range(15)]), 3.0, output=tmp_path / "x")) == [
            str(number) for number in range(15)
        ]


def infer(args: Any, ctx: Any) -> None:
    """Return large results; the first attempt of worker/0 does not finish its first partition.

    The other worker waits for that: it might take all partitions.
    """
    feed, first = ctx.get_data_feed(train_mode=False), ctx.task_index == 0 and ctx.attempt == 1
    Path(args["folder"], f"{ctx.task_index}-{ctx.attempt}").write_text(str(os.getpid()))
    while not feed.should_stop():
        rows = feed.next_batch(20)
        while ctx.task_index and not Path(args["folder"], "ended").exists():
            time.sleep(0.01)
        if rows and first and args["ends"] != "in the store":
            feed.batch_results(rows[:3])
            Path(args["folder"], "ended").touch()
            if args["ends"] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            feed.terminate()
            feed.batch_results(rows[3:])
            return
        feed.batch_results([row * args["times"] for row in rows])


ROWS = [str(number % 10) for number in range(80)]
WHOLE = ["part-00000.txt", "part-00001.txt"]


@pytest.mark.promise("`inference(output=)` stores each partition as one whole file, also after a restart")
@pytest.mark.parametrize("ends", ["killed", "terminates"])
def test_a_worker_that_does_not_finish(tmp_path: Path, ends: str):
    """The partition is done again: its file is whole and there once, and nothing else."""
    (notes := tmp_path / "notes").mkdir()
    target = tmp_path / "out"
    args = {"folder": str(notes), "ends": ends, "times": 1}
    with TFCluster.run(infer, args, 2, restarts=1, restart="task", grace=1, **FED) as cluster:
        names = cluster.inference(partitions([[row] * 8 for row in ROWS[:10]]), output=target)
    assert lines(names) == [row for row in ROWS[:10] for _ in range(8)]
    assert sorted(os.listdir(target)) == [f"part-{number:05}.txt" for number in range(10)]


@pytest.mark.promise("`inference(output=)` stores each partition as one whole file, also after a restart")
@pytest.mark.parametrize("restarts", [1, 0])
def test_a_worker_that_is_killed_while_it_writes(tmp_path: Path, restarts: int):
    """Nothing half of it stays, whether it starts again or the call fails."""
    (notes := tmp_path / "notes").mkdir()
    target, over = tmp_path / "out", threading.Event()

    def kill_in_store() -> None:
        """Kill worker/0 when its temporary file is there, for which it takes a while."""
        while not over.wait(0.001):
            if any(target.glob(".part-*")):
                os.kill(int((notes / "0-1").read_text()), signal.SIGKILL)
                return

    args = {"folder": str(notes), "ends": "in the store", "times": 1_000_000}
    options = {"restarts": restarts, "restart": "task" if restarts else None, **FED}
    killer = threading.Thread(target=kill_in_store)
    killer.start()
    try:
        with TFCluster.run(infer, args, 1, **options) as cluster:
            names = cluster.inference(partitions([ROWS[:40], ROWS[40:]]), output=target)
    except TaskFailed as error:
        assert not restarts, error
        assert os.listdir(target) == []
    else:
        assert lines(names) == [row * 1_000_000 for row in ROWS] and restarts
        assert sorted(os.listdir(target)) == WHOLE and (notes / "0-2").exists()
    finally:
        over.set()
        killer.join()


def test_results_after_others_that_nobody_took(tmp_path: Path):
    def late(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        rows = feed.next_batch(3)
        Path(args).touch()
        while not Path(f"{args}-ended").exists():
            time.sleep(0.01)
        while not feed.should_stop():
            feed.batch_results(rows)
            rows = feed.next_batch(2)

    asked = tmp_path / "asked"
    with TFCluster.run(late, str(asked), 1, **FED) as cluster:
        results = cluster.inference(partitions([["x"] * 5]))
        taker = threading.Thread(target=lambda: next(results, None))
        taker.start()
        while not asked.exists():
            time.sleep(0.01)
        taker.join(0.2)
        Path(f"{asked}-ended").touch()
        taker.join()
        results.close()
        assert lines(cluster.inference(partitions([["a"] * 3, ["b"] * 4]), output=tmp_path / "out")) == [
            *["a"] * 3,
            *["b"] * 4,
        ]


PROGRAM = """
import sys
from launcher import InputError, InputMode, TextFiles, TFCluster
from tests.api.test_inference_files import echo

def main(source, output):
    with TFCluster.run(echo, None, 2, input_mode=InputMode.FEED, quiet=True) as cluster:
        names = cluster.inference(TextFiles(source), output=output)
        print(*names, sep="\\n")
        try:
            cluster.inference([1], output=output)
        except InputError as error:
            print(error)
main(*sys.argv[1:])
"""


@pytest.fixture(params=["hdfs", "s3", "gcs"])
def bucket(request: pytest.FixtureRequest, servers: Servers) -> Bucket:
    """A folder of each store."""
    bucket: Bucket = request.getfixturevalue(request.param)
    return bucket


def test_from_a_local_file_to_a_store(bucket: Bucket, tmp_path: Path):
    rows = [f"{number} é" for number in range(100_000)]
    (tmp_path / "rows.txt").write_text("".join(f"{row}\n" for row in rows))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "rows.txt"), bucket.of("out/results")],
        env={**os.environ, **bucket.environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    *urls, refused = done.stdout.splitlines()
    names = [url[len(bucket.url) + 1 :] for url in urls]
    assert names == bucket.names() and names[0] == "out/results/part-00000.txt" and len(names) > 2
    assert [row for name in names for row in bucket.read(name).decode().splitlines()] == rows
    assert "out/results' is not empty" in refused


KILLED = """
import sys
from launcher import InputMode, TFCluster, partitions
from tests.api.test_inference_files import ROWS, infer

def main(folder, output):
    args = {"folder": folder, "ends": "in the store", "times": 1_000_000}
    fed = {"input_mode": InputMode.FEED, "quiet": True, "restarts": 1, "restart": "task", "grace": 1}
    with TFCluster.run(infer, args, 1, **fed) as cluster:
        print(*cluster.inference(partitions([ROWS[:40], ROWS[40:]]), output=output), sep="\\n")
main(*sys.argv[1:])
"""


def test_a_worker_that_is_killed_while_it_writes_to_hdfs(hdfs: Hdfs, tmp_path: Path):
    argv = [sys.executable, "-c", KILLED, str(tmp_path), hdfs.of("out")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        soon(lambda: any(name.startswith("out/.part-0") for name in hdfs.names()), 60)
        os.kill(int((tmp_path / "0-1").read_text()), signal.SIGKILL)
        out, _ = program.communicate(timeout=120)
    names = [f"out/{name}" for name in WHOLE]
    assert [*map(hdfs.of, names)] == out.split() and hdfs.names() == names
    assert (tmp_path / "0-2").exists()
    found = "".join(hdfs.read(name).decode() for name in names).splitlines()
    assert found == [row * 1_000_000 for row in ROWS]
