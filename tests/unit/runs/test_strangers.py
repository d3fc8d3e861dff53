"""What others have put into a run's folder, or where it lies, holds nobody up and is not believed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.errors import JobError
from launcher.runs import answers as answers_module
from launcher.runs import create, folder, unfinished
from launcher.runs import registry as registry_module
from launcher.runs.answers import answers
from launcher.runs.owner import AGENTS, open_regular, read_record, this_process
from launcher.runs.progress import remaining, tasks_of
from launcher.runs.registry import all_runs
from launcher.runs.run import Run, RunState, load
from tests.unit.runs.conftest import Sleeper, made, owner_of

OLD, NEW = "20261120-070912-aaaaa", "20261121-070912-bbbbb"
_NOBODY = 12345


@pytest.fixture
def odd(state: Path) -> Path:
    """The folder of a run that nobody has begun."""
    made(OLD, exit_code=0)
    (state / NEW).mkdir()
    return state / NEW


@pytest.mark.timeout(40)
@pytest.mark.parametrize("name", ["launcher.json", "plan.json", "report.json"])
def test_a_pipe_in_the_place_of_a_file(odd: Path, name: str):
    os.mkfifo(odd / name)
    assert unfinished("another") == []
    for run in all_runs():
        assert (run.plan(), run.report() or run.job) in [({}, NEW), ({}, {"exit_code": 0, "ended_at": 5.0})]


@pytest.mark.timeout(40)
def test_events_that_are_a_pipe(odd: Path):
    (odd / "plan.json").write_text('{"tasks": [{"task": "worker/0"}]}')
    os.mkfifo(odd / "events.jsonl")
    run = load(str(odd))
    assert run is not None
    assert remaining(run) == ["worker/0"]


def test_what_never_ends_is_not_read(odd: Path, tmp_path: Path):
    (odd / "launcher.json").symlink_to("/dev/zero")
    assert unfinished("another") == []
    assert [run.job for run in all_runs()] == [OLD]
    with pytest.raises(OSError, match="no regular file"):
        open_regular("/dev/zero")
    (odd / "launcher.json").unlink()
    (odd / "launcher.json").write_text(json.dumps({AGENTS: [], "job": "x" * 100_000}))
    assert unfinished("another") == []


def test_a_record_is_no_link(odd: Path, state: Path):
    """It might lead to that of another launch of ours."""
    (odd / "launcher.json").symlink_to(state / OLD / "launcher.json")
    (odd / "plan.json").write_text("{}")
    run = load(str(odd))
    assert run is not None
    assert (run.owner, run.is_ours, run.state) == (None, False, RunState.DIED)


def test_whose_word_counts(state: Path, sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch):
    """That of this user, and that of whose launcher it is."""
    run = load(made(OLD, owner_of(sleeper())).root)
    assert run is not None
    assert run.written_by == os.geteuid()
    run = run._replace(written_by=1000)
    monkeypatch.setattr("launcher.runs.run.os.geteuid", lambda: 1000)
    monkeypatch.setattr("launcher.runs.run.user_of", lambda pid: 1000)
    assert (run.is_ours, run.is_believed) == (True, True)
    monkeypatch.setattr("launcher.runs.run.os.geteuid", lambda: _NOBODY)
    assert (run.is_ours, run.is_believed) == (False, True)
    monkeypatch.setattr("launcher.runs.run.user_of", lambda pid: _NOBODY)
    assert (run.is_ours, run.is_believed) == (False, False)
    assert run._replace(written_by=0).is_ours


def test_names_that_a_terminal_would_obey():
    plan = {"tasks": [{"task": "a\x1b]0;x\a/0"}, {"task": "b/0", "host": "h\x1b[2J"}]}
    assert tasks_of(plan) == {"b/0": "h\\x1b[2J"}


def test_a_job_named_so_that_a_terminal_would_obey(odd: Path):
    (odd / "launcher.json").write_text('{"job": "\\u001b[2J"}')
    run = load(str(odd))
    assert run is not None
    assert run.job == "\\x1b[2J"


# ---------------------------------------------------------------------- folders that don't answer


@pytest.fixture
def silent(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A run elsewhere whose folder does not answer, as those of a file server that is gone."""
    made(OLD, exit_code=0)
    root = str(tmp_path / "mount" / "run")
    create(root, NEW)
    answer = threading.Event()

    def stuck(path: str) -> Run | None:
        if path.endswith(NEW):
            answer.wait(30)
        return load(path)

    def may_have_left(path: str) -> bool:
        return stuck(path) is not None

    monkeypatch.setattr(registry_module, "load", stuck)
    monkeypatch.setattr(folder, "_may_have_left", may_have_left)
    for module in (registry_module, folder):
        monkeypatch.setattr(module, "_ANSWER", 0.1)
    yield root
    answer.set()


@pytest.mark.timeout(40)
def test_they_are_left_out_and_named(silent: str, capsys: pytest.CaptureFixture[str]):
    assert [run.job for run in all_runs()] == [OLD]
    expected = f"launch: left out, for its folder does not answer: {NEW} in {silent!r}\n"
    assert capsys.readouterr().err == expected


def test_a_launch_does_not_wait_for_them(silent: str):
    """Or it would hear at last that this one may have left something, too."""
    assert unfinished("another") == [f"{folder.runs_folder()}/{OLD}"]


def test_answers_in_time(monkeypatch: pytest.MonkeyPatch):
    """Those of all who answer before the time is up; it is not up before they have."""
    others, late, looks = set(threading.enumerate()), threading.Event(), iter([0.0])
    until = time.monotonic() + 60

    def now() -> float:
        began = next(looks, None)
        while began is None and len({*threading.enumerate()} - others) > 1 and time.monotonic() < until:
            time.sleep(0.005)
        return 20.0 if began is None else began

    monkeypatch.setattr(answers_module, "time", SimpleNamespace(monotonic=now))
    try:
        found = answers(lambda path: late.wait() if path == "b" else path, ["a", "b", "c"], 20.0)
    finally:
        late.set()
    assert found == {"a": "a", "c": "c"}


# ---------------------------------------------------------------------- what we write there


def test_a_link_in_the_place_of_the_record(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch):
    """Somebody who guesses our pid makes us write nowhere else."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    root = tmp_path / "run"
    mkdir = os.mkdir

    def made_and_linked(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        if path == f"{root}/logs":
            os.symlink(precious, f"{root}/launcher.json.{os.getpid()}")

    monkeypatch.setattr(os, "mkdir", made_and_linked)
    with pytest.raises(JobError, match="taken"):
        create(str(root), NEW)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("mask", [0o777, 0o277, 0o022])
def test_whatever_the_umask_it_is_ours_to_use(state: Path, mask: int):
    before = os.umask(mask)
    try:
        paths = create(None, NEW)
    finally:
        os.umask(before)
    modes = [os.stat(path).st_mode & 0o777 for path in (paths.root, paths.logs, paths.owner)]
    assert modes == [0o700, 0o700, 0o600]


def test_the_record_tells_whose_it_is(state: Path):
    data, uid = read_record(create(None, NEW))
    assert uid == os.geteuid()
    assert json.loads(data)["pid"] == this_process().pid
