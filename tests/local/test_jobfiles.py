"""Job files and hosts by the installed command: what the tasks get, what is noted, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch

JOB = """\
command: [train.py, --out, $HOME]
flags: true
roles:
  master: 1
  workers: {count: 1, flags: false}
  board: {sidecar: true, command: [board.py]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.py", "board.py"):
        (tmp_path / name).touch()
    return tmp_path


def dry_run(launch: Launch, *words: str | Path, **settings: Any) -> dict[str, Any]:
    ended = launch("--dry-run", "--json", *words, **settings)
    assert ended.code == 0, ended.err
    plan: dict[str, Any] = json.loads(ended.out)
    return plan


def test_flags_by_role_and_the_master_of_tensorflow_1(launch: Launch, folder: Path):
    (folder / "job.yaml").write_text(JOB)
    plan = dry_run(launch, folder / "job.yaml", cwd=folder)
    flags = {task["task"]: "--task_index=0" in task["argv"] for task in plan["tasks"]}
    assert flags == {"master/0": True, "workers/0": False, "board/0": False}
    config = json.loads(plan["tasks"][0]["env"]["TF_CONFIG"])
    assert config == {
        "cluster": {"master": list(plan["cluster"]["master"])},
        "task": {"type": "master", "index": 0},
    }
    job = "roles: {master: {command: 'true'}, worker: {command: [sleep, '60']}}\n"
    (folder / "job.yaml").write_text(job)
    assert launch(folder / "job.yaml").code == 0, "its end is the job's, as a chief's"


def test_what_may_be_a_mistake_is_noted(launch: Launch, folder: Path):
    (folder / "job.yaml").write_text(JOB)
    noted = "\n".join(dry_run(launch, folder / "job.yaml", cwd=folder)["notes"])
    assert f'{folder}/job.yaml:5: role "workers": did you mean "worker"?' in noted
    assert f"{folder}/job.yaml:1: $HOME reaches the program as it is written" in noted


def test_paths_are_relative_to_the_file(launch: Launch, folder: Path, tmp_path: Path):
    (folder / "sub").mkdir()
    (folder / "lab").write_text("localhost slots=2\n")
    job = "command: [../train.py]\nroles: {worker: {count: 2, workdir: sub}}\nhosts: lab\nrun_dir: run\n"
    (folder / "job.yaml").write_text(job)
    plan = dry_run(launch, folder / "job.yaml", cwd="/")
    assert [(task["host"], task["workdir"]) for task in plan["tasks"]] == [("localhost", f"{folder}/sub")] * 2


def test_a_folder_with_the_name_of_a_host(launch: Launch, folder: Path):
    (folder / "localhost").mkdir()
    assert len(dry_run(launch, "--hosts", "localhost", "true", cwd=folder)["tasks"]) == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("docker: true", ':3: docker is "true"; expected the name of an image'),
        ("hosts: [h1:0]", ':3: host is "h1:0"; expected slots'),
        ("env: {TF_CONFIG: x}", ':3: a name in env is "TF_CONFIG"'),
        ("env: &a {X: 1}\nhosts: *a", ":3: an alias (*NAME) stands for this value"),
    ],
)
def test_refused(launch: Launch, folder: Path, text: str, fault: str):
    job = folder / "job.yaml"
    job.write_text(f"command: [train.py]\nroles: {{worker: 1}}\n{text}\n")
    ended = launch(job)
    assert (ended.code, ended.out) == (2, "")
    assert f"launch: {job}{fault}" in ended.err
    assert not launch.state.exists()


def test_a_cluster_that_is_too_long_for_an_environment(launch: Launch):
    ended = launch("--workers", "9000", "true")
    assert (ended.code, ended.out) == (2, "")
    assert "in a job of 9,000 tasks; expected at most 131,072: Linux passes no more" in ended.err


def test_gpus_that_are_hidden(launch: Launch):
    ended = launch("--gpus", "1", "true", env={"CUDA_VISIBLE_DEVICES": "-1"})
    assert ended.code == 2
    assert (
        "localhost has 0 left" in ended.err
        and "CUDA_VISIBLE_DEVICES says which this machine has" in ended.err
    )
