"""The link to an agent over connections that break, fall silent and come back; without any SSH."""

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

import pytest

from launcher.agent import processes, sweep
from launcher.agent.connection import LauncherConnection, Patience
from launcher.agent.passed_streams import listen
from launcher.backends import connections
from launcher.backends import link as links
from launcher.backends.connections import AgentArguments
from launcher.backends.link import ReconnectingLink
from launcher.common import events
from launcher.common.errors import TransportError
from launcher.common.protocol import GRACE_SECONDS, Decoder, MessageChannel
from launcher.event_loop import EventLoop
from tests.conftest import leaks
from tests.contract.driver import Driver
from tests.pythons import oldest_python
from tests.seeing import MARK, named, soon
from tests.ssh.host import TIME_LIMIT
from tests.ssh.pretend import ROOT, START, PretendFleet, PretendProgram
from tests.told import Told

pytestmark = pytest.mark.timeout(180)

COUNT = "i=0; while [ $i -lt {} ]; do i=$((i+1)); echo line $i; sleep 0.01; done; exit 7"
KEEPERS = ["launch-watchdog", "launch-agent"]
FLOOD = "import os\nwhile True: os.write(1, bytes(range(256)) * 1024)"
#: Seconds between two looks.
LOOK = 0.05


class Reach:
    """A link, and what is at its other end."""

    def __init__(self, lease: float, mark: str, fleet: PretendFleet) -> None:
        self.told = Told().__enter__()
        self.fleet, self.loop = fleet, EventLoop()
        self.link = ReconnectingLink(self.loop, self.fleet, AgentArguments.new("node1", lease))
        self.agent = Driver(self.link, "node1", {MARK: mark}, self.loop)

    def keepers(self) -> list[int]:
        """Pids of watchdog and agent."""
        pids = {process.pid for process in sweep.tagged().get(self.link._arguments.agent_id, [])}
        return [named(pids, name)[0] for name in KEEPERS]

    def alive(self) -> list[str]:
        """Names of all that carries the agent's mark."""
        return [_name(process.pid) for process in sweep.tagged().get(self.link._arguments.agent_id, [])]

    def gone(self, within: float = TIME_LIMIT) -> None:
        """Fail unless there is nothing left in time."""
        soon(lambda: not self.alive(), within, f"nothing is left of {self.alive()}")

    def count(self, lines: int) -> None:
        """Start a task that prints so many numbered lines."""
        self.agent.start("worker/0", ["sh", "-c", COUNT.format(lines)])

    def counted(self, lines: int) -> None:
        """It has ended, and all its lines are there, once."""
        self.agent.wait(events.TaskGone, "worker/0", timeout=TIME_LIMIT)
        assert self.agent.output("worker/0") == b"".join(b"line %d\n" % n for n in range(1, lines + 1))
        assert [fact.code for fact in self.agent.all(events.TaskExited)] == [7]

    def close(self) -> None:
        """Let the agent exit, and let go of everything."""
        self.fleet.thaw()
        self.link.shut_down()
        assert self.loop.run_until(lambda: self.link.is_over, TIME_LIMIT), "the agent does not exit"
        self.link.close()
        self.loop.__exit__()
        self.told.__exit__()
        self.fleet.close()


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


@pytest.fixture
def opened(nothing_left: str) -> Iterator[Callable[..., Reach]]:
    """Opens links, and closes them. No test waits for the end of a lease that it has not chosen."""
    made: list[Reach] = []

    def link(lease: float = 120.0, python: str = sys.executable, fleet: PretendFleet | None = None) -> Reach:
        made.append(Reach(lease, nothing_left, fleet or PretendFleet(python=python)))
        return made[-1]

    yield link
    for one in made:
        one.close()


@pytest.fixture
def here(opened: Callable[..., Reach]) -> Reach:
    """One, whose agent is ready."""
    reach = opened()
    reach.agent.ready()
    return reach


@pytest.mark.promise("hosts need Python 3.8 and nothing else")
def test_the_oldest_python_on_the_host(opened: Callable[..., Reach]):
    python = oldest_python()
    if python is None:
        pytest.skip("no python3.8 on this machine")
    here = opened(python=python)
    assert here.agent.ready().facts.python.startswith("3.8.")
    here.count(50)
    here.agent.prints("worker/0", b"line 20\n")
    here.fleet.cut()
    here.counted(50)
    here.agent.started("worker/1", ["sleep", "600"])
    os.kill(here.keepers()[1], 9)
    assert here.agent.to_the_end(TIME_LIMIT) == "the agent was killed"
    here.gone()


@pytest.mark.promise("an agent stopped on a host")
def test_an_agent_that_is_stopped_does_not_outlast_its_lease(opened: Callable[..., Reach]):
    """It can't look at the clock: its watchdog does. Before that nothing happens to it."""
    here = opened(lease=9.0)
    here.agent.started("worker/0", ["sh", "-c", "trap '' TERM; echo up; sleep 600 & sleep 600"])
    here.agent.prints("worker/0", b"up")
    os.kill(here.keepers()[1], signal.SIGSTOP)
    since = time.monotonic()
    here.gone(within=40)
    assert time.monotonic() - since > 2.5
    here.agent.to_the_end(TIME_LIMIT)


def test_a_host_that_was_suspended_while_its_connection_closed(here: Reach):
    here.count(300)
    here.agent.prints("worker/0", b"line 20\n")
    keepers = here.keepers()
    here.fleet.cut(reachable=False)
    time.sleep(0.5)
    for pid in keepers:
        os.kill(pid, signal.SIGSTOP)
    here.fleet.reachable = True
    here.agent.quiet(GRACE_SECONDS + 2.0)
    for pid in keepers:
        os.kill(pid, signal.SIGCONT)
    here.counted(300)


def test_a_host_that_is_gone_for_good_is_lost_at_once_with_the_reason(opened: Callable[..., Reach]):
    """An allocation that was cancelled, a pod that was deleted: nobody waits for the lease."""
    here = opened(lease=300.0)
    here.agent.started("worker/0", ["sleep", "600"])
    here.fleet.gone = "its job was cancelled"
    here.fleet.cut()
    assert here.agent.to_the_end(TIME_LIMIT) == "its job was cancelled"
    here.gone()


def test_a_reader_that_takes_nothing_holds_up_the_tasks_and_is_no_lost_connection(here: Reach):
    here.agent.start("worker/0", ["python3", "-c", FLOOD])
    here.agent.wait(events.TaskStarted, "worker/0")
    pid = here.agent.wait(events.TaskStarted, "worker/0").pid
    deadline, before = time.monotonic() + 20, (-1, -1)
    while before != (now := _cpu(pid)) and time.monotonic() < deadline:
        before = now
        time.sleep(0.3)
    assert before == now, "the task goes on printing"
    time.sleep(links.SILENCE_SECONDS + 1)
    assert here.told.lines == []
    here.agent.until(lambda: here.agent.size("worker/0") > 30_000_000)
    here.agent.stopped("worker/0")


def _cpu(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])


def test_an_agent_that_can_not_be_reached_can_not_be_killed(here: Reach):
    here.fleet.cut(reachable=False)
    here.link.shut_down()
    assert here.link.kill(1) is None
    here.gone(within=60)  # five times as long as the first connection took


def test_an_agent_sees_at_once_that_a_connection_is_closed_with_unread_bytes(nothing_left: str):
    """It reads a reset, no end of file."""
    token = os.urandom(16).hex()
    arguments = {"token": token, "agent": processes.new_agent_id()}
    selector = selectors.DefaultSelector()
    agent = LauncherConnection(
        selector, "node1", listen(token), token, Patience(lease=600, first_greeting=600)
    )
    channel = MessageChannel(lambda: Decoder(True, "node1"), token, greets=True)
    channel.connect(1, time.monotonic())

    def turned(met: bool) -> bool:
        for key, _ in selector.select(LOOK):
            key.data()
        return agent.channel.met == met

    ours, its = socket.socketpair()
    with ours:
        ours.sendall(json.dumps(arguments).encode() + b"\n" + b"".join(channel.output(time.monotonic())))
        argv = [sys.executable, "-I", "-S", "-c", START, ROOT, connections.CONNECT_ENTRY]
        with its:
            program = subprocess.Popen(
                argv, stdin=its.fileno(), stdout=its.fileno(), stderr=subprocess.DEVNULL
            )
        soon(lambda: turned(True), TIME_LIMIT, "the agent is greeted")
    soon(lambda: turned(False), TIME_LIMIT, "the connection has ended")
    assert agent.until < time.monotonic() + 60  # not the lease
    assert program.wait(TIME_LIMIT) == 0
    agent.refuse("")
    selector.close()


def test_the_program_of_a_connection_is_killed(here: Reach):
    """The agent has its stdin and stdout, and lets go of them."""
    here.count(100)
    here.agent.prints("worker/0", b"line 20\n")
    here.fleet.programs[-1].process.kill()
    here.counted(100)
    assert "connection lost" in here.told.lines[0]


def test_a_second_agent_of_the_same_name_is_not_started(here: Reach):
    """The answer to the first request was lost; the agent is there once."""
    program = here.fleet.start_agent("node1", here.link._arguments)
    channel = MessageChannel(lambda: Decoder(True, "node1"), here.link._arguments.token, greets=True)
    channel.connect(0, time.monotonic())
    assert program.send(b"".join(channel.output(time.monotonic())))
    time.sleep(0.5)
    assert not program.recv(1), "an older connection does not replace the one there is"
    assert [_name(p.pid) for p in sweep.tagged()[here.link._arguments.agent_id]].count("launch-agent") == 1
    program.close()
    assert here.agent.run("worker/1", ["sh", "-c", "exit 5"]).code == 5


def never_ready(fleet: PretendFleet, lease: float = 60.0) -> tuple[str | None, int]:
    """How a link ends whose agent never answers, and the number of notices."""
    with Told() as told, EventLoop() as loop:
        link = ReconnectingLink(loop, fleet, AgentArguments.new("node1", lease))
        loop.run_until(lambda: link.is_over, TIME_LIMIT)
    fleet.close()
    return link.reason, len(told.lines)


def test_an_agent_that_can_not_be_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections, "START_ENTRY", "launcher.agent.main:no_such_function")
    message, notices = never_ready(PretendFleet())
    assert message and message.startswith("the agent cannot be started: AttributeError: ")
    assert notices == 0


def test_closing_in_the_middle_of_everything_leaves_nothing(opened: Callable[..., Reach], nothing_left: str):
    """Also if it was closed before the host had come so far that anything of it could be recognised."""
    before = set(leaks(nothing_left).processes)
    for moment in (0.0, 0.02, 0.05, 0.2):
        here = opened()
        time.sleep(moment)
        here.link.shut_down()
        assert here.link.wait(TIME_LIMIT) is not None
        here.link.close()
        assert here.fleet.programs[0].wait(TIME_LIMIT) is not None
        _gone_by_itself(lambda: set(leaks(nothing_left).processes) <= before)
        assert processes.read_process(os.getpid()) is not None


def _gone_by_itself(gone: Callable[[], bool]) -> None:
    """Fail if it takes so long that a forgotten agent could have ended by itself.

    What is counted are looks, and a pause before each: while the machine is too busy to let us look, no
    process can end, either.
    """
    for _ in range(round(8 / LOOK)):
        if gone():
            return
        time.sleep(LOOK)
    assert gone(), "something is left"


def test_a_remote_command_that_is_closed_ends(here: Reach):
    command = here.link.run("tests.stubs.programs:echo", None)
    command.send(b"x")
    here.agent.until(lambda: command.recv(1))
    names = here.alive()
    command.close()
    here.agent.until(lambda: len(here.alive()) < len(names))
    broken = here.link.run("tests.stubs.programs:breaks", None)
    here.agent.until(lambda: broken.wait(0.0) == 1)
    assert "RuntimeError: a program that is broken" in broken.stderr()
    killed = here.link.run("tests.stubs.programs:killed", None)
    here.agent.until(lambda: killed.recv(1) == b"")
    assert killed.wait(0.0) is None
    broken.close()
    killed.close()
    assert here.agent.close() == ""


def test_a_remote_command_whose_agent_is_gone(here: Reach):
    command = here.link.run("tests.stubs.programs:echo", None)
    os.kill(here.keepers()[1], 9)
    here.agent.to_the_end(TIME_LIMIT)
    with pytest.raises(TransportError, match="node1: the agent was killed"):
        soon(lambda: command.recv(1) == b"", TIME_LIMIT, "an end")
    command.close()


class Breaking(PretendFleet):
    """So many connections break as soon as something is to be run over them, before it has begun."""

    def __init__(self, breaks: int) -> None:
        super().__init__()
        self.breaks = breaks

    def run(self, host: str, entry: str, arguments: object) -> PretendProgram:
        """See `Programs.run`."""
        if not self.breaks:
            return super().run(host, entry, arguments)
        self.breaks -= 1
        program = super().run(host, "builtins:len", arguments)
        self.line.is_cut = True
        return program


def works(here: Reach) -> None:
    """The agent starts a task and reports its output and its end."""
    here.agent.ready()
    here.count(5)
    here.counted(5)


def test_nothing_starts_over_the_first_connection_but_over_the_second(
    opened: Callable[..., Reach], monkeypatch: pytest.MonkeyPatch
):
    """The first one ends while the second is being made."""
    monkeypatch.setattr(links, "FIRST_ANSWER_SECONDS", 2.0)
    fleet = PretendFleet()
    fleet.takes = 0.4
    fleet.line.frozen.set()
    here = opened(fleet=fleet)
    here.agent.until(lambda: fleet.dialled)
    monkeypatch.setattr(links, "FIRST_ANSWER_SECONDS", 60.0)  # the second one may take its time
    works(here)
    assert re.match(r"node1: connection lost \(the agent has not started there", here.told.lines[0])
    assert re.fullmatch(r"node1: connected again after \d+s", here.told.lines[1])
    assert fleet.dialled == 1


@pytest.mark.parametrize("already", [True, False])
def test_the_connection_breaks_before_the_agent_is_there(opened: Callable[..., Reach], already: bool):
    """Before the agent is asked for, and after."""
    fleet = Breaking(0 if already else 1)
    fleet.line.is_cut = already
    here = opened(lease=30.0, fleet=fleet)
    works(here)
    lost = r"node1: connection lost \(the connection broke\); trying again for (2\d|30)s"
    assert re.fullmatch(lost, here.told.lines[0])
    assert re.fullmatch(r"node1: connected again after \d+s", here.told.lines[1])
    assert fleet.dialled == 1


def test_connections_that_break_because_of_us():
    """Whatever is tried again breaks again: once is enough."""
    fleet = Breaking(9)
    assert never_ready(fleet) == ("the connection broke", 1)
    assert fleet.dialled == 1
