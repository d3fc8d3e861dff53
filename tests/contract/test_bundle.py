"""The agent needs nothing of ours but what travels, and no Python newer than 3.8."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.backends import bootstrap
from launcher.backends.local import ForkedAgentLink
from launcher.common import events
from launcher.event_loop import EventLoop
from tests.contract.driver import Driver
from tests.pythons import oldest_python
from tests.seeing import MARK

_AGENT_ID = 7


def start_agent(argv: list[str], startup: bytes, cwd: Path) -> ForkedAgentLink:
    """Start an agent by a command line, and return a link to it."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
    )
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert stdin and stdout and stderr
    with stdin, stdout, stderr:
        stdin.write(startup)
        output = b""
        while bootstrap.find_mark(output) is None:
            output += stdout.read(1) or b""
        reading, writing, errors = (os.dup(stream.fileno()) for stream in (stdout, stdin, stderr))
    process.returncode = 0  # The link waits for the process.
    return ForkedAgentLink("far", process.pid, _AGENT_ID, reading, writing, errors)


@pytest.fixture(params=filter(None, (oldest_python(), sys.executable)), ids=lambda path: Path(path).name)
def agent(request: pytest.FixtureRequest, tmp_path: Path, nothing_left: str) -> Iterator[Driver]:
    """An agent of which the host has only what travels."""
    startup = bootstrap.program("launcher.agent.main:run", {"host": "far", "agent": _AGENT_ID})
    argv = bootstrap.loader_command(request.param)
    with EventLoop() as loop:
        driver = Driver(start_agent(argv, startup, tmp_path), "far", {MARK: nothing_left}, loop)
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
