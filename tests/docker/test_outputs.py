"""``--output-dirs`` in containers: what tasks made is in the run's folder, and belongs to the caller."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.engine import Engine
from tests.docker.host_engines import DockerHost, docker_on

WRITE = 'echo $JOB_NAME $TASK_INDEX >"$OUTPUT_DIR/file"'


def made(run: Path) -> dict[str, str]:
    """What is in the folders of the tasks, by task."""
    return {file.parent.name: file.read_text() for file in run.glob("output/*/file")}


@pytest.mark.parametrize("user", [[], ["--user", "12345"]], ids=["ours", "another"])
def test_in_containers_here(docker: Engine, image: str, launch: Launch, tmp_path: Path, user: list[str]):
    run = tmp_path / "run"
    options = ["--workers", "2", "--output-dirs", "--run-dir", str(run), "--no-mount", *user]
    ended = launch("--docker", image, *options, "--", "sh", "-c", WRITE, cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    assert made(run) == {"worker-0": "worker 0\n", "worker-1": "worker 1\n"}
    assert (run / "output/worker-0/file").stat().st_uid == (12345 if user else os.getuid())


def test_in_containers_elsewhere(hosts: list[DockerHost], hostfile: str, launch: Launch, tmp_path: Path):
    run = tmp_path / "run"
    options = ["--workers", "2", "--output-dirs", "--run-dir", str(run), "--no-mount"]
    ended = launch(*docker_on(hostfile, *options, "--", "sh", "-c", WRITE), cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    assert made(run) == {"worker-0": "worker 0\n", "worker-1": "worker 1\n"}
    for host in hosts:
        assert not list((host.host.there(host.host.home) / ".cache/tf-launcher/work").glob("*"))
