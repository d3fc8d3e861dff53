"""What the machine knows of the agents."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class AgentState(enum.Enum):
    """How far the agent of a host has come."""

    AWAITED = "awaited"
    READY = "ready"
    HOLDING = "holding"  #: the ports of all its tasks
    REFUSED = "refused"  #: it has no ports for them
    LEAVING = "leaving"  #: it ends its tasks and itself, and we did not ask for it
    CLOSED = "closed"
    LOST = "lost"


class Agents:
    """The agents of a job's hosts."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._states: dict[str, AgentState] = dict.fromkeys(hosts, AgentState.AWAITED)
        #: Who owes an answer, and since when.
        self._silent: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._states)

    def set(self, host: str, state: AgentState) -> None:
        """The agent of ``host`` is in ``state`` now; nothing brings a lost one back."""
        if self._states[host] is not AgentState.LOST:
            self._states[host] = state

    def is_early(self, host: str) -> bool:
        """Whether its agent has not answered yet, or does not hold its ports yet."""
        return host in self.not_holding()

    def is_leaving(self, host: str) -> bool:
        """Whether it ends without our having asked."""
        return self._states[host] is AgentState.LEAVING

    def hear(self, host: str) -> bool:
        """Something came from it: whether that counts. Who is lost has nothing to say any more."""
        self._silent.pop(host, None)
        return self._states[host] is not AgentState.LOST

    def ask(self, hosts: Iterable[str], at: float) -> None:
        """An answer is expected of them; whoever owes one already owes it since then."""
        self._silent = {host: self._silent.get(host, at) for host in hosts}

    def silent(self, since: float = float("inf")) -> tuple[str, ...]:
        """Those of them from whom nothing came, though they were asked by then."""
        return tuple(host for host in self._states if host in self._silent and self._silent[host] <= since)

    def lose_open(self) -> tuple[str, ...]:
        """Those that are open are lost from now on."""
        hosts = self.open()
        self._states.update(dict.fromkeys(hosts, AgentState.LOST))
        return hosts

    def all_hold(self) -> bool:
        """Whether every port of the job is held."""
        return all(state is AgentState.HOLDING for state in self._states.values())

    def all(self) -> tuple[str, ...]:
        """Every host."""
        return tuple(self._states)

    def not_holding(self) -> tuple[str, ...]:
        """Hosts that have not said yet that they hold their ports."""
        early = (AgentState.AWAITED, AgentState.READY)
        return tuple(host for host, state in self._states.items() if state in early)

    def open(self) -> tuple[str, ...]:
        """Hosts whose agent is neither closed nor lost."""
        over = (AgentState.CLOSED, AgentState.LOST)
        return tuple(host for host, state in self._states.items() if state not in over)
