"""Old runs are forgotten, and nothing else is."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from launcher.runs import create, folder, pruning, sharing
from launcher.runs.owner import this_process
from launcher.runs.pruning import MOST_AT_ONCE, MOST_LINKS, prune
from launcher.runs.run import Run, load
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
    for number in range(MOST_AT_ONCE + 10):
        made(name(number), exit_code=0)
        (state / name(number)).rename(state.parent / name(number))
    for number in range(MOST_AT_ONCE + 10):
        (state.parent / name(number)).rename(state / name(number))
    prune(str(state), os.listdir(state), 3)
    assert len(os.listdir(state)) == 10


def vanished(state: Path, numbers: range) -> None:
    """Runs with a ``--run-dir`` that nobody has any more."""
    state.mkdir(parents=True, exist_ok=True)
    (state.parent / "gone").mkdir(exist_ok=True)
    for number in numbers:
        os.symlink(state.parent / "gone" / str(number), state / name(number))


def test_links_to_a_disk_that_is_not_there_now_stay(state: Path):
    vanished(state, range(4))
    (state.parent / "gone").rmdir()
    made(name(4), exit_code=0)
    assert sorted(os.listdir(state)) == [name(n) for n in range(5)]


def test_links_to_runs_that_vanished_count_as_others_do(state: Path):
    vanished(state, range(4))
    made(name(4), exit_code=0)
    assert sorted(os.listdir(state)) == [name(2), name(3), name(4)]


def test_links_go_by_the_hundred(state: Path):
    vanished(state, range(MOST_LINKS + 10))
    prune(str(state), os.listdir(state), 3)
    assert sorted(os.listdir(state)) == [name(n) for n in range(MOST_LINKS, MOST_LINKS + 10)]


def test_a_folder_that_was_emptied_is_a_run_that_vanished(state: Path, tmp_path: Path):
    mine = create(str(tmp_path / "mine"), name(0))
    Path(mine.owner).unlink()
    (tmp_path / "mine" / "notes").touch()
    for number in range(1, 4):
        made(name(number), exit_code=0)
    assert sorted(os.listdir(state)) == [name(1), name(2), name(3)]
    assert (tmp_path / "mine" / "notes").exists()


def test_where_a_home_is_shared_a_link_may_lead_to_another_machine(
    state: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sharing, "is_shared", {str(state): True}.__getitem__)
    vanished(state, range(2))
    for number in range(2, 6):
        made(name(number), exit_code=0)
    assert sorted(os.listdir(state)) == [name(n) for n in (0, 1, 3, 4, 5)]
    long_ago = time.time() - pruning.PATIENCE - 60
    os.utime(state / name(0), (long_ago, long_ago), follow_symlinks=False)
    made(name(6), exit_code=0)
    assert sorted(os.listdir(state)) == [name(n) for n in (1, 4, 5, 6)]


def test_a_link_into_a_folder_that_nobody_may_enter_stays(state: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(path: str, **_: bool) -> None:
        raise PermissionError(13, "permission denied", path)

    vanished(state, range(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refused)
        prune(str(state), os.listdir(state), 0)
    assert os.listdir(state) == [name(0)]


def test_a_folder_that_never_answers_keeps_no_other_run(state: Path, monkeypatch: pytest.MonkeyPatch):
    silent = threading.Event()
    look = load

    def waiting(path: str) -> Run | None:
        if os.path.islink(path):
            silent.wait(20)
        return look(path)

    monkeypatch.setattr(pruning, "load", waiting)
    monkeypatch.setattr(pruning, "_ANSWER", 0.1)
    vanished(state, range(1))
    for number in range(1, 6):
        made(name(number), exit_code=0)
    silent.set()
    assert sorted(os.listdir(state)) == [name(n) for n in (0, 3, 4, 5)]
