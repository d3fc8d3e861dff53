"""Whole runs with agents that only pretend: what is shown, in which order, and how they end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import pytest

from launcher import events, orchestrator
from launcher.events import Command, Event, Tell
from launcher.job import TASK_MARK, Host, Plan
from launcher.orchestrator import Orchestrator
from launcher.output.base import Opening
from launcher.report import Reason, Report, TaskState
from launcher.scheduler.placement import place
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

    def on(self, event: Event | Tell) -> None:
        self._note("on", event)

    def tick(self, now: float) -> float | None:
        return None

    def close(self, report: Report) -> None:
        self._note("close", report)


class Clock:
    """The time of a run, as `time` has it: it stands still until so many tasks have started, then goes far.

    However busy the machine is, no timer runs out before.
    """

    def __init__(self, started: float = float("inf")) -> None:
        self._started = started
        self.calls: list[tuple[str, Any]] = []

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        started = sum(isinstance(value, events.TaskStarted) for _, value in self.calls)
        return 3600.0 if started >= self._started else 0.0


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
        clock: Any = None,
        **policy: Any,
    ) -> None:
        spec = job(*counts, **policy)
        placement = place(spec, tuple(where) or hosts(1))
        self.calls: list[tuple[str, Any]] = []
        clock = Clock() if clock is None else clock
        if isinstance(clock, Clock):
            clock.calls = self.calls
        names = [""] if renderers == 1 else [f"{number} " for number in range(renderers)]
        conductor = Orchestrator(
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
        self.selector = conductor._selector
        try:
            with patch.object(orchestrator, "time", clock):
                self.report = conductor.run()
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


def agents(**special: Callable[[FakeAgent, Command | None], Iterable[Answer]]) -> FakeTransport:
    """Sound agents, but for some hosts: what they say to an order is given."""

    def agent(host: str) -> Agent:
        sound = FakeAgent(host, {"worker/0": runs(), "worker/1": runs()})
        if host not in special:
            return sound
        return lambda order: special[host](sound, order)

    return FakeTransport(agent=agent)


def on(kind: type | None, *answers: Answer) -> Callable[[FakeAgent, Command | None], Iterable[Answer]]:
    """Say this to an order of this kind (``None``: when the link opens), else what a sound agent says."""

    def answer(sound: FakeAgent, order: Command | None) -> Iterable[Answer]:
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
    assert [value.data for _, value in run.calls if isinstance(value, events.TaskOutput)] == [b"hello\n"]
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
    start = next(order for order in run.links["node2"].orders if isinstance(order, events.StartTask))
    assert start.env[TASK_MARK] == "job-1:worker/1"
    assert start.env["TASK_ADDRESS"] == "node2:40000"
    assert events.Tell("can't write it", urgent=True) in [event for _, event in run.calls]


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
    output = b"".join(value.data for _, value in run.calls if isinstance(value, events.TaskOutput))
    assert output == b"x" * 2000


def test_300_tasks():
    run = Run(FakeTransport(), "worker 296", "ps 4", where=hosts(10))
    assert run.report.exit_code == 0
    assert sum(link.orders.count(events.CloseAgent(host)) for host, link in run.links.items()) == 10


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
    def started(sound: FakeAgent, order: Command | None) -> Iterable[Answer]:
        if isinstance(order, events.StartTask):
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

    def stop_wanted(self) -> events.StopAsked | None:
        if self._asked or not self._when():
            return None
        self._asked = True
        return events.StopAsked(time.time(), self._number, "the closed tmux session")


def test_a_source_ends_the_run():
    transport = agents()
    wish = Wish(lambda: "node1" in transport.links and len(transport.links["node1"].orders) == 2)
    run = Run(transport, "worker 1", sources=[wish])
    assert run.report.exit_code == 129
    assert run.why == "stopped by the closed tmux session"


def test_the_time_limit():
    run = Run(agents(), "worker 2", timeout=0.05, clock=Clock(started=2))
    assert run.report.exit_code == 124
    assert run.report.failure is not None and run.report.failure.reason is Reason.TIMEOUT
    assert set(run.states.values()) == {TaskState.STOPPED}
