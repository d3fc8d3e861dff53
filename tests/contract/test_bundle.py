"""The agent needs nothing of ours but what travels, and no Python newer than 3.8."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.backends import bootstrap
from launcher.backends.connections import AgentArguments, Connections
from launcher.backends.programs import RemoteProgram, start_program
from launcher.common import events
from launcher.job import Host
from tests.contract.driver import Driver
from tests.contract.sites import RemoteSite
from tests.pythons import oldest_python


class Far(Connections):
    """A host that has only what travels: it is a folder without any file.

    Args:
        python: its Python.
        folder: the folder.
    """

    def __init__(self, python: str, folder: Path) -> None:
        self._python, self._folder = python, folder

    def start_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """See `Connections.start_agent`."""
        argv = ["env", "-C", str(self._folder), *bootstrap.loader_command(self._python)]
        program = bootstrap.program("launcher.agent.main:serve", arguments.as_json())
        return start_program(host, argv, program, self._python)


@pytest.fixture(params=filter(None, (oldest_python(), sys.executable)), ids=lambda path: Path(path).name)
def site(request: pytest.FixtureRequest, tmp_path: Path, nothing_left: str) -> RemoteSite:
    """It is the site of `agent`."""
    return RemoteSite(Host("far"), Far(request.param, tmp_path), tmp_path)


@pytest.mark.promise("a new backend")
@pytest.mark.promise("hosts need Python 3.8 and nothing else")
def test_the_basics(agent: Driver):
    assert agent.hold("worker/0", "worker/1")
    assert agent.run("worker/0", ["sh", "-c", "echo out; exit 7"]).code == 7
    assert agent.output("worker/0") == b"out\n"
    agent.refused("worker/2", ["no-such-program-anywhere"])
    agent.start("worker/1", ["sh", "-c", "trap '' TERM; setsid sleep 600 & echo up; sleep 600"])
    agent.prints("worker/1", b"up")
    agent.stopped("worker/1")
    assert agent.wait(events.TaskExited, "worker/1").signal == 9


def test_memory_evidence_and_strays(agent: Driver):
    """What is imported or used late must be there too."""
    agent.start("worker/0", ["sh", "-c", "kill -9 $$"])
    assert agent.wait(events.TaskExited).oom == ""
    agent.start(
        "worker/1",
        ["sh", "-c", "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600' & echo up; sleep 600"],
    )
    agent.prints("worker/1", b"up")
    agent.stopped("worker/1", steps=((15, 0.1), (6, 0.1), (9, 5.0)))
    assert agent.close() == ""
