"""SIGKILL of launch, kubectl and kubelets, pods deleted by force, nodes cut off: nothing is left, code and
reason are right, and no two attempts of a task are alive at the same time.

``LAUNCH_SOAK=N`` attacks each victim N times (``make soak``: 50), at the moments in turn; without it, once.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Started
from tests.kubernetes.cluster import Cluster, Kubelet, a_cluster, mounting
from tests.kubernetes.conftest import clean, start
from tests.kubernetes.test_losses import kubectls
from tests.local.training import CACHE, PYTHON
from tests.seeing import ROOT, kill, soon
from tests.soak.test_kills import repeated, until_moment

__all__ = ["clean", "start"]

Start = Callable[..., Started]

MOMENTS = ("start", "run", "restart", "stop")
VICTIMS = ("launch", "kubectl", "kubectls", "pod", "kubelet", "node")
#: Two processes, one in a session of its own, both deaf to SIGTERM, write the attempt again and again.
SCRIPT = """test $LAUNCH_ATTEMPT = $FIRST && { sleep 0.3; exit 3; }
beats="trap '' TERM; while :; do echo $LAUNCH_ATTEMPT >> $BEATS/$TASK_INDEX; sleep 0.2; done"
setsid sh -c "$beats" &
echo up; eval "$beats" """
WORDS = ("--grace", "1", "--lease", "10", "--restarts", "3", "--start-timeout", "40s")
#: Why a host was lost.
REASONS = {
    "pod": "its pod was deleted",
    "kubelet": "no answer for |its node n. is lost",
    "node": "no answer for |its node n. is lost",
}
#: Why nothing started.
_SILENT = "not all pods run after 40s|no answer for |kubectl exited with 1 and printed"
START_REASONS = {"pod": "its pod was deleted", "kubelet": _SILENT, "node": _SILENT}

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of this process alone, whose pods may see a folder of their nodes."""
    with a_cluster(tmp_path_factory.mktemp("kubernetes"), f"soak {os.getpid()}") as cluster:
        level = "pod-security.kubernetes.io/enforce-"
        cluster.kubectl("label", "namespace", cluster.namespace, level)
        yield cluster


class Beats:
    """What tasks write to a folder as long as they are alive: the numbers of their attempts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        folder.chmod(0o777)

    def attempts(self) -> dict[str, list[int]]:
        """The attempts that each task has written, in the order of time."""
        return {file.name: [*map(int, file.read_text().split())] for file in self.folder.iterdir()}

    def written(self) -> list[float]:
        """When each task wrote last."""
        return [file.stat().st_mtime for file in self.folder.iterdir()]

    def check(self) -> None:
        """Fail if two attempts of a task were alive at the same time."""
        for task, found in self.attempts().items():
            assert found == sorted(found), f"two attempts of worker/{task} at the same time"


@pytest.fixture
def beats(tmp_path: Path) -> Beats:
    """The beats of a job of the test."""
    return Beats(tmp_path / "beats")


@pytest.fixture
def begin(start: Start, kubernetes: Cluster, beats: Beats, tmp_path: Path) -> Callable[..., Started]:
    """Starts a job whose tasks beat, and waits for a moment of it."""

    def begun(moment: str, count: int, *words: str) -> Started:
        folder = str(beats.folder)
        variables = {"FIRST": 1 if moment == "restart" else 0, "BEATS": folder}
        job: dict[str, Any] = {"roles": {"worker": count}, "command": ["sh", "-c", SCRIPT], "env": variables}
        kubernetes.write_job(tmp_path, mounting([], folder), **job)
        started = start("job.yaml", *words, cwd=tmp_path).until(lambda it: "job " in it.err, 60)
        until_moment(started, moment, lambda: len(beats.attempts()) == count, start=4.0)
        return started

    return begun


@repeated
@pytest.mark.parametrize("victim", VICTIMS)
def test_an_attack(begin: Start, kubernetes: Cluster, beats: Beats, victim: str, turn: int):
    moment = MOMENTS[(turn + VICTIMS.index(victim)) % len(MOMENTS)]
    count = 4 if victim == "node" else 2
    started = begin(moment, count, *WORDS)
    pods = kubernetes.objects("pods")
    node = max((pod["spec"].get("nodeName", "n2") for pod in pods), default="n2")
    kubelet, attacked_at = Kubelet(kubernetes, node), time.time()
    try:
        _attack(started, kubernetes, victim, kubelet, pods)
        _look(started, victim, moment, beats, count)
        # Before the node answers again: what nobody reaches ends by itself.
        soon(lambda: time.time() > max(beats.written(), default=0.0) + 2, 40, lambda: started.err)
        seconds = max(beats.written(), default=attacked_at) - attacked_at
        print(f"{victim}, {moment}: the last task ended after {seconds:.1f}s")
    finally:
        if victim == "kubelet":
            kubelet.start()
        elif victim == "node":
            kubernetes.link(node, "up")
        kubernetes.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=90s")
    beats.check()
    if victim == "launch":
        phases = lambda: {pod["status"]["phase"] for pod in kubernetes.objects("pods")}  # noqa: E731
        soon(lambda: phases() <= {"Succeeded", "Failed"}, 130, phases)
        kubernetes.kubectl("delete", "jobs", "--all")


def _attack(
    started: Started, kubernetes: Cluster, victim: str, kubelet: Kubelet, pods: Sequence[Mapping[str, Any]]
) -> None:
    if victim == "launch":
        started.kill()
    elif victim.startswith("kubectl"):
        killed = kubectls(started, "exec")[:1]
        for pid in killed:
            kill(pid)
        if victim == "kubectls":  # that of the next connection, too
            before = kubectls(started, "exec")
            soon(lambda: {*kubectls(started, "exec")} - {*before, *killed}, 5)
            for pid in {*kubectls(started, "exec")} - {*before}:
                kill(pid)
    elif victim == "pod":
        for pod in pods[-1:]:
            name = pod["metadata"]["name"]
            words = ("--grace-period=0", "--force", "--wait=false", "--ignore-not-found")
            kubernetes.kubectl("delete", "pod", name, *words)
    elif victim == "node":
        kubernetes.link(kubelet.node, "down")
    else:
        kubelet.kill()


def _look(started: Started, victim: str, moment: str, beats: Beats, count: int) -> None:
    """At what launch does after an attack; then it is stopped."""
    if victim == "launch":
        assert started.process.wait() == -signal.SIGKILL
        return
    attempt = {"start": 1, "run": 2, "restart": 3, "stop": 1}[moment]
    if victim.startswith("kubectl"):
        attempt = {"restart": 2}.get(moment, 1)

    def has_recovered() -> bool:
        last = [found[-1] for found in beats.attempts().values() if found]
        return started.process.poll() is not None or (len(last) == count and min(last) >= attempt)

    soon(has_recovered, 120, lambda: started.err)
    time.sleep(2 if victim.startswith("kubectl") or moment == "start" else 0)
    if started.process.poll() is None and moment != "stop":
        started.send(signal.SIGINT)
    ended = started.wait(90)
    if ended.code == 125:
        reason = START_REASONS.get(victim)
        assert moment == "start" and reason and re.search(reason, ended.err), ended.err
    else:
        assert ended.code == 130, (ended.code, ended.err)
    if victim in REASONS and moment in ("run", "restart"):
        assert re.search(REASONS[victim], ended.err), ended.err
    if victim.startswith("kubectl"):
        assert " is lost" not in ended.err, ended.err
        assert "connected again" in ended.err or moment != "run", ended.err
    assert "Traceback" not in ended.err, ended.err


@repeated
@pytest.mark.parametrize(
    ("moment", "seconds", "lease"),
    [*((moment, 1, "10") for moment in MOMENTS[:3]), *((moment, 40, "20") for moment in MOMENTS[1:3])],
)
def test_a_kubelet_is_started_again(
    begin: Start, kubernetes: Cluster, beats: Beats, moment: str, seconds: int, lease: str, turn: int
):
    """Soon: the job goes on. Late: its agents have given up, and their tasks start once again in new pods."""
    restarts = 2 if moment == "restart" else 1  # the script itself asks for the first one
    words = ("--grace", "1", "--lease", lease, "--start-timeout", "60s", "--restarts", str(restarts))
    started = begin(moment, 2, *words)
    kubelet = Kubelet(kubernetes, ("n1", "n2")[turn % 2])
    kubelet.kill()
    time.sleep(seconds + random.random())
    kubelet.start()
    time.sleep(15)  # then a task whose agent has no connection does not beat any more

    def all_beat() -> bool:
        fresh = [at for at in beats.written() if at > time.time() - 1.5]
        return started.process.poll() is not None or len(fresh) == 2

    soon(all_beat, 90, lambda: started.err)
    if started.process.poll() is None:
        started.send(signal.SIGINT)
    ended = started.wait(90)
    again = len({attempt for found in beats.attempts().values() for attempt in found}) - 1
    print(f"{moment}: {again} restarts, {ended.err.count('connected again')} times connected again")
    assert ended.code == 130, (ended.code, ended.err)
    beats.check()


def test_a_node_is_removed(begin: Start, kubernetes: Cluster, beats: Beats):
    """Cut off, and then deleted, so that the API forgets its pods: their tasks run on until their lease."""
    started = begin("run", 2, *WORDS[:2], "--restarts", "1", "--lease", "90")
    assert len(kubernetes.pods("n1")) == len(kubernetes.pods("n2")) == 1
    kubernetes.link("n2", "down")
    kubernetes.kubectl("delete", "node", "n2")
    try:
        soon(lambda: all(2 in found for found in beats.attempts().values()), 240, lambda: started.err)
        ended = started.stop(signal.SIGINT, 90)
    finally:
        kubernetes.link("n2", "up")
        kubelet = Kubelet(kubernetes, "n2")
        kubelet.kill()
        kubelet.start()  # its node is made anew
    assert ended.code == 130, ended.err
    assert "worker-1: a new pod is made when the tasks in the lost one have ended" in ended.err, ended.err
    beats.check()


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mnist_survives_a_lost_node(start: Start, kubernetes: Cluster, tmp_path: Path):
    """Two of its four pods are on the node; that is one restart, from the last checkpoint."""
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o777)
    code = tmp_path / "code"
    shutil.copytree(ROOT / "examples/mnist_dist", code, ignore=shutil.ignore_patterns("__pycache__"))
    data = f"{CACHE}/tf-launcher/mnist"
    steps = ["--train_steps=3000", "--save_steps=200"]
    job = {
        "python": PYTHON,
        "flags": True,
        "env": {"TF_CPP_MIN_LOG_LEVEL": 2},
        "sync": [str(code)],
        "command": ["mnist_dist.py", f"--data_dir={data}", f"--log_dir={folder}", *steps],
        "roles": {"ps": 1, "worker": 3},
    }
    kubernetes.write_job(tmp_path, mounting([sys.prefix, sys.base_prefix, data], str(folder)), **job)
    subprocess.run([PYTHON, code / "data.py"], check=True, capture_output=True)
    started = start("job.yaml", "--restarts", "1", "--lease", "15", cwd=tmp_path)
    started.until(lambda it: any(int(step) >= 450 for step in re.findall(r"\| step (\d+) ", it.out)), 400)
    assert len(kubernetes.pods("n2")) == 2
    kubernetes.link("n2", "down")
    try:
        result = started.wait(400)
    finally:
        kubernetes.link("n2", "up")
    assert result.code == 0, result.out[-3000:] + result.err[-3000:]
    assert "attempt 2, restart 1 of 1" in result.err, result.err
    found = re.findall(r"^worker/\d +\| test accuracy: ([01]\.\d+)", result.out, re.M)
    assert len(found) == 3 and all(float(accuracy) >= 0.9 for accuracy in found), result.out[-3000:]
