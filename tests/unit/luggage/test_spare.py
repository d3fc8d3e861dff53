"""Trees of runs that are over: their files are used again, as far as nobody has changed them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.agent.store import spare
from launcher.agent.store.home import Store
from launcher.luggage.sync import finish
from tests.unit.luggage.conftest import Bring
from tests.unit.luggage.hosts import LocalHosts, snapshot


def inodes(root: str | Path) -> dict[str, int]:
    return {
        str(p.relative_to(root)): p.lstat().st_ino
        for p in Path(root).rglob("*")
        if p.is_file() and not p.is_symlink()
    }


def let_the_clock_tick(folder: Path) -> None:
    """That of the file system: what is changed after that has another time than what was before."""
    made = folder / "made before"
    made.touch()
    now = folder / "made after"
    while not now.exists() or now.stat().st_ctime_ns <= made.stat().st_ctime_ns:
        now.touch()


def test_the_next_run_takes_the_same_files(bring: Bring, hosts: LocalHosts, folder: Path):
    first = bring(folder)
    before = inodes(first.workdirs["a"])
    finish(hosts, ("a",), "job1", 1)
    second = bring(folder, job="job2")
    assert inodes(second.workdirs["a"]) == before
    assert snapshot(Path(second.workdirs["a"])) == snapshot(folder)
    assert second.sent == 0
    third = bring(folder, job="job3")  # while the second runs
    assert not set(inodes(third.workdirs["a"]).values()) & set(before.values())
    assert snapshot(Path(third.workdirs["a"])) == snapshot(folder)
    finish(hosts, ("a",), "job2", 1)
    finish(hosts, ("a",), "job3", 1)
    assert not list((hosts.cache("a") / "tmp").glob("*"))


def test_what_tasks_did_to_their_folder_is_gone(
    bring: Bring, hosts: LocalHosts, folder: Path, tmp_path: Path
):
    work = Path(bring(folder).workdirs["a"])
    let_the_clock_tick(tmp_path)
    status = (work / "train.py").stat()
    (work / "train.py").write_text("print('HELLO')\n")
    os.utime(work / "train.py", ns=(status.st_atime_ns, status.st_mtime_ns))  # as if nothing had been
    (work / "run.sh").write_text("longer than it was")
    (work / "secret").unlink()
    (work / "src/new").write_text("new")
    (work / "checkpoints").mkdir()
    (work / "checkpoints/7").write_text("heavy")
    (work / "link").unlink()
    (work / "link").symlink_to("/etc")
    (work / "src/deep/nothing").unlink()
    (work / "src/deep/nothing").mkdir()
    os.link(work / "src/big", hosts.home("a") / "second name")
    finish(hosts, ("a",), "job1", 1)
    kept = [path.name for path in (hosts.cache("a") / "spare").rglob("*") if path.is_file()]
    assert not {"7", "new", "train.py", "run.sh", "big"} & set(kept)
    result = bring(folder, job="job2")
    assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
    assert result.sent == 0


def test_a_changed_project_takes_what_it_still_has(bring: Bring, hosts: LocalHosts, folder: Path):
    before = inodes(bring(folder).workdirs["a"])
    finish(hosts, ("a",), "job1", 1)
    (folder / "train.py").write_text("new")
    (folder / "run.sh").rename(folder / "renamed.sh")
    (folder / "src/big").rename(folder / "big")
    (folder / "src/big copy").write_bytes((folder / "big").read_bytes())
    result = bring(folder, job="job2")
    after = inodes(result.workdirs["a"])
    assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
    assert after["secret"] == before["secret"]
    assert after["train.py"] != before["train.py"]


def test_a_cache_that_was_emptied_is_no_matter(bring: Bring, hosts: LocalHosts, folder: Path):
    bring(folder)
    finish(hosts, ("a",), "job1", 1)
    for blob in hosts.cache("a").glob("blobs/*/*"):
        blob.unlink()
    result = bring(folder, job="job2")
    assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
    assert result.sent < 3000, "only the manifest was missing"


def test_notes_that_are_damaged_are_no_matter(bring: Bring, hosts: LocalHosts, folder: Path):
    bring(folder)
    finish(hosts, ("a",), "job1", 1)
    for notes in hosts.cache("a").glob("spare/*/notes"):
        notes.write_text("{")
    result = bring(folder, job="job2")
    assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)


def test_only_so_many_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(str(tmp_path / "store"))
    os.makedirs(store.tmp)
    from launcher.luggage.walk import walk

    for number in range(6):
        tree = tmp_path / f"tree{number}"
        tree.mkdir()
        (tree / "x").write_text("x")
        entries = walk(str(tree)).entries
        spare.park(store, f"tree{number}", str(tree), entries, 2**63, lambda: None)
        os.utime(spare.find(store, f"tree{number}").folder, (number, number))
    left = [number for number in range(6) if spare.find(store, f"tree{number}").files]
    assert left == [2, 3, 4, 5]
    monkeypatch.setattr(spare, "LIMIT", 0)
    tree = tmp_path / "big"
    tree.mkdir()
    (tree / "x").write_text("x")
    spare.park(store, "big", str(tree), walk(str(tree)).entries, 2**63, lambda: None)
    assert tree.exists(), "too big to be kept"
