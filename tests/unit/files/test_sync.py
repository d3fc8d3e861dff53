"""Copying folders to hosts: what arrives, what is sent, and what is never visible."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from launcher.agent import files
from launcher.agent.identity import this_process
from launcher.agent.transfer import SYNC_MARK, digest
from launcher.backends.programs import RemoteProgram
from launcher.common.errors import JobError, TransportError
from launcher.files.requests import Item, parse_syncs
from launcher.files.transfer import FileTransfer, collect, finish, sync
from launcher.files.walk import SourceTree, read_trees
from tests.pythons import oldest_python
from tests.told import Told
from tests.unit.files.conftest import Sync
from tests.unit.files.hosts import LocalHosts, snapshot


def synced(folder: Path) -> dict[bytes, tuple[str, int, object]]:
    """What is in a synced folder but the mark."""
    found = snapshot(folder)
    assert found.pop(SYNC_MARK.encode())[0] == "file"
    return found


def trees_of(*texts: str | Path) -> list[SourceTree]:
    return read_trees(parse_syncs(map(str, texts)), "/")[0]


@pytest.fixture
def there(hosts: LocalHosts) -> Path:
    return hosts.home("a") / "some/where"


@pytest.mark.promise("only changes are sent")
def test_only_what_changed_is_sent(bring: Sync, hosts: LocalHosts, folder: Path):
    for number, sent in enumerate((None, 15, 30, 15)):
        tree, copying = bring(folder, job=f"job{number}")
        assert synced(tree) == snapshot(folder)
        assert (tree / "run.sh").stat().st_mtime_ns == (folder / "run.sh").stat().st_mtime_ns
        assert copying.moved == (copying.size if sent is None else sent)
        finish(FileTransfer(hosts, 1), ("a",), f"job{number}")
        (folder / "train.py").write_text(f"print('hell{number}')\n")  # of the same size
        if number == 1:
            (folder / "src/copy of train.py").rename(folder / "renamed.py")
    assert not os.listdir(hosts.cache("a") / "work")
    assert finish(FileTransfer(hosts, 8), ("a", "never synced"), "job1") == {}
    assert not hosts.cache("never synced").exists()


def test_folders_become_files_and_files_folders(bring: Sync, hosts: LocalHosts, folder: Path, there: Path):
    for number in range(3):
        tree, _ = bring(folder, f"{folder}:some/where", job=f"job{number}")
        assert synced(tree) == synced(there) == snapshot(folder)
        finish(FileTransfer(hosts, 1), ("a",), f"job{number}")
        if number == 0:
            shutil.rmtree(folder / "src")
            (folder / "src").write_text("a file")
            (folder / "train.py").unlink()
            (folder / "train.py").mkdir()
            (folder / "train.py/x").write_text("in a folder")
        elif number == 1:
            shutil.rmtree(folder / "train.py")
            (folder / "train.py").symlink_to("run.sh")
            (folder / "src").unlink()
            (folder / "src").mkdir()


def test_tasks_run_where_the_launcher_is(bring: Sync, folder: Path):
    tree, _ = bring(folder, cwd=str(folder / "src/deep"))
    assert tree.match("project/src/deep") and tree.is_dir()
    (folder / ".launchignore").write_text("src/\n")
    with pytest.raises(JobError, match=r"current folder 'src/deep' of .* is left out by its ignore rules"):
        bring(folder, cwd=str(folder / "src/deep"))


def test_several_launches_and_hosts_of_one_home_at_once(hosts: LocalHosts, folder: Path, tmp_path: Path):
    trees = trees_of(folder, f"{folder}:{tmp_path}/shared")
    names = [f"n{number}" for number in range(6)]
    hosts.environments = {name: {"HOME": str(hosts.home("a"))} for name in names}
    failures: list[BaseException] = []

    def launch(job: str, *names: str) -> None:
        try:
            for paths in sync(FileTransfer(hosts, 9), names, trees, job).values():
                assert all(synced(Path(path)) == snapshot(folder) for path in paths[:-1])
            assert finish(FileTransfer(hosts, 9), names, job) == {}
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
            failures.append(error)

    jobs = [("one", *names[:2]), ("two", *names[2:4]), ("three", names[4]), ("four", names[5])]
    threads = [threading.Thread(target=launch, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert synced(tmp_path / "shared") == snapshot(folder)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_run_that_was_never_finished_goes_when_nothing_uses_it(
    bring: Sync, hosts: LocalHosts, folder: Path
):
    trees = [bring(folder, job=f"job{number}")[0] for number in range(6)]
    marks = [mark for tree in trees for mark in tree.parent.glob(".used-*")]
    assert len(marks) == 6
    written = marks[3].read_text()
    marks[3].write_text(written.replace(this_process().boot_id, "of another machine of the same name"))
    (trees[2].parent / ".used-another-mark").write_text(marks[3].read_text())
    marks[4].write_text("")  # by an earlier version
    for mark in [*marks[:5], trees[2].parent / ".used-another-mark"]:
        os.utime(mark, (time.time() - 7200,) * 2)
    with subprocess.Popen(["sleep", "60"], cwd=trees[1] / "src") as process:
        bring(folder, job="other")
        process.kill()
    assert [tree.exists() for tree in trees] == [False, True, True, True, True, True]


def test_the_trees_of_earlier_runs_are_bounded(
    bring: Sync, hosts: LocalHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(hosts.home("a") / ".cache"))
    monkeypatch.setattr(files, "_MAX_KEPT_BYTES", 25_000)
    for number in range(4):
        (tmp_path / f"f{number}").mkdir()
        (tmp_path / f"f{number}/x").write_bytes(os.urandom(10_000))
        bring(tmp_path / f"f{number}", job=f"job{number}")
        files.discard(f"job{number}")
    kept = [path.read_bytes() for path in hosts.cache("a").glob("trees/*/x")]
    assert sorted(kept) == sorted((tmp_path / f"f{number}/x").read_bytes() for number in (2, 3))


def test_a_big_file_goes_through_little_memory(bring: Sync, folder: Path):
    import resource

    with open(folder / "sparse", "wb") as file:
        file.truncate(200_000_000)
        file.seek(150_000_000)
        file.write(b"here")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tree, _ = bring(folder)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 30_000, "kB of memory"
    with open(tree / "sparse", "rb") as file:
        assert file.seek(0, os.SEEK_END) == 200_000_000
        file.seek(150_000_000)
        assert file.read(4) == b"here"


@pytest.mark.promise("files that shrink, grow, are rewritten")
@pytest.mark.parametrize("how", ["grow", "shrink", "rewrite", "rewrite once"])
def test_a_file_that_changes_while_it_is_sent_is_named(
    hosts: LocalHosts, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    """Exactly what was announced is sent; the next sync brings the file again."""
    restless = folder / "src/big"
    sends = iter(range(10_000))
    send = RemoteProgram.send

    def meddling_send(command: RemoteProgram, data: bytes | memoryview) -> int:
        size = restless.stat().st_size
        if how == "rewrite" or next(sends) == 4:
            restless.write_bytes(os.urandom(size))
        elif how != "rewrite once":
            os.truncate(restless, size + 10 if how == "grow" else max(0, size - 5_000))
        return send(command, data)

    trees = trees_of(folder)
    (folder / "run.sh").unlink()
    monkeypatch.setattr(RemoteProgram, "send", meddling_send)
    with Told() as told:
        paths = sync(FileTransfer(hosts, 8), ("a",), trees, "job1")
    assert f"--sync: {folder}/run.sh vanished: left out" in told.lines
    text = f"--sync: {folder}/src/big changed while it was read: the copy may mix old and new content"
    assert (text in told.lines) == (how != "rewrite once")
    assert synced(Path(paths["a"][0])).keys() == snapshot(folder).keys()
    monkeypatch.setattr(RemoteProgram, "send", send)
    finish(FileTransfer(hosts, 1), ("a",), "job1")
    paths = sync(FileTransfer(hosts, 8), ("a",), trees_of(folder), "job2")
    assert synced(Path(paths["a"][0])) == snapshot(folder)


def test_several_folders_and_the_runs_own_stays(
    bring: Sync, hosts: LocalHosts, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    send = RemoteProgram.send
    monkeypatch.setattr(
        RemoteProgram, "send", lambda command, data: send(command, data[: 5000 if len(data) > 5000 else 60])
    )
    data = tmp_path / "dat\u00e4\n"
    data.mkdir()
    (data / "set").write_text("1 2 3")
    (folder / "run1").mkdir()
    (folder / "run1/events.jsonl").write_text("{}")
    tree, _ = bring(folder, f"{data}:sets/one", data, without=str(folder / "run1"))
    assert (hosts.home("a") / "sets/one/set").read_text() == "1 2 3"
    assert (hosts.cache("a") / "work/job1" / data.name / "set").read_text() == "1 2 3"
    assert finish(FileTransfer(hosts, 1), ("a",), "job1") == {}
    assert bring(data, job="job2")[1].moved == 0
    assert tree.match("job1/project") and not (tree / "run1").exists()


def test_a_host_whose_user_is_not_root(open_hosts: LocalHosts, folder: Path):
    """A folder that nobody may write to gets to the hosts, and a task may have closed another one."""
    (folder / "closed").mkdir()
    (folder / "closed/file").write_text("x")
    (folder / "closed").chmod(0o555)
    trees = trees_of(folder, f"{folder}/closed:kept")
    for number in range(3):
        copying = FileTransfer(open_hosts, 8)
        tree = Path(sync(copying, ("a",), trees, f"job{number}")["a"][0])
        assert synced(tree) == {**snapshot(folder), b"closed": ("folder", 0o755, None)}
        assert (copying.moved == 0) == (number > 0)
        (tree / "made/closed").mkdir(parents=True)
        for made in (tree / "made/closed", tree / "made"):
            os.chown(made, open_hosts.uid or -1, -1)
            made.chmod(0o555)
        assert finish(FileTransfer(open_hosts, 8), ("a",), f"job{number}") == {}


def test_the_oldest_python_will_do(hosts: LocalHosts, bring: Sync, folder: Path, tmp_path: Path):
    if (python := oldest_python()) is None:
        pytest.skip("no python3.8 on this machine")
    hosts.python = python
    bring(folder, f"{folder}:there")
    (folder / "train.py").write_text("new")
    tree, _ = bring(folder, f"{folder}:there")
    assert synced(tree) == snapshot(folder)
    items = [Item(task="worker/0", host="a", base=str(tree), path="s*c", into=str(tmp_path / "out"))]
    assert collect(FileTransfer(hosts, 1), items)["a"].files == 3
    assert finish(FileTransfer(hosts, 8), ("a",), "job1") == {}


# ---------------------------------------------------------------------- DIR:PLACE


def test_a_place_stays_and_what_no_sync_brought_is_kept(bring: Sync, folder: Path, there: Path):
    bring(f"{folder}:~/some/where")
    assert synced(there) == snapshot(folder)
    assert sorted(os.listdir(there.parent)) == ["where"], "something is left beside it"
    before = there.stat()
    assert bring(f"{folder}:some/where")[1].moved == 0
    assert (there.stat().st_ino, there.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    (there / "checkpoints/7").mkdir(parents=True)
    (there / "checkpoints/7/weights").write_text("heavy")
    (there / "src/deep/log").write_text("log")
    (there / "own link").symlink_to("checkpoints")
    (there / "secret").write_text("edited there")
    (there / "run.sh").write_text("edited there")
    for path in ("secret", "src/deep/nothing"):
        (folder / path).unlink()
    (folder / "src/deep").rmdir()
    (folder / "empty").rmdir()
    bring(f"{folder}:some/where")
    expected = snapshot(folder) | {
        b"checkpoints": ("folder", 0o755, None),
        b"checkpoints/7": ("folder", 0o755, None),
        b"checkpoints/7/weights": ("file", 0o644, b"heavy"),
        b"src/deep": ("folder", 0o755, None),
        b"src/deep/log": ("file", 0o644, b"log"),
        b"own link": ("link", 0, b"checkpoints"),
        b"secret": ("file", 0o600, b"edited there"),
    }
    assert synced(there) == expected


@pytest.mark.promise("nothing of others is replaced")
def test_nothing_of_others_is_replaced(bring: Sync, hosts: LocalHosts, folder: Path, there: Path):
    there.mkdir(parents=True)
    (there / "thesis").write_text("years of work")
    with pytest.raises(TransportError, match=r"a: .*/some/where holds files, and no sync made it"):
        bring(f"{folder}:some/where")
    assert snapshot(there) == {b"thesis": ("file", 0o644, b"years of work")}
    (hosts.home("a") / "file").write_text("x")
    with pytest.raises(TransportError, match=r"a: cannot write .*/file: Not a directory"):
        bring(f"{folder}:file")
    with pytest.raises(TransportError, match=r"a: cannot write .*/file/.*: Not a directory"):
        bring(f"{folder}:file/below")
    for place in (".cache", ".cache/tf-launcher", ".."):
        path = os.path.realpath(hosts.home("a") / place)
        with pytest.raises(TransportError, match=r"is a mount point, or holds the home folder"):
            bring(f"{folder}:{path}")
    with pytest.raises(TransportError, match=r"\Aa: /proc is a mount point, .* so it is not replaced"):
        bring(f"{folder}:/proc")
    (there / "thesis").unlink()
    bring(f"{folder}:some/where")
    (there / "out").mkdir()
    (there / "out/result").write_text("mine")
    (folder / "out").write_text("a file now")
    with pytest.raises(TransportError, match=r"cannot write .*where/out: Is a directory"):
        bring(f"{folder}:some/where")
    assert (there / "out/result").read_text() == "mine"


def test_a_task_that_runs_there_is_not_disturbed(bring: Sync, folder: Path, there: Path):
    bring(f"{folder}:some/where")
    environment = {**os.environ, "TF_LAUNCHER_TASK": "job9:worker/0"}
    with subprocess.Popen(["sleep", "60"], cwd=there / "src", env=environment) as process:
        try:
            bring(f"{folder}:some/where")  # unchanged: fine
            (folder / "train.py").write_text("new")
            with pytest.raises(TransportError, match=r"is in use by the task job9:worker/0 \(process \d+\)"):
                bring(f"{folder}:some/where")
        finally:
            process.kill()


def test_a_lock_of_another_user_is_named(open_hosts: LocalHosts, folder: Path):
    """Even if it cannot be opened. In a folder that several users may write to, anybody can make it."""
    if not open_hosts.uid:
        pytest.skip("needs root: a file of another user")
    place = open_hosts.home("a") / "place"
    lock = place.parent / f".tf-launcher-lock-{open_hosts.uid}-{digest(str(place))}"
    for mode in (0o600, 0o666):
        lock.touch()
        lock.chmod(mode)
        with pytest.raises(TransportError, match=rf"{lock} belongs to another user; remove it"):
            sync(FileTransfer(open_hosts, 8), ("a",), trees_of(f"{folder}:place"), "job1")
    lock.unlink()
    assert sync(FileTransfer(open_hosts, 8), ("a",), trees_of(f"{folder}:place"), "job1")
