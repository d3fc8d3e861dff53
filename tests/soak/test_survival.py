"""Trainings survive the death of any task, wherever they run: the whole matrix, and random kills.

``tests/local/test_tensorflow.py`` runs one case of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch, Started
from tests.docker.conftest import alive
from tests.docker.engine import Engine
from tests.docker.test_dockerfile import built
from tests.local import training as trained
from tests.local.training import TRAININGS, WITH_TENSORFLOW, Place, running, survive
from tests.seeing import STUBS, RunFolder, run_of, soon
from tests.soak.test_kills import TIMES
from tests.ssh.host import LabHost

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(1800)]

PLACES = ("here", "ssh", "docker")
#: Seconds from kill to kill, and of all kills; seconds for the training to end after the last.
PAUSE, CHAOS, END = 10.0, 120.0, 900.0
#: Steps that take longer than the kills, on a fast machine.
CHAOS_STEPS = {"async": 40_000, "sync": 15_000, "coordinated": 12_000, "fit": 10_000, "in_step": 8_000}
#: Rounds of a training, how many are left when a worker is killed, at most, and how often that is tried.
ROUNDS, LEFT, TURNS = 40, 10, min(TIMES, 30)
#: Seconds for a chief to exit after its last line.
EXIT = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the hosts of the lab see, too: their /tmp is their own."""
    path = Path(tempfile.mkdtemp(prefix="tf-launcher-training-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """One of `PLACES`; its hosts or its engine run before a test starts, which may leave no process."""
    needs = {"ssh": "four_hosts", "docker": "real_engine"}
    if request.param in needs:
        request.getfixturevalue(needs[request.param])
    return str(request.param)


@pytest.fixture
def place(backend: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    """Where the tasks of a test run: this machine, four hosts, containers."""
    if backend == "here":
        return trained.here(request.getfixturevalue("launch"), folder)
    return _over_ssh(request, folder) if backend == "ssh" else _in_docker(request, folder)


def _over_ssh(request: pytest.FixtureRequest, folder: Path) -> Place:
    hosts: list[LabHost] = request.getfixturevalue("hosts")
    for host in hosts:
        host.expected.append(".keras")  # Keras's own

    def kill(run: RunFolder, task: str, pid: int, signum: int) -> None:
        names = {event["task"]: event["host"] for event in run.events if event["event"] == "TaskMoved"}
        host = next(host for host in hosts if host.name == names[task])
        host.run(["kill", f"-{signum}", str(pid)], check=False)

    options = ["--hosts", "node1,node2,node3,node4", *WITH_TENSORFLOW]
    return Place(request.getfixturevalue("ssh_launch"), options, folder, kill)


def _in_docker(request: pytest.FixtureRequest, folder: Path) -> Place:
    docker: Engine = request.getfixturevalue("docker")

    def kill(run: RunFolder, task: str, pid: int, signum: int) -> None:
        ending = task.replace("/", "-")
        names = [name for name in alive(docker, run.path.name) if name.endswith(ending)]
        docker.tried("exec", names[0], "sh", "-c", f"kill -{signum} {pid}")

    image = built(docker, "tf-launcher-test")
    options = ["--docker", image, "--mount", str(folder), "--mount", f"{trained.tf_keras()}:ro"]
    return Place(request.getfixturevalue("launch"), options, folder, kill)


@pytest.mark.promise("trainings of every strategy survive any task's death, and go on from a checkpoint")
@pytest.mark.parametrize("backend", PLACES, indirect=True)
@pytest.mark.parametrize(("training", "victim"), trained.VICTIMS)
def test_a_task_is_killed(place: Place, training: str, victim: str):
    survive(place, training, victim)


@pytest.mark.parametrize("backend", PLACES, indirect=True)
def test_a_task_is_preempted(place: Place):
    survive(place, "in_step", "worker/1", signal.SIGTERM)


@pytest.mark.promise("trainings of every strategy survive any task's death, and go on from a checkpoint")
@pytest.mark.parametrize("backend", PLACES, indirect=True)
@pytest.mark.parametrize("training", TRAININGS)
def test_a_random_task_is_killed_every_ten_seconds(place: Place, training: str):
    started, run = trained.start(place, training, CHAOS_STEPS[training], restarts=100)
    started.until(lambda _: trained.saved(TRAININGS[training], place.folder) >= trained.SAVE_STEPS, 240)
    kills = _chaos(place, started, run)
    ended = started.wait(END)
    print(f" [{kills} kills, {run.report['restarts']} restarts, {ended.elapsed:.0f} s]", end="")
    assert ended.code == 0, ended.out[-3000:] + ended.err[-3000:]
    earlier = [attempt for task in run.report["tasks"] for attempt in task["earlier"]]
    # A task may fail without a kill (TensorFlow: "The same RunGraph (Worker) request was received twice").
    errors = sum(attempt["reason"] == "exit" for attempt in earlier)
    assert 0 < run.report["restarts"] <= min(kills + errors, len(earlier))


def _chaos(place: Place, started: Started, run: RunFolder) -> int:
    """Kill a random task again and again, for two minutes or until the job ends: how many."""
    kills, until = 0, time.monotonic() + CHAOS
    while time.monotonic() < until and started.process.poll() is None:
        if pids := running(run):
            victim = random.choice(sorted(pids))
            place.kill(run, victim, pids[victim], signal.SIGKILL)
            kills += 1
        time.sleep(PAUSE)
    return kills


@pytest.mark.parametrize("turn", range(TURNS))
def test_a_worker_is_killed_shortly_before_the_chief_has_finished(launch: Launch, turn: int):
    started = launch.start(
        "--preload", "tensorflow", "--restarts", "3", "--chief", "--ps", "1", "--workers", "2",
        *WITH_TENSORFLOW, "-x", "TF_CPP_MIN_LOG_LEVEL=2", str(STUBS / "rounds.py"), str(ROUNDS),
    )  # fmt: skip
    moment, victim = ROUNDS - random.randint(0, LEFT), random.choice(["worker/0", "worker/1"])
    started.until(lambda it: f"round {moment} of" in it.out, 240)
    time.sleep(random.random() * 0.15)
    run = run_of(launch, started)
    with contextlib.suppress(KeyError, ProcessLookupError):  # the job has just ended
        os.kill(running(run)[victim], signal.SIGKILL)
    started.until(lambda it: "all rounds are over" in it.out, 120)
    soon(lambda: "chief/0" not in running(run), EXIT, "the chief does not exit; its log has its stacks")
    assert started.wait(60).code == 0
