"""Real TensorFlow in containers, which see that of this machine. See also `test_dockerfile`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import Launch
from tests.docker.conftest import jobs, left_of
from tests.docker.engine import BASE, Engine
from tests.local.training import CACHE, PYTHON, WITH_TENSORFLOW
from tests.seeing import ROOT, last_run

MNIST = "examples/mnist_dist/mnist_dist.py"


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.promise("the same job on this machine, over SSH, in containers, from a file")
def test_mnist_in_containers(docker: Engine, launch: Launch):
    subprocess.run([PYTHON, ROOT / "examples/mnist_dist/data.py"], check=True, capture_output=True)
    mounts = [f"--mount={folder}:ro" for folder in {sys.prefix, sys.base_prefix, CACHE}]
    trains_mnist(docker, launch, BASE, *mounts, *WITH_TENSORFLOW)


def trains_mnist(docker: Engine, launch: Launch, *image_and_options: str) -> None:
    """A worker and a ps train in containers of an image, and nothing of them is left."""
    options = ["--ps", "1", "--workers", "1", "-x", "TF_CPP_MIN_LOG_LEVEL=2", "--flags"]
    args = ["--docker", *image_and_options, *options, MNIST, "--train_steps=100"]
    ended = launch(*args, cwd=ROOT, timeout=250, code=0)
    reached = re.findall(r"^worker/0 \| test accuracy: ([01]\.\d+)", ended.out, re.MULTILINE)
    assert len(reached) == 1 and float(reached[0]) >= 0.7, ended.out
    rows = re.findall(r"^((?:worker|ps)/\d) +\S+ +\d+ +(\w+) ", ended.out, re.MULTILINE)
    assert rows == [("worker/0", "succeeded"), ("ps/0", "stopped")]
    assert min(task["peak_rss"] for task in last_run(launch).report["tasks"]) > 100 << 20
    assert [left for job in jobs(launch) for left in left_of(docker, job)] == []
