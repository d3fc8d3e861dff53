"""Runs are found by name, part of it, path or age, and their state is what is true."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.errors import InputError
from launcher.runs import create
from launcher.runs.owner import this_process
from launcher.runs.registry import all_runs, find
from launcher.runs.run import RunState, load
from tests.unit.runs.conftest import Sleeper, made, owner_of

OLD, NEW = "20261120-070912-aaaaa", "20261121-070912-bbbbb"


@pytest.fixture
def two(state: Path) -> None:
    """Two runs, the older with the later name's time."""
    made(NEW, at=2.0, exit_code=0)
    made(OLD, at=1.0)


def test_no_runs(state: Path):
    assert all_runs() == []
    with pytest.raises(InputError, match="there are no runs"):
        find()


def test_the_oldest_is_first(two: None):
    assert [run.job for run in all_runs()] == [OLD, NEW]


@pytest.mark.parametrize("text", [None, "latest", NEW, "20261121", "bbbbb"])
def test_a_run_by_name(two: None, text: str | None):
    assert find(text).job == NEW


@pytest.mark.parametrize("text", ["x", "bbb", "2026112", "./nowhere", "/"])
def test_no_such_run(two: None, text: str):
    with pytest.raises(InputError) as caught:
        find(text)
    assert repr(text) in str(caught.value)


def test_a_run_by_path(two: None, state: Path, monkeypatch: pytest.MonkeyPatch):
    assert find(str(state / OLD)).job == OLD
    monkeypatch.chdir(state)
    assert find(OLD).job == OLD


def test_the_states(state: Path, sleeper: Sleeper):
    process = sleeper()
    running, elsewhere = owner_of(process), this_process()._replace(machine="node7")
    made("running", running)
    made("finishing", running, exit_code=0)
    made("elsewhere", elsewhere)
    made("over there", elsewhere, exit_code=0)
    made("died")
    made("ended", exit_code=3)
    assert {run.job: run.state for run in all_runs()} == {
        "running": RunState.RUNNING,
        "finishing": RunState.RUNNING,
        "elsewhere": RunState.ELSEWHERE,
        "over there": RunState.ENDED,
        "died": RunState.DIED,
        "ended": RunState.ENDED,
    }
    run = find("running")
    process.kill()
    process.wait()
    assert run.state is RunState.DIED


def test_a_folder_used_again_is_the_later_runs(state: Path, tmp_path: Path):
    root = tmp_path / "run"
    create(str(root), OLD)
    for name in ("launcher.json", "logs"):
        os.rename(root / name, tmp_path / name)
    create(str(root), NEW)
    assert [run.job for run in all_runs()] == [NEW]


@pytest.mark.parametrize("record", ["", "[]", "{", '{"pid": "x", "job": 3}', "\xff"])
def test_a_broken_record_breaks_nothing(state: Path, record: str):
    paths = made(OLD)
    Path(paths.plan).write_text("{}")
    Path(paths.owner).write_text(record, encoding="latin-1")
    run = load(paths.root)
    assert run is not None
    assert (run.job, run.owner, run.state) == (OLD, None, RunState.DIED)
