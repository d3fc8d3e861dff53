"""The fixture ``cluster`` with its tasks in containers: looked at, killed, suspended, cut off."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher import TaskState
from launcher.testing import CannotStart, Cluster, Job, Task, WaitFailed
from tests.docker.conftest import left_of
from tests.docker.engine import BASE, Engine
from tests.seeing import soon
from tests.testing.stubs import SLEEPS

#: Each worker sends the ps its step over one connection, and prints the answer. Silence is borne for long; on
#: SIGUSR1 it says how far it has come.
MEETS = """
import json, os, signal, socket, time
step = -1
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"is at %d\\n" % step))
me, (host, port) = os.environ["TASK_ADDRESS"], json.loads(os.environ["CLUSTER_SPEC"])["ps"][0].split(":")
if os.environ["JOB_NAME"] == "ps":
    with socket.create_server((host, int(port))) as server:
        line, _ = server.accept()
        print("met", flush=True)
        while data := line.recv(100):
            line.sendall(data)
for _ in range(600):
    try:
        line = socket.create_connection((host, int(port)), 5)
        break
    except OSError:
        time.sleep(0.05)
line.settimeout(60)
for step in range(100_000):
    line.sendall(b"%d" % step)
    os.write(1, b"step " + line.recv(100) + b"\\n")
    time.sleep(0.05)
"""


@pytest.fixture
def start(docker: Engine, cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """``cluster.start`` in containers; nothing of them is left at the engine."""

    def started(program: list[str], **more: object) -> Job:
        return cluster.start(program, backend=f"docker:{BASE}", workdir=tmp_path, **more)  # type: ignore[arg-type]

    yield started
    cluster.close()
    assert [left for job in cluster.jobs for left in left_of(docker, job.name)] == []


@pytest.mark.promise("the fixture `cluster` starts, kills, cuts off")
def test_a_network_is_cut_and_mended(start: Callable[..., Job]):
    """Nothing gets through; afterwards the same connection goes on, so the address is the same."""
    job = start(["python3", "-u", "-c", MEETS], ps=1, workers=1, left_running=True)
    ps, worker = job.task("ps/0"), job.task("worker/0")
    worker.until_prints("step 5")
    ps.cut_network()
    ps.cut_network()  # it is cut already
    before = _step(worker, 1)
    worker.signal(0)  # time passes, and both can still be reached by us
    ps.signal(0)
    assert _step(worker, 2) <= before + 1, "what was on its way may have arrived"
    assert worker.state is ps.state is TaskState.RUNNING
    ps.mend_network()
    worker.until_prints(f"step {_step(worker, 3) + 5}", 50)


def _step(worker: Task, times: int) -> int:
    """Which step a worker is at, when it is asked so many times; all it had printed has come then."""
    worker.signal(signal.SIGUSR1)

    def answers() -> list[str]:
        found = [line for line in worker.log.split("\n")[:-1] if line.startswith("is at ")]
        return found if len(found) == times else []

    return int(soon(answers, 40)[-1].split()[-1])


def test_faults_of_docker_clusters(start: Callable[..., Job], cluster: Cluster, docker: Engine):
    with pytest.raises(CannotStart, match="the engine has no image no-such-image:1") as caught:
        cluster.start(SLEEPS, backend="docker:no-such-image:1", options=["--pull", "never"])
    assert caught.value.exit_code == 125
    job = start(SLEEPS, workers=1, left_running=True)
    (name,) = docker.lines("ps", "--filter", f"label=tf-launcher.job={job.name}", "--format", "{{.Names}}")
    # With cgroup version 1, runc may answer "unable to freeze" (opencontainers/runc#2791).
    soon(lambda: docker.tried("pause", name).returncode == 0)
    with pytest.raises(WaitFailed, match="waited for an answer from the agent of worker-0: not within 10s"):
        job.task("worker/0").kill()
    docker.docker("unpause", name)
