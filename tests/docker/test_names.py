"""Names at the engine that are taken already: this is reported, and things of others are not touched."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from launcher.errors import LaunchError
from launcher.job import Placement
from launcher.loop import Loop
from launcher.transports.docker.container import Container, container_name, network_name
from tests.docker.conftest import left_of
from tests.docker.engine import BASE, Engine
from tests.docker.site import containers

JOB = f"names-{os.getpid()}-{os.urandom(4).hex()}"


@pytest.fixture
def others(docker: Engine) -> Iterator[Engine]:
    """An engine at which things of our names exist; they are there afterwards too."""
    yield docker
    for name in (container_name(JOB, "worker-1"), network_name(JOB)):
        docker.tried("rm", "-f", name)
        docker.tried("network", "rm", name)


def start() -> str:
    """Start three containers, as a launch does: the error."""
    planned = [Container(f"worker-{index}", BASE, "python3") for index in range(3)]
    notices: list[str] = []
    with (
        pytest.raises(LaunchError) as caught,
        Loop() as loop,
        containers(JOB, planned, notices, loop) as made,
        made.started(Placement(())),
    ):
        pass
    # A launch that another test has killed at this moment may leave something, and this one removes it.
    expected = ("waiting for ", "removed what a killed launch had left: ")
    assert [line for line in notices if not line.startswith(expected)] == []
    return str(caught.value)


def test_of_a_container(others: Engine):
    name = container_name(JOB, "worker-1")
    others.docker("create", "--name", name, BASE, "true")
    error = start()
    assert error.startswith("worker-1: Conflict. ")
    assert f'The container name "/{name}" is already in use' in error
    assert others.lines("ps", "-a", "--filter", f"name={name}", "--format", "{{.Names}}") == [name]
    assert left_of(others, JOB) == []


def test_of_a_network(others: Engine):
    name = network_name(JOB)
    others.docker("network", "create", name)
    assert f"the job's network can't be created: network with name {name} already exists" in start()
    assert others.lines("network", "ls", "--filter", f"name={name}", "--format", "{{.Name}}") == [name]
    assert left_of(others, JOB) == []
