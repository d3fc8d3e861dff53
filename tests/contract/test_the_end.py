"""However an agent ends, nothing of it is left, and its link reports how it ended."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest

from launcher.common import events
from tests.contract.driver import SOON, Driver
from tests.contract.sites import Eyes
from tests.contract.test_stopping import ESCAPES, STAYS, pids

STUBBORN = [ESCAPES[way] for way in ("ignores SIGTERM", "ignoring daemon", "stopped daemon", "closed output")]


_ASKED = "the agent exited: it was sent SIGTERM"
#: What Slurm's transport adds, where Slurm itself names no cause.
_SCANCEL = r" \((?:by .*|)scancel of its step(?: does that|)\)$"
#: Seconds between two looks.
LOOK = 0.05


class Household:
    """An agent with stubborn tasks, and everything that runs there."""

    def __init__(self, agent: Driver, eyes: Eyes) -> None:
        self.agent = agent
        self.eyes = eyes
        self.pid = agent.ready().pid
        self.watchdog = int(eyes.status(self.pid, "PPid"))
        ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        for index, way in enumerate(STUBBORN):
            agent.start(f"worker/{index}", [eyes.site.python, "-c", ignore + STAYS, way])
        self.tasks = [pid for index in range(len(STUBBORN)) for pid in pids(agent, f"worker/{index}")]
        assert sorted(eyes.alive(*self.all)) == sorted(self.all)

    @property
    def all(self) -> list[int]:
        """Every pid of it."""
        return [self.pid, self.watchdog, *self.tasks]

    def gone_within(self, seconds: float, *pids: int, reads: bool = True) -> None:
        """Wait until nothing of it, or of these processes, is left; fail if that takes too long.

        What is counted are looks, and a pause before each: while the machine is too busy to let us look, no
        process can end, either.
        """
        since, pids = time.monotonic(), pids or tuple(self.all)
        for _ in range(round(seconds / LOOK)):
            if not self.eyes.alive(*pids):
                break
            time.sleep(LOOK)
            if reads:
                self.agent.loop.run_once(0)
        left = self.eyes.alive(*pids)
        print(f"waited for {time.monotonic() - since:.2f} s")
        assert not left, f"still there: {left} of {pids}"


@pytest.fixture
def household(open_agent: Callable[[], Driver], eyes: Eyes) -> Household:
    """A fresh one."""
    return Household(open_agent(), eyes)


def test_closing(household: Household):
    assert household.agent.close() == ""
    assert len(household.agent.all(events.TaskGone)) == len(STUBBORN)
    household.gone_within(2.5)


def test_closing_when_all_is_over(agent: Driver):
    agent.run("worker/0", ["true"])
    silent = agent.silent
    assert agent.close() == ""
    assert agent.silent - silent < 8  # half a second each: no five of them are given to what is over


def test_hanging_up(household: Household):
    household.agent.hang_up()
    household.gone_within(2.5)
    assert household.agent.to_the_end() == ""


def test_hanging_up_while_nothing_reads(household: Household):
    agent = household.agent
    agent.start("worker/9", ["sh", "-c", "while echo line; do :; done"])
    agent.wait(events.TaskStarted, "worker/9")
    time.sleep(0.3)
    agent.hang_up()
    household.gone_within(2.5, *household.tasks, reads=False)
    assert agent.to_the_end() == ""


@pytest.mark.parametrize("stopped", [False, True], ids=["", "watchdog stopped"])
def test_a_launcher_that_is_gone(open_agent: Callable[[], Driver], eyes: Eyes, stopped: bool):
    """Both ends of the link go at once, as when the launcher is killed, while a task prints without end."""
    since = time.monotonic()
    agent = open_agent()
    first = time.monotonic() - since
    household = Household(agent, eyes)
    household.agent.start("worker/9", ["sh", "-c", "while echo line; do :; done"])
    household.agent.wait(events.TaskStarted, "worker/9")
    if stopped:
        eyes.kill(signal.SIGSTOP, household.watchdog)
    household.agent.vanish()
    household.gone_within(6.0 + 5 * first)  # the agent waits so long for another connection
    assert household.agent.link.wait(SOON) is not None


@pytest.mark.promise("agent or watchdog killed")
@pytest.mark.parametrize(
    ("processes", "number", "ends"),
    [
        (["agent"], 9, ["the agent was killed", "its agent exited while the connection was down"]),
        (["agent"], 15, [_ASKED]),
        (["watchdog"], 9, ["watchdog_killed"]),
        (["watchdog"], 15, [_ASKED]),
        # Which of the two ends is noticed first differs.
        (["watchdog", "agent"], 9, ["both_killed", "watchdog_killed", "the agent was killed"]),
    ],
    ids=["agent killed", "agent SIGTERM", "watchdog killed", "watchdog SIGTERM", "both killed"],
)
def test_a_signal_to_agent_or_watchdog(
    household: Household, processes: list[str], number: int, ends: list[str]
):
    agent, site = household.agent, household.eyes.site
    pids = {"agent": household.pid, "watchdog": household.watchdog}
    household.eyes.kill(number, *(pids[process] for process in processes))
    if len(processes) == 1:  # without both, the link's end ends the tasks
        household.gone_within(2.5)
    assert re.sub(_SCANCEL, "", str(agent.to_the_end())) in [getattr(site, end, end) for end in ends]
    household.gone_within(5)
    assert not agent.all(events.AgentClosed)
    if (processes, number) == (["agent"], 15):
        assert not agent.all(events.TaskSignalled) and not agent.all(events.TaskGone)


def test_of_sigterm_to_a_task_and_then_to_its_agent_the_end_of_the_agent_is_reported(
    agent: Driver, eyes: Eyes
):
    """As Slurm sends it at scancel: the end of the task is not reported."""
    task = agent.started("worker/0", ["sleep", "600"]).pid
    kill = "import os, sys, time; task, agent = map(int, sys.argv[1:]);"
    eyes.code(
        f"{kill} os.kill(task, 15); time.sleep(0.05); os.kill(agent, 15)", str(task), str(agent.ready().pid)
    )
    assert (agent.to_the_end() or "").startswith(_ASKED)
    assert not agent.all(events.TaskExited)


def test_another_agent_is_not_touched(open_agent: Callable[[], Driver], eyes: Eyes):
    first, second = Household(open_agent(), eyes), Household(open_agent(), eyes)
    eyes.kill(9, first.watchdog, first.pid)
    why = re.sub(_SCANCEL, "", str(first.agent.to_the_end()))
    assert why in (eyes.site.both_killed, eyes.site.watchdog_killed)
    first.gone_within(5)
    assert sorted(eyes.alive(*second.all)) == sorted(second.all)
    assert second.agent.close() == ""


def test_a_message_that_is_not_for_an_agent(household: Household):
    household.agent.send(events.AgentClosed(household.agent.host, 1.0))
    assert "ProtocolError" in (household.agent.to_the_end() or "")
    household.gone_within(2.5)


def test_processes_that_belong_to_no_task_go_with_the_agent(agent: Driver, eyes: Eyes):
    """It washed off its watermark, its environment and its session: it goes when the agent closes."""
    wash = (
        "os.setsid(); fork_and_leave(); import resource; "
        "resource.setrlimit(resource.RLIMIT_RTTIME, (-1, -1)); anew({})"
    )
    agent.started("ps/0", ["sleep", "600"])
    agent.start("worker/0", [eyes.site.python, "-c", STAYS, wash])
    mine = pids(agent, "worker/0")
    agent.stopped("worker/0")
    assert len(eyes.alive(*mine)) == 1
    assert agent.close() == ""
    assert eyes.alive(*mine) == []


def test_an_agent_that_does_not_answer_is_killed_with_all_it_started(
    open_agent: Callable[[], Driver], eyes: Eyes
):
    agent = open_agent()
    task = agent.started("worker/0", ["sleep", "600"]).pid
    eyes.kill(signal.SIGSTOP, agent.ready().pid)
    assert agent.link.wait(0.3) is None
    agent.hang_up()  # from here on its watchdog observes it, too
    assert agent.link.kill(SOON) is not None
    assert eyes.alive(task) == []
