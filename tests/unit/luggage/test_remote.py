"""``--sync DIR:REMOTE``: a folder that stays, brought up to date without losing what is in it."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from launcher.agent.store import place
from launcher.agent.store.home import Failed
from launcher.errors import TransportError
from launcher.luggage.sync import finish
from launcher.model.luggage import SYNC_MARK
from tests.local.seeing import soon
from tests.unit.luggage.conftest import Bring
from tests.unit.luggage.hosts import LocalHosts, snapshot


def synced(folder: Path) -> dict[bytes, tuple[str, int, object]]:
    """What is in a synced folder but the mark."""
    found = snapshot(folder)
    assert found.pop(SYNC_MARK.encode())[0] == "file"
    return found


@pytest.fixture
def there(hosts: LocalHosts) -> Path:
    return hosts.home("a") / "some/where"


def test_it_stays(bring: Bring, hosts: LocalHosts, folder: Path, there: Path):
    result = bring(f"{folder}:~/some/where")
    assert result.workdirs == {"a": str(there)}
    assert synced(there) == snapshot(folder)
    finish(hosts, ("a",), "job1", 1)
    assert synced(there) == snapshot(folder)
    assert sorted(os.listdir(there.parent)) == ["where"], "something is left beside it"


def test_an_absolute_place(bring: Bring, folder: Path, tmp_path: Path):
    result = bring(f"{folder}:{tmp_path}/elsewhere/here")
    assert result.workdirs == {"a": f"{tmp_path}/elsewhere/here"}
    assert synced(tmp_path / "elsewhere/here") == snapshot(folder)


def test_what_is_unchanged_is_not_touched(bring: Bring, folder: Path, there: Path):
    bring(f"{folder}:some/where")
    before = there.stat()
    result = bring(f"{folder}:some/where")
    assert result.sent == 0
    assert there.stat().st_ino == before.st_ino


def test_what_no_sync_brought_is_kept(bring: Bring, folder: Path, there: Path):
    bring(f"{folder}:some/where")
    (there / "checkpoints/7").mkdir(parents=True)
    (there / "checkpoints/7/weights").write_text("heavy")
    (there / "src/deep/log").write_text("log")
    (there / "own link").symlink_to("checkpoints")
    open_file = open(there / "src/deep/log", "a")  # noqa: SIM115
    (folder / "train.py").write_text("new")
    (folder / "run.sh").unlink()
    (folder / "src/big").unlink()
    bring(f"{folder}:some/where")
    expected = snapshot(folder) | {
        b"checkpoints": ("folder", 0o755, None),
        b"checkpoints/7": ("folder", 0o755, None),
        b"checkpoints/7/weights": ("file", 0o644, b"heavy"),
        b"src/deep/log": ("file", 0o644, b"log"),
        b"own link": ("link", 0, b"checkpoints"),
    }
    assert synced(there) == expected
    with open_file:
        open_file.write("; and on")
    assert (there / "src/deep/log").read_text() == "log; and on", "not the same file any more"


def test_a_folder_that_dir_has_no_more_goes_unless_something_is_in_it(
    bring: Bring, folder: Path, there: Path
):
    bring(f"{folder}:some/where")
    (there / "src/result").write_text("mine")
    (folder / "empty").rmdir()
    for path in ("src/deep/nothing", "src/big", "src/copy of train.py"):
        (folder / path).unlink()
    (folder / "src/deep").rmdir()
    (folder / "src").rmdir()
    bring(f"{folder}:some/where")
    assert not (there / "empty").exists()
    assert os.listdir(there / "src") == ["result"]


def test_what_was_edited_there_is_as_in_dir_again(bring: Bring, folder: Path, there: Path):
    bring(f"{folder}:some/where")
    (there / "train.py").write_text("edited")
    (there / "run.sh").unlink()
    (there / "secret").chmod(0o644)
    bring(f"{folder}:some/where")
    assert synced(there) == snapshot(folder)


def test_what_was_synced_edited_there_and_left_dir_is_kept(bring: Bring, folder: Path, there: Path):
    bring(f"{folder}:some/where")
    (there / "train.py").write_text("edited")
    (folder / "train.py").unlink()
    bring(f"{folder}:some/where")
    assert (there / "train.py").read_text() == "edited"


def test_what_is_there_need_not_come_again_though_the_cache_forgot_it(
    bring: Bring, hosts: LocalHosts, folder: Path, there: Path
):
    bring(f"{folder}:some/where")
    for blob in hosts.cache("a").glob("blobs/*/*"):
        blob.unlink()
    inode = (there / "src/big").stat().st_ino
    (folder / "train.py").write_text("new")
    assert bring(f"{folder}:some/where").sent < 4000
    assert (there / "src/big").stat().st_ino == inode
    assert synced(there) == snapshot(folder)


def test_a_folder_of_somebody_else_is_never_replaced(bring: Bring, folder: Path, there: Path):
    there.mkdir(parents=True)
    (there / "thesis").write_text("years of work")
    with pytest.raises(TransportError, match=r"a: .*/some/where holds files, and no sync made it"):
        bring(f"{folder}:some/where")
    assert snapshot(there) == {b"thesis": ("file", 0o644, b"years of work")}


def test_an_empty_folder_may_be_filled(bring: Bring, folder: Path, there: Path):
    there.mkdir(parents=True)
    bring(f"{folder}:some/where")
    assert synced(there) == snapshot(folder)


def test_a_file_in_the_way(bring: Bring, folder: Path, there: Path):
    there.parent.mkdir()
    there.write_text("x")
    with pytest.raises(TransportError, match=r"a: .*/some/where is in the way: it is a file"):
        bring(f"{folder}:some/where")
    with pytest.raises(TransportError, match=r"a: .*/some/where is in the way: it is no folder"):
        bring(f"{folder}:some/where/below")


@pytest.mark.parametrize("remote", ["{home}", "{home}/..", "{home}/.cache", "{home}/.cache/tf-launcher"])
def test_a_place_that_holds_the_home_or_the_cache(bring: Bring, hosts: LocalHosts, folder: Path, remote: str):
    path = os.path.realpath(remote.format(home=hosts.home("a")))
    with pytest.raises(TransportError, match=r"can't be replaced: the (home folder|launcher's own cache)"):
        bring(f"{folder}:{path}")


@pytest.mark.parametrize("remote", ["/proc", "/dev/shm"])
def test_a_mount_point(bring: Bring, folder: Path, remote: str):
    with pytest.raises(
        TransportError, match=rf"\Aa: {remote} can't be replaced: it is a mount point; give a"
    ):
        bring(f"{folder}:{remote}")


def test_an_empty_folder_that_another_is_bound_to(
    bring: Bring, folder: Path, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "rename", busy)
    with pytest.raises(Failed, match=f"{there} can't be replaced: it is a mount point; give a folder below"):
        place._move(str(tmp_path / "new"), str(there))


def test_by_way_of_a_link(bring: Bring, hosts: LocalHosts, folder: Path, tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (hosts.home("a") / "data").symlink_to(tmp_path / "disk")
    bring(f"{folder}:data/set")
    assert synced(tmp_path / "disk/set") == snapshot(folder)
    (hosts.home("a") / "home").symlink_to(".")
    with pytest.raises(TransportError, match="can't be replaced: the home folder"):
        bring(f"{folder}:home")


def test_a_folder_that_would_be_lost_to_a_file(bring: Bring, folder: Path, there: Path):
    bring(f"{folder}:some/where")
    (there / "out").mkdir()
    (there / "out/result").write_text("mine")
    (folder / "out").write_text("a file now")
    with pytest.raises(TransportError, match=r"where/out is a folder with files that no sync brought"):
        bring(f"{folder}:some/where")
    assert (there / "out/result").read_text() == "mine"


def test_a_task_that_runs_there_is_not_disturbed(bring: Bring, folder: Path, there: Path):
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


def test_all_hosts_that_fail_are_told_of_together(bring: Bring, hosts: LocalHosts, folder: Path):
    for host in ("b", "d"):
        (hosts.home(host) / "there").write_text("x")
    with pytest.raises(TransportError) as caught:
        bring(f"{folder}:there", to=("a", "b", "c", "d"))
    lines = str(caught.value).splitlines()
    assert [line[:3] for line in lines] == ["b: ", "d: "]
    assert all("is in the way" in line for line in lines)


def test_without_an_exchange_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "is").write_text(name)
    place.exchange(str(tmp_path / "new"), str(tmp_path / "old"))
    assert (tmp_path / "old/is").read_text() == "new"
    assert (tmp_path / "new/is").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


def test_a_sync_that_was_killed_between_two_names_is_mended(bring: Bring, folder: Path, there: Path):
    bring(f"{folder}:some/where")
    (there / "mine").write_text("mine")
    there.rename(there.parent / (place._name("where", place._OLD) + "00"))
    (there.parent / (place._name("where", place._NEW) + "00")).mkdir()
    (folder / "train.py").write_text("new")
    bring(f"{folder}:some/where")
    assert (there / "mine").read_text() == "mine"
    assert (there / "train.py").read_text() == "new"
    assert os.listdir(there.parent) == ["where"]


def test_nobody_ever_sees_a_mixture(bring: Bring, folder: Path, there: Path):
    """Two versions take turns, while somebody looks all the time."""
    for name in ("one", "two"):
        (folder / name).write_text("0")
    bring(f"{folder}:some/where")
    seen: set[tuple[bytes, ...]] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            with ExitStack() as opened:
                fd = os.open(there, os.O_RDONLY)
                opened.callback(os.close, fd)
                files = []
                try:
                    for name in ("one", "two"):
                        files.append(os.open(name, os.O_RDONLY, dir_fd=fd))
                        opened.callback(os.close, files[-1])
                except FileNotFoundError:  # that folder was just removed, under another name
                    continue
                seen.add(tuple(os.read(file, 9) for file in files))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for version in range(1, 6):
            for name in ("one", "two"):
                (folder / name).write_text(str(version))
            bring(f"{folder}:some/where")
            soon(partial(seen.__contains__, (b"%d" % version,) * 2), 20)
    finally:
        over.set()
        looker.join()
    assert all(one == two for one, two in seen)


def test_hosts_that_share_the_place(hosts: LocalHosts, bring: Bring, folder: Path, tmp_path: Path):
    names = [f"n{number}" for number in range(5)]
    bring(f"{folder}:{tmp_path}/shared", to=names)
    assert synced(tmp_path / "shared") == snapshot(folder)
    (tmp_path / "shared/result").write_text("mine")
    (folder / "train.py").write_text("new")
    bring(f"{folder}:{tmp_path}/shared", to=names)
    assert (tmp_path / "shared/result").read_text() == "mine"
    assert (tmp_path / "shared/train.py").read_text() == "new"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
