"""Names at the engine that are taken already: told, and nobody else's things are touched."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from launcher.errors import LaunchError
from launcher.transport.docker.engine import connect
from launcher.transport.docker.fleet import Fleet
from launcher.transport.docker.settings import MACHINE, OWNER, Container, container_name, network_name
from tests.docker.conftest import left_of
from tests.docker.engine import BASE, Engine
from tests.docker.site import SLOW

JOB = f"names-{os.getpid()}-{os.urandom(4).hex()}"


@pytest.fixture
def others(docker: Engine) -> Iterator[Engine]:
    """An engine at which somebody has things of our names; they are there afterwards too."""
    yield docker
    for name in (container_name(JOB, "worker-1"), network_name(JOB)):
        docker.tried("rm", "-f", name)
        docker.tried("network", "rm", name)


def start(engine: Engine) -> str:
    """Start three containers, as a launch does: what was said when that failed."""
    found = connect({"DOCKER_HOST": engine.host})
    containers = [Container(f"worker-{index}", BASE, "python3") for index in range(3)]
    labels = {OWNER: "a test", MACHINE: "a test"}
    told: list[str] = []
    try:
        with (
            pytest.raises(LaunchError) as caught,
            Fleet(found, JOB, containers, labels, told.append) as fleet,
        ):
            fleet.start()
    finally:
        found.close()
    assert [line for line in told if not line.startswith(SLOW)] == []
    return str(caught.value)


def test_of_a_container(others: Engine):
    name = container_name(JOB, "worker-1")
    others.docker("create", "--name", name, BASE, "true")
    said = start(others)
    assert said.startswith("worker-1: a container of its name is there already: ")
    assert name in said
    assert others.lines("ps", "-a", "--filter", f"name={name}", "--format", "{{.Names}}") == [name]
    assert left_of(others, JOB) == []


def test_of_a_network(others: Engine):
    name = network_name(JOB)
    others.docker("network", "create", name)
    assert f"the job's network can't be made: network with name {name} already exists" in start(others)
    assert others.lines("network", "ls", "--filter", f"name={name}", "--format", "{{.Name}}") == [name]
    assert left_of(others, JOB) == []
