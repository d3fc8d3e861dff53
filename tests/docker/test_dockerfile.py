"""The Dockerfile of the repository, and real TensorFlow in containers."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.docker.conftest import jobs, left_of
from tests.docker.engine import CACHE, Engine, take
from tests.seeing import ROOT, last_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(450, func_only=True),
    # Built before the first test: it does not count as time of a test.
    pytest.mark.usefixtures("tf_image"),
]

#: Seconds for TensorFlow to be fetched and installed, once for an engine.
_BUILD = 900.0
#: Seconds for another test session to be through with this module: an image, and two tests with it.
_TURN = 3600.0
MNIST = "examples/mnist_dist/mnist_dist.py"


def built(engine: Engine, name: str) -> str:
    """Build the image of the repository; an older one of this name is removed."""
    before = engine.tried("image", "inspect", "-f", "{{.Id}}", name).stdout.decode().strip()
    engine.docker("build", "-q", "--force-rm", "-t", name, str(ROOT), timeout=_BUILD)
    if before and before != engine.docker("image", "inspect", "-f", "{{.Id}}", name):
        engine.tried("rmi", before)
    return name


@pytest.fixture(scope="module")
def tf_image(real_engine: Engine) -> Iterator[str]:
    """What `docker build` makes. Only one test session makes and uses it at a time."""
    with open(CACHE / "images.lock", "w") as lock:
        take(lock, fcntl.LOCK_EX, _TURN)
        yield built(real_engine, "tf-launcher-test")


@pytest.mark.promise("the same job on this machine, over SSH, in containers, from a file")
def test_mnist_in_containers(docker: Engine, launch: Launch, tf_image: str):
    args = ["--docker", tf_image, "--ps", "1", "--workers", "1", "-x", "TF_CPP_MIN_LOG_LEVEL=2", "--flags"]
    ended = launch(*args, MNIST, "--train_steps=100", cwd=ROOT, timeout=400, code=0)
    reached = re.findall(r"^worker/0 \| test accuracy: ([01]\.\d+)", ended.out, re.MULTILINE)
    assert len(reached) == 1 and float(reached[0]) >= 0.7, ended.out
    rows = [line.split()[:5:4] for line in ended.out.splitlines() if re.match(r"(worker|ps)-\d ", line)]
    assert rows == [["worker-0", "succeeded"], ["ps-0", "stopped"]]
    assert min(task["peak_rss"] for task in last_run(launch).report["tasks"]) > 100 << 20
    assert [left for job in jobs(launch) for left in left_of(docker, job)] == []


def test_the_image_as_a_command(real_engine: Engine, tf_image: str, tmp_path: Path):
    """It is the launcher, as an ordinary user, and has the examples beside it."""
    printed = real_engine.docker(
        "run", "--rm", tf_image, "--workers", "2", "--", "sh", "-c", "id -u; ls examples"
    )
    lines = {line.partition(" | ")[2] for line in printed.splitlines() if " | " in line}
    assert "mnist_dist" in lines
    assert "0" not in lines
