"""A job in containers: where its tasks are, what they see, how they find each other."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.conftest import alive, jobs, left_of
from tests.docker.engine import Engine
from tests.local.board import FOLDER, page_of, url_of, waits_for
from tests.local.seeing import last_run

#: A ps that serves one word at its own address, and a worker that fetches it by the ps' name.
SERVE = """
import os, socket
host, port = os.environ["TASK_ADDRESS"].rsplit(":", 1)
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((host, int(port)))
server.listen()
while True:
    line, _ = server.accept()
    line.sendall(socket.gethostname().encode())
    line.close()
"""
FETCH = """
import json, os, socket, time
host, port = json.loads(os.environ["CLUSTER_SPEC"])["ps"][0].rsplit(":", 1)
for _ in range(600):
    try:
        line = socket.create_connection((host, int(port)), 5)
        break
    except OSError:
        time.sleep(0.05)
print("fetched", line.recv(100).decode(), "from", host, "on", socket.gethostname())
"""
BOTH = 'if [ $JOB_NAME = ps ]; then exec python3 -c "$SERVE"; else exec python3 -c "$FETCH"; fi'


def test_tasks_find_each_other_by_name(docker: Engine, image: str, launch: Launch, tmp_path: Path):
    args = ["--docker", image, "--ps", "1", "--workers", "2", "-x", f"SERVE={SERVE}", "-x", f"FETCH={FETCH}"]
    ended = launch(*args, "--", "sh", "-c", BOTH, cwd=tmp_path, timeout=60)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert "worker/0 | fetched ps-0 from ps-0 on worker-0" in lines
    assert "worker/1 | fetched ps-0 from ps-0 on worker-1" in lines
    states = last_run(launch).states()
    assert states == {"worker/0": "succeeded", "worker/1": "succeeded", "ps/0": "stopped"}
    hosts = {task["host"] for task in last_run(launch).report["tasks"]}
    assert hosts == {"worker-0", "worker-1", "ps-0"}


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


@pytest.mark.promise("a new container takes the place of a lost one")
def test_a_new_container_takes_the_place_of_one_that_is_killed(
    docker: Engine, image: str, launch: Launch, tmp_path: Path
):
    """All tasks start again; the others reach the new one by the same name."""
    both = f"""if [ $LAUNCH_ATTEMPT = 1 ]; then echo up; exec sleep 300; fi; {BOTH}"""
    args = ["--docker", image, "--ps", "1", "--workers", "1", "--restarts", "1", "--output-dirs"]
    args += ["-x", f"SERVE={SERVE}", "-x", f"FETCH={FETCH}", "--", "sh", "-c", both]
    started = launch.start(*args, cwd=tmp_path)
    started.until(lambda it: it.out.count("| up") == 2, timeout=120)
    container = f"tf-launcher-{jobs(launch)[0]}-ps-0"
    docker.docker("kill", container)
    ended = started.wait(120)
    assert ended.code == 0, ended.err
    line = (
        "host ps-0 is lost: its container was killed by SIGKILL; a new one takes its place, all tasks start"
    )
    assert f"{line} again (attempt 2, restart 1 of 1)" in ended.err
    assert "worker/0 | fetched ps-0 from ps-0 on worker-0" in ended.out.splitlines()
    report = last_run(launch).report
    assert [(task["host"], task["attempt"]) for task in report["tasks"]] == [("worker-0", 2), ("ps-0", 2)]
    assert report["tasks"][1]["earlier"][0]["reason"] == "host lost"


@pytest.mark.promise("`launch restart`: same address, not counted; slow tasks, jobs that end")
def test_a_task_starts_again_in_its_container(docker: Engine, image: str, launch: Launch, tmp_path: Path):
    """At the same address; its memory is measured there."""
    words = ["--docker", image, "--workers", "2", "--", "sh", "-c", "echo up; exec sleep 300"]
    started = launch.start(*words, cwd=tmp_path)
    started.until(lambda it: it.out.count("| up") == 2, timeout=120)
    name = last_run(launch).path.name
    containers = sorted(alive(docker, name))
    before = json.loads(launch.here("ps", name, "--json").out)
    ended = launch("restart", name, "worker/1")
    assert ended.code == 0, ended.err
    first, second = json.loads(launch.here("ps", name, "--json").out)
    assert (first["attempt"], first["pid"]) == (1, before[0]["pid"]) and second["attempt"] == 2
    assert second["address"] == before[1]["address"] and 0 < second["memory"] < 50 << 20
    assert sorted(alive(docker, name)) == containers
    started.send(signal.SIGINT)
    assert started.wait(60).code == 130


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
