"""The folder of a run: made whole, or not at all; old ones are removed, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.agent.identity import this_process
from launcher.common.record import replace
from launcher.runs import folder
from launcher.runs.folder import MAX_REMOVED, create, prune
from tests.unit.runs.conftest import made


def name(number: int) -> str:
    """The name of run ``number``, by time."""
    return f"20260101-{number:06}-aaaaa"


@pytest.fixture(autouse=True)
def keep_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MAX_KEPT_RUNS", 3)
    monkeypatch.setattr(folder, "_PRUNE_SLACK", 0)


def test_the_newest_are_kept_and_all_that_may_still_run(state: Path):
    (state / "notes").mkdir(parents=True)
    (state / name(0)).mkdir()  # just being made
    made(name(1), this_process())
    made(name(2), replace(this_process(), boot_id="of node7", machine="node7"))
    for number in range(3, 8):
        made(name(number), exit_code=0)
    assert sorted(os.listdir(state)) == [*(name(n) for n in (0, 1, 2, 5, 6, 7)), "notes"]


def test_folders_elsewhere_are_not_removed(state: Path, tmp_path: Path):
    mine = create(str(tmp_path / "mine"), name(0)).paths
    Path(mine.record).unlink()
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


def test_a_run_that_may_go_on_elsewhere_stays_while_it_writes(state: Path):
    elsewhere = replace(this_process(), boot_id="of node7")
    for number in range(4):
        made(name(number), elsewhere)
        for file in ("launcher.json", "logs/worker-0.log", "events.jsonl"):
            (state / name(number) / file).touch()
            os.utime(state / name(number) / file, (0, 0))
    os.utime(state / name(1) / "logs/worker-0.log")
    os.utime(state / name(2) / "events.jsonl")
    for number in range(4):
        os.utime(state / name(number), (0, 0))
    prune(str(state), os.listdir(state), 1)
    assert sorted(os.listdir(state)) == [name(1), name(2), name(3)]


def test_a_run_elsewhere_without_a_folder_for_its_logs_goes(state: Path):
    for number in range(2):
        made(name(number), replace(this_process(), boot_id="of node7"))
    (state / name(0) / "logs").rmdir()
    for path in (state / name(0) / "launcher.json", state / name(0)):
        os.utime(path, (0, 0))
    prune(str(state), os.listdir(state), 1)
    assert os.listdir(state) == [name(1)]


def test_a_launch_removes_a_few_at_most(state: Path):
    for number in range(MAX_REMOVED + 10):
        made(name(number), exit_code=0)
        (state / name(number)).rename(state.parent / name(number))
    for number in range(MAX_REMOVED + 10):
        (state.parent / name(number)).rename(state / name(number))
    prune(str(state), os.listdir(state), 3)
    assert len(os.listdir(state)) == 10
