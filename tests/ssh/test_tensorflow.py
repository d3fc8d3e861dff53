"""Real TensorFlow on hosts that have nothing of the project: the code and the data come along."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.seeing import ROOT, last_run, soon
from tests.ssh.host import LabHost

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]

PYTHON = os.environ.get("LAUNCH_TEST_PYTHON", sys.executable)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What a user has: the examples, the hostfiles, and the data beside the program."""
    folder = tmp_path / "project"
    for name in ("examples", "hostfiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "data"))
    for name in (".gitignore", ".launchignore"):
        shutil.copy(ROOT / name, folder)
    example = folder / "examples" / "mnist_dist"
    subprocess.run([PYTHON, str(example / "data.py")], check=True, timeout=250, capture_output=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tf-launcher", "mnist")
    (example / "data").mkdir()
    shutil.copy(cache / "mnist.npz", example / "data")
    return folder


@pytest.mark.long
@pytest.mark.promise("the same job on this machine, over SSH, in containers, from a file")
def test_mnist_on_three_hosts(ssh_launch: Launch, hosts: list[LabHost], project: Path):
    for host in hosts:
        host.expected.append(".keras")  # Keras's own
    ended = ssh_launch(
        "--hosts", "hostfiles/four-nodes.yaml", "--ps", "1", "--workers", "2", "--flags", "--sync", ".",
        "--python", PYTHON, "-x", "TF_CPP_MIN_LOG_LEVEL=2", "examples/mnist_dist/mnist_dist.py",
        "--train_steps=300",
        cwd=project, timeout=300, code=0
    )  # fmt: skip
    found = re.findall(r"^node\d (worker/\d) +\| test accuracy: ([01]\.\d+)", ended.out, re.MULTILINE)
    assert {name for name, _ in found} == {"worker/0", "worker/1"}, ended.out[-3000:]
    assert all(float(accuracy) >= 0.85 for _, accuracy in found), found
    rows = re.findall(r"^(worker|ps)/\d +(node\d) +\d+ +(succeeded|stopped)", ended.out, re.MULTILINE)
    assert sorted(name for _, name, _ in rows) == ["node1", "node2", "node3"]
    assert last_run(ssh_launch).states()["ps/0"] == "stopped"
    # The cache is all that stays: the fixture `lab` sees to the rest.
    soon(lambda: not any(host.processes() for host in hosts), 30)
    assert any(".cache/tf-launcher/trees" in path for path in hosts[0].files())
