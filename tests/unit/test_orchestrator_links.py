"""Links that fail in a run, with agents that only pretend: what is said, and that nobody waits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

import pytest

from launcher import events, orchestrator
from launcher.events import Command
from launcher.job import Host, Plan, TaskId
from launcher.report import TaskState
from launcher.testing import Agent, Answer, FakeAgent, FakeLink, FakeTransport, runs
from tests.histories.script import hosts
from tests.unit.test_orchestrator import Clock, Run, agents, on

#: Of a host that was never ready.
CANT = "can't be used"


def test_a_link_that_can_not_be_opened():
    run = Run(FakeTransport(refuses={"node1": "no such host"}), "worker 1")
    assert run.report.exit_code == 125
    assert run.why == "host node1 can't be used: no such host"
    assert run.states == {"worker/0": TaskState.LOST}


@pytest.mark.parametrize("bad", ["node1", "node2", "node3"])
def test_one_of_the_links_can_not_be_opened(bad: str):
    """The others are told to close, whether they were opened before it or after; no timer is waited for."""
    run = Run(FakeTransport(refuses={bad: "no such host"}), "worker 3", where=hosts(3))
    assert run.report.exit_code == 125
    assert run.why == f"host {bad} can't be used: no such host"
    assert len(run.told) == 1
    for host, link in run.links.items():
        assert "CloseAgent" in run.sent(host), host
        assert not any(isinstance(order, events.StartTask) for order in link.orders)


@pytest.mark.parametrize("kind", [None, events.HoldPorts, events.StartTask])
def test_a_link_that_ends_without_a_goodbye(kind: type | None):
    run = Run(agents(node2=on(kind, b"")), "worker 2", where=hosts(2))
    assert run.report.exit_code == 125
    assert run.why == f"host node2 {'is lost' if kind is events.StartTask else CANT}: its agent ended"
    assert run.states["worker/1"] is TaskState.LOST
    assert run.states["worker/0"] is (TaskState.STOPPED if kind is events.StartTask else TaskState.CANCELLED)


def test_a_link_that_ends_before_its_goodbye_when_all_was_well():
    transport = agents(node1=on(events.CloseAgent, b""))
    run = Run(transport, "worker 0", "ps 1", timeout=0.05, clock=Clock(started=1))
    assert run.report.exit_code == 124
    assert "host node1 is lost: its agent ended" in run.told


def test_what_the_transport_knows_of_the_end_is_said():
    transport = FakeTransport(
        agent=lambda host: lambda order: [b""], last_words={"node1": "its guardian was killed by SIGKILL"}
    )
    assert Run(transport, "worker 1").why == f"host node1 {CANT}: its guardian was killed by SIGKILL"


def test_an_agent_that_does_not_go_is_told():
    transport = FakeTransport(agent=lambda host: lambda order: [b""], last_words={"node1": None})
    run = Run(transport, "worker 1", clock=time)
    assert run.why == f"host node1 {CANT}: its agent ended"
    assert "the agent of node1 did not end, and SIGKILL did not help" in run.told


class _Stuck(FakeTransport):
    """Its links can't say how their agents ended, however long they are asked; it keeps for how long."""

    def __init__(self, agent: Callable[[str], Agent]) -> None:
        super().__init__(agent=agent)
        self.waits: list[float] = []

    def open(self, host: Host) -> FakeLink:
        link = super().open(host)
        link.wait = self.waits.append  # type: ignore[assignment, method-assign]
        return link


def test_nobody_waits_for_the_last_words_of_an_agent():
    """Its loss is the job's failure, and the others are to be stopped at once."""
    waits: dict[str, list[float]] = {}

    def agent(host: str) -> Agent:
        usual = FakeAgent(host, {"worker/1": runs()})

        def answers(order: Command | None) -> Iterable[Answer]:
            waits.setdefault(f"{host} {type(order).__name__}", transport.waits[:])
            return [b""] if host == "node1" and isinstance(order, events.StartTask) else usual(order)

        return answers

    transport = _Stuck(agent)
    run = Run(transport, "worker 2", where=hosts(2), clock=time)
    assert run.why == "host node1 is lost: its agent ended"
    asked = waits["node2 StopTasks"]
    assert set(asked) == {0.0}
    # Each pause between two of them is twice the one before.
    assert len(asked) <= 1 + math.ceil(math.log2(orchestrator._REASON / orchestrator._LOOK + 1))


GARBAGE = [
    b"Connection to node1 closed by remote host.\r\n",
    b"\xff" * 64,
    b"\x02\0\0\0\x01{}",
    b"\x01\0\0\0\x02\x00",
    b"#\0\0\0\x01" + b'{"is":"CloseAgent","host":"node1"}'.ljust(35),
]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("kind", [None, events.HoldPorts, events.StartTask])
def test_garbage(garbage: bytes, kind: type | None):
    run = Run(agents(node1=on(kind, garbage)), "worker 2", where=hosts(2))
    assert run.report.exit_code == 125
    assert run.why.startswith(f"host node1 {'is lost' if kind is events.StartTask else CANT}: ")
    assert run.links["node1"].hung_up
    assert run.states["worker/0"] is TaskState.LOST
    assert run.sent("node2")[-1] == "CloseAgent"


def test_ports_refused():
    refused = events.PortsRefused("node2", 1.0, "too many open files")
    run = Run(agents(node2=on(events.HoldPorts, refused)), "worker 2", where=hosts(2))
    assert run.report.exit_code == 125
    assert run.why == "node2 has no port for each of its tasks: too many open files"


def test_an_agent_that_was_ended_from_outside():
    def ended(sound: FakeAgent, order: Command | None) -> Iterable[Answer]:
        said = sound(order)
        return [*said, *sound(events.CloseAgent("node1"))] if isinstance(order, events.StartTask) else said

    run = Run(agents(node1=ended), "worker 1")
    assert run.report.exit_code == 125
    assert "its agent was ended from outside" in run.why


def test_the_links_are_let_go_when_a_renderer_breaks():
    transport = FakeTransport()

    def broken(_: Plan) -> str:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        Run(transport, "worker 2", where=hosts(2), on_plan=broken)
    assert all(link.hung_up and link.reading == -1 for link in transport.links.values())


def test_the_selector_is_let_go():
    assert Run(FakeTransport(), "worker 1").let_go


def test_task_names_are_task_ids_again():
    run = Run(FakeTransport(), "worker 1")
    started = next(value for _, value in run.calls if isinstance(value, events.TaskStarted))
    assert isinstance(started.task, TaskId)
