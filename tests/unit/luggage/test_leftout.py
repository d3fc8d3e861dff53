"""What is said of what the ignore rules left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.luggage import leftout
from launcher.luggage.leftout import Ignored, is_worth_noting, left_out_line
from launcher.luggage.packing import pack
from launcher.luggage.requests import parse_syncs
from launcher.luggage.sync import sync
from launcher.luggage.walk import walk
from tests.unit.luggage.hosts import LocalHosts, quietly


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project as it is after some weeks."""
    top = tmp_path / "project"
    for name, size in (("data/train", 41_000_000), ("venv/bin/python", 500), ("results/model", 2000)):
        (top / name).parent.mkdir(parents=True)
        with open(top / name, "wb") as file:
            file.truncate(size)
    (top / "__pycache__").mkdir()
    (top / "src/out").mkdir(parents=True)
    (top / "src/deep/down").mkdir(parents=True)
    (top / "src/deep/down/x.log").write_text("x")
    (top / ".gitignore").write_text("data/\nvenv/\n__pycache__/\nout/\n*.log\n")
    (top / ".launchignore").write_text("results/\n")
    return top


def line(root: Path) -> str:
    return left_out_line(str(root), walk(str(root)).ignored)


def test_what_is_left_out_is_said_in_one_line(root: Path):
    assert line(root) == (
        "left out by .gitignore: data/ (41 MB), venv/ (500 bytes), src/out/ (empty); "
        "by .launchignore: results/ (2 kB); !data/ in .launchignore brings it back"
    )


def test_the_advice_is_good(root: Path):
    (root / ".launchignore").write_text("results/\n!data/\n")
    assert "data/" not in line(root)
    assert "data/train" in [entry.path for entry in walk(str(root)).entries]


def test_what_launchignore_leaves_out_was_meant_to_be(root: Path):
    (root / ".gitignore").unlink()
    assert line(root) == "left out by .launchignore: results/ (2 kB)"


def test_nothing_is_left_out(tmp_path: Path):
    assert line(tmp_path) == ""


def test_what_is_too_big_to_be_counted_comes_first_without_a_size(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leftout, "_MOST_ENTRIES", 10)
    for number in range(11):
        (root / f"venv/{number}").touch()
    assert line(root).startswith("left out by .gitignore: venv/, data/ (41 MB), ")


def test_it_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(9):
        (root / f"{number}.log").write_text("x" * (10 + number))
    assert line(root).startswith(
        "left out by .gitignore: data/ (41 MB), venv/ (500 bytes), 8.log (18 bytes), 7.log (17 bytes); "
        "by .launchignore: results/ (2 kB) and 8 more; !data/"
    )
    looked: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looked.append(path) or real(path))  # type: ignore[func-returns-value]
    assert left_out_line(str(root), [Ignored("data", True, ".gitignore")] * 200).endswith(
        "and more; !data/ in .launchignore brings it back"
    )
    assert len(looked) == 20
    assert is_worth_noting("a/b", 0) and not is_worth_noting("a/b/c", 0) and not is_worth_noting("a", 200)


@pytest.mark.parametrize(("name", "shown"), [("a\nb", r"'a\nb/'"), ("a*", "a*/"), ("[a]", "[a]/")])
def test_a_name_that_is_no_rule_gets_no_advice(tmp_path: Path, name: str, shown: str):
    (tmp_path / name).mkdir()
    ignored = [Ignored(name, True, ".gitignore")]
    assert left_out_line(str(tmp_path), ignored) == f"left out by .gitignore: {shown} (empty)"


def test_it_is_said_when_something_travels(root: Path, hosts: LocalHosts, tmp_path: Path):
    said: list[str] = []
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.gitignore").write_text("*.bin")
    (tmp_path / "other/x.bin").write_text("x")
    for job, texts in (("1", [root]), ("2", [root]), ("3", [root, tmp_path / "other"])):
        packed = pack(parse_syncs(map(str, texts)), str(tmp_path))
        sync(hosts, ("a", "b"), packed, job, quietly(said), 8)
    assert [text.rpartition(", in ")[0] or text[:23] for text in said] == [
        "synced 2 files (45 bytes) to 2 hosts, 90 bytes sent",
        "left out by .gitignore:",
        "synced 2 files (45 bytes) to 2 hosts, nothing sent",
        "synced 3 files (50 bytes) to 2 hosts, 10 bytes sent",
        "left out of project by ",
        "left out of other by .g",
    ]
    assert said[-1].endswith("x.bin (1 byte); !x.bin in other/.launchignore brings it back")
