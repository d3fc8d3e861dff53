"""What travels with a launch, what is said of it before, and what a dry run says."""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from launcher.cli.request import Request
from launcher.cli.trip import Trip
from launcher.errors import JobError, TransportError
from launcher.job import OUTPUT_DIR, Host, JobSpec, Program, Role, RunPaths
from launcher.luggage import mending
from launcher.scheduler.placement import place
from tests.conftest import Launch
from tests.unit.luggage.hosts import LocalErrand, LocalHosts, away_from

PROGRAM = Program.of(["train.py"])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's, who is in it."""
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "train.py").write_text("print(1)\n")
    (root / "data").mkdir()
    (root / "data/set").write_text("x")
    (root / ".gitignore").write_text("data/\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with away_from(root):
        yield root


class Broken(LocalHosts):
    """Errands can't be started on b, and on a only so many."""

    left = 100

    def errand(self, host: str, entry: str, arguments: object) -> LocalErrand:
        self.left -= host == "a"
        if host == "b" or self.left < 0:
            raise TransportError(f"{host}: there is no python3 there")
        return super().errand(host, entry, arguments)


def trip(
    workers: int = 2, hosts: Sequence[str] = ("a", "b"), sync: Sequence[str] = ("."),
    collect: Sequence[str] = (), **role: str,
) -> Trip:  # fmt: skip
    job = JobSpec((Role("worker", workers, PROGRAM, **role),))  # type: ignore[arg-type]
    wanted = Request(job, tuple(Host(name, slots=2) for name in hosts))
    args = argparse.Namespace(
        sync=list(sync), collect=list(collect), fanout=None, quiet=True, json=False, run_dir=None,
        docker=None, user=None,
    )  # fmt: skip
    return Trip(wanted, place(job, wanted.hosts), args)


def test_nothing_is_said_of_hosts_to_which_nothing_came(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    hosts, it = Broken(tmp_path / "homes"), trip(4)
    with pytest.raises(TransportError, match=r"\Ab: there is no python3 there\Z"):
        it.bring(hosts, "job1")
    assert (hosts.cache("a") / "work/job1").exists()
    it.finish(hosts, "job1")
    assert capfd.readouterr().err == ""
    assert not (hosts.cache("a") / "work/job1").exists(), "what came to the others goes"


def test_what_was_brought_and_can_not_be_removed_is_said(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    said = "launch: the folder of this run could not be removed: a: there is no python3 there\n"
    for sync, expected in ((".", said), (".:code", "")):
        hosts, it = Broken(tmp_path / "homes"), trip(hosts=("a",), sync=(sync,))
        hosts.left = 1
        it.bring(hosts, "job1")
        it.finish(hosts, "job1")
        assert capfd.readouterr().err == expected


class Outputs:
    """A launch with a folder for what each task makes: workers on a and b, a sidecar on c."""

    def __init__(self, hosts: LocalHosts, runs: Path) -> None:
        board = Role("board", 1, PROGRAM, sidecar=True, hosts=("c",))
        job = JobSpec((Role("worker", 2, PROGRAM, hosts=("a", "b")), board), output_dirs=True)
        wanted = Request(job, tuple(Host(name, slots=1) for name in "abc"))
        args = argparse.Namespace(
            sync=[], collect=[], fanout=None, quiet=True, json=False, run_dir=None, docker=None, user=None,
        )  # fmt: skip
        self.hosts, self.runs = hosts, runs
        self.trip = Trip(wanted, place(job, wanted.hosts), args)
        self.errands = self.trip.errands(hosts)
        self.placement = self.trip.bring(self.errands, "job1")
        for placed in self.placement.tasks:
            (Path(dict(placed.env)[OUTPUT_DIR]) / "made").write_text(placed.task)

    def fetched(self) -> bool:
        tasks = [
            types.SimpleNamespace(task=placed.task, host=placed.host.name, workdir="", env=dict(placed.env))
            for placed in self.placement.tasks
        ]
        plan = types.SimpleNamespace(tasks=tasks)
        return self.trip.collect(self.errands, plan, RunPaths(str(self.runs)), "job1")  # type: ignore[arg-type]

    def left(self) -> list[str]:
        return [host for host in "abc" if (self.hosts.cache(host) / "work/job1").exists()]


@pytest.mark.parametrize(("lost", "complete", "came"), [("c", True, "ab"), ("b", False, "ac")])
def test_of_a_lost_host_only_the_sidecars_need_not_come(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    lost: str, complete: bool, came: str,
):  # fmt: skip
    monkeypatch.setattr(mending, "_LEAST", 0.3)
    hosts = LocalHosts(tmp_path / "homes")
    launch = Outputs(hosts, tmp_path / "run")
    hosts.away.add(lost)
    hosts.cuts[lost] = 0
    assert launch.fetched() is complete
    said = capfd.readouterr().err
    assert said.startswith(f"launch: --output-dirs: {lost}: the connection was lost")
    if not complete:
        launch.trip.keep("job1")
        said = capfd.readouterr().err
        assert said == (
            f"launch: --output-dirs: what was not fetched is still in {hosts.cache('b')}/work/job1 on b\n"
        )
        assert launch.left() == ["b"], "the others have nothing left to be fetched"
    assert len(list((tmp_path / "run").rglob("made"))) == len(came)


def test_tasks_that_share_a_folder_are_told(project: Path):
    said = trip(4, collect=["model"]).remarks
    assert said == [
        "--collect: worker/0, worker/1 share the folder on a (and so on, on 1 more host): "
        "results of the same name are the same file; use {task_index} in the path"
    ]
    assert list(trip(4, collect=["model-{task_index}"]).remarks) == []
    assert list(trip(1, collect=["model"]).remarks) == []
    assert list(trip(4, collect=["model"], workdir="/elsewhere").remarks) == [], "no folder of ours"
    assert list(trip(2, hosts=("localhost",), collect=["model"]).remarks) == []


def test_a_task_that_is_not_there(project: Path):
    with pytest.raises(
        JobError, match=r"--collect: 'worker/5=x': this job has no worker/5; expected worker/0"
    ):
        trip(collect=["worker/5=x"])


def test_what_a_dry_run_says(project: Path, tmp_path: Path):
    (tmp_path / "data").mkdir()
    it = trip(3, sync=[".", "../data:/scratch/data"], collect=["model", "worker/0=log:logs"])
    assert list(it.itinerary)[:5] == [
        "--sync: ~/project, 2 files (15 bytes), goes to ~/.cache/tf-launcher/work/JOB/project on a, b; "
        "removed when the job is over",
        "--sync: ~/data, 0 files (0 bytes), goes to /scratch/data on a, b; it stays there",
        "left out of project by .gitignore: data/ (1 byte); !data/ in project/.launchignore brings it back",
        "--collect: model of worker/0, worker/1, worker/2 comes to RUN_DIR/collected/TASK "
        "when the job is over",
        "--collect: log of worker/0 comes to ~/project/logs when the job is over",
    ]
    assert "share the folder on a" in it.itinerary[5]
    folders = {placed.host.workdir for placed in it.expected().tasks}
    assert folders == {"~/.cache/tf-launcher/work/JOB/project"}
    with away_from(project / "sub"):
        folders = {placed.host.workdir for placed in trip(sync=["..:code"]).expected().tasks}
    assert folders == {"~/code/sub"}
    folders = {placed.host.workdir for placed in trip(workdir="~/there").expected().tasks}
    assert folders == {"~/there"}, "the home is the host's, so it is nothing of ours"


def test_what_a_dry_run_says_where_all_runs_here(project: Path):
    it = trip(hosts=("localhost",))
    assert list(it.itinerary) == ["--sync: ~/project stays: all tasks run on this machine"]
    assert {placed.host.workdir for placed in it.expected().tasks} == {None}


def test_a_dry_run(launch: Launch, tmp_path: Path):
    (tmp_path / "train.py").write_text("print(1)\n")
    words = ["--hosts", "nowhere1,nowhere2", "--workers", "2", "--dry-run", "--collect", "model:out"]
    shown = launch(*words, "--sync", ".:my code", "train.py", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert "# --sync: " in shown.out and "goes to ~/my code on nowhere1, nowhere2" in shown.out
    assert "# --collect: model of worker/0, worker/1 comes to " in shown.out
    assert shown.out.count("  cd ~/'my code' &&") == 2


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--sync", "gone"], "--sync: 'gone' is not there"),
        (["--collect", "worker/5=x"], "--collect: 'worker/5=x': this job has no worker/5"),
    ],
)
def test_a_dry_run_checks_what_travels(launch: Launch, tmp_path: Path, words: list[str], fault: str):
    for dry in (["--dry-run"], []):
        ended = launch("--workers", "2", *dry, *words, "true", cwd=tmp_path)
        assert (ended.code, ended.out) == (2, "")
        assert fault in ended.err


def test_a_job_file_is_told_by_its_line(launch: Launch, tmp_path: Path):
    text = "roles: {worker: 2}\ncommand: ['true']\nsync: [., gone]\ncollect: ps=model\n"
    (tmp_path / "job.yaml").write_text(text)
    ended = launch("job.yaml", cwd=tmp_path)
    assert ended.code == 2
    assert f"job.yaml:3: '{tmp_path}/gone' is not there" in ended.err
    (tmp_path / "gone").mkdir()
    ended = launch("job.yaml", cwd=tmp_path)
    assert (ended.code, "job.yaml:4: 'ps=model': no task of this job is a 'ps'" in ended.err) == (2, True)
    ended = launch("job.yaml", "--collect", "ps=x", cwd=tmp_path)
    assert "--collect: 'ps=x': no task" in ended.err
