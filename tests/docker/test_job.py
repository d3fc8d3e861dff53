"""A job in containers: where its tasks are, what they see, how they find each other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.conftest import alive, jobs, left_of
from tests.docker.engine import Engine
from tests.local.board import FOLDER, page_of, url_of, waits_for


def test_the_working_folder_and_the_owner_of_files(
    docker: Engine, image: str, launch: Launch, tmp_path: Path
):
    (tmp_path / "program.py").write_text("open('written', 'w').write('by the task')\n")
    tmp_path.chmod(0o777)
    assert launch("--docker", image, "--workers", "1", "program.py", cwd=tmp_path, timeout=60).code == 0
    written = tmp_path / "written"
    assert (written.read_text(), written.stat().st_uid) == ("by the task", os.getuid())
    written.unlink()
    args = ["--docker", image, "--user", "12345:23456", "program.py"]
    assert launch(*args, cwd=tmp_path, timeout=60).code == 0
    assert (written.stat().st_uid, written.stat().st_gid) == (12345, 23456)


def test_mounts(docker: Engine, image: str, launch: Launch, tmp_path: Path):
    (tmp_path / "work").mkdir()
    (tmp_path / "da,ta").mkdir()
    (tmp_path / "da,ta" / "it").write_text("seen")
    script = "cat /data/it; echo; if touch /data/new 2>/dev/null; then echo wrote; else echo refused; fi; pwd"
    args = ["--docker", image, "--mount", "../da,ta:/data:ro", "--no-mount", "--", "sh", "-c", script]
    ended = launch(*args, cwd=tmp_path / "work", timeout=60)
    assert ended.code == 0, ended.err
    assert [line.partition("| ")[2] for line in ended.out.splitlines()[:3]] == ["seen", "refused", "/"]


def test_a_dry_run_makes_nothing(docker: Engine, launch: Launch, tmp_path: Path):
    args = ["--docker", "no-such-image", "--ps", "1", "--workers", "2", "--dry-run", "train.py"]
    ended = launch(*args, cwd=tmp_path, env={"DOCKER_HOST": "unix:///no/engine"})
    assert ended.code == 0, ended.err
    assert "worker-1" in ended.out
    assert "python3" in ended.out


@pytest.mark.usefixtures("alone")
def test_kept_containers_and_how_they_are_removed(docker: Engine, image: str, launch: Launch, tmp_path: Path):
    args = ["--docker", image, "--keep", "--workers", "2", "--", "sh", "-c", "echo x >/tmp/found"]
    ended = launch(*args, cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    job = jobs(launch)[0]
    assert f"docker ps -a --filter label=tf-launcher.job={job}" in ended.err
    name = f"tf-launcher-{job}-worker-0"
    assert "A /tmp/found" in docker.docker("diff", name)
    assert alive(docker, job) == []
    assert launch("--docker", image, "true", cwd=tmp_path, timeout=60).code == 0
    assert len(left_of(docker, job)) == 3
    cleaned = launch("clean", timeout=60)
    assert cleaned.code == 0, cleaned.err
    assert f"removed container {name}" in cleaned.out
    assert left_of(docker, job) == []


def test_tensorboard_listens_in_its_own_container(docker: Engine, image: str, launch: Launch, tmp_path: Path):
    work = tmp_path / "work"
    shutil.copytree(FOLDER, work)
    done = waits_for(work / "done")
    board = ["-x", "PYTHONPATH=.", "--output-dirs", "--tensorboard"]
    started = launch.start("--docker", image, *board, "--", *done, cwd=work)
    url = url_of(started)
    assert "localhost" not in url
    (output,) = launch.state.glob("*/output")
    assert page_of(url) == f"<title>TensorBoard</title>{output.resolve()}"
    (work / "done").touch()
    assert started.wait(60).code == 0
