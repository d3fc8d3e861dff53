"""Ranges of data files: however a file is cut, each row is read once, by the range in which it begins."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from launcher import CsvFiles, InputError, ParquetFiles, TextFiles
from launcher.common.record import replace
from launcher.feed import files
from launcher.feed.files import DataFiles
from launcher.feed.remote.codec import as_rows
from launcher.feed.remote.readers import BrokenFileError, CsvReader, ParquetReader, TextReader
from launcher.feed.sources import pieces_of
from tests.conftest import examples
from tests.unit.feed.pieces import flat, taken

anew = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples(60))
#: With line ends of all kinds, characters of several bytes, and what only Python takes for a line end.
PARTS = st.lists(
    st.sampled_from(["\n", "\r\n", "\r", "\n\n", "a", "é", "\u2028", "\x0b", "\ufeff", "bc" * 40])
)
CUTS = st.lists(st.integers(0, 400))


def in_ranges(reader: Any, cuts: list[int] | None = None) -> list[Any]:
    """The rows of all ranges of a file: those between these bytes, or one for each byte."""
    size = Path(reader.path).stat().st_size
    starts = sorted({0, *(range(size) if cuts is None else (cut for cut in cuts if cut < size))})
    ranges = zip(starts, [*starts[1:], None], strict=True)
    rows = [replace(reader, start=start, end=end)() for start, end in ranges]
    return list(itertools.chain.from_iterable(rows))


@anew
@given(PARTS, CUTS, st.booleans())
def test_lines(tmp_path: Path, parts: list[str], cuts: list[int], has_mark: bool):
    path = tmp_path / "lines.txt"
    text = "".join(parts)
    path.write_bytes(("\ufeff" * has_mark + text).encode())
    # Without a mark of ours, one of the text may be at the beginning.
    lines = re.split("\r\n|\r|\n", text if has_mark else text.removeprefix("\ufeff"))
    expected = lines if lines[-1] else lines[:-1]
    reader = TextReader(str(path))
    assert list(reader()) == in_ranges(reader) == in_ranges(reader, cuts) == expected


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_that_are_longer_than_what_is_read_at_once(tmp_path: Path, end: bytes):
    path = tmp_path / "long.txt"
    sizes = [300_000, 8191, 8192, 0, 700_000, 262_144 - len(end), 5]
    path.write_bytes(end.join(b"%d" % (number % 10) * size for number, size in enumerate(sizes)))
    cuts = [8191, 8192, 8193, 262_143, 262_144, 300_000, 300_001, 300_002, 500_000, 600_000, 1_100_000]
    for some in (cuts, cuts[::2], cuts[:1]):
        assert [*map(len, in_ranges(TextReader(str(path)), some))] == sizes


@anew
@given(
    st.lists(st.lists(st.sampled_from(["", "a", "b c", 'say "x"', ",", "é" * 30]), min_size=2, max_size=2)),
    CUTS,
    st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\n\r\n"]),
    st.booleans(),
    st.integers(0, 3),
)
def test_rows_of_csv(
    tmp_path: Path, rows: list[list[str]], cuts: list[int], end: str, header: bool, empty_lines: int
):
    out = io.StringIO()
    out.write(end * empty_lines)
    csv.writer(out, lineterminator=end).writerows([["x", "y"], *rows] if header else rows)
    path = tmp_path / "rows.csv"
    path.write_bytes(("\ufeff" + out.getvalue()).encode())
    expected = [dict(zip("xy", row, strict=True)) if header else tuple(row) for row in rows]
    reader = CsvReader(str(path), header=header, multiline=False)
    assert list(reader()) == in_ranges(reader) == in_ranges(reader, cuts) == expected
    if header:
        chosen = replace(reader, columns=("y",))
        assert in_ranges(chosen) == [(row[1],) for row in rows]


def test_line_ends_in_quotes(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text('x,y\n1,2\n"3\n33",4\n5,6\n')
    assert flat(CsvFiles(path)) == [{"x": x, "y": y} for x, y in (("1", "2"), ("3\n33", "4"), ("5", "6"))]
    reader = CsvReader(str(path), multiline=False)
    for cuts in (None, [], [10], [13]):
        with pytest.raises(BrokenFileError, match="rows.csv: .*multiline=True"):
            in_ranges(reader, cuts)


def test_rows_of_parquet(tmp_path: Path):
    path = tmp_path / "rows.parquet"
    schema = pyarrow.schema({"x": pyarrow.int64(), "y": pyarrow.string()})
    with parquet.ParquetWriter(path, schema) as writer:
        for size in (3, 1, 0, 4):
            columns = {"x": range(size), "y": [f"{size}-{n}" for n in range(size)]}
            writer.write_table(pyarrow.table(columns, schema=schema))
    expected = [f"{size}-{n}" for size in (3, 1, 0, 4) for n in range(size)]
    reader = ParquetReader(str(path), columns=("y",))
    for cuts in (None, [], [4], [200], [5, 300, 700]):
        assert [row[0] for row in in_ranges(reader, cuts)] == expected
    assert flat(ParquetFiles(path))[1] == {"x": 1, "y": "3-1"}
    assert flat(ParquetFiles(path, columns=["y", "x"]))[1] == ("3-1", 1)


def test_values_of_parquet(tmp_path: Path):
    """They come as arrays; nothing is made a float that is not, and lists of one length are one array."""
    path = tmp_path / "values.parquet"
    large = 2**62 + 1
    data: dict[str, Any] = {
        "whole": [1, large],
        "some": [None, large],
        "float": pyarrow.array([1.5, None], pyarrow.float32()),
        "text": ["a", None],
        "bytes": [b"\0", b""],
        "flag": [True, None],
        "kind": pyarrow.array(["a", "b"]).dictionary_encode(),
        "vector": [[1.0, 2.0], [3.0, 4.0]],
        "ragged": [[1], [2, 3]],
        "matrix": [[[1], [2]], [[3], [4]]],
        "dict": [{"a": 1}, {"a": 2}],
    }
    parquet.write_table(pyarrow.table(data), path)
    (block,) = ParquetReader(str(path))().blocks
    assert list(block) == list(data)
    assert block["whole"].dtype == np.int64 and block["whole"].tolist() == [1, large]
    assert block["some"].tolist() == [None, large]
    assert block["float"].dtype == np.float32 and np.isnan(block["float"][1])
    assert block["vector"].shape == (2, 2) and block["matrix"].shape == (2, 2, 1)
    assert [row.tolist() for row in block["ragged"]] == [[1], [2, 3]]
    for name in ("text", "bytes", "flag", "dict"):
        assert block[name].tolist() == data[name]
    assert block["kind"].tolist() == ["a", "b"]
    assert as_rows(block)[1]["vector"].tolist() == [3.0, 4.0]


def test_broken_files_of_parquet(tmp_path: Path):
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"x": range(1000)}), path)
    content = path.read_bytes()
    for damaged in (
        b"",
        b"x" * 100,
        content[:-5],
        content[300:],
        content[:200] + b"\xff" * 300 + content[500:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(BrokenFileError, match="x.parquet: cannot be read as Parquet: [^\n]+$"):
            flat(ParquetFiles(path))
    path.write_bytes(content)
    with pytest.raises(BrokenFileError, match="x.parquet: no column y, z; it has x$"):
        flat(ParquetFiles(path, columns=["y", "x", "z"]))
    parquet.write_table(pyarrow.table([[1], [2]], names=["a", "a"]), path)
    with pytest.raises(BrokenFileError, match='x.parquet: .*"a" exists 2 times'):
        flat(ParquetFiles(path))


def test_how_files_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Large ones evenly; whole are those in which nothing shows where a row begins."""
    path = tmp_path / "some.csv"
    path.write_text("x,y\n" + "".join(f"{number},{'x' * 90}\n" for number in range(20_000)))
    size = path.stat().st_size
    there: dict[str, Any] = {"read_on_worker": True}
    (tmp_path / "some.gz").write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "wide").write_bytes(path.read_text().encode("utf-16"))
    cases: list[tuple[DataFiles, int]] = [
        (TextFiles(path, **there), size // 65536 + 1),
        (CsvFiles(path, multiline=False, **there), size // 65536 + 1),
        (TextFiles(path, encoding="latin-1", **there), size // 65536 + 1),
        (CsvFiles(path, **there), 1),
        (TextFiles(tmp_path / "some.gz", **there), 1),
        (TextFiles(tmp_path / "wide", encoding="utf-16", **there), 1),
    ]
    for data, count in cases:
        shares = [*map(len, taken(data, 2))]
        assert len(shares) == count and sum(shares) in (20_000, 20_001)
        assert max(shares) < 1.1 * sum(shares) / count
    monkeypatch.setattr(files, "_MIN_RANGE_BYTES", 1)
    assert [len(taken(TextFiles(path, **there), workers)) for workers in (1, 5)] == [16, 80]
    monkeypatch.setattr(files, "_MAX_RANGE_BYTES", size // 100)
    assert len(taken(TextFiles(path, **there), 1)) == 101
    (tmp_path / "empty").write_bytes(b"")
    assert taken(TextFiles(tmp_path / "empty", **there)) == [[]]
    with pytest.raises(BrokenFileError, match="empty: no column x; the file is empty"):
        flat(CsvFiles(f"file://{tmp_path}/empty", columns=["x"]))


def test_urls_are_looked_up_when_rows_are_needed(tmp_path: Path):
    """They are in the order of the names, beside paths. The tasks read them, whatever reads the paths."""
    (tmp_path / "here.txt").write_text("here\n")
    url = f"file://{tmp_path}/there"
    lost = TextFiles([f"{url}/no.txt", f"{url}/*.csv", tmp_path / "here.txt"])
    data = TextFiles([f"{url}/*", tmp_path / "here.txt", f"{url}/b.txt"])
    for read in (lambda: lost.paths, lambda: taken(lost)):
        with pytest.raises(InputError) as caught:
            read()
        assert [fault.problem.split(":")[0] for fault in caught.value.faults] == ["file"] * 2
    (tmp_path / "there").mkdir()
    for name in ("b.txt", "a.txt", "_SUCCESS", ".a.txt.crc"):
        (tmp_path / "there" / name).write_text(f"{name}\n")
    assert data.paths == [f"{url}/a.txt", f"{url}/b.txt", str(tmp_path / "here.txt")]
    assert taken(data) == [["a.txt"], ["b.txt"], ["here"]]
    assert [piece.remote is not None for piece in pieces_of(data, 2)] == [True, True, False]
    (tmp_path / "there" / "a.txt").unlink()
    with pytest.raises(FileNotFoundError):
        taken(data)


DAMAGED = {"empty": b"", "not gzip": b"not gzip", "cut off": gzip.compress(b"x" * 9999)[:-9]}


# The processes of a run must have the same names of tests, and gzip writes the time.
@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_packed_files_that_are_damaged(tmp_path: Path, damage: bytes):
    (tmp_path / "x.gz").write_bytes(damage)
    if damage:
        with pytest.raises(BrokenFileError, match="x.gz: damaged or cut off: [^\n]+$"):
            flat(TextFiles(tmp_path / "x.gz"))
    else:
        assert flat(TextFiles(tmp_path / "x.gz")) == []
