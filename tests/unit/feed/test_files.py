"""Files of all kinds, however they are cut: each record once, in order, and faults that name the file."""

from __future__ import annotations

import csv
import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.common.errors import InputError
from launcher.feed.files import CsvFiles, DataFiles, TextFiles, TFRecordFiles
from launcher.feed.remote import readers
from launcher.feed.remote.codec import as_rows, blocks_of
from launcher.feed.remote.readers import BrokenFileError
from launcher.feed.sources import pieces_of
from tests.conftest import examples
from tests.unit.feed.pieces import flat, taken

anew = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples(60))
FIELDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
LINES = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])))


def written(file: Path, content: str | bytes) -> Path:
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def recorded(records: list[bytes]) -> bytes:
    """The content of a TFRecord file."""
    content = b""
    for record in records:
        for data in (struct.pack("<Q", len(record)), record):
            crc = google_crc32c.value(data)
            masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
            content += data + struct.pack("<I", masked)
    return content


@anew
@given(LINES, st.integers(1, 5), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_every_line_once(tmp_path: Path, texts: list[str], workers: int, end: str, last: bool):
    texts = texts if last or not texts else [*texts, "last"]
    content = end.join(texts) + (end if texts and last else "")
    assert flat(TextFiles(written(tmp_path / "lines.txt", content)), workers) == texts


@anew
@given(st.lists(st.tuples(FIELDS, FIELDS)), st.integers(1, 5), st.booleans())
def test_every_csv_row_once(tmp_path: Path, rows: list[Any], workers: int, header: bool):
    with open(tmp_path / "rows.csv", "w", newline="", encoding="utf-8") as out:
        csv.writer(out, quoting=csv.QUOTE_ALL).writerows([("x", 'y "\n'), *rows] if header else rows)
    expected = [{"x": x, 'y "\n': y} for x, y in rows] if header else rows
    assert flat(CsvFiles(tmp_path / "rows.csv", header=header), workers) == expected


@anew
@given(st.lists(st.binary(max_size=700)), st.integers(1, 5), st.booleans())
def test_every_record_once(tmp_path: Path, records: list[bytes], workers: int, packed: bool):
    file = tmp_path / ("some.tfrecord.gz" if packed else "some.tfrecord")
    written(file, gzip.compress(recorded(records)) if packed else recorded(records))
    assert flat(TFRecordFiles(file), workers) == records


def test_every_worker_gets_several_partitions_or_whole_files(tmp_path: Path):
    for n in range(3):
        written(tmp_path / f"part-{n}", "".join(f"{n}.{m}\n" for m in range(100)))
    here, there = (TextFiles(str(tmp_path / "part-*"), read_on_worker=there) for there in (False, True))
    assert len(taken(here, 5)) >= 20 and [len(part) for part in taken(there, 5)] == [100, 100, 100]
    assert flat(here, 5) == flat(there, 5)
    assert flat(TextFiles(written(tmp_path / "x.gz", gzip.compress(b"one\ntwo\n")))) == ["one", "two"]
    long = ["x" * 3_000_000, "y", "z" * 1_500_000]
    assert flat(TextFiles(written(tmp_path / "long.txt", "\n".join(long))), 3) == long


def test_names_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a" / "b").mkdir(parents=True)
    written(tmp_path / "a.txt", "\ufeffone\n")
    written(tmp_path / "b.txt", "two\n")
    odd, deep = written(tmp_path / "odd[1]*.text", "odd"), written(tmp_path / "a" / "b" / "deep.text", "deep")
    assert flat(TextFiles("~/*.txt")) == ["one", "two"]
    assert flat(TextFiles([Path("~/b.txt"), odd])) == ["two", "odd"]
    assert flat(TextFiles([deep, str(tmp_path / "**" / "deep.text")])) == ["deep"]
    with pytest.raises(InputError) as caught:
        TextFiles([odd, tmp_path / "nowhere-*.txt", tmp_path])
    assert len(caught.value.faults) == 2
    assert "nowhere-*" in str(caught.value) and "is a folder" in str(caught.value)
    with pytest.raises(InputError, match="no files"):
        TextFiles([])


def test_encodings(tmp_path: Path):
    file = written(tmp_path / "old.txt", "café\nnaïve\n".encode("latin-1"))
    assert flat(TextFiles(file, encoding="latin-1")) == ["café", "naïve"]
    with pytest.raises(BrokenFileError, match=r"old.txt: .* is not utf-8; set encoding="):
        flat(TextFiles(file))
    assert flat(TextFiles(written(tmp_path / "x", "é\nb".encode("utf-16")), encoding="utf-16")) == ["é", "b"]
    for encoding in ("utf-16", "utf-32"):
        without_mark = written(tmp_path / "bare", "é\nb".encode(f"{encoding}-le"))
        with pytest.raises(BrokenFileError, match=rf"bare: .* is not {encoding}; set encoding="):
            flat(TextFiles(without_mark, encoding=encoding))


@pytest.mark.parametrize("workers", [1, 5])
def test_files_that_the_tasks_read(tmp_path: Path, workers: int):
    rows = written(tmp_path / "rows.csv", "a,b\n" + "".join(f"{n},{n}\n" for n in range(40)))
    written(tmp_path / "some.tfrecord", recorded([b"x"] * 40))
    on: dict[str, Any] = {"read_on_worker": True}
    sources: list[DataFiles] = [
        TextFiles(rows, **on),
        CsvFiles(rows, columns=["b"], **on),
        TFRecordFiles(tmp_path / "some.tfrecord", **on),
    ]
    for data in sources:
        there = []
        for piece in pieces_of(data, workers):
            there += [
                row
                for block in blocks_of(pickle.loads(pickle.dumps(piece.remote))(), lambda: 7)
                for row in as_rows(block)
            ]
        assert there == flat(data, workers)
    assert all(piece.remote is None for piece in pieces_of(TextFiles(rows), 2))


def test_columns_of_csv(tmp_path: Path):
    file = written(tmp_path / "rows.csv", "\ufeffa;b;c\n1;2;3\n4;5;6\n\n")
    assert flat(CsvFiles(file, columns=["c", "a"], delimiter=";")) == [("3", "1"), ("6", "4")]
    with pytest.raises(InputError, match=r"rows.csv: no column d; it has a, b, c"):
        CsvFiles(file, columns=["a", "d"], delimiter=";")
    with pytest.raises(InputError, match="header=True"):
        CsvFiles(file, columns=["a"], header=False)
    with pytest.raises(InputError, match=r"empty.csv: no column a; the file is empty"):
        CsvFiles(written(tmp_path / "empty.csv", ""), columns=["a"])
    broken = {
        "a row of 3 fields instead of 2: '1,2,3'; is ','": "a,b\n1,2\n1,2,3\n",
        "not CSV: unexpected end": 'a,"b\n1,2\n',
    }
    for message, content in broken.items():
        with pytest.raises(BrokenFileError, match=f"x.csv: {message}"):
            flat(CsvFiles(written(tmp_path / "x.csv", content)), 1)


def test_the_record_format_is_that_of_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    crc32c = {bytes(8): 0x8C28B28A, b"": 0, b"\5" + bytes(7): 0xE4094DC0, b"hello": 0x9A71BB4C}
    monkeypatch.setattr(readers, "crc32c_function", lambda: crc32c.__getitem__)
    content = "000000000000000029039807d8ea82a20500000000000000eab2043e68656c6c6fbb1f1c19"
    assert flat(TFRecordFiles(written(tmp_path / "some", bytes.fromhex(content)))) == [b"", b"hello"]


@pytest.mark.parametrize("crc", [google_crc32c.value, None], ids=["checksums", "no checksums"])
def test_damaged_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crc: Any):
    monkeypatch.setattr(readers, "crc32c_function", lambda: crc)  # google-crc32c is installed, or not
    raw, second = recorded([b"first record", b"second record"]), 12 + len(b"first record") + 4
    damages = {
        "not a TFRecord file": b"PK\3\4\x14\0\x06\0" + raw[8:],
        rf"damaged: the length of the record at byte {second}": raw[:second] + b"\xff" * 12,
        rf"cut off within the record at byte {second}": raw[:-3],
        rf"cut off within the record at byte {second}$": raw[: second + 5],
    }
    for message, content in damages.items():
        with pytest.raises(BrokenFileError, match=message):
            flat(TFRecordFiles(written(tmp_path / "bad", content)), 1)
    changed = written(tmp_path / "changed", raw.replace(b"second", b"Second"))
    assert flat(TFRecordFiles(changed, check=False), 1) == [b"first record", b"Second record"]
    if crc is not None:
        with pytest.raises(BrokenFileError, match=f"the checksum of the record at byte {second}"):
            flat(TFRecordFiles(changed), 1)
