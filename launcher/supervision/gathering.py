"""Before anything is started: every agent is to be ready and to hold its ports.

A host that fails ends the launch, but not before the others have answered: who has forty hosts wants to
hear of all that is wrong with them at once.
"""

from __future__ import annotations

from launcher.model import facts, orders
from launcher.model.orders import Order, Tell
from launcher.model.report import Failure
from launcher.model.status import Reason
from launcher.supervision.blame import Blame
from launcher.supervision.hosts import Agents, AgentState
from launcher.supervision.roster import Roster
from launcher.supervision.waiting import REST_LIMIT

#: Exit code of a launch of which a host failed.
HOST_FAULT = 125


class Gathering:
    """Follows the agents until the plan can be made.

    Args:
        tasks, agents, blame: the job's.
    """

    def __init__(self, tasks: Roster, agents: Agents, blame: Blame) -> None:
        self._tasks = tasks
        self._agents = agents
        self._blame = blame

    def ready(self, fact: facts.AgentReady) -> list[Order]:
        """An agent has answered."""
        self._agents.set(fact.host, AgentState.READY)
        return [orders.HoldPorts(fact.host, self._tasks.on(fact.host))]

    def held(self, fact: facts.PortsHeld) -> list[Order]:
        """A host has its ports; with the last of them the plan can be made."""
        self._agents.set(fact.host, AgentState.HOLDING)
        for task, port in fact.ports.items():
            self._tasks.records[task].port = port
        if not self._agents.all_hold():
            return []
        records = self._tasks.records.items()
        return [orders.MakePlan({task: record.port for task, record in records if record.port is not None})]

    def refused(self, fact: facts.PortsRefused) -> list[Order]:
        """A host has no ports to give."""
        self._agents.set(fact.host, AgentState.REFUSED)
        text = f"{fact.host} has no port for each of its tasks: {fact.why}"
        self._blame.fail(Failure(Reason.LAUNCHER, None, fact.host, fact.at, text), HOST_FAULT)
        return [Tell(text, urgent=True)]

    def failed(self) -> bool:
        """Whether it can't go on, and everybody has been heard."""
        return self._blame.failure is not None and not self._agents.awaited()

    def bound(self) -> list[Order]:
        """How long the others may still take after a failure."""
        return [orders.SetTimer("rest", REST_LIMIT)] if self._agents.awaited() else []
