"""The link to an agent on another machine: it outlives what breaks, or it says why not."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NoReturn

import pytest

from launcher.agent.connection import LauncherConnection, Patience
from launcher.agent.passed_streams import listen
from launcher.agent.processes import new_agent_id
from launcher.backends import link as links
from launcher.backends.connections import AgentArguments
from launcher.backends.link import ReconnectingLink
from launcher.backends.ssh.connections import SshConnections
from launcher.common import events
from launcher.common.errors import HostGoneError, TransportError
from launcher.common.protocol import RECONNECT_SECONDS, Decoder, MessageChannel
from launcher.config.settings import Settings
from launcher.config.table import CONNECT_TIMEOUT
from launcher.event_loop import EventLoop
from launcher.job import Host
from tests.contract.driver import Driver
from tests.pythons import oldest_python
from tests.seeing import ROOT, looks, soon, stat_field
from tests.ssh.host import TIME_LIMIT, LabHost
from tests.told import Told

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("home")]

#: Prints so many numbered lines, and exits with 7.
COUNT = "i=0; while [ $i -lt {} ]; do i=$((i+1)); echo line $i; sleep 0.01; done; exit 7"
#: Prints without end, or at least so many bytes.
FLOOD = "import os\nwhile True: os.write(1, bytes(range(256)) * 1024)"
MUCH = "import os; n = 0\nwhile n < {}: n += os.write(1, bytes(range(256)) * 4000)"
#: A Python that does something else first; one that does it only the first time.
UNLIKE_PYTHON = '#!/bin/sh\n{}\nexec python3 "$@"\n'
UNLIKE_PYTHON_ONCE = UNLIKE_PYTHON.format("test -e ~/begun || {{ : >~/begun; {}; }}")
#: Breaks the connection; reads all that comes, and answers nothing.
BREAKS = 'pkill -KILL -P "$(cat /run/sshd.pid)"; exit 1'
SAYS_NOTHING = "exec cat >/dev/null"


class Reach:
    """A host, connections to it, and the link to an agent there."""

    def __init__(self, host: LabHost, python: str | None) -> None:
        self.host = host
        self._stack = ExitStack()
        self.told = self._stack.enter_context(Told(waits=False))
        self.loop = self._stack.enter_context(EventLoop())
        settings = Settings().with_values({CONNECT_TIMEOUT: 3.0})
        self.connections = self._stack.enter_context(
            SshConnections([Host(host.name, python=python)], settings)
        )
        assert self.connections.connect() == {}

    def open(self) -> Driver:
        """Start an agent. No test waits for the end of its lease."""
        self.arguments = AgentArguments.new(self.host.name, 120.0)
        self.link = ReconnectingLink(self.loop, self.connections, self.arguments)
        self.agent = Driver(self.link, self.host.name, {}, self.loop)
        return self.agent

    def keepers(self) -> list[int]:
        """Agent and watchdog. A task has the name of its agent for a moment after it has started."""

        def both() -> list[int] | None:
            found = self.host.processes("launch-agent", "launch-watchdog")
            return [it.pid for it in found] if len(found) == 2 else None

        return soon(both)

    def gone(self, within: float = TIME_LIMIT) -> None:
        """Wait until no process is left on the host."""
        soon(lambda: not self.host.processes(), within, self.host.processes)

    def count(self, lines: int) -> None:
        """Have a task print so many numbered lines, and wait for some of them."""
        self.agent.start("worker/0", ["sh", "-c", COUNT.format(lines)])
        self.agent.prints("worker/0", b"line 20\n")

    def counted(self, lines: int) -> None:
        """It has ended, and all its lines are there, once."""
        self.agent.wait(events.TaskGone, "worker/0", timeout=TIME_LIMIT)
        assert self.agent.output("worker/0") == b"".join(b"line %d\n" % n for n in range(1, lines + 1))
        assert [fact.code for fact in self.agent.all(events.TaskExited)] == [7]

    def close(self) -> None:
        """Let the agent exit, and let go of everything; the fixture `lab` sees what is left."""
        self.link.shut_down()
        self.link.wait(TIME_LIMIT)
        self.link.close()
        self._stack.close()


@pytest.fixture
def reach(hosts: list[LabHost]) -> Iterator[Callable[..., Reach]]:
    """Connects to the first host, with a Python of it."""
    made: list[Reach] = []

    def reached(python: str | None = None) -> Reach:
        made.append(Reach(hosts[0], python))
        return made[-1]

    yield reached
    for one in made:
        one.close()


@pytest.fixture
def here(reach: Callable[..., Reach]) -> Reach:
    """One whose agent is ready."""
    reached = reach()
    reached.open().ready()
    return reached


@pytest.mark.promise("hosts need Python 3.8 and nothing else")
def test_the_oldest_python_on_the_host(reach: Callable[..., Reach]):
    python = oldest_python()
    if python is None:
        pytest.skip("no python3.8 on this machine")
    here = reach(python)
    assert here.open().ready().facts.python.startswith("3.8.")
    here.count(50)
    here.host.kill_sshd_sessions()
    here.counted(50)
    here.agent.started("worker/1", ["sleep", "600"])
    here.host.kill(signal.SIGKILL, here.agent.ready().pid)
    assert here.agent.to_the_end(TIME_LIMIT) == "the agent was killed"
    here.gone()


# ---------------------------------------------------------------------- connections break


@pytest.mark.promise("sshd killed at the start, in a flood")
@pytest.mark.parametrize("requested", [False, True])
def test_the_connection_breaks_before_the_agent_is_there(reach: Callable[..., Reach], requested: bool):
    """The host is healthy, and nothing has started there: another connection will do."""
    here = reach("breaking")
    here.host.program("breaking", UNLIKE_PYTHON_ONCE.format(BREAKS if requested else ":"))
    here.host.expected.append("begun")
    if not requested:
        here.host.kill_sshd_sessions()
    here.open().ready()
    lost, back = here.told.lines
    assert re.match(r"node1: connection lost \(the connection broke.*; trying again for (11\d|120)s", lost)
    assert re.fullmatch(r"node1: connected again after \d+s", back)


def test_nothing_starts_over_the_first_connection(
    reach: Callable[..., Reach], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(links, "FIRST_ANSWER_SECONDS", 2.0)
    here = reach("saying_nothing")
    here.host.program("saying_nothing", UNLIKE_PYTHON_ONCE.format(SAYS_NOTHING))
    here.host.expected.append("begun")
    here.open().until(lambda: here.told.lines)
    monkeypatch.setattr(links, "FIRST_ANSWER_SECONDS", 60.0)  # the second one may take its time
    here.agent.ready()
    lost, back = here.told.lines
    assert lost.startswith("node1: connection lost (the agent has not started there")
    assert re.fullmatch(r"node1: connected again after \d+s", back)


def test_connections_that_break_because_of_us(reach: Callable[..., Reach]):
    """Whatever is tried again breaks again: once is enough."""
    here = reach("breaking")
    here.host.program("breaking", UNLIKE_PYTHON.format(BREAKS))
    assert "the connection broke" in (here.open().to_the_end(TIME_LIMIT) or "")
    assert len(here.told.lines) == 1


@pytest.mark.promise("sshd killed at the start, in a flood")
def test_much_output_through_connections_that_break(here: Reach):
    size = 100_000_000
    here.agent.start("worker/0", ["python3", "-c", MUCH.format(size)])
    for fifth in (1, 2, 3):
        while here.agent.size("worker/0") < fifth * size / 5:
            assert not here.agent.ended, here.agent.link.wait(0)
            here.agent.pump(1)
        here.host.kill_sshd_sessions()
    here.agent.wait(events.TaskGone, "worker/0", timeout=100)
    whole, rest = divmod(here.agent.size("worker/0"), 256)
    assert (whole * 256 >= size, rest) == (True, 0)
    assert here.agent.output("worker/0") == bytes(range(256)) * whole


def test_the_program_of_a_connection_is_killed(here: Reach):
    """The agent has its stdin and stdout, and lets go of them."""
    here.count(200)
    here.host.kill(signal.SIGKILL, *(it.pid for it in here.host.processes("python3")))
    here.counted(200)
    assert "connection lost" in here.told.lines[0]


def test_no_other_connection_can_be_had(here: Reach):
    """Everything ends in seconds: a lease is for silence."""
    here.agent.start("worker/0", ["sleep", "600"])
    here.host.stop_sshd()
    here.host.kill_sshd_sessions()
    here.gone()
    here.host.start_sshd()
    assert here.agent.to_the_end(40) == "its agent exited while the connection was down"


def test_an_agent_that_can_not_be_reached_can_not_be_killed(here: Reach):
    here.host.stop_sshd()
    here.host.kill_sshd_sessions()
    here.link.shut_down()
    assert here.link.kill(1) is None
    here.gone(within=60)  # five times as long as the first connection took


def test_a_host_that_is_gone_for_good_is_lost_at_once_with_the_reason(
    here: Reach, monkeypatch: pytest.MonkeyPatch
):
    """As one whose allocation was cancelled, or a pod that was deleted: nobody waits for the lease."""

    def cancelled(host: str) -> NoReturn:
        raise HostGoneError(f"{host}: its job was cancelled")

    monkeypatch.setattr(here.connections, "reconnect", cancelled)
    here.host.kill_sshd_sessions()
    assert here.agent.to_the_end(TIME_LIMIT) == "its job was cancelled"
    here.gone()


def test_an_agent_sees_at_once_that_a_connection_is_closed_with_unread_bytes():
    """It reads a reset, no end of file."""
    token = os.urandom(16).hex()
    selector = selectors.DefaultSelector()
    patience = Patience(lease=600, first_greeting=600)
    agent = LauncherConnection(selector, "node1", listen(token), token, patience)
    channel = MessageChannel(lambda: Decoder(from_agent=True, host="node1"), token, greets=True)
    channel.connect(1, time.monotonic())

    def turned(met: bool) -> bool:
        for key, _ in selector.select(0.05):
            key.data()
        return agent.channel.met == met

    code = "import json, sys; sys.path.insert(0, sys.argv[1]); from launcher.agent.main import connect; "
    code += "sys.exit(connect(json.loads(sys.argv[2])))"
    arguments = json.dumps({"token": token, "agent": new_agent_id()})
    argv = [sys.executable, "-I", "-S", "-c", code, str(ROOT), arguments]
    ours, its = socket.socketpair()
    with ours:
        ours.sendall(b"".join(channel.output(time.monotonic())))
        with its:
            fd = its.fileno()
            program = subprocess.Popen(argv, stdin=fd, stdout=fd, stderr=subprocess.DEVNULL)
        soon(lambda: turned(True), TIME_LIMIT, "the agent is greeted")
    soon(lambda: turned(False), TIME_LIMIT, "the connection has ended")
    assert agent.gives_up_at < time.monotonic() + 60  # not the lease
    assert program.wait(TIME_LIMIT) == 0
    agent.refuse("")
    selector.close()


# ---------------------------------------------------------------------- what else happens


def test_a_host_that_was_suspended_while_its_connection_closed(here: Reach):
    here.count(300)
    keepers = here.keepers()
    here.host.stop_sshd()
    here.host.kill_sshd_sessions()
    here.host.kill(signal.SIGSTOP, *keepers)
    here.host.start_sshd()
    here.agent.quiet(RECONNECT_SECONDS + 2.0)
    here.host.kill(signal.SIGCONT, *keepers)
    here.counted(300)


def test_a_reader_that_takes_nothing_holds_up_the_tasks_and_is_no_lost_connection(here: Reach):
    pid = here.agent.started("worker/0", ["python3", "-c", FLOOD]).pid

    def used() -> list[bytes]:
        return [stat_field(pid, number, here.host.there("/proc")) for number in (14, 15)]

    def is_held_up() -> bool:
        before = used()
        time.sleep(0.3)
        return before == used()

    soon(is_held_up, 20, "the task goes on printing")
    time.sleep(links.SILENCE_SECONDS + 1)
    assert here.told.lines == []
    here.agent.until(lambda: here.agent.size("worker/0") > 30_000_000)
    here.agent.stopped("worker/0")


def test_a_second_agent_of_the_same_name_is_not_started(here: Reach):
    """The answer to the first request was lost; the agent is there once."""
    program = here.connections.start_agent(here.host.name, here.arguments)
    channel = MessageChannel(
        lambda: Decoder(from_agent=True, host=here.host.name), here.arguments.token, greets=True
    )
    channel.connect(0, time.monotonic())
    greeting = b"".join(channel.output(time.monotonic()))
    soon(program.receive_start)
    assert program.send(greeting) == len(greeting)
    time.sleep(0.5)
    assert not program.recv(1), "an older connection does not replace the one there is"
    assert len(here.host.processes("launch-agent")) == 1
    program.close()
    assert here.agent.run("worker/1", ["sh", "-c", "exit 5"]).code == 5


def test_closing_in_the_middle_of_everything_leaves_nothing(reach: Callable[..., Reach]):
    """Nothing of it is there even before a forgotten agent would have ended by itself."""
    here = reach()
    for moment in (0.0, 0.02, 0.05, 0.2):
        here.open()
        time.sleep(moment)
        here.link.shut_down()
        assert here.link.wait(TIME_LIMIT) is not None
        here.link.close()
        assert any(not here.host.processes() for _ in looks(6.0)), here.host.processes()


def test_a_killed_agent_where_the_end_of_children_is_ignored(reach: Callable[..., Reach]):
    """There `waitpid` has no status."""
    here = reach("ignoring")
    here.host.program("ignoring", '#!/bin/sh\nexec env --ignore-signal=CHLD python3 "$@"\n')
    here.open().started("worker/0", ["sleep", "600"])
    keepers = here.keepers()
    here.host.kill(signal.SIGSTOP, *keepers)  # so that neither has time to notice the end of the other
    here.host.kill(signal.SIGKILL, *keepers)
    assert here.agent.to_the_end(TIME_LIMIT) == "the agent was killed"
    assert here.told.lines == []
    here.gone()


def test_programs_over_the_link(here: Reach):
    """One that is closed ends, one that fails is heard, and one that is killed has no status."""
    before = len(here.host.processes())
    closed = here.link.run("subprocess:call", ["cat"])
    closed.send(b"x")
    here.agent.until(lambda: closed.recv(1))
    closed.close()
    here.agent.until(lambda: len(here.host.processes()) == before)
    failed, killed = here.link.run("builtins:int", "x"), here.link.run("signal:raise_signal", 9)
    here.agent.until(lambda: failed.wait(0.0) == 1)
    assert "ValueError: " in failed.stderr()
    here.agent.until(lambda: killed.recv(1) == b"")
    assert killed.wait(0.0) is None
    failed.close()
    killed.close()
    assert here.agent.close() == ""


def test_a_program_over_the_link_of_an_agent_that_is_gone(here: Reach):
    program = here.link.run("time:sleep", 600)
    here.host.kill(signal.SIGKILL, here.agent.ready().pid)
    here.agent.to_the_end(TIME_LIMIT)
    with pytest.raises(TransportError, match="node1: the agent was killed"):
        soon(lambda: program.recv(1) == b"", TIME_LIMIT, "an end")
    program.close()
