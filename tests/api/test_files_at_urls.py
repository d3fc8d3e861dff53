"""Data files in real stores: which rows the nodes read of them, in which order, and what bad ones raise."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value as crc32c

from launcher.feed.remote.readers import as_record
from tests.seeing import ROOT
from tests.storage.servers import Servers
from tests.storage.stores import S3, Bucket

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.promise("files at URLs: the nodes read each row once, and share them out"),
]
#: Runs a function of this module: this process of pytest must have no thread of the packages below fsspec.
PROGRAM = "import json, sys; from tests.api import test_files_at_urls as t; t.{0}(*json.loads(sys.argv[1]))"
ROWS = 60_000
LINES = [f"{number},{'x' * 20}" for number in range(ROWS)]


def drive(function: Any, bucket: Bucket, *args: Any) -> Any:
    """Call a function in a process of its own: the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(function.__name__), json.dumps(args)],
        env={**os.environ, **bucket.environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=["hdfs", "s3"])
def bucket(request: pytest.FixtureRequest, servers: Servers) -> Bucket:
    bucket: Bucket = request.getfixturevalue(request.param)
    return bucket


def echo(args: Any, ctx: Any) -> None:
    """Return each row as a text, with the number of this node."""
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([(ctx.task_index, str(row)) for row in feed.next_batch(1000)])


def infer(url: str, here: str) -> None:
    """Print what inference gives of files of each kind, and the errors about files that are not there."""
    from launcher import CsvFiles, InputError, InputMode, ParquetFiles, TextFiles, TFCluster, TFRecordFiles

    sources: dict[str, Any] = {
        "text": TextFiles([f"{url}/text/*", here]),
        "csv": CsvFiles(f"{url}/rows.csv", multiline=False, columns=["n"]),
        "csv in quotes": CsvFiles(f"{url}/rows.csv"),
        "parquet": ParquetFiles(f"{url}/rows.parquet", columns=["n"]),
        "records": TFRecordFiles(f"{url}/*.tfrecord"),
    }
    with TFCluster.run(echo, None, 2, input_mode=InputMode.FEED, quiet=True) as cluster:
        assert not {"fsspec", "s3fs", "hdfs_native", "pyarrow"} & {*sys.modules}
        found: dict[str, Any] = {name: list(cluster.inference(data)) for name, data in sources.items()}
        missing = TextFiles([f"{url}/no.txt", f"{url}/text", f"{url}/text/*.csv"])
        for name, call in (("train", cluster.train), ("inference", cluster.inference)):
            try:
                list(call(missing) or ())
            except InputError as error:
                found[name] = str(error).splitlines()
    print(json.dumps(found))


def test_rows_of_all_kinds(bucket: Bucket, tmp_path: Path):
    import pyarrow  # not where this module is imported to feed
    from pyarrow import parquet

    half = ROWS // 2
    bucket.put("text/b.txt", "\n".join(LINES[half:]).encode())
    bucket.put("text/a.txt", ("\ufeff" + "\r\n".join(LINES[:half]) + "\r\n").encode())
    bucket.put("text/_SUCCESS", b"no row\n")
    (tmp_path / "here.txt").write_text("here\n")
    bucket.put("rows.csv", "\n".join(["n,text", *LINES]).encode())
    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": LINES, "n": range(ROWS)}), table, row_group_size=2000)
    bucket.put("rows.parquet", table.getvalue())
    for number in range(3):
        records = [as_record(b"%d" % row, crc32c) for row in range(number * 10, number * 10 + 10)]
        bucket.put(f"{number}.tfrecord", b"".join(records))

    found = drive(infer, bucket, bucket.url, str(tmp_path / "here.txt"))
    rows = {name: [row for _, row in found[name]] for name in found if name not in ("train", "inference")}
    assert rows["text"] == [*LINES, "here"]
    assert rows["csv"] == [f"('{number}',)" for number in range(ROWS)]
    assert rows["csv in quotes"] == [str({"n": str(n), "text": "x" * 20}) for n in range(ROWS)]
    assert [int(re.findall(r"\d+", row)[-1]) for row in rows["parquet"]] == [*range(ROWS)]
    assert rows["records"] == [str(b"%d" % number) for number in range(30)]
    for name, nodes in (("text", 2), ("csv", 2), ("csv in quotes", 1), ("parquet", 2)):
        assert len({node for node, _ in found[name]}) == nodes, name
    for name in ("train", "inference"):
        assert [line.split(": ")[1] for line in found[name]] == [
            f"{bucket.url}/{what}" for what in ("no.txt", "text", "text/*.csv")
        ]


def consume(args: Any, ctx: Any) -> None:
    """Write down all rows; the first attempt of worker/0 kills itself in the middle."""
    feed, batches = ctx.get_data_feed(), 0
    with open(Path(args, f"{ctx.task_index}-{ctx.attempt}"), "w") as file:
        while not feed.should_stop():
            file.write("".join(f"{row}\n" for row in feed.next_batch(500)))
            file.flush()
            batches += 1
            if batches == 5 and (ctx.task_index, ctx.attempt) == (0, 1):
                os.kill(os.getpid(), signal.SIGKILL)


def train(url: str, folder: str) -> None:
    """Feed a file to two nodes, of which one dies."""
    from launcher import InputMode, TextFiles, TFCluster

    options: dict[str, Any] = {"restarts": 1, "restart": "task", "grace": 1, "quiet": True}
    with TFCluster.run(consume, folder, 2, input_mode=InputMode.FEED, **options) as cluster:
        cluster.train(TextFiles(url), num_epochs=2)
    print("{}")


def test_a_node_that_dies_costs_no_row(s3: S3, tmp_path: Path):
    drive(train, s3, s3.put("lines.txt", "\n".join(LINES).encode()), str(tmp_path))
    texts = {path.name: path.read_text().splitlines() for path in tmp_path.glob("?-?")}
    counts = Counter(line for lines in texts.values() for line in lines)
    assert "0-1" in texts and {*counts} == {*LINES} and min(counts.values()) == 2
    # Only rows that it had taken came once more.
    assert {line for line, times in counts.items() if times > 2} <= {*texts["0-1"]}


def fail(cases: list[list[Any]]) -> None:
    """Print the errors of reading these files: the last ones in a node, the others here, as the node does."""
    import launcher
    from launcher import InputMode, LaunchError, TaskFailed, TFCluster
    from launcher.feed.sources import pieces_of

    errors = []
    sources = [getattr(launcher, kind)(url, **options) for kind, url, options in cases]
    for source in sources[:-1]:
        try:
            [list(piece.remote()) for piece in pieces_of(source, 1) if piece.remote is not None]
        except LaunchError as error:
            errors.append(f"{type(error).__name__}: {error}")
    cluster = TFCluster.run(echo, None, 1, input_mode=InputMode.FEED, quiet=True)
    try:
        list(cluster.inference(sources[-1]))
    except TaskFailed as error:
        errors.append(str(error).splitlines()[0].partition("readers.")[2])
    with suppress(TaskFailed):
        cluster.shutdown()
    print(json.dumps(errors))


def test_what_is_wrong_with_a_file(s3: S3):
    """It is one line, with the URL."""
    record = as_record(b"x" * 100, crc32c)
    chosen = {"columns": ["m"]}
    cases: list[tuple[str, str, dict[str, Any], str]] = [
        ("TFRecordFiles", s3.put("x.tfrecord", record * 3 + record[:50]), {}, "cut off .* byte 348"),
        ("ParquetFiles", s3.put("x.parquet", b"no parquet"), {}, "cannot be read as Parquet: "),
        ("TextFiles", s3.put("x.txt.gz", b"\x1f\x8bno gzip"), {}, "damaged or cut off: "),
        ("TextFiles", s3.put("x.txt", b"a\n\xff"), {}, r"b'\\xff' is not utf-8; set encoding=\.\.\."),
        ("CsvFiles", s3.put("rows.csv", b"n,text\n1,2\n"), chosen, "no column m; it has n, text"),
    ]
    errors = drive(fail, s3, [case[:3] for case in cases])
    for (_, url, _, message), error in zip(cases, errors, strict=True):
        assert re.match(f"BrokenFileError: {url}: {message}[^\n]*$", error), error


def read(cases: list[list[Any]]) -> None:
    """Print the rows of these files, which are read here as a node does."""
    import launcher
    from launcher.feed.sources import pieces_of

    found = []
    for kind, url, options in cases:
        pieces = pieces_of(getattr(launcher, kind)(url, **options), 2)
        found.append([list(piece.remote()) for piece in pieces if piece.remote is not None])
    print(json.dumps(found))


def test_files_of_a_web_server_that_sends_only_whole_ones(tmp_path: Path, s3: S3):
    (tmp_path / "rows.csv").write_text("\n".join(["n,text", *LINES]))
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"packed\n"))
    argv = [
        sys.executable,
        "-u",
        "-m",
        "http.server",
        "0",
        "--bind",
        "127.0.0.1",
        "--directory",
        str(tmp_path),
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().split(" port ")[1].split()[0]
            url = f"http://127.0.0.1:{port}"
            cases = [
                ("CsvFiles", f"{url}/rows.csv", {"multiline": False, "columns": ["n"]}),
                ("TextFiles", f"{url}/x.txt.gz?token=secret", {}),
            ]
            found = drive(read, s3, cases)
        finally:
            server.kill()
    assert found == [[[[str(number)] for number in range(ROWS)]], [["packed"]]]
