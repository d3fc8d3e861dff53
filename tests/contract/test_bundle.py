"""The agent needs nothing of ours but what travels, and no Python newer than 3.8."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.backends import bootstrap
from launcher.backends.local import PipeLink
from launcher.common import events
from launcher.event_loop import EventLoop
from tests.contract.driver import Driver
from tests.pythons import oldest_python
from tests.seeing import MARK


class ProcessLink(PipeLink):
    """A link to a process's stdin and stdout."""

    def __init__(self, argv: list[str], startup: bytes, cwd: Path) -> None:
        self._process = subprocess.Popen(
            argv, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        stdin.write(startup)
        output = b""
        while bootstrap.find_mark(output) is None:
            output += stdout.read(1) or b""
        super().__init__("far", os.dup(stdout.fileno()), os.dup(stdin.fileno()))
        stdin.close()
        stdout.close()

    def wait(self, seconds: float) -> str | None:
        """See `launcher.backends.connections.AgentLink`."""
        assert self._process.stderr
        if not self._process.stderr.closed:
            with self._process.stderr as stderr:
                self._printed = stderr.read().decode()
        return self._printed or str(self._process.wait(seconds) or "")

    def kill(self, seconds: float) -> str | None:
        """Not needed: nothing here refuses to end."""
        return self.wait(seconds)

    def close(self) -> None:
        """See `launcher.backends.connections.AgentLink`."""
        self.shut_down()
        os.close(self._reading)


@pytest.fixture(params=filter(None, (oldest_python(), sys.executable)), ids=lambda path: Path(path).name)
def agent(request: pytest.FixtureRequest, tmp_path: Path, nothing_left: str) -> Iterator[Driver]:
    """An agent of which the host has only what travels."""
    startup = bootstrap.program("launcher.agent.main:run", {"host": "far", "agent": 7})
    argv = bootstrap.loader_command(request.param)
    with EventLoop() as loop:
        driver = Driver(ProcessLink(argv, startup, tmp_path), "far", {MARK: nothing_left}, loop)
        driver.ready()
        yield driver
        driver.link.shut_down()
        assert driver.to_the_end() == ""
        driver.link.close()


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
