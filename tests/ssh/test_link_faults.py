"""What breaks between launcher and host, or on the host: the link survives it, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.backends.connections import AgentArguments
from launcher.backends.link import ReconnectingLink
from launcher.backends.ssh.connections import SshConnections
from launcher.common import events
from launcher.common.record import replace
from launcher.config.settings import Settings
from launcher.config.table import CONNECT_TIMEOUT
from launcher.event_loop import EventLoop
from tests.contract.driver import Driver
from tests.seeing import soon
from tests.ssh.host import TIME_LIMIT, LabHost, Process
from tests.ssh.lab import Lab
from tests.told import Told

pytestmark = pytest.mark.timeout(240)


class Reach:
    """A host, a fleet that is connected to it, and an agent there."""

    def __init__(self, host: LabHost, lease: float, python: str) -> None:
        self.host = host
        self.told = Told().__enter__()
        record = replace(host.record(), python=python)
        self.fleet = SshConnections([record], Settings().with_values({CONNECT_TIMEOUT: 3.0}))
        self.fleet.connect()
        self.loop = EventLoop()
        link = ReconnectingLink(self.loop, self.fleet, AgentArguments.new(record.name, lease))
        self.agent = Driver(link, record.name, {}, self.loop)
        self.agent.ready()

    def named(self, *names: str) -> list[int]:
        """Pids, as the host counts them, of processes there of these names."""
        return [process.pid for process in self.host.processes() if self._name(process) in names]

    def _name(self, process: Process) -> str:
        try:
            return self.host.there(f"/proc/{process.pid}/comm").read_text().strip()
        except OSError:
            return ""

    def kill(self, *names: str) -> None:
        """SIGKILL, all at once. A task has its agent's name for a moment after it has started."""
        soon(lambda: len(self.named(*names)) == len(names), TIME_LIMIT, f"each of {names} runs once")
        pids = self.named(*names)
        # So that none has time to notice the end of another.
        self.host.run(["sh", "-c", 'kill -STOP "$@" && kill -KILL "$@"', "sh", *map(str, pids)])

    def gone(self, within: float = TIME_LIMIT) -> None:
        """Wait until no process is left on the host."""
        soon(lambda: not self.host.processes(), within, f"nothing is left of {self.host.processes()}")

    def message(self) -> list[str]:
        """The notices, without the name."""
        return [text.partition(": ")[2] for text in self.told.lines]

    def close(self) -> None:
        """Let go of everything."""
        self.agent.link.close()
        self.agent.link.wait(TIME_LIMIT)
        self.fleet.close()
        self.loop.__exit__()
        self.told.__exit__()


@pytest.fixture
def reach(hosts: list[LabHost], lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Reach]]:
    """Reaches the first host. No test waits for the end of a lease that it has not chosen."""
    for name, value in lab.environment().items():
        monkeypatch.setenv(name, value)
    made: list[Reach] = []

    def reached(lease: float = 120.0, python: str = "") -> Reach:
        made.append(Reach(hosts[0], lease, python))
        return made[-1]

    yield reached
    for one in made:
        one.close()


@pytest.mark.promise("sshd killed at the start, in a flood")
def test_the_connection_breaks_before_the_agent_is_requested(caller: Path, hosts: list[LabHost]):
    """The host is healthy, and nothing had started: another connection will do."""
    record = hosts[0].record()
    with Told() as told, EventLoop() as loop, SshConnections([record], Settings()) as fleet:
        fleet.connect()
        assert hosts[0].kill_sshd_sessions()
        link = ReconnectingLink(loop, fleet, AgentArguments.new(record.name))
        agent = Driver(link, record.name, {}, loop)
        agent.ready()
        assert agent.close() == ""
        link.close()
    lost, back = (text.removeprefix(f"{record.name}: ") for text in told.lines)
    assert lost.startswith("connection lost (the connection broke")
    assert back.startswith("connected again after ")


@pytest.mark.promise("sshd killed at the start, in a flood")
def test_much_output_through_connections_that_break(reach: Callable[..., Reach]):
    here = reach()
    size = 100_000_000
    code = f"import os; n = 0\nwhile n < {size}: n += os.write(1, bytes(range(256)) * 390625 )"
    here.agent.start("worker/0", ["python3", "-c", code.replace("390625", "4000")])
    for part in (1, 2, 3):
        enough = part * size / 5
        while here.agent.size("worker/0") < enough:
            assert not here.agent.ended, here.agent.link.wait(0)
            here.agent.pump(1)
        here.host.kill_sshd_sessions()
    here.agent.wait(events.TaskGone, "worker/0", timeout=100)
    whole, rest = divmod(here.agent.size("worker/0"), 256)
    assert (whole * 256 >= size, rest) == (True, 0)
    assert here.agent.output("worker/0") == bytes(range(256)) * whole


def test_sshd_refuses_new_connections(reach: Callable[..., Reach]):
    """The connection is gone and no other can be had: everything ends in seconds; a lease is for silence."""
    here = reach(lease=60.0)
    here.agent.start("worker/0", ["sleep", "600"])
    here.host.stop_sshd()
    here.host.kill_sshd_sessions()
    here.gone()
    here.host.start_sshd()
    message = here.agent.to_the_end(40)
    assert message == "its agent exited while the connection was down"


def test_what_a_killed_agent_and_watchdog_leave_is_ended_and_nothing_else(reach: Callable[..., Reach]):
    first = reach()
    first.agent.started("worker/0", ["sh", "-c", "setsid sleep 601 & echo up; sleep 602"])
    first.agent.prints("worker/0", b"up")
    mine = first.host.start(["sleep", "603"])
    try:
        soon(lambda: len(first.named("sleep")) == 3, TIME_LIMIT, "all of them sleep")
        first.kill("launch-watchdog", "launch-agent")
        assert first.agent.to_the_end(TIME_LIMIT) == "the agent was killed"
        soon(lambda: len(first.named("sleep")) == 1, TIME_LIMIT, "what they left is ended")
        second, third = reach(), reach()
        third.agent.started("worker/0", ["sleep", "604"])
        assert second.agent.close() == ""
        soon(lambda: len(second.named("sleep")) == 2, TIME_LIMIT, "what is lost is ended, and nothing else")
        assert mine.poll() is None
        assert third.agent.close() == ""
    finally:
        mine.kill()
        mine.communicate()


def test_a_killed_agent_where_the_end_of_children_is_ignored(
    reach: Callable[..., Reach], hosts: list[LabHost]
):
    """There `waitpid` has no status."""
    hosts[0].program("ignoring", '#!/bin/sh\nexec env --ignore-signal=CHLD python3 "$@"\n')
    here = reach(python="ignoring")
    here.agent.started("worker/0", ["sleep", "600"])
    here.kill("launch-watchdog", "launch-agent")
    assert here.agent.to_the_end(TIME_LIMIT) == "the agent was killed"
    assert here.told.lines == []
    here.gone()
