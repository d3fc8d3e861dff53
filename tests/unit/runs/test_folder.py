"""The folder of a run: made whole, or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from launcher.errors import JobError, LaunchError
from launcher.runs import create, folder, new_job_id
from launcher.runs.owner import this_process

JOB = "20261121-070912-k3f9m"


def test_names_are_short_sortable_and_unique():
    names = [new_job_id() for _ in range(200)]
    assert len(set(names)) >= 199  # two in a second are the same once in 33 million times
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-z]{5}", name) for name in names)


def test_a_run_has_a_folder_of_its_own(state: Path):
    paths = create(None, JOB)
    assert paths.root == str(state / JOB)
    assert os.listdir(paths.logs) == []
    assert os.stat(paths.root).st_mode & 0o777 == 0o700
    assert sorted(os.listdir(paths.root)) == ["launcher.json", "logs"]


def test_the_owner_is_written_down_and_no_secret(state: Path):
    record = json.loads(Path(create(None, JOB).owner).read_text())
    assert set(record) == {
        "schema", "job", "started_at", "pid", "start_ticks", "boot_id", "machine", "pid_namespace",
    }  # fmt: skip
    assert record["pid"] == os.getpid()
    assert record["start_ticks"] == this_process().start_ticks


def test_the_state_folder_is_below_home_without_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/to/be/ignored")
    assert folder.runs_folder() == f"{tmp_path}/.local/state/tf-launcher/runs"


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_a_folder_of_the_users_own(state: Path, weird_path: Path, there: bool):
    root = weird_path / "deep" / "run"
    if there:
        root.mkdir(parents=True)
    assert create(str(root), JOB).root == str(root)
    assert os.readlink(state / JOB) == str(root)


def test_a_relative_folder(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert create("run/", JOB).root == str(tmp_path / "run")


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c", "d", "e"]])
def test_what_is_in_the_way_is_named(state: Path, tmp_path: Path, names: list[str]):
    root = tmp_path / "run"
    root.mkdir()
    for name in names:
        (root / name).touch()
    with pytest.raises(JobError, match=r"--run-dir: .*'a'.* in the way") as caught:
        create(str(root), JOB)
    assert ("and 2 more" in str(caught.value)) == (len(names) > 4)
    assert sorted(os.listdir(root)) == names


def test_a_file_in_the_way(state: Path, tmp_path: Path):
    (tmp_path / "run").touch()
    with pytest.raises(JobError, match="not a folder"):
        create(str(tmp_path / "run"), JOB)
    with pytest.raises(LaunchError, match="can't make") as caught:
        create(str(tmp_path / "run" / "below"), JOB)
    assert caught.value.exit_code == 125


def test_no_name_is_no_folder(state: Path):
    with pytest.raises(JobError, match="empty"):
        create("", JOB)


def test_a_full_disk_leaves_nothing(state: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder, "write_record", full)
    with pytest.raises(LaunchError, match="No space left") as caught:
        create(None, JOB)
    assert str(state / JOB) in str(caught.value)
    assert caught.value.exit_code == 125
    assert os.listdir(state) == []


def test_a_state_folder_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(LaunchError, match=r"can't make .*; --run-dir DIR"):
        create(None, JOB)
    # It is no reason to refuse a run whose files go elsewhere.
    assert os.path.isdir(create(str(tmp_path / "run"), JOB).logs)
