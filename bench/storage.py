"""Measures how fast files of a real HDFS become rows in tasks, beside a bare loop over the same library.

`bench.run` calls `measure`. The HDFS is that of the tests (``tests/storage``), on this machine.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import tables
from bench.setting import Setting
from tests.storage.servers import shared_servers
from tests.storage.stores import Hdfs, a_folder_of_hdfs

_ROOT = Path(__file__).parents[1]
_PROGRAM = Path(__file__).parent / "programs" / "storage.py"
_FILES = 16
_ROW_BYTES = 100
#: Rows of all files of a kind.
_ROWS = {"text": 10_000_000, "csv": 4_000_000, "tfrecord": 1_000_000, "parquet": 2_000_000}
#: The time limit for one run.
_TIME_LIMIT = 300.0
_BARE, _ONE, _TWO = "bare", "1", "2"


def measure(setting: Setting) -> None:
    """Put files of each kind on an HDFS, read them in each way, round by round, and print the table."""
    rows = []
    with shared_servers(f"bench-{os.getpid()}") as servers:
        for kind in _ROWS:
            with a_folder_of_hdfs(servers) as hdfs:
                rows.append(_row(setting, hdfs, kind))
    head = ["rows a second: median (max)", "bare loop", "1 worker", "2 workers"]
    head += ["1 x bare", "2 x 1", "rounds"]
    tables.show(f"storage: {_FILES} files on HDFS, rows of {_ROW_BYTES} bytes", head, rows)


def _row(setting: Setting, hdfs: Hdfs, kind: str) -> list[str]:
    """Read the files of one kind in each way, and return its row of the table."""
    count = _ROWS[kind] // (4 if setting.quick else 1)
    for number, content in enumerate(_contents(kind, count)):
        hdfs.put(f"part-{number:02}", content)
        if number == 0:
            hdfs.put("first", content)
    speeds: dict[str, list[float]] = {_BARE: [], _ONE: [], _TWO: []}
    for number in range(setting.rounds):
        for way in [*speeds][:: -1 if number % 2 else 1]:
            speeds[way].append(count / _seconds(setting, way, kind, hdfs, count))
    shown = [f"{statistics.median(found):,.0f} ({max(found):,.0f})" for found in speeds.values()]
    ratios = [_ratio(speeds, _ONE, _BARE), _ratio(speeds, _TWO, _ONE)]
    return [kind, *shown, *ratios, str(setting.rounds)]


def _ratio(speeds: dict[str, list[float]], way: str, other: str) -> str:
    """Return the median of the ratios of the rounds."""
    return f"{statistics.median(a / b for a, b in zip(speeds[way], speeds[other], strict=True)):.2f}"


def _seconds(setting: Setting, way: str, kind: str, hdfs: Hdfs, count: int) -> float:
    """Read all files once, in a process of its own, and return the seconds that it took."""
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), way, kind, hdfs.of("part-*")], cwd=_ROOT, check=True,
        stdout=subprocess.PIPE, text=True, timeout=_TIME_LIMIT,
    )  # fmt: skip
    rows, seconds = done.stdout.split()[-2:]
    if way == _BARE and int(rows) != count:
        setting.faults.append(f"storage: {kind}: the bare loop has read {rows} rows of {count}")
    return float(seconds)


def _contents(kind: str, count: int) -> Iterator[bytes]:
    """Yield the content of each file: rows of a number and a text."""
    for file in range(_FILES):
        numbers = range(file * count // _FILES, (file + 1) * count // _FILES)
        filler = "x" * (_ROW_BYTES - 11)
        if kind == "parquet":
            import pyarrow
            from pyarrow import parquet

            made = io.BytesIO()
            table = pyarrow.table({"n": numbers, "text": [filler] * len(numbers)})
            parquet.write_table(table, made, row_group_size=16384, compression="none", use_dictionary=False)
            yield made.getvalue()
        elif kind == "tfrecord":
            from google_crc32c import value as crc32c

            from launcher.feed.remote.readers import as_record

            yield b"".join(as_record(f"{number:09},{filler}".encode(), crc32c) for number in numbers)
        else:
            lines = "".join(f"{number:09},{filler}\n" for number in numbers)
            yield (("n,text\n" if kind == "csv" else "") + lines).encode()
