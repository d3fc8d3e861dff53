"""Facts in, orders out: a job supervised by the real machine, its orders carried out on paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from launcher import events
from launcher.events import Command, Event
from launcher.job import Host, JobSpec, Placement, Plan
from launcher.report import Report
from launcher.scheduler.placement import place
from launcher.scheduler.plan import make_plan
from launcher.supervisor import Machine

OrderKind = TypeVar("OrderKind", bound=Command)
Where = Sequence[Host] | Placement


class Step(NamedTuple):
    """A fact (``None``: the beginning) and the orders it led to, in order."""

    fact: Event | None
    orders: tuple[Command, ...]


class Played(NamedTuple):
    """What came of a history."""

    #: The beginning, then a step a fact.
    steps: tuple[Step, ...]
    #: How it ended, or how it stands after the last fact.
    report: Report
    #: Timers that are set, with their seconds.
    timers: Mapping[str, float]
    #: ``None``: it has not ended.
    exit_code: int | None

    @property
    def orders(self) -> tuple[Command, ...]:
        """All orders, in order."""
        return tuple(order for step in self.steps for order in step.orders)

    @property
    def told(self) -> tuple[str, ...]:
        """What the user was told, in order."""
        return tuple(tell.text for tell in self.all(events.Tell))

    def all(self, kind: type[OrderKind]) -> tuple[OrderKind, ...]:
        """All orders of one kind, in order."""
        return tuple(order for order in self.orders if isinstance(order, kind))


class Rehearsal:
    """One job, supervised by the real machine, its orders carried out on paper. `play` in single steps.

    Args:
        job: what to run.
        where: the hosts, or who runs on which already.
        name: the job's id.
        check: the hosts try whether they reach each other.
    """

    def __init__(self, job: JobSpec, where: Where, name: str = "job", check: bool = False) -> None:
        self.job = job
        self.placement = where if isinstance(where, Placement) else place(job, tuple(where))
        self.machine = Machine(job, self.placement, name, check)
        self.plan: Plan | None = None
        #: Timers that are set, with their seconds.
        self.timers: dict[str, float] = {}
        #: Set when it is over.
        self.exit_code: int | None = None

    def begin(self) -> tuple[Command, ...]:
        """The first orders."""
        return self._obey(self.machine.begin())

    def take(self, fact: Event) -> tuple[Command, ...]:
        """The orders that this fact leads to.

        Raises:
            ValueError: a timer is said to have run out that is not set.
        """
        if isinstance(fact, events.TimeUp) and self.timers.pop(fact.timer, None) is None:
            raise ValueError(f"timer {fact.timer!r} is not set: {', '.join(self.timers) or 'none'} is")
        return self._obey(self.machine.handle(fact))

    def _obey(self, given: Iterable[Command]) -> tuple[Command, ...]:
        done: list[Command] = []
        for order in given:
            done.append(order)
            if isinstance(order, events.SetTimer):
                self.timers[order.timer] = order.seconds
            elif isinstance(order, events.CancelTimer):
                self.timers.pop(order.timer, None)
            elif isinstance(order, events.Finish):
                self.exit_code = order.exit_code
            elif isinstance(order, events.MakePlan):
                self.plan = make_plan(self.job, self.placement, order.ports)
                done.extend(self._obey(self.machine.planned(self.plan)))
        return tuple(done)


def play(job: JobSpec, where: Where, history: Iterable[Event], check: bool = False) -> Played:
    """Feed recorded facts to the real machine.

    Args:
        job: what to run.
        where: the hosts, or who runs on which already.
        history: the facts in the order they came.

    Raises:
        ValueError: the history has a timer run out that is not set.
        launcher.supervisor.InvalidTransition: the facts contradict each other.
    """
    stage = Rehearsal(job, where, check=check)
    steps = [Step(None, stage.begin())]
    steps.extend(Step(fact, stage.take(fact)) for fact in history)
    times = [step.fact.at for step in steps if step.fact and not isinstance(step.fact, events.TaskOutput)]
    report = stage.machine.report(min(times, default=0.0), max(times, default=0.0))
    return Played(tuple(steps), report, dict(stage.timers), stage.exit_code)
