"""Looking at a folder: what is read, what is remembered, what is said of what can't be read."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.luggage import hashes, reading, walk
from launcher.luggage.packing import pack
from launcher.luggage.requests import parse_syncs
from launcher.model.luggage import SYNC_MARK, digest_of, entries_of
from tests.unit.luggage.hosts import ROOT


def contents(root: Path) -> dict[str, str]:
    return {entry.path: entry.content for entry in walk.walk(str(root)).entries if entry.kind == "f"}


def let_rest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all of it had been left alone for a while."""
    monkeypatch.setattr(hashes, "now", lambda: time.time_ns() + 10_000_000_000)
    monkeypatch.setattr(walk, "now", lambda: time.time_ns() + 10_000_000_000)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read."""
    seen: list[str] = []
    real = reading._read

    def read(path: bytes):
        seen.append(os.fsdecode(os.path.basename(path)))
        return real(path)

    monkeypatch.setattr(reading, "_read", read)
    return seen


def test_the_manifest_is_the_same_for_the_same_tree(folder: Path):
    first, second = walk.walk(str(folder)), walk.walk(str(folder))
    assert first.digest == second.digest
    assert list(first.entries) == entries_of(first.manifest)
    (folder / "run.sh").chmod(0o644)
    assert walk.walk(str(folder)).digest != first.digest


def test_what_rests_is_read_once(folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch):
    let_rest(folder, monkeypatch)
    first = contents(folder)
    assert len(reads) == len(first)
    reads.clear()
    assert contents(folder) == first
    assert reads == []
    (folder / "train.py").write_text("other")
    assert contents(folder)["train.py"] != first["train.py"]
    assert reads == ["train.py"]


def test_what_was_changed_just_now_is_not_believed(
    folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
):
    changed = (folder / "train.py").stat().st_ctime_ns
    monkeypatch.setattr(walk, "now", lambda: changed + 1_000_000_000)
    contents(folder)
    reads.clear()
    contents(folder)
    assert "train.py" in reads


def test_a_change_that_size_and_time_do_not_show(
    folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
):
    let_rest(folder, monkeypatch)
    before = contents(folder)
    status = (folder / "train.py").stat()
    (folder / "train.py").write_text("print('HELLO')\n")
    os.utime(folder / "train.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert contents(folder)["train.py"] != before["train.py"]


def test_a_damaged_memory_is_no_matter(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch):
    let_rest(folder, monkeypatch)
    before = contents(folder)
    files = list((own_cache / "tf-launcher/hashes").iterdir())
    assert len(files) == 1
    mine = {"form": 1, "folder": str(folder), "files": {}}
    others = [{"form": 1, "folder": "/other", "files": {}}, {**mine, "manifests": 7}, mine]
    others += [{**mine, "files": {"train.py": 5}}, {**mine, "manifests": ["", "\0", "../x", "a" * 40]}]
    for text in ("", "{", "[]", '{"form": 1}', *map(json.dumps, others)):
        files[0].write_text(text)
        assert contents(folder) == before


def test_a_cache_that_can_not_be_written_is_no_matter(folder: Path, own_cache: Path):
    own_cache.write_text("a file")
    assert contents(folder)


def test_only_so_many_folders_are_remembered(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hashes, "_MOST_FOLDERS", 3)
    let_rest(tmp_path, monkeypatch)
    for number in range(5):
        (tmp_path / f"f{number}").mkdir()
        (tmp_path / f"f{number}/x").write_text("x")
        contents(tmp_path / f"f{number}")
    assert len(list((own_cache / "tf-launcher/hashes").iterdir())) == 3


def test_sockets_pipes_and_devices_stay_with_one_remark(folder: Path, tmp_path: Path):
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        packed = pack(parse_syncs([str(folder)]), str(tmp_path))
    assert sorted(packed.trees[0].left_out) == ["pipe", "socket"]
    (remark,) = packed.remarks
    assert remark.startswith("--sync: sockets, pipes and devices are left out: ")
    assert {"pipe", "socket"} < set(remark.replace(",", "").split())


def test_the_mark_of_a_sync_stays(folder: Path):
    (folder / SYNC_MARK).write_text("x")
    assert SYNC_MARK not in contents(folder)


def test_a_file_that_changes_while_it_is_read_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    real, count = reading._read, [0]

    def read(path: bytes):
        before, content, after = real(path)
        if path.endswith(b"/train.py"):
            count[0] += 1
            if count[0] < 2:
                return before._replace(size=before.size + 1), content, after
        return before, content, after

    monkeypatch.setattr(reading, "_read", read)
    contents(folder)
    assert count == [2]


def test_of_one_that_changes_every_time_a_copy_travels(folder: Path, monkeypatch: pytest.MonkeyPatch):
    real = reading._read

    def read(path: bytes):
        before, content, after = real(path)
        return before._replace(size=-1) if path.endswith(b"/train.py") else before, content, after

    monkeypatch.setattr(reading, "_read", read)
    tree = walk.walk(str(folder))
    assert tree.copies is not None
    assert tree.copies.names == ["train.py"]
    before = (folder / "train.py").read_bytes()
    (folder / "train.py").write_text("something else")
    assert tree.copies.read("train.py", 1000, 0) == before
    (entry,) = [entry for entry in tree.entries if entry.path == "train.py"]
    assert (entry.size, entry.content) == (len(before), digest_of(before))


def test_what_vanishes_while_it_is_looked_at_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch):
    real = reading._read

    def read(path: bytes):
        if path.endswith(b"/train.py"):
            os.unlink(path)
        return real(path)

    monkeypatch.setattr(reading, "_read", read)
    tree = walk.walk(str(folder))
    assert tree.vanished == ["train.py"]
    assert "train.py" not in [entry.path for entry in tree.entries]


def test_a_folder_that_vanishes_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.scandir

    def scandir(path: bytes):
        if os.fsencode(path).endswith(b"/src/deep"):
            raise FileNotFoundError(2, "No such file or directory")
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        tree = walk.walk(str(folder))
    assert tree.vanished == ["src/deep"]
    assert not [entry.path for entry in tree.entries if entry.path.startswith("src/deep")]


_AS_NOBODY = """\
import os, sys
sys.path.insert(0, sys.argv[1])
from launcher.errors import JobError
from launcher.luggage.walk import walk
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    walk(sys.argv[2])
except JobError as error:
    print(error)
"""


def test_all_that_can_not_be_read_is_named_at_once(tmp_path_factory: pytest.TempPathFactory):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = Path(folder)
        (root / "closed folder").mkdir()
        (root / "closed folder").chmod(0)
        for number in range(25):
            (root / f"secret{number:02}").write_text("x")
            (root / f"secret{number:02}").chmod(0)
        ended = subprocess.run(
            [sys.executable, "-I", "-B", "-c", _AS_NOBODY, str(ROOT), folder],
            capture_output=True, text=True, timeout=50, check=True, env={"HOME": "/"},
        )  # fmt: skip
    lines = ended.stdout.splitlines()
    assert lines[0] == f"--sync: '{root}/closed folder' can't be read: Permission denied"
    assert lines[1] == f"--sync: '{root}/secret00' can't be read: Permission denied"
    assert len(lines) == 21
    assert lines[-1].startswith("--sync: and 6 more; make them readable, or leave them out with a line in")


def test_two_thousand_files_are_looked_at_fast(tmp_path: Path):
    for number in range(2000):
        path = tmp_path / f"d{number % 40}/f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(1000))
    since = time.process_time()
    tree = walk.walk(str(tmp_path))
    assert tree.files == 2000
    assert time.process_time() - since < 2.0, "seconds of CPU; it takes about a tenth of one"
