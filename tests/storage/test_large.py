"""A gigabyte of each kind of file in a real store: each row once, shared out evenly, none lost."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.seeing import ROOT, soon
from tests.storage.huge import LINES
from tests.storage.servers import Servers
from tests.storage.stores import Bucket, Hdfs

#: Bytes of all files of a test, and of a row.
SIZE = int(os.environ.get("LAUNCH_TEST_BYTES", "1000000000"))
_ROW = 500
ROWS = SIZE // _ROW
_BATCH = 5000
#: The most bytes of memory of a task; with pyarrow and what is below fsspec, whose files alone take 90 MB.
_MEMORY, _PARQUET_MEMORY = 200_000_000, 300_000_000
_PROGRAM = "import json, sys; from tests.storage import test_large as t; t.{}(**json.loads(sys.argv[1]))"
CASES = [
    *(("hdfs", kind, 64) for kind in ("text", "csv", "tfrecord", "parquet")),
    ("hdfs", "text", 2), ("hdfs", "parquet", 2), ("s3", "text", 64), ("gcs", "parquet", 2),
]  # fmt: skip


def contents(kind: str, files: int) -> Iterator[bytes]:
    """The content of each file: rows that begin with their numbers."""
    for file in range(files):
        numbers = range(file * ROWS // files, (file + 1) * ROWS // files)
        if kind == "parquet":
            import pyarrow  # not where this module is imported to feed
            from pyarrow import parquet

            table = pyarrow.table({"n": numbers, "text": ["x" * (_ROW - 12)] * len(numbers)})
            made = io.BytesIO()
            parquet.write_table(table, made, row_group_size=8192, compression="none", use_dictionary=False)
            yield made.getvalue()
        elif kind == "tfrecord":
            from google_crc32c import value as crc32c

            from launcher.feed.remote.readers import as_record

            filler = b"," + b"x" * (_ROW - 26)
            yield b"".join(as_record(b"%09d%s" % (number, filler), crc32c) for number in numbers)
        else:
            filler = b"," + b"x" * (_ROW - 11) + b"\n"
            yield (b"n,text\n" if kind == "csv" else b"") + filler.join(b"%09d" % n for n in numbers) + filler


def consume(args: dict[str, Any], ctx: Any) -> None:
    """Write down the numbers of all rows; with ``kill`` the first attempt of worker/0 kills itself."""
    feed, rows = ctx.get_data_feed(), 0
    of_columns = {"csv": lambda row: int(row[0]), "parquet": lambda row: row[0]}
    number = of_columns.get(args["kind"], lambda row: int(row[:9]))
    with open(Path(args["folder"], f"{ctx.task_index}-{ctx.attempt}"), "wb") as file:
        while not feed.should_stop():
            batch = feed.next_batch(_BATCH)
            array("q", map(number, batch)).tofile(file)
            file.flush()
            rows += len(batch)
            if args["kill"] and rows > ROWS // 5 and (ctx.task_index, ctx.attempt) == (0, 1):
                os.kill(os.getpid(), signal.SIGKILL)
    note_memory(args["folder"], ctx)


def note_memory(folder: str, ctx: Any) -> None:
    """Write down the most memory that this process has had, in kilobytes."""
    status = Path("/proc/self/status").read_text()
    Path(folder, f"memory-{ctx.task_index}").write_text(status.partition("VmHWM:")[2].split()[0])


def count(folder: str, ctx: Any) -> None:
    """Write down how many rows came, and the memory."""
    feed, rows = ctx.get_data_feed(), 0
    while not feed.should_stop():
        rows += len(feed.next_batch(_BATCH))
    Path(folder, "rows").write_text(str(rows))
    note_memory(folder, ctx)


def feed_huge(url: str, folder: str) -> None:
    """Feed a huge file to one worker."""
    from launcher import InputMode, TextFiles, TFCluster

    with TFCluster.run(count, folder, 1, input_mode=InputMode.FEED, quiet=True) as cluster:
        cluster.train(TextFiles(url), feed_timeout=1200)


def feed(kind: str, pattern: str, folder: str, kill: bool) -> None:
    """Feed all files to two workers: how long it took."""
    from launcher import CsvFiles, InputMode, ParquetFiles, TextFiles, TFCluster, TFRecordFiles

    source: Any = {
        "text": lambda: TextFiles(pattern), "tfrecord": lambda: TFRecordFiles(pattern),
        "csv": lambda: CsvFiles(pattern, multiline=False, columns=["n", "text"]),
        "parquet": lambda: ParquetFiles(pattern, columns=["n", "text"]),
    }[kind]()  # fmt: skip
    args = {"kind": kind, "folder": folder, "kill": kill}
    options: dict[str, Any] = {"restarts": 1, "restart": "task", "grace": 1, "quiet": True}
    with TFCluster.run(consume, args, 2, input_mode=InputMode.FEED, **options) as cluster:
        since = time.monotonic()
        cluster.train(source)
        seconds = time.monotonic() - since
    print(json.dumps(seconds))


def numbers_of(args: Any, ctx: Any) -> None:
    """Return the number of each row."""
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([row[:9] for row in feed.next_batch(_BATCH)])


def infer(pattern: str, output: str) -> None:
    """Store what two workers say of all rows: the names of the files."""
    from launcher import InputMode, TextFiles, TFCluster

    with TFCluster.run(numbers_of, None, 2, input_mode=InputMode.FEED, quiet=True) as cluster:
        print(json.dumps(cluster.inference(TextFiles(pattern), output=output)))


def fed(bucket: Bucket, kind: str, folder: Path, kill: bool) -> dict[str, Any]:
    """What each attempt of a worker was fed, by its index and attempt."""
    folder.mkdir()
    args = {"kind": kind, "pattern": bucket.of("part-*"), "folder": str(folder), "kill": kill}
    program = [sys.executable, "-c", _PROGRAM.format("feed"), json.dumps(args)]
    environ = {**os.environ, **bucket.environ}
    done = subprocess.run(program, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.name: numpy.fromfile(path, numpy.int64) for path in sorted(folder.glob("?-?"))}
    assert _memory(folder) < (_PARQUET_MEMORY if kind == "parquet" else _MEMORY)
    seconds = float(done.stdout.splitlines()[-1])
    shares = {name: len(rows) for name, rows in found.items()}
    print(f"{kind}: {seconds:.1f} s, {ROWS / seconds:,.0f} rows/s, {SIZE / seconds / 1e6:.0f} MB/s, {shares}")
    return found


def _memory(folder: Path) -> int:
    """The most memory that a task has had."""
    found = [1024 * int(path.read_text()) for path in folder.glob("memory-*")]
    print(f"memory: {max(found) >> 20} MiB")
    return max(found)


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.promise("files at URLs: the nodes read each row once, and share them out")
@pytest.mark.parametrize("store, kind, files", CASES)
def test_each_row_once(
    store: str, kind: str, files: int, request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
):
    bucket: Bucket = request.getfixturevalue(store)
    size = 0
    for number, content in enumerate(contents(kind, files)):
        bucket.put(f"part-{number:05}", content)
        size += len(content)
    assert abs(size - SIZE) < SIZE / 20

    rows = fed(bucket, kind, tmp_path / "all", kill=False)
    assert sorted(rows) == ["0-1", "1-1"]
    counts = numpy.bincount(numpy.concatenate([*rows.values()]), minlength=ROWS)
    assert len(counts) == ROWS and counts.min() == counts.max() == 1
    assert max(map(len, rows.values())) <= 1.2 * ROWS / 2

    rows = fed(bucket, kind, tmp_path / "killed", kill=True)
    assert sorted(rows) == ["0-1", "0-2", "1-1"]
    counts = numpy.bincount(numpy.concatenate([*rows.values()]), minlength=ROWS)
    assert len(counts) == ROWS and counts.min() == 1
    # Only rows that it had taken came once more.
    assert set(numpy.flatnonzero(counts > 1)) <= set(rows["0-1"].tolist())


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_reader_of_ten_gigabytes_stays_small(tmp_path: Path):
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.storage.huge", "127.0.0.1"], cwd=ROOT, env=os.environ,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        args = {"url": f"http://127.0.0.1:{int(server.stdout.readline())}/huge.txt", "folder": str(tmp_path)}
        program = [sys.executable, "-c", _PROGRAM.format("feed_huge"), json.dumps(args)]
        done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=1400)
    finally:
        server.kill()
        server.communicate()
    assert done.returncode == 0, done.stdout + done.stderr
    assert int((tmp_path / "rows").read_text()) == LINES
    assert _memory(tmp_path) < _MEMORY


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.promise(
    "a store fails for a while or for good: the job goes on, or one clear error within a minute"
)
@pytest.mark.parametrize("victim", ["datanode1", "namenode"])
def test_servers_fail_while_rows_are_fed(hdfs_alone: Hdfs, victim: str, tmp_path: Path):
    """A DataNode that is killed stays away, a NameNode begins again some seconds later."""
    for number, content in enumerate(contents("text", 64)):
        hdfs_alone.put(f"part-{number:05}", content)
    folder = tmp_path / "all"
    folder.mkdir()
    args = {"kind": "text", "pattern": hdfs_alone.of("part-*"), "folder": str(folder), "kill": False}
    first = folder / "0-1"

    def is_under_way() -> bool:
        return first.exists() and first.stat().st_size > ROWS // 2  # a sixteenth of all

    seconds = struck("feed", args, hdfs_alone, victim, is_under_way)
    rows = [numpy.fromfile(path, numpy.int64) for path in folder.glob("?-?")]
    counts = numpy.bincount(numpy.concatenate(rows), minlength=ROWS)
    assert len(counts) == ROWS and counts.min() == counts.max() == 1
    print(f"{float(seconds):.1f} s")


def struck(function: str, args: Any, hdfs: Hdfs, victim: str, is_under_way: Callable[[], bool]) -> str:
    """Kill a server of HDFS when a function of this module is under way: what the function prints last."""
    program = [sys.executable, "-c", _PROGRAM.format(function), json.dumps(args)]
    driver = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        soon(is_under_way, 100)
        hdfs.kill(victim)
        if victim == "namenode":
            time.sleep(8)
            hdfs.begin(victim)
        out, _ = driver.communicate(timeout=600)
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 0, out
    return str(out.splitlines()[-1])


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.promise(
    "a store fails for a while or for good: the job goes on, or one clear error within a minute"
)
@pytest.mark.parametrize("victim", ["datanode1", "namenode"])
def test_servers_fail_while_results_are_stored(hdfs_alone: Hdfs, victim: str):
    for number, content in enumerate(contents("text", 64)):
        hdfs_alone.put(f"part-{number:05}", content)
    args = {"pattern": hdfs_alone.of("part-*"), "output": hdfs_alone.of("found")}
    third = "found/part-00003.txt"
    names = json.loads(struck("infer", args, hdfs_alone, victim, lambda: third in hdfs_alone.names()))
    assert len(names) == 64
    hdfs_alone.start()
    assert [hdfs_alone.of(name) for name in hdfs_alone.names() if name.startswith("found/")] == names
    found = b"".join(hdfs_alone.read(name.removeprefix(f"{hdfs_alone.url}/")) for name in names).split()
    assert [*map(int, found)] == [*range(ROWS)]
