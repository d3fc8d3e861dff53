"""Bringing folders to hosts: what arrives, what travels, and what is never visible."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import JobError, TransportError
from launcher.luggage import mending
from launcher.luggage.collect import collect
from launcher.luggage.meter import Meter
from launcher.luggage.packing import pack
from launcher.luggage.progress import Silent
from launcher.luggage.requests import Wanted, parse_syncs
from launcher.luggage.sync import finish, sync
from tests.unit.luggage.conftest import Bring
from tests.unit.luggage.hosts import LocalErrand, LocalHosts, quietly, snapshot


def test_everything_arrives_as_it_is(bring: Bring, hosts: LocalHosts, folder: Path):
    result = bring(folder, to=("a", "b", "c"))
    for host in ("a", "b", "c"):
        assert result.workdirs[host] == str(hosts.cache(host) / "work/job1/project")
        assert snapshot(Path(result.workdirs[host])) == snapshot(folder)
        copied = (Path(result.workdirs[host]) / "train.py").stat()
        assert copied.st_mtime_ns == (folder / "train.py").stat().st_mtime_ns
    assert result.files == 13
    assert not os.listdir(hosts.cache("a") / "tmp")


def test_the_second_time_next_to_nothing_travels(bring: Bring, hosts: LocalHosts, folder: Path):
    first = bring(folder)
    second = bring(folder, job="job2")
    assert second.sent == 0 < first.sent
    assert snapshot(Path(second.workdirs["a"])) == snapshot(folder)


def test_only_what_changed_travels(bring: Bring, folder: Path):
    bring(folder)
    (folder / "train.py").write_text("print('other')\n")
    (folder / "run.sh").rename(folder / "renamed.sh")
    third = bring(folder, job="job2")
    assert third.sent < 3000
    assert snapshot(Path(third.workdirs["a"])) == snapshot(folder)


def test_what_the_tasks_do_to_their_files_does_not_spoil_the_cache(bring: Bring, folder: Path):
    first = bring(folder)
    with open(f"{first.workdirs['a']}/train.py", "a") as file:
        file.write("spoiled")
    second = bring(folder, job="job2")
    assert snapshot(Path(second.workdirs["a"])) == snapshot(folder)


def test_damaged_contents_come_again(bring: Bring, hosts: LocalHosts, folder: Path):
    bring(folder)
    blobs = [path for path in hosts.cache("a").glob("blobs/*/*") if path.stat().st_size == 15]
    assert len(blobs) == 1
    blobs[0].write_text("print('damage')")
    second = bring(folder, job="job2")
    assert snapshot(Path(second.workdirs["a"])) == snapshot(folder)


def test_finish_leaves_the_cache_and_nothing_else(bring: Bring, hosts: LocalHosts, folder: Path):
    bring(folder, to=("a", "b"))
    assert finish(hosts, ("a", "b"), "job1", 8) == {}
    for host in ("a", "b"):
        assert sorted(os.listdir(hosts.cache(host))) == ["blobs", "lock", "place.lock", "spare"]
    assert finish(hosts, ("a", "never synced"), "job1", 8) == {}
    assert not hosts.cache("never synced").exists()


def test_tasks_run_where_the_launcher_is(bring: Bring, folder: Path):
    result = bring(folder, cwd=str(folder / "src/deep"))
    assert result.workdirs["a"].endswith("/project/src/deep")
    assert os.path.isdir(result.workdirs["a"])


def test_a_current_folder_that_stays_behind_is_a_fault(bring: Bring, folder: Path):
    (folder / ".launchignore").write_text("src/\n")
    with pytest.raises(JobError, match=r"current folder 'src/deep' of .* is left out by its ignore rules"):
        bring(folder, cwd=str(folder / "src/deep"))


def test_hosts_that_share_a_home_share_the_folder(hosts: LocalHosts, bring: Bring, folder: Path):
    home = str(hosts.home("a"))
    names = [f"shared{number}" for number in range(4)]
    hosts.environments = {name: {"HOME": home} for name in names}
    result = bring(folder, to=names)
    assert set(result.workdirs.values()) == {f"{home}/.cache/tf-launcher/work/job1/project"}
    assert snapshot(Path(result.workdirs["shared0"])) == snapshot(folder)


def test_two_launches_at_once(hosts: LocalHosts, folder: Path, tmp_path: Path):
    packed = pack(parse_syncs([str(folder)]), str(tmp_path))
    names = [f"n{number}" for number in range(6)]
    hosts.environments = {name: {"HOME": str(hosts.home("a"))} for name in names}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(sync, hosts, (name,), packed, f"job-{name}", Silent(), 1) for name in names]
        for name, job in zip(names, jobs, strict=True):
            assert snapshot(Path(job.result().workdirs[name])) == snapshot(folder)


@pytest.mark.parametrize("after", [0, 1, 2000, 100_000, 2_500_000])
def test_a_cut_in_the_middle_leaves_nothing_visible_and_the_next_completes(
    bring: Bring, hosts: LocalHosts, folder: Path, after: int, monkeypatch: pytest.MonkeyPatch
):
    (folder / "first").write_bytes(os.urandom(1_000_000))
    hosts.cuts["b"] = after
    hosts.away.add("b")
    monkeypatch.setattr(mending, "_LEAST", 0.3)
    lost = r"\Ab: the connection was lost \(the connection broke\), and not back after \d+ s: "
    lost += r"no (route to it|answer)\Z"
    with pytest.raises(TransportError, match=lost):
        bring(folder, f"{folder}/src:there", to=("a", "b"))
    work = hosts.cache("b") / "work"
    assert not work.exists() or not os.listdir(work)
    assert not (hosts.home("b") / "there").exists()
    before = hosts.sent
    result = bring(folder, f"{folder}/src:there", to=("b",))
    assert snapshot(Path(result.workdirs["b"])) == snapshot(folder)
    if after > 2_000_000:
        assert hosts.sent - before < 4_200_000 - 1_000_000, "what had arrived came again"


def test_a_sync_goes_on_over_another_connection(hosts: LocalHosts, folder: Path, tmp_path: Path):
    """What has arrived does not come again."""
    (folder / "first").write_bytes(os.urandom(1_000_000))
    packed = pack(parse_syncs([str(folder)]), str(tmp_path))
    hosts.cuts["a"] = 3_500_000
    said: list[str] = []
    result = sync(hosts, ("a",), packed, "job1", quietly(said), 8)
    assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
    assert hosts.redialled == ["a"]
    assert result.sent == hosts.sent < 3_500_000 + 4_200_000 - 1_000_000, "what had arrived came again"
    assert said[0] == "a: connection lost (the connection broke); trying again for 5 s"
    assert said[1].startswith("a: connected again after ")
    assert said[2].startswith("synced 14 files")


def test_a_half_done_sync_is_cleared_away_by_the_next(bring: Bring, hosts: LocalHosts, folder: Path):
    bring(folder)
    left = hosts.cache("a") / "tmp/123-left"
    left.mkdir()
    (left / "x").write_text("x")
    left.chmod(0o500)
    bring(folder, job="job2")
    assert not os.listdir(hosts.cache("a") / "tmp")


def test_a_big_file_goes_through_little_memory(bring: Bring, folder: Path):
    import resource

    with open(folder / "sparse", "wb") as file:
        file.truncate(200_000_000)
        file.seek(150_000_000)
        file.write(b"here")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = bring(folder)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 120_000, "kB of memory"
    with open(f"{result.workdirs['a']}/sparse", "rb") as file:
        assert file.seek(0, os.SEEK_END) == 200_000_000
        file.seek(150_000_000)
        assert file.read(4) == b"here"


def test_the_cache_stays_bounded(
    bring: Bring, hosts: LocalHosts, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    bring(folder)
    shutil.rmtree(folder / "src")
    (folder / "new").write_bytes(os.urandom(100_000))
    monkeypatch.setattr("launcher.luggage.rounds.CACHE_LIMIT", 400_000)
    bring(folder, job="job2")
    blobs = list(hosts.cache("a").glob("blobs/*/*"))
    assert 100_000 <= sum(blob.stat().st_size for blob in blobs) <= 400_000
    assert sent_again(bring, folder) == 0, "what was needed last went before what was not"


def sent_again(bring: Bring, folder: Path) -> int:
    return bring(folder, job="job3").sent


def test_a_file_that_changes_on_the_way_is_looked_at_again(hosts: LocalHosts, folder: Path, tmp_path: Path):
    packed = pack(parse_syncs([str(folder)]), str(tmp_path))
    (folder / "run.sh").write_text("#!/BIN/SH\n")
    result = sync(hosts, ("a", "b"), packed, "job1", Silent(), 8)
    for path in result.workdirs.values():
        assert (Path(path) / "run.sh").read_text() == "#!/BIN/SH\n"


class Meddler(LocalHosts):
    """Somebody changes a file whenever an errand begins."""

    def __init__(self, folder: Path, meddle: Callable[[int], object]) -> None:
        super().__init__(folder)
        self._meddle = meddle

    def errand(self, host: str, entry: str, arguments: object) -> LocalErrand:
        self._meddle(len(self.errands))
        return super().errand(host, entry, arguments)


class Watching(Silent):
    """Notes who was waited for."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, ...]] = []

    def begin(self, verb: str, meter: Meter) -> None:
        self._meter = meter

    def look(self) -> None:
        """Now."""
        self.waiting.append(self._meter.read().waiting)


def test_hosts_that_are_visited_once_more_are_waited_for_once_more(folder: Path, tmp_path: Path):
    progress = Watching()

    def meddle(count: int) -> None:
        progress.look()
        if count == 0:
            (folder / "run.sh").write_text("#!/BIN/SH\n")

    packed = pack(parse_syncs([str(folder)]), str(tmp_path))
    sync(Meddler(tmp_path / "h", meddle), ("a",), packed, "job1", progress, 8)
    assert progress.waiting == [("a",), ("a",)]


def test_of_a_file_that_never_rests_a_copy_travels(folder: Path, tmp_path: Path):
    packed = pack(parse_syncs([str(folder)]), str(tmp_path))
    hosts = Meddler(tmp_path / "h", lambda count: (folder / "run.sh").write_text(f"#!/bin/{count}\n"))
    said: list[str] = []
    result = sync(hosts, ("a", "b"), packed, "job1", quietly(said), 8)
    first, second = [(Path(path) / "run.sh").read_text() for path in result.workdirs.values()]
    assert first == second
    assert said[0] == f"--sync: run.sh in {folder} changed while it was read: what travels is a copy"


def test_another_file_each_time_is_given_up(folder: Path, tmp_path: Path):
    for number in range(10):
        (folder / f"file{number}").write_text("old")
    packed = pack(parse_syncs([str(folder)]), str(tmp_path))
    hosts = Meddler(tmp_path / "h", lambda count: (folder / f"file{count}").write_text("new one"))
    with pytest.raises(JobError, match=r"change while they are read can't travel: 'file0', 'file1', 'file2'"):
        sync(hosts, ("a",), packed, "job1", Silent(), 8)


def test_a_file_that_vanishes_on_the_way_is_a_remark(hosts: LocalHosts, folder: Path, tmp_path: Path):
    packed = pack(parse_syncs([str(folder)]), str(tmp_path))
    (folder / "run.sh").unlink()
    said: list[str] = []
    result = sync(hosts, ("a",), packed, "job1", quietly(said), 8)
    assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
    assert said[0] == "--sync: run.sh vanished on the way: left out"


def test_several_folders(bring: Bring, hosts: LocalHosts, folder: Path, tmp_path: Path):
    other = tmp_path / "data"
    other.mkdir()
    (other / "set").write_text("1 2 3")
    result = bring(folder, f"{other}:sets/one", other)
    assert (hosts.home("a") / "sets/one/set").read_text() == "1 2 3"
    assert (hosts.cache("a") / "work/job1/data/set").read_text() == "1 2 3"
    assert result.workdirs["a"].endswith("/job1/project")


def test_the_runs_own_folder_stays(bring: Bring, folder: Path):
    (folder / "run1").mkdir()
    (folder / "run1/events.jsonl").write_text("{}")
    result = bring(folder, without=[str(folder / "run1")])
    assert not os.path.exists(f"{result.workdirs['a']}/run1")


def test_an_empty_folder(bring: Bring, tmp_path: Path):
    (tmp_path / "nothing").mkdir()
    result = bring(tmp_path / "nothing")
    assert os.listdir(result.workdirs["a"]) == []
    assert (result.files, result.size) == (0, 0)


def test_homes_that_can_not_be_written_to(open_hosts: LocalHosts, folder: Path, tmp_path: Path):
    open_hosts.home("a").chmod(0o555)
    open_hosts.home("b")
    packed = pack(parse_syncs([str(folder)]), str(tmp_path))
    with pytest.raises(TransportError) as caught:
        sync(open_hosts, ("a", "b"), packed, "job1", Silent(), 8)
    home = open_hosts.home("a")
    assert str(caught.value) == f"a: the home {home} is not writable: Permission denied ({home}/.cache)"


def test_a_host_whose_user_is_not_root(open_hosts: LocalHosts, folder: Path, tmp_path: Path):
    packed = pack(parse_syncs([str(folder), f"{folder}/src:kept"]), str(tmp_path))
    for number in range(2):
        result = sync(open_hosts, ("a",), packed, f"job{number}", Silent(), 8)
        assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
    (folder / "closed/file").chmod(0o600)
    finish(open_hosts, ("a",), "job0", 8)
    finish(open_hosts, ("a",), "job1", 8)
    assert sorted(os.listdir(open_hosts.cache("a"))) == ["blobs", "lock", "place.lock", "spare"]


def test_the_oldest_python_will_do(hosts: LocalHosts, bring: Bring, folder: Path, tmp_path: Path):
    found = sorted(Path.home().glob(".pyenv/versions/3.8*/bin/python3.8"))
    python = shutil.which("python3.8") if not found else str(found[0])
    if python is None:
        pytest.skip("no python3.8 on this machine")
    hosts.python = python
    result = bring(folder, f"{folder}:there")
    (folder / "train.py").write_text("new")
    result = bring(folder, f"{folder}:there")
    assert snapshot(Path(result.workdirs["a"])) == snapshot(folder)
    wanted = [Wanted("worker/0", "a", result.workdirs["a"], "src", str(tmp_path / "out"))]
    assert collect(hosts, wanted, "job1", Silent(), 1).files == 3
    assert finish(hosts, ("a",), "job1", 8) == {}
