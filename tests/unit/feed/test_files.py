"""Files of all kinds, however they are cut: each record once, none torn."""

from __future__ import annotations

import csv
import gzip
import itertools
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import InputError
from launcher.feed.files import CsvFiles, TextFiles, TFRecordFiles
from launcher.feed.partitions import partitions_of
from launcher.feed.remote import crc
from launcher.feed.remote.readers import BrokenFile
from launcher.feed.remote.tfrecords import BrokenRecords, offsets, read_records, write_records
from launcher.feed.sources import blocks_of

anew = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)


def taken(data, workers: int = 2) -> list[list[object]]:
    """The rows of each partition."""
    return [[row for block in p.blocks(100) for row in block] for p in partitions_of(data, workers)]


def flat(data, workers: int = 2) -> list[object]:
    return list(itertools.chain.from_iterable(taken(data, workers)))


def lines(file: Path, texts: list[str], end: str = "\n", last: str = "\n") -> Path:
    file.write_bytes((end.join(texts) + (last if texts else "")).encode())
    return file


# ---------------------------------------------------------------------------------------- text


@anew
@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))), st.integers(1, 5)
)
def test_every_line_once_and_in_order(tmp_path: Path, texts: list[str], workers: int):
    file = lines(tmp_path / "lines.txt", texts)
    assert flat(TextFiles(file), workers) == texts


@pytest.mark.parametrize(("end", "last"), [("\n", ""), ("\r\n", "\r\n"), ("\r\n", "")])
def test_ends_of_lines(tmp_path: Path, end: str, last: str):
    texts = [f"line {n} \x0b\u2028 with more" for n in range(50)]
    assert flat(TextFiles(lines(tmp_path / "lines.txt", texts, end, last))) == texts


def test_a_name_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    lines(tmp_path / "a.txt", ["one"])
    lines(tmp_path / "b.txt", ["two"])
    assert flat(TextFiles("~/*.txt")) == ["one", "two"]
    assert flat(TextFiles([Path("~/b.txt")])) == ["two"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path):
    file = lines(tmp_path / "lines.txt", ["\ufeffone", "two", "three", "four"])
    assert flat(TextFiles(file)) == ["one", "two", "three", "four"]


def test_few_files_are_cut_many_are_not(tmp_path: Path):
    for n in range(3):
        lines(tmp_path / f"part-{n}", [f"{n}.{m}" for m in range(100)])
    pattern = str(tmp_path / "part-*")
    whole, cut = taken(TextFiles(pattern), workers=2), taken(TextFiles(pattern), workers=4)
    assert [len(part) for part in whole] == [100, 100, 100]
    assert len(cut) == 15
    assert max(map(len, cut)) <= 25
    assert list(itertools.chain(*whole)) == list(itertools.chain(*cut))


def test_lines_longer_than_a_bite(tmp_path: Path):
    texts = ["x" * 3_000_000, "y", "z" * 1_500_000]
    assert flat(TextFiles(lines(tmp_path / "long.txt", texts, last="")), 3) == texts


def test_packed_files_are_one_piece(tmp_path: Path):
    file = tmp_path / "lines.txt.gz"
    file.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert taken(TextFiles(file)) == [["one", "two"]]


def test_other_encodings(tmp_path: Path):
    file = tmp_path / "old.txt"
    file.write_bytes("café\nnaïve\n".encode("latin-1"))
    assert flat(TextFiles(file, encoding="latin-1")) == ["café", "naïve"]
    with pytest.raises(BrokenFile, match=r"old.txt: .* is no utf-8; say encoding="):
        flat(TextFiles(file))
    for encoding in ("utf-16", "nonsense"):
        with pytest.raises(InputError, match="encoding="):
            TextFiles(file, encoding=encoding)


# ---------------------------------------------------------------------------------------- names


def test_all_bad_names_are_told_at_once(tmp_path: Path):
    lines(tmp_path / "there.txt", ["x"])
    with pytest.raises(InputError) as caught:
        TextFiles([tmp_path / "there.txt", tmp_path / "nowhere-*.txt", tmp_path])
    assert len(caught.value.faults) == 2
    assert "nowhere-*" in str(caught.value) and "is a folder" in str(caught.value)
    with pytest.raises(InputError, match="no files"):
        TextFiles([])


def test_names_with_the_characters_of_patterns_and_folders_below(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    odd, deep = tmp_path / "odd[1]*.txt", tmp_path / "a" / "b" / "deep.txt"
    lines(odd, ["odd"])
    lines(deep, ["deep"])
    assert flat(TextFiles(odd)) == ["odd"]
    assert flat(TextFiles(str(tmp_path / "**" / "deep.txt"))) == ["deep"]
    assert flat(TextFiles([deep, str(tmp_path / "**" / "deep.txt")])) == ["deep"]


# ---------------------------------------------------------------------------------------- beside the worker


@pytest.mark.parametrize("workers", [1, 5])
def test_what_is_read_beside_the_worker_can_be_sent(tmp_path: Path, workers: int):
    lines(tmp_path / "rows.csv", ["a,b", *(f"{n},{n}" for n in range(40))])
    write_records(str(tmp_path / "some.tfrecord"), [b"x"] * 40)
    for data in (
        TextFiles(tmp_path / "rows.csv", beside=True),
        CsvFiles(tmp_path / "rows.csv", beside=True, columns=["b"]),
        TFRecordFiles(tmp_path / "some.tfrecord", beside=True),
    ):
        there = []
        for found in partitions_of(data, workers):
            reader = pickle.loads(pickle.dumps(found.remote))
            there += [row for block in blocks_of(reader(), 7) for row in block]
        assert there == flat(data, workers)
    assert all(p.remote is None for p in partitions_of(TextFiles(tmp_path / "rows.csv"), 2))


# ---------------------------------------------------------------------------------------- CSV


FIELDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@anew
@given(st.lists(st.tuples(FIELDS, FIELDS)), st.integers(1, 5), st.booleans())
def test_every_row_once_however_odd_its_fields(tmp_path: Path, rows, workers: int, header: bool):
    file = tmp_path / "rows.csv"
    with open(file, "w", newline="", encoding="utf-8") as out:
        csv.writer(out, quoting=csv.QUOTE_ALL).writerows([("x", 'y "\n'), *rows] if header else rows)
    expected = [{"x": x, 'y "\n': y} for x, y in rows] if header else rows
    assert flat(CsvFiles(file, header=header), workers) == expected


def test_columns_are_chosen_and_ordered(tmp_path: Path):
    file = lines(tmp_path / "rows.csv", ["\ufeffa;b;c", "1;2;3", "4;5;6", ""])
    assert flat(CsvFiles(file, columns=["c", "a"], delimiter=";")) == [("3", "1"), ("6", "4")]
    with pytest.raises(InputError, match=r"rows.csv: no column d; it has a, b, c"):
        CsvFiles(file, columns=["a", "d"], delimiter=";")
    with pytest.raises(InputError, match="header=True"):
        CsvFiles(file, columns=["a"], header=False)


def test_a_row_of_another_length_is_told(tmp_path: Path):
    file = lines(tmp_path / "rows.csv", ["a,b", "1,2", "1,2,3"])
    with pytest.raises(BrokenFile, match=r"rows.csv: a row of 3 fields instead of 2: '1,2,3'"):
        flat(CsvFiles(file), 1)


@pytest.mark.parametrize("columns", [(), ["a"]])
def test_a_header_with_an_open_quote_is_no_csv(tmp_path: Path, columns: list[str] | tuple[str, ...]):
    file = lines(tmp_path / "rows.csv", ['a,"b', "1,2"])
    with pytest.raises(BrokenFile, match=r"rows.csv: no CSV: unexpected end of data"):
        flat(CsvFiles(file, columns=columns), 1)


# ---------------------------------------------------------------------------------------- TFRecord


@anew
@given(st.lists(st.binary(max_size=700)), st.integers(1, 5), st.booleans())
def test_every_record_once(tmp_path: Path, records: list[bytes], workers: int, packed: bool):
    file = tmp_path / ("some.tfrecord.gz" if packed else "some.tfrecord")
    assert write_records(str(file), records) == len(records)
    assert flat(TFRecordFiles(file), workers) == records


def test_few_record_files_are_cut_at_records(tmp_path: Path):
    file = tmp_path / "some.tfrecord"
    write_records(str(file), [bytes([n]) * (n % 7) for n in range(100)])
    found = taken(TFRecordFiles(file), workers=2)
    assert len(found) == 8
    assert list(itertools.chain(*found)) == [bytes([n]) * (n % 7) for n in range(100)]


#: What TensorFlow 2.21 writes for the records b"" and b"hello".
WRITTEN = bytes.fromhex(
    "000000000000000029039807d8ea82a2"
    "0500000000000000eab2043e68656c6c6fbb1f1c19"
)  # fmt: skip


def test_the_format_is_that_of_tensorflow(tmp_path: Path):
    file = tmp_path / "some.tfrecord"
    write_records(str(file), [b"", b"hello"])
    assert file.read_bytes() == WRITTEN


@pytest.mark.parametrize("check", [True, False])
def test_damage_is_found_and_placed(tmp_path: Path, check: bool):
    good = tmp_path / "good"
    write_records(str(good), [b"first record", b"second record"])
    raw, second = good.read_bytes(), list(offsets(str(good)))[1]
    damages = {
        "no TFRecord file": b"PK" + raw[2:],
        rf"damaged: the checksum of the length at byte {second}": raw[:second] + b"\7" + raw[second + 1 :],
        rf"cut off within the record at byte {second}": raw[:-3],
        rf"cut off within the record at byte {second}; ": raw[: second + 5],
    }
    if check:
        damages[rf"the checksum of the record at byte {second}"] = raw.replace(b"second", b"Second")
    bad = tmp_path / "bad"
    for what, content in damages.items():
        bad.write_bytes(content)
        with pytest.raises(BrokenRecords, match=what):
            list(read_records(str(bad), check=check))
    if not check:
        bad.write_bytes(raw.replace(b"second", b"Second"))
        assert list(read_records(str(bad), check=False)) == [b"first record", b"Second record"]
    with pytest.raises(BrokenRecords, match="cut off"):
        bad.write_bytes(raw[:-3])
        list(offsets(str(bad)))


@pytest.mark.parametrize("length", [*range(12), 127, 128, 129, 255, 256, 257, 384, 511, 512, 700, 70_000])
def test_both_ways_to_the_checksum_agree(length: int):
    data = bytes(n * 7 % 256 for n in range(length))
    assert crc.crc32c(data) == crc._step(0xFFFFFFFF, data) ^ 0xFFFFFFFF


def test_the_checksum_is_castagnoli():
    assert crc.crc32c(b"123456789") == 0xE3069283
    assert crc.crc32c(bytes(range(32)) * 8) == crc.crc32c(bytes(range(32)) * 8)
    assert crc.crc32c(b"\0" * 32) == 0x8A9136AA


def test_without_numpy(tmp_path: Path):
    write_records(str(tmp_path / "some"), [b"x" * 1000])
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from launcher.feed.remote.tfrecords import read_records; print(len(*read_records(sys.argv[1])))"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "some")]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=50)
    assert ended.stdout == "1000\n", ended.stderr
