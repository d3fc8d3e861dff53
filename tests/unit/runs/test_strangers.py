"""What others have put into a run's folder, or where it lies, holds nobody up and is not believed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.errors import JobError
from launcher.runs import create, unfinished
from launcher.runs.owner import AGENTS, open_regular, read_record, this_process
from launcher.runs.registry import all_runs
from launcher.runs.run import RunState, load, remaining, tasks_of
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
    with pytest.raises(OSError, match="not a regular file"):
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
