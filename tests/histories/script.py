"""Histories as text: a line a fact, times unless said otherwise 10 ms apart.

::

    up                          every agent is ready and holds its ports, every task has started
    reaches node1 | reaches node1 all but node2:4001
    ready node1 | held node1 | refused node1 | lost node1 | closed node1
    closed                      every agent that is not lost
    worker/0 starts | cannot start 127 | exits 7 | dies 9 | dies 9 oom | gone | left 3 | unkillable 4711
    worker/0 gets 15            a signal of ours
    worker/0 ends               does as we say: gets 15, dies of it, is gone
    Ctrl-C | SIGTERM | SIGHUP
    time up end                 a timer
    ... @ 5.5                   at this time, though what came before was later
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from launcher import events
from launcher.events import Event
from launcher.job import (
    SERVICE_ROLES,
    Host,
    JobSpec,
    OnFailure,
    Placement,
    Policy,
    Program,
    ProgramKind,
    Role,
    TaskId,
)
from launcher.scheduler.placement import place
from tests.clock import FakeClock
from tests.replay import Played, play

PROGRAM = Program(ProgramKind.SCRIPT, "train.py")
SIGNALS = {"Ctrl-C": 2, "SIGTERM": 15, "SIGHUP": 1}
#: When a script's first fact happened.
START = 1.0


def job(*counts: str, on_failure: str = "stop", grace: float = 10.0, timeout: float | None = None) -> JobSpec:
    """``job("worker 2", "ps 1")``; a ps or evaluator is a service, as the command line has it.

    Also ``evaluator 1 drain 60`` and ``board 1 sidecar``.
    """
    roles = []
    for count in counts:
        name, number, *more = count.split()
        role = Role(name, int(number), PROGRAM, service=name in SERVICE_ROLES, sidecar=more == ["sidecar"])
        roles.append(role._replace(drain=float(more[1])) if more[:1] == ["drain"] else role)
    return JobSpec(tuple(roles), policy=Policy(OnFailure(on_failure), grace, timeout))


def hosts(count: int, slots: int | None = None) -> tuple[Host, ...]:
    """``node1``, ``node2``..."""
    return tuple(Host(f"node{number}", slots=slots) for number in range(1, count + 1))


class Script:
    """Reads scripts of one job.

    Args:
        job: what is run.
        where: on which hosts; default: one.
        check: the hosts try whether they reach each other.
    """

    def __init__(self, job: JobSpec, where: Sequence[Host] = (), check: bool = False) -> None:
        self._check = check
        self.job = job
        self.placement: Placement = place(job, tuple(where) or hosts(1))
        self.host_of: dict[str, str] = {placed.task: placed.host.name for placed in self.placement.tasks}
        self._clock = FakeClock(START, step=0.01)
        self._lost: set[str] = set()

    def play(self, text: str) -> Played:
        """What comes of this history."""
        return play(self.job, self.placement, self.facts(text), self._check)

    def facts(self, text: str) -> Iterator[Event]:
        """The facts that a script tells."""
        for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
            words, _, at = line.partition("@")
            yield from self._line(words.strip(), FakeClock(float(at)) if at else self._clock)

    def _line(self, words: str, now: Callable[[], float]) -> Iterator[Event]:
        first, _, rest = words.partition(" ")
        if words == "up":
            yield from self._up(now)
        elif words == "closed":
            yield from (events.AgentClosed(host, now()) for host in self._hosts() if host not in self._lost)
        elif words in SIGNALS:
            yield events.StopAsked(now(), SIGNALS[words], words)
        elif words.startswith("time up "):
            yield events.TimeUp(now(), words.removeprefix("time up "))
        elif "/" in first:
            yield from self._task(TaskId(first), rest, now)
        else:
            yield self._agent(first, rest, now)

    def _hosts(self) -> list[str]:
        return [host.name for host in self.placement.hosts()]

    def _up(self, now: Callable[[], float]) -> Iterator[Event]:
        yield from (self._agent("ready", host, now) for host in self._hosts())
        yield from (self._agent("held", host, now) for host in self._hosts())
        for task in self.host_of:
            yield from self._task(TaskId(task), "starts", now)

    def _agent(self, verb: str, host: str, now: Callable[[], float]) -> Event:
        if verb == "ready":
            return events.AgentReady(host, now(), 1, {})
        if verb == "held":
            ports = {
                TaskId(task): 4000 + n for n, task in enumerate(self.host_of) if self.host_of[task] == host
            }
            return events.PortsHeld(host, now(), ports)
        if verb == "reaches":  # all it tried, but for the address that follows
            host, _, address = host.partition(" all but ")
            return events.PeersTried(host, now(), {address: "no answer"} if address else {})
        if verb == "refused":
            return events.PortsRefused(host, now(), "too many open files")
        if verb == "closed":
            return events.AgentClosed(host, now())
        assert verb == "lost", verb
        self._lost.add(host)
        return events.AgentLost(host, now(), "connection reset")

    def _task(self, task: TaskId, what: str, now: Callable[[], float]) -> Iterator[Event]:
        verb = (re.match(r"[a-z ]*[a-z]", what) or [what])[0].removesuffix(" oom")
        numbers = [int(number) for number in re.findall(r"\d+", what)]
        host, at = self.host_of[task], (0.0 if verb == "ends" else now())
        if verb == "starts":
            yield events.TaskStarted(host, at, task, 1, 1000)
        elif verb == "cannot start":
            yield events.TaskNotStarted(host, at, task, 1, numbers[0], "no such thing")
        elif verb == "exits":
            yield events.TaskExited(host, at, task, 1, numbers[0], None, 1 << 20, 0.5)
        elif verb == "dies":
            oom = "oom_kill 1" if "oom" in what else ""
            yield events.TaskExited(host, at, task, 1, None, numbers[0], 1 << 20, 0.5, oom)
        elif verb == "gets":
            yield events.TaskSignalled(host, at, task, 1, numbers[0], 1)
        elif verb == "ends":
            for part in ("gets 15", "dies 15", "gone"):
                yield from self._task(task, part, now)
        else:
            assert verb in ("gone", "left", "unkillable"), what
            pids = tuple(numbers) if verb == "unkillable" else ()
            yield events.TaskGone(host, at, task, 1, numbers[0] if verb == "left" else 0, pids)


def states(played: Played) -> dict[str, str]:
    """``{"worker/0": "failed: exit"}``: state and reason of each task."""
    return {
        task.task: f"{task.state.value}: {task.reason.value}" if task.reason else task.state.value
        for task in played.report.tasks
    }


def after(played: Played, last: int = 1) -> tuple[Any, ...]:
    """The orders that the last facts led to."""
    return tuple(order for step in played.steps[-last:] for order in step.orders)
