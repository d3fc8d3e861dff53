"""Scenarios on backends: one marked ``@on("local", "ssh")`` runs on both, and gets each as ``backend``."""

from __future__ import annotations

import pytest

from tests.backends import BACKENDS, Backend
from tests.docker.conftest import alone, docker, real_engine
from tests.docker.host_engines import engines, hostfile, two_hosts
from tests.kubernetes.conftest import clean as kubernetes_clean
from tests.slurm.conftest import clean as slurm_clean
from tests.ssh.conftest import four_hosts, lab, ssh_launch

#: Fixtures of other folders.
__all__ = [
    "alone", "docker", "engines", "four_hosts", "hostfile", "kubernetes_clean", "lab", "real_engine",
    "slurm_clean",
    "ssh_launch", "two_hosts",
]  # fmt: skip

#: What is started once for all tests on a backend.
_SHARED = {
    "ssh": "four_hosts", "docker": "real_engine", "docker-ssh": "two_hosts", "slurm": "slurm",
    "kubernetes": "kubernetes",
}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The backends of a test, each in turn; first in its name."""
    if marker := metafunc.definition.get_closest_marker("on"):
        metafunc.parametrize("backend", marker.args, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What lives as long as the session must be there before a test looks at what it leaves."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("on"):
            name = str(item.callspec.params["backend"])
            item.fixturenames = [*filter(None, [_SHARED.get(name)]), *item.fixturenames]
            if name != "local":
                item.add_marker(pytest.mark.elsewhere)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    """Where the test's jobs run."""
    return BACKENDS[request.param](request)
