"""How a container ended, from what ``docker run`` says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.backends.docker.container import Container
from launcher.backends.docker.engine import Engine
from launcher.backends.docker.link import end_fault
from tests.conftest import executable

_LOST = 'time="2026-11-27T19:15:03Z" level=error msg="error waiting for container: unexpected EOF"'
_UNREAD = "read unix @->/var/run/docker.sock: read: connection reset by peer"
_OVER_TCP = "write tcp 10.0.0.1:50122->10.0.0.2:2375: write: broken pipe"


@pytest.mark.parametrize(
    ("code", "stderr"),
    [
        (125, _LOST),
        (1, f"{_UNREAD}\n"),
        (1, f"WARNING: no swap limit support\n{_OVER_TCP}\n"),
        (1, f"OSError: {_UNREAD}"),
        (1, ""),
        (137, _UNREAD),
        (-9, _UNREAD),
    ],
)
def test_the_end_of_a_container_whose_agent_was_up(code: int, stderr: str, snapshot: SnapshotAssertion):
    container = Container("node1", "image", "python3", memory=1 << 30)
    assert end_fault(code, container, True, stderr) == snapshot
    assert end_fault(0, container, True, "WARNING: no swap limit support\n") == ""


@pytest.mark.parametrize(("code", "stderr", "how"), [(0, "", "exited with 0"), (1, _UNREAD, "exited early")])
def test_the_end_of_a_container_that_does_not_run_the_agent(code: int, stderr: str, how: str):
    """It may exit before the command could send it all of the agent: the status is the command's then."""
    fault = end_fault(code, Container("node1", "image", "/bin/true"), False, stderr)
    assert fault == f"/bin/true of the image image does not run the agent, and {how}"


def test_a_docker_command_that_hangs_in_a_child(tmp_path: Path):
    """As in a script that runs ``sudo docker`` without ``exec``."""
    executable(tmp_path / "docker", "#!/bin/sh\nsleep 8\n:\n")
    engine = Engine(environ={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    began = time.monotonic()
    assert engine.docker("ps", seconds=0.2).code != 0
    assert time.monotonic() - began < 4
