"""The agents of a job's hosts."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class AgentState(enum.Enum):
    """How far an agent has come."""

    AWAITED = "awaited"
    READY = "ready"
    HOLDING = "holding"  #: it holds the ports of all its tasks
    REFUSED = "refused"  #: it has no ports for them
    LEAVING = "leaving"  #: it ends its tasks and itself without a command
    CLOSED = "closed"
    LOST = "lost"


_EARLY = (AgentState.AWAITED, AgentState.READY)
_OVER = (AgentState.CLOSED, AgentState.LOST)


class Agents:
    """The agents, by the name of their host."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._states: dict[str, AgentState] = dict.fromkeys(hosts, AgentState.AWAITED)
        #: Hosts that owe an answer, and since when.
        self._owing: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._states)

    def set(self, host: str, state: AgentState) -> None:
        """The agent is in ``state`` now; a lost one stays lost."""
        if self._states[host] is not AgentState.LOST:
            self._states[host] = state

    def is_early(self, host: str) -> bool:
        """Whether it does not hold its ports yet."""
        return self._states[host] in _EARLY

    def is_leaving(self, host: str) -> bool:
        """Whether it ends without a command."""
        return self._states[host] is AgentState.LEAVING

    def received(self, host: str) -> bool:
        """An event came from it. Returns whether the event counts: not if the host is lost."""
        self._owing.pop(host, None)
        return self._states[host] is not AgentState.LOST

    def expect_answers(self, hosts: Iterable[str], at: float) -> None:
        """These owe an answer; a host that owes one already owes it since then."""
        self._owing = {host: self._owing.get(host, at) for host in hosts}

    def silent(self, since: float = float("inf")) -> tuple[str, ...]:
        """Hosts that owe an answer since then or longer."""
        return tuple(host for host in self._states if host in self._owing and self._owing[host] <= since)

    def lose_open(self) -> tuple[str, ...]:
        """Count the open ones as lost."""
        hosts = self.open()
        self._states.update(dict.fromkeys(hosts, AgentState.LOST))
        return hosts

    def all_hold(self) -> bool:
        """Whether every port of the job is held."""
        return all(state is AgentState.HOLDING for state in self._states.values())

    def all(self) -> tuple[str, ...]:
        """Every host."""
        return tuple(self._states)

    def early(self) -> tuple[str, ...]:
        """Hosts that do not hold their ports yet."""
        return tuple(host for host, state in self._states.items() if state in _EARLY)

    def open(self) -> tuple[str, ...]:
        """Hosts whose agent is neither closed nor lost."""
        return tuple(host for host, state in self._states.items() if state not in _OVER)
