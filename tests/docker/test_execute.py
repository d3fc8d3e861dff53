"""Running a command in a container that is there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from launcher.errors import TransportError
from launcher.transport.docker.engine import Engine as Ours
from launcher.transport.docker.engine import connect
from launcher.transport.docker.execute import Executed, execute
from tests.docker.engine import BASE, Engine

NAME = f"launch-test-execute-{os.getpid()}-{os.urandom(4).hex()}"


@pytest.fixture
def ours(docker: Engine) -> Iterator[Ours]:
    """The engine, with a container that sleeps."""
    docker.docker("run", "-d", "--rm", "--init", "--name", NAME, "--user", "12345", BASE, "sleep", "600")
    found = connect({"DOCKER_HOST": docker.host})
    yield found
    found.close()
    docker.docker("rm", "-f", NAME)


def test_what_it_printed_and_how_it_ended(ours: Ours):
    said = execute(ours, NAME, ["sh", "-c", "id -u; echo no >&2; exit 3"], 30)
    assert said == Executed(3, b"12345\n", b"no\n")
    much = execute(ours, NAME, ["head", "-c", "3000000", "/dev/zero"], 30)
    assert much == Executed(0, bytes(3_000_000), b"")


def test_it_does_not_wait_for_ever(ours: Ours):
    seconds, found = 0.5, Executed(None, b"", b"")
    while found == Executed(None, b"", b"") and seconds < 60:  # a busy engine has not started it by then
        found = execute(ours, NAME, ["sh", "-c", "echo a; exec sleep 600"], seconds)
        seconds *= 4
    assert found == Executed(None, b"a\n", b"")


def test_what_can_not_be_run(ours: Ours, docker: Engine):
    missing = execute(ours, NAME, ["/no/such"], 30)
    assert missing.code in (126, 127)
    with pytest.raises(
        TransportError, match=f"nothing can be run in the container no-{NAME}: No such container"
    ):
        execute(ours, f"no-{NAME}", ["true"], 30)
    docker.docker("pause", NAME)
    with pytest.raises(TransportError, match="is paused"):
        execute(ours, NAME, ["true"], 30)
    docker.docker("unpause", NAME)
