"""Old runs are forgotten, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.runs import create, folder
from launcher.runs.folder import MOST_REMOVED, prune
from launcher.runs.owner import this_process
from tests.unit.runs.conftest import made

NEWEST = "20991121-000000-zzzzz"


def name(number: int) -> str:
    """The name of run ``number``, by time."""
    return f"20260101-{number:06}-aaaaa"


@pytest.fixture(autouse=True)
def keep_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "KEPT_RUNS", 3)
    monkeypatch.setattr(folder, "_SLACK", 0)


def test_the_newest_are_kept(state: Path):
    for number in range(6):
        made(name(number), exit_code=0)
    assert sorted(os.listdir(state)) == [name(3), name(4), name(5)]


def test_what_still_runs_is_kept(state: Path):
    made(name(0), this_process())
    made(name(1), this_process()._replace(machine="node7"))
    for number in range(2, 6):
        made(name(number), exit_code=0)
    assert sorted(os.listdir(state)) == [name(n) for n in (0, 1, 3, 4, 5)]


def test_what_lies_elsewhere_is_not_touched(state: Path, tmp_path: Path):
    mine = create(str(tmp_path / "mine"), name(0))
    Path(mine.owner).unlink()
    Path(mine.report).write_text("{}")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    inside = made(name(1), exit_code=0)
    os.symlink(tmp_path / "precious", f"{inside.root}/link")
    os.symlink(tmp_path / "precious" / "file", f"{inside.logs}/link")
    for number in range(2, 5):
        made(name(number), exit_code=0)
    assert sorted(os.listdir(state)) == [name(2), name(3), name(4)]
    assert (tmp_path / "precious" / "file").exists()
    assert os.path.exists(mine.report)


def test_what_no_launch_made_is_not_touched(state: Path):
    (state / "notes").mkdir(parents=True)
    for number in range(5):
        made(name(number), exit_code=0)
    assert (state / "notes").is_dir()


def test_a_run_that_is_just_being_made_is_kept(state: Path):
    (state / name(0)).mkdir(parents=True)
    for number in range(1, 6):
        made(name(number), exit_code=0)
    assert (state / name(0)).is_dir()


def test_a_launch_removes_a_few_at_most(state: Path):
    for number in range(MOST_REMOVED + 10):
        made(name(number), exit_code=0)
        (state / name(number)).rename(state.parent / name(number))
    for number in range(MOST_REMOVED + 10):
        (state.parent / name(number)).rename(state / name(number))
    prune(str(state), os.listdir(state), 3)
    assert len(os.listdir(state)) == 10


def vanished(state: Path, numbers: range) -> None:
    """Runs with a ``--run-dir`` that nobody has any more."""
    state.mkdir(parents=True, exist_ok=True)
    (state.parent / "gone").mkdir(exist_ok=True)
    for number in numbers:
        os.symlink(state.parent / "gone" / str(number), state / name(number))


