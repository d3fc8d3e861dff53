"""Before anything is started: every agent is to be ready, to hold its ports, and to reach its neighbours.

A host that fails ends the launch, but not before the others have answered: who has forty hosts wants to
hear of all that is wrong with them at once.
"""

from __future__ import annotations

from launcher import events
from launcher.events import Command, Tell
from launcher.report import Failure, Reason
from launcher.supervision.blame import Blame
from launcher.supervision.hosts import Agents, AgentState
from launcher.supervision.roster import Roster
from launcher.supervision.waiting import CHECK_LIMIT, REST_LIMIT
from launcher.text import listed

#: Exit code of a launch of which a host failed.
HOST_FAULT = 125
#: Which of the next hosts each host tries.
_STEPS = (1, 2)
_TRY = (
    "the address: of a host in a hostfile is what others connect to; --no-check starts the job all the same"
)


class Gathering:
    """Follows the agents until the plan can be made.

    Args:
        tasks, agents, blame: the job's.
        check: see whether hosts reach each other, before the plan is made.
    """

    def __init__(self, tasks: Roster, agents: Agents, blame: Blame, check: bool = False) -> None:
        self._tasks = tasks
        self._agents = agents
        self._blame = blame
        self._check = check and len(agents) > 1
        self._trying: set[str] = set()
        self._bounded = False

    def ready(self, fact: events.AgentReady) -> list[Command]:
        """An agent has answered."""
        self._agents.set(fact.host, AgentState.READY)
        return [events.HoldPorts(fact.host, self._tasks.on(fact.host))]

    def held(self, fact: events.PortsHeld) -> list[Command]:
        """A host has its ports; with the last of them the plan can be made."""
        self._agents.set(fact.host, AgentState.HOLDING)
        for task, port in fact.ports.items():
            self._tasks.records[task].port = port
        if not self._agents.all_hold():
            return []
        return self._try_peers() if self._check else self._make_plan()

    def _make_plan(self) -> list[Command]:
        records = self._tasks.records.items()
        return [events.MakePlan({task: record.port for task, record in records if record.port is not None})]

    def _try_peers(self) -> list[Command]:
        """Each host tries the next two: together that is both directions, and no host is asked much."""
        hosts = self._agents.all()
        self._trying = set(hosts)
        tries: list[Command] = [events.SetTimer("check", CHECK_LIMIT)]
        for place, host in enumerate(hosts):
            others = dict.fromkeys(hosts[(place + step) % len(hosts)] for step in _STEPS)
            found = (self._address_on(other) for other in others if other != host)
            tries.append(events.TryPeers(host, tuple(found)))
        return tries

    def _address_on(self, host: str) -> str:
        return self._tasks.records[self._tasks.on(host)[0]].reached_at

    def tried(self, fact: events.PeersTried) -> list[Command]:
        """A host has tried to reach others; when all have, the plan can be made."""
        if fact.host not in self._trying:
            return []
        self._trying.discard(fact.host)
        told: list[Command] = []
        for address, why in fact.unreachable.items():
            text = f"{fact.host} can't reach {address}: {why} ({_TRY})"
            self._blame.fail(Failure(Reason.LAUNCHER, None, fact.host, fact.at, text), HOST_FAULT)
            told.append(Tell(text, urgent=True))
        if self._trying or self._blame.failure is not None:
            return told
        return [events.CancelTimer("check"), *self._make_plan()]

    def lost(self, host: str) -> None:
        """Nothing more will come from it."""
        self._trying.discard(host)

    def late(self) -> list[Command]:
        """The check takes too long: that is no reason not to start, if nothing else is."""
        late, self._trying = listed(tuple(sorted(self._trying))), set()
        if self._blame.failure is not None:
            return []
        return [Tell(f"going on without the check of the network on {late}: no answer"), *self._make_plan()]

    def refused(self, fact: events.PortsRefused) -> list[Command]:
        """A host has no ports to give."""
        self._agents.set(fact.host, AgentState.REFUSED)
        text = f"{fact.host} has no port for each of its tasks: {fact.why}"
        self._blame.fail(Failure(Reason.LAUNCHER, None, fact.host, fact.at, text), HOST_FAULT)
        return [Tell(text, urgent=True)]

    def failed(self) -> bool:
        """Whether it can't go on, and everybody has been heard."""
        return self._blame.failure is not None and not self._agents.not_holding() and not self._trying

    def bound(self) -> list[Command]:
        """How long the others may still take after the first failure."""
        if self._bounded or self._blame.failure is None:
            return []
        self._bounded = True
        return [events.SetTimer("rest", REST_LIMIT)]
