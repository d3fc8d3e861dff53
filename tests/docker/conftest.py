"""An engine for the tests of containers, and a check that no test leaves anything at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Launch
from tests.docker import engine as lab
from tests.docker.engine import Engine
from tests.docker.host_engines import engines, hostfile, two_hosts
from tests.testing.conftest import plugged, pytest_configure

if TYPE_CHECKING:
    from tests.backends import Docker, DockerOnHosts

#: Fixtures of hosts with an engine each. Of another folder: the pytest plug-in, here and in the runs of
#: pytest that tests start.
__all__ = ["engines", "hostfile", "plugged", "pytest_configure", "two_hosts"]


@pytest.fixture(scope="session")
def real_engine() -> Iterator[Engine]:
    """The engine that is here, or one of our own."""
    with lab.engine() as found:
        yield found


@pytest.fixture
def alone() -> None:
    """No other test session is at the engine meanwhile.

    For tests that leave what other launches would remove, or remove what others left.
    """


@pytest.fixture
def docker(
    real_engine: Engine, launch: Launch, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    """The engine that ``launch`` finds; whatever a launch of this test left there fails the test."""
    monkeypatch.setenv("DOCKER_HOST", real_engine.host)
    with lab.at_engine("alone" in request.fixturenames):
        yield real_engine
        left = {job: lines for job in jobs(launch) if (lines := left_of(real_engine, job))}
        for job in left:
            _remove(real_engine, job)
    assert not left


@pytest.fixture
def here(request: pytest.FixtureRequest, docker: Engine) -> Docker:
    """Containers at that engine."""
    from tests.backends import Docker  # it uses what is below

    return Docker(request)


@pytest.fixture
def on_hosts(request: pytest.FixtureRequest, hostfile: str) -> DockerOnHosts:
    """Containers at the engines of two hosts."""
    from tests.backends import DockerOnHosts  # it uses what is below

    return DockerOnHosts(request)


def jobs(launch: Launch) -> list[str]:
    """The names of the jobs of this test that had a folder of their own."""
    return sorted(path.name for path in launch.state.glob("*-*-*") if path.is_dir())


def left_of(engine: Engine, job: str) -> list[str]:
    """Names of containers and networks of a job."""
    label = f"label=tf-launcher.job={job}"
    containers = engine.lines("ps", "-a", "--filter", label, "--format", "{{.Names}}")
    return containers + engine.lines("network", "ls", "--filter", label, "--format", "{{.Name}}")


def alive(engine: Engine, job: str) -> list[str]:
    """Names of the containers of a job that run."""
    return engine.lines("ps", "--filter", f"label=tf-launcher.job={job}", "--format", "{{.Names}}")


def _remove(engine: Engine, job: str) -> None:
    label = f"label=tf-launcher.job={job}"
    for container in engine.lines("ps", "-aq", "--filter", label):
        engine.tried("rm", "-f", container)
    for network in engine.lines("network", "ls", "-q", "--filter", label):
        engine.tried("network", "rm", network)
