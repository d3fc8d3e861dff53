"""Runs are found by name, part of it, path or age, and their state is what is true.

What other users have put into a run's folder, or where it lies, blocks nothing and is not believed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.agent.identity import this_process
from launcher.backends.queued_runs import find
from launcher.common.errors import InputError, LaunchError
from launcher.common.record import replace
from launcher.common.trusted_io import open_regular
from launcher.runs.folder import create, unfinished
from launcher.runs.history import remaining
from launcher.runs.run import AGENTS_FIELD, Run, RunState, all_runs, load
from tests.unit.runs.conftest import Sleeper, made, owner_of

OLD, NEW = "20261120-070912-aaaaa", "20261121-070912-bbbbb"
_OTHER_USER = 12345


def loaded(folder: str | Path) -> Run:
    """Return the run of a folder, which is one."""
    run = load(str(folder))
    assert run is not None
    return run


@pytest.fixture
def two(state: Path) -> None:
    """Two runs, the older with the later name's time."""
    made(NEW, at=2.0, exit_code=0)
    made(OLD, at=1.0)


@pytest.mark.parametrize("text", [None, "latest", NEW, "20261121", "bbbbb"])
def test_a_run_by_name(two: None, text: str | None):
    assert find(text).name == NEW


@pytest.mark.parametrize("text", ["x", "bbb", "2026112", "./nowhere", "/"])
def test_no_such_run(two: None, text: str):
    with pytest.raises(InputError) as caught:
        find(text)
    assert repr(text) in str(caught.value)


def test_a_run_by_path(two: None, state: Path, monkeypatch: pytest.MonkeyPatch):
    assert find(str(state / OLD)).name == OLD
    monkeypatch.chdir(state)
    assert find(OLD).name == OLD


#: The ids of four runs, the oldest first. Only the second one runs.
FIRST, SECOND, THIRD, FOURTH = (f"20261120-07091{number}-{number}zzzz" for number in range(4))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (None, SECOND), ("latest", SECOND),  # the newest that runs
        ("nightly", SECOND), ("weekly", FOURTH),  # again the newest that runs, else the newest
        ("nightly-2", THIRD), (FIRST, FIRST), ("0zzzz", FIRST),
        ("./weekly", FIRST), ("weekly/", FIRST),  # a path has a slash
        ("folder", FIRST), ("3zzzz", FOURTH),
    ],
)  # fmt: skip
@pytest.mark.promise("a name belongs to one run that goes on, in queues, too, and wins over folders")
def test_names_are_stronger_than_folders(
    state: Path, sleeper: Sleeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, meant: str
):
    made(FIRST, at=1.0, exit_code=0, name="nightly")
    made(SECOND, owner_of(sleeper()), at=2.0, name="nightly")
    made(THIRD, at=3.0, exit_code=0, name="nightly-2")
    made(FOURTH, at=4.0, exit_code=0, name="weekly")
    for name in ("latest", "nightly", "weekly", "folder", "3zzzz"):
        (tmp_path / name).symlink_to(state / FIRST)
    monkeypatch.chdir(tmp_path)
    assert find(text).name == meant


@pytest.mark.parametrize("name", [3, None, ["x"], {"a": 1}, "\x1b[2J"])
def test_a_name_that_is_none(state: Path, name: object):
    run = loaded(made(NEW, name=name).root)
    assert run.origin.name in ("", "\\x1b[2J")
    assert run.called == (run.origin.name or NEW)


def test_the_states(state: Path, sleeper: Sleeper):
    process = sleeper()
    running, elsewhere = owner_of(process), replace(this_process(), boot_id="of node7", machine="node7")
    made("running", running)
    made("finishing", running, exit_code=0)
    made("elsewhere", elsewhere)
    made("over there", elsewhere, exit_code=0)
    made("died")
    made("ended", exit_code=3)
    assert {run.name: run.state for run in all_runs()} == {
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
    assert [run.name for run in all_runs()] == [NEW]


@pytest.mark.parametrize("record", ["", "[]", "{", '{"pid": "x", "job": 3}', "\xff"])
def test_a_broken_record_breaks_nothing(state: Path, record: str):
    paths = made(OLD)
    Path(paths.plan).write_text("{}")
    Path(paths.record).write_text(record, encoding="latin-1")
    run = loaded(paths.root)
    assert (run.name, run.owner, run.state) == (OLD, None, RunState.DIED)


# ---------------------------------------------------------------------- files of other users


@pytest.fixture
def odd(state: Path) -> Path:
    """The folder of a run without a launcher."""
    made(OLD, exit_code=0)
    (state / NEW).mkdir()
    return state / NEW


@pytest.mark.timeout(40)
@pytest.mark.parametrize("name", ["launcher.json", "plan.json", "report.json"])
def test_a_pipe_in_the_place_of_a_file(odd: Path, name: str):
    os.mkfifo(odd / name)
    assert unfinished("another") == []
    for run in all_runs():
        assert (run.plan(), run.report() or run.name) in [({}, NEW), ({}, {"exit_code": 0, "ended_at": 5.0})]


@pytest.mark.timeout(40)
def test_events_that_are_a_pipe(odd: Path):
    (odd / "plan.json").write_text('{"tasks": [{"task": "worker/0"}]}')
    os.mkfifo(odd / "events.jsonl")
    run = loaded(odd)
    assert remaining(run) == ["worker/0"]


def test_endless_files_are_not_read(odd: Path, tmp_path: Path):
    (odd / "launcher.json").symlink_to("/dev/zero")
    assert unfinished("another") == []
    assert [run.name for run in all_runs()] == [OLD]
    with pytest.raises(OSError, match="not a regular file"):
        open_regular("/dev/zero")
    (odd / "launcher.json").unlink()
    (odd / "launcher.json").write_text(json.dumps({AGENTS_FIELD: [], "job": "x" * 100_000}))
    assert unfinished("another") == []


def test_a_record_is_no_link(odd: Path, state: Path):
    """It might lead to that of another launch of ours."""
    (odd / "launcher.json").symlink_to(state / OLD / "launcher.json")
    (odd / "plan.json").write_text("{}")
    run = loaded(odd)
    assert (run.owner, run.is_ours, run.state) == (None, False, RunState.DIED)


def test_records_that_are_believed(state: Path, sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch):
    """Of this user, and of the user whose launcher it is."""
    run = loaded(made(OLD, owner_of(sleeper())).root)
    assert run.written_by == os.geteuid()
    run = replace(run, written_by=1000)
    monkeypatch.setattr("launcher.common.trusted_io.os.geteuid", lambda: 1000)
    monkeypatch.setattr("launcher.runs.run.user_of", lambda pid: 1000)
    assert [run.is_ours] == [True]
    run.check_trusted()
    monkeypatch.setattr("launcher.common.trusted_io.os.geteuid", lambda: _OTHER_USER)
    assert [run.is_ours] == [False]
    run.check_trusted()
    monkeypatch.setattr("launcher.runs.run.user_of", lambda pid: _OTHER_USER)
    with pytest.raises(LaunchError, match="belongs to user 1000 and names process"):
        run.check_trusted()
    assert replace(run, written_by=0).is_ours


def test_control_characters_in_the_name_of_a_job(odd: Path):
    (odd / "launcher.json").write_text('{"job": "\\u001b[2J"}')
    run = loaded(odd)
    assert run.name == "\\x1b[2J"


def test_a_link_in_the_place_of_the_record(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch):
    """A user that guesses our pid makes us write nowhere else."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    root = tmp_path / "run"
    mkdir = os.mkdir

    def made_and_linked(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        if path == f"{root}/logs":
            os.symlink(precious, f"{root}/launcher.json.{os.getpid()}.new")

    monkeypatch.setattr(os, "mkdir", made_and_linked)
    paths = create(str(root), NEW).paths
    assert precious.read_text() == "precious"
    assert json.loads(Path(paths.record).read_text())["job"] == NEW


@pytest.mark.parametrize("mask", [0o777, 0o277, 0o022])
def test_the_modes_do_not_depend_on_the_umask(state: Path, mask: int):
    before = os.umask(mask)
    try:
        paths = create(None, NEW).paths
    finally:
        os.umask(before)
    modes = [os.stat(path).st_mode & 0o777 for path in (paths.root, paths.logs, paths.record)]
    assert modes == [0o700, 0o700, 0o600]
