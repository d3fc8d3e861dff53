"""Bringing folders to hosts: what arrives, what is sent, and what is never visible."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.agent.transfer import SYNC_MARK
from launcher.errors import JobError, TransportError
from launcher.files.collect import collect
from launcher.files.progress import Progress
from launcher.files.requests import Item, parse_syncs
from launcher.files.sync import finish, sync
from launcher.files.walk import look
from tests.unit.files.conftest import Bring
from tests.unit.files.hosts import LocalErrand, LocalHosts, quietly, snapshot

#: Bytes of a conversation about 21 entries that are all there.
LISTS = 6000


def synced(folder: Path) -> dict[bytes, tuple[str, int, object]]:
    """What is in a synced folder but the mark."""
    found = snapshot(folder)
    assert found.pop(SYNC_MARK.encode())[0] == "file"
    return found


@pytest.fixture
def there(hosts: LocalHosts) -> Path:
    return hosts.home("a") / "some/where"


def test_everything_arrives_as_it_is(bring: Bring, hosts: LocalHosts, folder: Path):
    result = bring(folder, to=("a", "b", "c"))
    for host in ("a", "b", "c"):
        assert result.workdirs[host] == str(hosts.cache(host) / "work/job1/project")
        assert snapshot(Path(result.workdirs[host])) == snapshot(folder)
        copied = (Path(result.workdirs[host]) / "train.py").stat()
        assert copied.st_mtime_ns == (folder / "train.py").stat().st_mtime_ns
    assert (result.files, result.moved) == (13, 3 * result.size)


def test_only_what_changed_is_sent(bring: Bring, hosts: LocalHosts, folder: Path):
    for number in range(4):
        result = bring(folder, job=f"job{number}")
        assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
        if number:
            assert result.sent < LISTS and result.moved == (15 if number == 1 else 30 if number == 2 else 15)
        finish(hosts, ("a",), f"job{number}", 1)
        times = (folder / "train.py").stat()
        (folder / "train.py").write_text(f"print('hell{number}')\n")  # of the same size
        if number == 1:
            (folder / "src/copy of train.py").rename(folder / "renamed.py")
        assert times.st_size == (folder / "train.py").stat().st_size
    assert sorted(os.listdir(hosts.cache("a"))) == ["trees"]
    assert finish(hosts, ("a", "never synced"), "job1", 8) == {}
    assert not hosts.cache("never synced").exists()


def test_what_tasks_do_in_their_folder_does_not_come_back(bring: Bring, hosts: LocalHosts, folder: Path):
    tree = Path(bring(folder).workdirs["a"])
    before = (tree / "train.py").stat()
    (tree / "train.py").write_text("print('HELLO')\n")
    os.utime(tree / "train.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tree / "results/deep").mkdir(parents=True)
    (tree / "results/deep/model").write_text("x")
    (tree / "run.sh").unlink()
    (tree / "run.sh").symlink_to("/etc/passwd")
    shutil.rmtree(tree / "src")
    (tree / "src").symlink_to(hosts.home("a"))
    finish(hosts, ("a",), "job1", 1)
    second = bring(folder, job="job2")
    assert snapshot(Path(second.workdirs["a"])) == snapshot(folder)
    assert not (hosts.home("a") / "big").exists()


def test_folders_become_files_and_files_folders(bring: Bring, hosts: LocalHosts, folder: Path, there: Path):
    for number in range(3):
        result = bring(folder, f"{folder}:some/where", job=f"job{number}")
        assert snapshot(Path(result.workdirs["a"])) == synced(there) == snapshot(folder)
        finish(hosts, ("a",), f"job{number}", 1)
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


def test_tasks_run_where_the_launcher_is(bring: Bring, folder: Path):
    result = bring(folder, cwd=str(folder / "src/deep"))
    assert result.workdirs["a"].endswith("/project/src/deep")
    assert os.path.isdir(result.workdirs["a"])
    (folder / ".launchignore").write_text("src/\n")
    with pytest.raises(JobError, match=r"current folder 'src/deep' of .* is left out by its ignore rules"):
        bring(folder, cwd=str(folder / "src/deep"))


def test_several_launches_and_hosts_of_one_home_at_once(hosts: LocalHosts, folder: Path, tmp_path: Path):
    packed = look(parse_syncs([str(folder), f"{folder}:{tmp_path}/shared"]), str(tmp_path))
    names = [f"n{number}" for number in range(6)]
    hosts.environments = {name: {"HOME": str(hosts.home("a"))} for name in names}
    failures: list[BaseException] = []

    def launch(job: str, *names: str) -> None:
        try:
            paths = sync(hosts, names, packed, job, Progress(), 9).workdirs.values()
            assert all(snapshot(Path(path)) == snapshot(folder) for path in paths)
            finish(hosts, names, job, 9)
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


@pytest.mark.parametrize("after", [0, 1, 300, 100_000, 3_300_000])
def test_a_cut_leaves_nothing_visible_and_the_next_launch_goes_on(
    bring: Bring, hosts: LocalHosts, folder: Path, after: int
):
    (folder / "first").write_bytes(os.urandom(2_500_000))
    hosts.cuts["b"] = after
    with pytest.raises(TransportError, match=r"\Ab: "):
        bring(folder, f"{folder}/src:there", to=("a", "b"))
    assert not list(hosts.cache("b").glob("work/*/project"))
    assert not (hosts.home("b") / "there").exists()
    before = hosts.sent
    result = bring(folder, f"{folder}/src:there", to=("b",))
    assert snapshot(Path(result.workdirs["b"])) == snapshot(folder)
    if after > 2_000_000:
        assert hosts.sent - before < 11_500_000, "what had arrived came again"


def test_a_run_that_was_never_finished_goes_when_nothing_uses_it(
    bring: Bring, hosts: LocalHosts, folder: Path
):
    trees = [Path(bring(folder, job=f"job{number}").workdirs["a"]) for number in range(4)]
    for run in {tree.parent for tree in trees[:3]}:
        (mark,) = run.glob(".used-*")
        os.utime(mark, (time.time() - 7200,) * 2)
    (trees[2].parent / ".used-another-machine").touch()
    with subprocess.Popen(["sleep", "60"], cwd=trees[1] / "src") as process:
        bring(folder, job="other")
        process.kill()
    assert [tree.exists() for tree in trees] == [False, True, True, True]


def test_the_trees_of_earlier_runs_are_bounded(
    bring: Bring, hosts: LocalHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from launcher.agent import trees

    monkeypatch.setenv("XDG_CACHE_HOME", str(hosts.home("a") / ".cache"))
    monkeypatch.setattr(trees, "_MOST_KEPT", 25_000)
    for number in range(4):
        (tmp_path / f"f{number}").mkdir()
        (tmp_path / f"f{number}/x").write_bytes(os.urandom(10_000))
        bring(tmp_path / f"f{number}", job=f"job{number}")
        trees.discard(f"job{number}")
    kept = [path.read_bytes() for path in hosts.cache("a").glob("trees/*/tree/x")]
    assert sorted(kept) == sorted((tmp_path / f"f{number}/x").read_bytes() for number in (2, 3))


def test_a_big_file_goes_through_little_memory(bring: Bring, folder: Path):
    import resource

    with open(folder / "sparse", "wb") as file:
        file.truncate(200_000_000)
        file.seek(150_000_000)
        file.write(b"here")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = bring(folder)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 30_000, "kB of memory"
    with open(f"{result.workdirs['a']}/sparse", "rb") as file:
        assert file.seek(0, os.SEEK_END) == 200_000_000
        file.seek(150_000_000)
        assert file.read(4) == b"here"


class Meddler(LocalHosts):
    """Changes files while they are sent."""

    def __init__(self, folder: Path, meddle: Callable[[], object]) -> None:
        super().__init__(folder)
        self._meddle = meddle

    def run(self, host: str, entry: str, arguments: object) -> LocalErrand:
        errand = super().run(host, entry, arguments)
        send = errand.send

        def meddle(data: bytes | memoryview) -> int:
            self._meddle()
            return send(data)

        errand.send = meddle  # type: ignore[method-assign]
        return errand


@pytest.mark.parametrize("how", ["grow", "shrink", "rewrite"])
def test_a_file_that_changes_while_it_is_sent_is_named(folder: Path, tmp_path: Path, how: str):
    """Exactly what was announced is sent; the next sync brings the file again."""
    restless = folder / "src/big"
    state = [0]

    def meddle() -> None:
        state[0] += 1
        size = restless.stat().st_size
        if how == "rewrite":
            restless.write_bytes(os.urandom(size))
        else:
            os.truncate(restless, size + 10 if how == "grow" else max(0, size - 50_000))

    packed = look(parse_syncs([str(folder)]), str(tmp_path))
    said: list[str] = []
    hosts = Meddler(tmp_path / "h", meddle)
    result = sync(hosts, ("a",), packed, "job1", quietly(said), 8)
    assert f"--sync: {folder}/src/big changed while it was read: the copy may mix old and new content" in said
    tree = Path(result.workdirs["a"])
    assert snapshot(tree).keys() == snapshot(folder).keys()
    hosts._meddle = lambda: None
    finish(hosts, ("a",), "job1", 1)
    packed = look(parse_syncs([str(folder)]), str(tmp_path))
    result = sync(hosts, ("a",), packed, "job2", quietly(said), 8)
    assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)


def test_a_file_that_changes_once_comes_as_it_is(folder: Path, tmp_path: Path):
    packed = look(parse_syncs([str(folder)]), str(tmp_path))
    (folder / "run.sh").unlink()
    state = [0]

    def meddle() -> None:
        state[0] += 1
        if state[0] == 4:
            (folder / "src/big").write_bytes(os.urandom(5_000_000))

    said: list[str] = []
    result = sync(Meddler(tmp_path / "h", meddle), ("a",), packed, "job1", quietly(said), 8)
    assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
    assert said[0] == f"--sync: {folder}/run.sh vanished: left out"


def test_several_folders_and_the_runs_own_stays(
    bring: Bring, hosts: LocalHosts, folder: Path, tmp_path: Path
):
    data = tmp_path / "dat\u00e4\n"
    data.mkdir()
    (data / "set").write_text("1 2 3")
    (folder / "run1").mkdir()
    (folder / "run1/events.jsonl").write_text("{}")
    result = bring(folder, f"{data}:sets/one", data, without=[str(folder / "run1")])
    assert (hosts.home("a") / "sets/one/set").read_text() == "1 2 3"
    assert (hosts.cache("a") / "work/job1" / data.name / "set").read_text() == "1 2 3"
    assert finish(hosts, ("a",), "job1", 1) == {}
    assert bring(data, job="job2").moved == 0
    assert result.workdirs["a"].endswith("/job1/project")
    assert not os.path.exists(f"{result.workdirs['a']}/run1")


def test_a_host_whose_user_is_not_root(open_hosts: LocalHosts, folder: Path, tmp_path: Path):
    packed = look(parse_syncs([str(folder), f"{folder}/closed:kept"]), str(tmp_path))
    for number in range(3):
        result = sync(open_hosts, ("a",), packed, f"job{number}", Progress(), 8)
        assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
        assert result.moved == (result.size if number == 0 else 0)
        assert finish(open_hosts, ("a",), f"job{number}", 8) == {}


def test_the_oldest_python_will_do(hosts: LocalHosts, bring: Bring, folder: Path, tmp_path: Path):
    found = sorted(Path.home().glob(".pyenv/versions/3.8*/bin/python3.8"))
    python = shutil.which("python3.8") if not found else str(found[0])
    if python is None:
        pytest.skip("no python3.8 on this machine")
    hosts.python = python
    bring(folder, f"{folder}:there")
    (folder / "train.py").write_text("new")
    result = bring(folder, f"{folder}:there")
    assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
    wanted = [Item("worker/0", "a", result.workdirs["a"], "src", str(tmp_path / "out"))]
    assert collect(hosts, wanted, "job1", Progress(), 1).files == 3
    assert finish(hosts, ("a",), "job1", 8) == {}


# ---------------------------------------------------------------------- DIR:PLACE


def test_a_place_stays_and_what_no_sync_brought_is_kept(bring: Bring, folder: Path, there: Path):
    bring(f"{folder}:~/some/where")
    assert synced(there) == snapshot(folder)
    assert sorted(os.listdir(there.parent)) == ["where"], "something is left beside it"
    before = there.stat()
    assert bring(f"{folder}:some/where").sent < LISTS
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


def test_nothing_of_others_is_replaced(bring: Bring, hosts: LocalHosts, folder: Path, there: Path):
    there.mkdir(parents=True)
    (there / "thesis").write_text("years of work")
    with pytest.raises(TransportError, match=r"a: .*/some/where holds files, and no sync made it"):
        bring(f"{folder}:some/where")
    assert snapshot(there) == {b"thesis": ("file", 0o644, b"years of work")}
    (hosts.home("a") / "file").write_text("x")
    with pytest.raises(TransportError, match=r"a: .*/file is in the way: it is a file"):
        bring(f"{folder}:file")
    with pytest.raises(TransportError, match=r"a: .*/file is in the way: it is not a folder"):
        bring(f"{folder}:file/below")
    for place in (".cache", ".cache/tf-launcher", ".."):
        path = os.path.realpath(hosts.home("a") / place)
        with pytest.raises(TransportError, match=r"can't be replaced: the (home folder|launcher's own)"):
            bring(f"{folder}:{path}")
    with pytest.raises(TransportError, match=r"\Aa: /proc can't be replaced: it is a mount point; give a"):
        bring(f"{folder}:/proc")
    (there / "thesis").unlink()
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


# ---------------------------------------------------------------------- ends that do not keep to the protocol


def test_giving_up_ends_at_once_and_shows_no_success(hosts: LocalHosts, folder: Path, tmp_path: Path):
    with open(folder / "big", "wb") as file:
        file.truncate(400_000_000)

    class Impatient(Progress):
        ended: list[str] = []
        at = 0.0

        def tick(self) -> None:
            self.at = time.monotonic()
            raise KeyboardInterrupt

        def end(self, summary: str) -> None:
            self.ended.append(summary)

    progress = Impatient()
    with pytest.raises(KeyboardInterrupt):
        packed = look(parse_syncs([str(folder)]), str(tmp_path))
        sync(hosts, ("a", "b", "c"), packed, "job1", progress, 2)
    assert time.monotonic() - progress.at < 0.1
    assert progress.ended == [""]
    assert not any((hosts.cache(host) / "work/job1/project").exists() for host in "abc")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "raise ValueError('a bug')",
            "the copying there ended too early: it ended with 1; its last line: ValueError: a bug",
        ),
        ("print('\\0' * 99)", "the two ends do not understand each other: Hello is not for this direction"),
        ("print('hello ' * 99)", "the two ends do not understand each other: a message of type "),
    ],
)
def test_hosts_that_do_something_else(folder: Path, tmp_path: Path, code: str, text: str):
    class Others(LocalHosts):
        def run(self, host: str, entry: str, arguments: object) -> LocalErrand:
            errand = LocalErrand(["python3", "-c", f"import sys; {code}"], dict(os.environ), None)
            self.errands.append(errand)
            return errand

    hosts = Others(tmp_path / "h")
    with pytest.raises(TransportError, match=text):
        sync(hosts, ("a",), look(parse_syncs([str(folder)]), str(tmp_path)), "job1", Progress(), 1)
