"""Whole runs with agents that only pretend: what is shown, in which order, and how they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from launcher.model import facts, orders
from launcher.model.facts import Fact
from launcher.model.host import Host
from launcher.model.orders import Order, Tell
from launcher.model.plan import Plan
from launcher.model.report import Report
from launcher.model.status import Reason, TaskState
from launcher.model.task import TASK_MARK, TaskId
from launcher.orchestrator import Orchestrator
from launcher.output.base import Opening
from launcher.planning import place
from launcher.testing import Agent, Answer, FakeAgent, FakeTransport, exits, killed, missing, runs
from tests.histories.script import hosts, job


class Recorder:
    """A renderer that notes what it is told in a list, which it may share with others."""

    def __init__(self, calls: list[tuple[str, Any]], name: str = "") -> None:
        self._calls = calls
        self._name = name

    def _note(self, what: str, value: object) -> None:
        self._calls.append((f"{self._name}{what}", value))

    def begin(self, opening: Opening) -> None:
        self._note("begin", opening)

    def on(self, event: Fact | Tell) -> None:
        self._note("on", event)

    def tick(self, now: float) -> float | None:
        return None

    def close(self, report: Report) -> None:
        self._note("close", report)


class Run:
    """A run that is over."""

    def __init__(
        self,
        transport: FakeTransport,
        *counts: str,
        where: Iterable[Host] = (),
        renderers: int = 1,
        remarks: Iterable[str] = (),
        on_plan: Callable[[Plan], str] = lambda _: "",
        sources: Iterable[Any] = (),
        voice: Any = None,
        check: bool = False,
        **policy: Any,
    ) -> None:
        spec = job(*counts, **policy)
        placement = place(spec, tuple(where) or hosts(1))
        self.calls: list[tuple[str, Any]] = []
        names = [""] if renderers == 1 else [f"{number} " for number in range(renderers)]
        orchestrator = Orchestrator(
            spec,
            placement,
            lambda host: transport,
            [Recorder(self.calls, name) for name in names],
            Opening("job-1", placement, None, time.time()),
            tuple(remarks),
            on_plan,
            tuple(sources),
            voice,
            check,
        )
        self.selector = orchestrator._selector
        try:
            self.report = orchestrator.run()
            #: Whether it let go of its selector itself.
            self.let_go = self.selector.get_map() is None
        finally:
            self.selector.close()
        self.links = transport.links

    @property
    def kinds(self) -> list[str]:
        """What the renderer was told of, by kind."""
        return [type(value).__name__ for _, value in self.calls]

    @property
    def told(self) -> list[str]:
        """What was told to the user."""
        return [value.text for _, value in self.calls if isinstance(value, Tell)]

    def sent(self, host: str = "node1") -> list[str]:
        """The orders that the agent of this host got, by kind."""
        return [type(order).__name__ for order in self.links[host].orders]

    @property
    def states(self) -> dict[str, TaskState]:
        return {task.task: task.state for task in self.report.tasks}

    @property
    def why(self) -> str:
        """The cause of a failure."""
        assert self.report.failure is not None
        return self.report.failure.text


def agents(**special: Callable[[FakeAgent, Order | None], Iterable[Answer]]) -> FakeTransport:
    """Sound agents, but for some hosts: what they say to an order is given."""

    def agent(host: str) -> Agent:
        sound = FakeAgent(host, {"worker/0": runs(), "worker/1": runs()})
        if host not in special:
            return sound
        return lambda order: special[host](sound, order)

    return FakeTransport(agent=agent)


def on(kind: type | None, *answers: Answer) -> Callable[[FakeAgent, Order | None], Iterable[Answer]]:
    """Say this to an order of this kind (``None``: when the link opens), else what a sound agent says."""

    def answer(sound: FakeAgent, order: Order | None) -> Iterable[Answer]:
        asked = order is None if kind is None else isinstance(order, kind)
        return answers if asked else sound(order)

    return answer


# ---------------------------------------------------------------------- whole runs


def test_a_run_from_its_first_word_to_its_last():
    run = Run(FakeTransport({"worker/0": exits(0, b"hello\n")}), "worker 1", remarks=["mind the gap"])
    assert run.kinds == [
        "Opening", "Tell", "AgentReady", "PortsHeld", "TaskStarted", "TaskOutput", "TaskExited", "TaskGone",
        "AgentClosed", "Report",
    ]  # fmt: skip
    assert run.told == ["mind the gap"]
    assert [value.data for _, value in run.calls if isinstance(value, facts.TaskOutput)] == [b"hello\n"]
    assert run.sent() == ["HoldPorts", "StartTask", "CloseAgent"]
    assert run.calls[-1][1] is run.report
    assert run.report.exit_code == 0
    assert run.links["node1"].hung_up


def test_a_job_with_ps_and_workers_on_three_hosts():
    run = Run(FakeTransport(), "worker 4", "ps 2", where=hosts(3))
    assert run.report.exit_code == 0
    assert run.states == {
        **{f"worker/{number}": TaskState.SUCCEEDED for number in range(4)},
        **{f"ps/{number}": TaskState.STOPPED for number in range(2)},
    }


def test_every_renderer_is_told_in_turn():
    run = Run(FakeTransport(), "worker 1", renderers=3)
    turns = [run.calls[at : at + 3] for at in range(0, len(run.calls), 3)]
    for turn in turns:
        assert [name.partition(" ")[0] for name, _ in turn] == ["0", "1", "2"]
        assert turn[0][1] is turn[1][1] is turn[2][1]
    assert [turn[0][0] for turn in turns] == ["0 begin", *["0 on"] * (len(turns) - 2), "0 close"]


def test_the_plan_is_told_when_its_tasks_are_on_their_way():
    seen: list[Plan] = []
    transport = FakeTransport()

    def on_plan(plan: Plan) -> str:
        seen.append(plan)
        return "can't write it"

    run = Run(transport, "worker 2", where=hosts(2), on_plan=on_plan)
    (plan,) = seen
    assert [task.address for task in plan.tasks] == ["node1:40000", "node2:40000"]
    start = next(order for order in run.links["node2"].orders if isinstance(order, orders.StartTask))
    assert start.env[TASK_MARK] == "job-1:worker/1"
    assert start.env["TASK_ADDRESS"] == "node2:40000"
    assert orders.Tell("can't write it", urgent=True) in [event for _, event in run.calls]


ENDS = [
    ({"worker/1": exits(7), "worker/0": runs()}, 7, "worker/1 failed", TaskState.STOPPED),
    ({"worker/1": killed(9), "worker/0": runs()}, 137, "killed by SIGKILL", TaskState.STOPPED),
    ({"worker/1": missing(127), "worker/0": runs()}, 127, "worker/1 could not be started", TaskState.STOPPED),
    ({"worker/1": missing(126, "no permission"), "worker/0": runs((15,))}, 126, "no perm", TaskState.STOPPED),
]  # fmt: skip


@pytest.mark.parametrize(("ends", "code", "why", "other"), ENDS)
def test_a_failure_ends_the_run(ends: dict[str, Any], code: int, why: str, other: TaskState):
    run = Run(FakeTransport(ends), "worker 2", "ps 1")
    assert run.report.exit_code == code
    assert why in run.why
    assert run.states == {"worker/0": other, "worker/1": TaskState.FAILED, "ps/0": TaskState.STOPPED}
    assert run.sent().count("StopTasks") == 1


@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_links_that_take_and_give_little_at_a_time(piece: int):
    transport = FakeTransport({"worker/0": exits(0, b"x" * 2000)}, piece=piece)
    run = Run(transport, "worker 3", where=hosts(3))
    assert run.report.exit_code == 0
    output = b"".join(value.data for _, value in run.calls if isinstance(value, facts.TaskOutput))
    assert output == b"x" * 2000


def test_300_tasks():
    run = Run(FakeTransport(), "worker 296", "ps 4", where=hosts(10))
    assert run.report.exit_code == 0
    assert sum(link.orders.count(orders.CloseAgent(host)) for host, link in run.links.items()) == 10


# ---------------------------------------------------------------------- signals, sources and time


@pytest.mark.parametrize(
    ("number", "code", "who"),
    [
        (signal.SIGINT, 130, "Ctrl-C"),
        (signal.SIGTERM, 143, "SIGTERM"),
        (signal.SIGHUP, 129, "a hang-up of the terminal"),
    ],
)
def test_a_signal_ends_the_run_in_order(number: signal.Signals, code: int, who: str):
    def started(sound: FakeAgent, order: Order | None) -> Iterable[Answer]:
        if isinstance(order, orders.StartTask):
            os.kill(os.getpid(), number)
        return sound(order)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    run = Run(agents(node1=started), "worker 1")
    assert run.report.exit_code == code
    assert run.why == f"stopped by {who}"
    assert run.states == {"worker/0": TaskState.STOPPED}
    assert {number: signal.getsignal(number) for number in before} == before


class Wish:
    """A source that asks once, when a condition holds."""

    def __init__(self, when: Callable[[], bool], number: int = 1) -> None:
        self._when = when
        self._number = number
        self._asked = False

    def stop_wanted(self) -> facts.StopAsked | None:
        if self._asked or not self._when():
            return None
        self._asked = True
        return facts.StopAsked(time.time(), self._number, "the closed tmux session")


def test_a_source_ends_the_run():
    transport = agents()
    wish = Wish(lambda: "node1" in transport.links and len(transport.links["node1"].orders) == 2)
    run = Run(transport, "worker 1", sources=[wish])
    assert run.report.exit_code == 129
    assert run.why == "stopped by the closed tmux session"


def test_the_time_limit():
    run = Run(agents(), "worker 2", timeout=0.05)
    assert run.report.exit_code == 124
    assert run.report.failure is not None and run.report.failure.reason is Reason.TIMEOUT
    assert set(run.states.values()) == {TaskState.STOPPED}


# ---------------------------------------------------------------------- links that fail


#: Of a host that was never ready.
CANT = "can't be used"


def test_a_link_that_can_not_be_opened():
    run = Run(FakeTransport(refuses={"node1": "no such host"}), "worker 1")
    assert run.report.exit_code == 125
    assert run.why == "host node1 can't be used: no such host"
    assert run.states == {"worker/0": TaskState.LOST}


@pytest.mark.parametrize("bad", ["node1", "node2", "node3"])
def test_one_of_the_links_can_not_be_opened(bad: str):
    """The others are told to close, whether they were opened before it or after."""
    started = time.monotonic()
    run = Run(FakeTransport(refuses={bad: "no such host"}), "worker 3", where=hosts(3))
    assert run.report.exit_code == 125
    assert run.why == f"host {bad} can't be used: no such host"
    assert len(run.told) == 1
    for host, link in run.links.items():
        assert "CloseAgent" in run.sent(host), host
        assert not any(isinstance(order, orders.StartTask) for order in link.orders)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("kind", [None, orders.HoldPorts, orders.StartTask])
def test_a_link_that_ends_without_a_goodbye(kind: type | None):
    run = Run(agents(node2=on(kind, b"")), "worker 2", where=hosts(2))
    assert run.report.exit_code == 125
    assert run.why == f"host node2 {'is lost' if kind is orders.StartTask else CANT}: its agent ended"
    assert run.states["worker/1"] is TaskState.LOST
    assert run.states["worker/0"] is (TaskState.STOPPED if kind is orders.StartTask else TaskState.CANCELLED)


def test_a_link_that_ends_before_its_goodbye_when_all_was_well():
    run = Run(agents(node1=on(orders.CloseAgent, b"")), "worker 0", "ps 1", timeout=0.05)
    assert run.report.exit_code == 124
    assert "host node1 is lost: its agent ended" in run.told


def test_what_the_transport_knows_of_the_end_is_said():
    transport = FakeTransport(
        agent=lambda host: lambda order: [b""], last_words={"node1": "its guardian was killed by SIGKILL"}
    )
    assert Run(transport, "worker 1").why == f"host node1 {CANT}: its guardian was killed by SIGKILL"


def test_an_agent_that_does_not_go_is_told():
    transport = FakeTransport(agent=lambda host: lambda order: [b""], last_words={"node1": None})
    run = Run(transport, "worker 1")
    assert run.why == f"host node1 {CANT}: its agent ended, and what it left is still there after 10 s"
    assert "the agent of node1 did not end, and SIGKILL did not help" in run.told


GARBAGE = [
    b"Connection to node1 closed by remote host.\r\n",
    b"\xff" * 64,
    b"\x02\0\0\0\x01{}",
    b"\x01\0\0\0\x02\x00",
    b"#\0\0\0\x01" + b'{"is":"CloseAgent","host":"node1"}'.ljust(35),
]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("kind", [None, orders.HoldPorts, orders.StartTask])
def test_garbage(garbage: bytes, kind: type | None):
    run = Run(agents(node1=on(kind, garbage)), "worker 2", where=hosts(2))
    assert run.report.exit_code == 125
    assert run.why.startswith(f"host node1 {'is lost' if kind is orders.StartTask else CANT}: ")
    assert run.links["node1"].hung_up
    assert run.states["worker/0"] is TaskState.LOST
    assert run.sent("node2")[-1] == "CloseAgent"


def test_ports_refused():
    refused = facts.PortsRefused("node2", 1.0, "too many open files")
    run = Run(agents(node2=on(orders.HoldPorts, refused)), "worker 2", where=hosts(2))
    assert run.report.exit_code == 125
    assert run.why == "node2 has no port for each of its tasks: too many open files"


def test_an_agent_that_was_ended_from_outside():
    def ended(sound: FakeAgent, order: Order | None) -> Iterable[Answer]:
        said = sound(order)
        return [*said, *sound(orders.CloseAgent("node1"))] if isinstance(order, orders.StartTask) else said

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
    started = next(value for _, value in run.calls if isinstance(value, facts.TaskStarted))
    assert isinstance(started.task, TaskId)
