"""The examples of clicks and of wide and deep from HDFS to HDFS, over SSH, on Slurm and on Kubernetes.

``tests/api/test_examples_fed.py`` runs them on this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import Cluster as Kubernetes
from tests.kubernetes.cluster import a_cluster, mounting
from tests.local.training import CACHE
from tests.seeing import ROOT
from tests.slurm.cluster import Cluster
from tests.ssh.lab import Lab
from tests.storage.clicks import train_and_score_clicks
from tests.storage.servers import Servers
from tests.storage.stores import Hdfs

EXAMPLES = ROOT / "examples"
pytestmark = [pytest.mark.tensorflow, pytest.mark.long, pytest.mark.timeout(1500)]

#: The user at the HDFS, as a pod has none by itself.
_USER = "reader"
#: Runs an example with these words, and further options of ``launch``: what it prints.
Run = Callable[..., str]


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """A cluster whose pods may see folders of their nodes."""
    with a_cluster(tmp_path_factory.mktemp("kubernetes"), f"storage {os.getpid()}") as cluster:
        level = "pod-security.kubernetes.io/enforce-"
        cluster.kubectl("label", "namespace", cluster.namespace, level)
        yield cluster


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """What runs before a test starts, which may leave no process."""
    request.getfixturevalue({"ssh": "four_hosts"}.get(request.param, request.param))
    return str(request.param)


@pytest.fixture
def run(backend: str, servers: Servers, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Runs an example there, with the servers of the tests in reach."""
    environ = {
        **os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": CACHE,
        "HADOOP_USER_NAME": _USER, "TF_CPP_MIN_LOG_LEVEL": "2",
    }  # fmt: skip
    # TensorFlow leaves files there. Hosts see this folder, but not /tmp.
    temporary = tempfile.mkdtemp(prefix="tf-launcher-", dir="/var/tmp")
    before, driver, after = [], [sys.executable], ["--"]
    if backend == "ssh":
        lab: Lab = request.getfixturevalue("lab")
        for host in lab.hosts:
            servers.route(host.pid, lab.address)
            host.expected.append(".keras")
        lab.move_in(tmp_path / "home")
        environ["HOME"] = str(tmp_path / "home")
        after = ["--hosts", "node1,node2,node3", "--", "--workdir", "/", "--python", sys.executable]
        after += ["-x", f"TMPDIR={temporary}"]
    elif backend == "slurm":
        slurm: Cluster = request.getfixturevalue("slurm")
        servers.join(slurm.network)
        environ |= request.getfixturevalue("held")
        before, after = slurm.enter, ["--", "--python", sys.executable]
    else:
        kubernetes: Kubernetes = request.getfixturevalue("kubernetes")
        servers.join(kubernetes.network)
        environ |= kubernetes.environ
        before = kubernetes.enter
        kubernetes.write_job(tmp_path, mounting([sys.prefix, sys.base_prefix]), python=sys.executable)
        driver = [sys.executable, str(ROOT / "tests/storage/with_job.py"), str(tmp_path / "job.yaml")]

    def run(script: str, *words: str) -> str:
        options = ["-x", f"HADOOP_USER_NAME={_USER}"]
        ended = subprocess.run(
            [*before, *driver, str(EXAMPLES / script), *words, *after, *options],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=1200,
        )  # fmt: skip
        print(ended.stdout[-3000:], ended.stderr[-3000:])
        assert ended.returncode == 0
        return ended.stdout

    yield run
    shutil.rmtree(temporary)


def number(pattern: str, text: str) -> float:
    """The last number that was printed in this way."""
    return float(re.findall(pattern, text)[-1])


@pytest.mark.parametrize("backend", ["ssh", "slurm", "kubernetes"], indirect=True)
def test_clicks(run: Run, hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch):
    train_and_score_clicks(run, hdfs, monkeypatch)


@pytest.mark.parametrize("backend", ["ssh", "slurm", "kubernetes"], indirect=True)
def test_wide_and_deep(run: Run, hdfs: Hdfs):
    out = run("wide_deep/wide_deep.py", "--epochs", "2", "--folder", hdfs.of("people"))
    assert number(r"test accuracy: ([\d.]+)", out) > 0.72
    names = [name.removeprefix("people/") for name in hdfs.names()]
    assert len([name for name in names if name.startswith("shards/")]) == 8
    assert "chief-0/model/saved_model.pb" in names
    found = [hdfs.read(f"people/{name}").split() for name in names if name.startswith("predictions/")]
    assert len(found) == 2 and sum(map(len, found)) == 551
