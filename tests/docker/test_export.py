"""What ``launch export compose`` writes, run by Docker Compose."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.engine import BASE, Engine
from tests.local.test_export import by_task
from tests.local.training import CACHE, PYTHON, WITH_TENSORFLOW
from tests.seeing import ROOT
from tests.slurm.test_export import HOSTILE

#: Prints what it has, connects to all tasks at their addresses, then waits until all have connected to it.
#: They may be seconds behind.
MEET = """
import json, os, socket, sys, time
server = socket.create_server(("", int(os.environ["TASK_ADDRESS"].rpartition(":")[2])))
print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]), flush=True)
all = [address for addresses in json.loads(os.environ["CLUSTER_SPEC"]).values() for address in addresses]
for host, _, port in (address.rpartition(":") for address in all):
    while True:
        try:
            socket.create_connection((host, int(port)), 5).close()
            break
        except OSError:
            time.sleep(0.1)
for _ in all:
    server.accept()
time.sleep(600 if os.environ["JOB_NAME"] == "ps" else 0)
sys.exit(int(sys.argv[1]) if os.environ["TASK_INDEX"] == "1" or len(sys.argv) == 2 else 0)
"""

Compose = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def compose(docker: Engine, launch: Launch, weird_path: Path) -> Iterator[Compose]:
    """Exports a job in a folder with a hostile name, and gives its file to a command of Docker Compose."""
    plugin = docker.tried("compose", "version").returncode == 0
    file = weird_path.parent / "compose.yaml"
    command = ["docker", "compose"] if plugin else ["docker-compose"]
    command += ["--project-name", f"t{os.getpid()}", "--file", str(file)]

    def run(*words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "COPIED": HOSTILE}
        return subprocess.run(
            [*command, *words], env=environ, capture_output=True, text=True, timeout=120, check=check
        )

    (weird_path / "meet.py").write_text(MEET)
    yield run
    if file.exists():
        run("down", "--timeout", "2", "--volumes", check=True)


def export(launch: Launch, folder: Path, *words: str) -> str:
    words = ("--docker", BASE, "--ps", "1", "-x", f"HOSTILE={HOSTILE}", "-x", "COPIED", *words)
    env = {"COPIED": "another"}
    ended = launch("export", "compose", *words, cwd=folder, env=env, code=0)
    (folder.parent / "compose.yaml").write_text(ended.out)
    return ended.out


def test_several_tasks_decide(compose: Compose, launch: Launch, weird_path: Path, docker: Engine):
    text = export(launch, weird_path, "--workers", "2", "meet.py", "7", HOSTILE)
    up, logs, down = re.findall(r"^#     docker compose -f FILE (up|logs|down)", text, re.M)
    assert "docker wait $(docker compose -f FILE ps --all --quiet worker-0 worker-1)" in text
    compose("config", "--quiet", check=True)
    compose(up, "--detach", check=True)
    workers = compose("ps", "--all", "--quiet", "worker-0", "worker-1", check=True).stdout.split()
    codes = docker.docker("wait", *workers).split()
    printed = {worker: json.loads(docker.docker("logs", worker)) for worker in workers}
    tasks = {}
    for worker, end in zip(workers, codes, strict=True):
        argv, env, folder = printed[worker]
        assert (argv, env["HOSTILE"], folder) == (["7", HOSTILE], HOSTILE, str(weird_path))
        assert env["COPIED"] == HOSTILE, "the value is that of the machine where it runs"
        tasks[by_task(env)[0]] = end
    assert tasks == {"worker/0": "0", "worker/1": "7"}


@pytest.mark.long
@pytest.mark.tensorflow
@pytest.mark.slow
def test_mnist(compose: Compose, launch: Launch, weird_path: Path, docker: Engine):
    """Containers see TensorFlow, and the data, of this machine."""
    homes = (Path(PYTHON).parents[1], Path(PYTHON).resolve().parents[1], Path(CACHE))
    seen = [f"--mount={path}:{path}:ro" for path in (*map(str, homes), "/usr/lib/x86_64-linux-gnu")]
    for file in (ROOT / "examples/mnist_dist").glob("*.py"):
        (weird_path / file.name).write_text(file.read_text())
    words = (*seen, *WITH_TENSORFLOW, "--flags", "--workers", "1")
    export(launch, weird_path, *words, "mnist_dist.py", "--train_steps=100")
    compose("up", "--detach", check=True)
    worker = compose("ps", "--all", "--quiet", "worker-0", check=True).stdout.strip()
    assert docker.docker("wait", worker, timeout=170) == "0"
    said = compose("logs", "--no-color", check=True).stdout
    found = re.findall(r"test accuracy: ([01]\.\d+)", said)
    assert len(found) == 1 and float(found[0]) >= 0.7, said[-3000:]
