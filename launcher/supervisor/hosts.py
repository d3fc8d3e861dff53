"""The record of one host, the changes of its state that are possible, and all hosts of a job."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

from launcher.common.events import HoldPorts
from launcher.job import Host, Placement
from launcher.supervisor.tasks import TaskRecord
from launcher.supervisor.transitions import StateRecord


class HostState(enum.Enum):
    """The state of a host: what the launcher waits for there.

    ::

        HOLDING -> READY -> TRYING -> READY     before the first start, and before each one on other hosts
        STARTING -> READY                       without a task
        any of them -> LOST -> RETURNING -> READY
        any of them -> CLOSED                   on command
    """

    STARTING = "starting"  #: its agent starts
    HOLDING = "holding"  #: its agent, which may still start, is to hold a port for each of its tasks
    READY = "ready"
    TRYING = "trying"  #: it tries to connect to other hosts
    ENDING = "ending"  #: its agent was ended from outside, and stops its tasks
    LOST = "lost"
    RETURNING = "returning"  #: it was lost, and a new agent starts there
    CLOSED = "closed"


_S = HostState
#: States in which there is an agent, as far as the launcher knows.
ACTIVE_STATES = (_S.STARTING, _S.HOLDING, _S.READY, _S.TRYING, _S.ENDING)
#: Every change of the state of a host; any other is a fault of the launcher.
TRANSITIONS: dict[HostState, tuple[HostState, ...]] = {
    _S.STARTING: (_S.HOLDING, _S.READY, _S.LOST, _S.CLOSED),
    _S.HOLDING: (_S.READY, _S.STARTING, _S.LOST, _S.CLOSED),
    _S.READY: (_S.HOLDING, _S.TRYING, _S.ENDING, _S.LOST, _S.CLOSED),
    _S.TRYING: (_S.READY, _S.LOST, _S.CLOSED),
    _S.ENDING: (_S.LOST, _S.CLOSED),
    _S.LOST: (_S.RETURNING,),
    _S.RETURNING: (_S.READY, _S.LOST),
}


class HostRecord(StateRecord):
    """The record of one host.

    Args:
        host: as the user wrote it.
        number: its place in the table.
        counts: the number of hosts in each state.
    """

    state: HostState

    def __init__(self, host: Host, number: int, counts: Counter[HostState]) -> None:
        super().__init__(host.name, HostState.STARTING, TRANSITIONS)
        self.host, self.name, self.number = host, host.name, number
        self._counts = counts
        counts[self.state] += 1
        #: Its tasks; from the moment at which it holds ports for them.
        self.tasks: list[TaskRecord] = []
        #: Whether its agent has said that it runs; whether it has not answered yet a request to end tasks.
        self.ready = self.unanswered = False
        #: Notices since it started a task.
        self.notices = 0
        #: Why its tasks can't use their environment; empty: they can, as far as the launcher knows.
        self.no_environment = ""

    @property
    def is_active(self) -> bool:
        """Whether it has an agent, as far as the launcher knows: events of other hosts are ignored."""
        return self.state in ACTIVE_STATES

    @property
    def own(self) -> list[TaskRecord]:
        """Its tasks without sidecars."""
        return [task for task in self.tasks if not task.sidecar]

    def transition_to(self, state: HostState, cause: object) -> None:
        """Change to ``state``.

        Raises:
            InvalidTransitionError: there is no such change.
        """
        self._counts[self.state] -= 1
        super().transition_to(state, cause)
        self._counts[state] += 1
        if not self.is_active:
            self.ready = self.unanswered = False

    def hold_ports(self) -> HoldPorts:
        """The command to hold ports for its tasks."""
        return HoldPorts(self.name, tuple(record.task for record in self.tasks), self.host.venv)

    def withdraw(self) -> None:
        """Do not wait for its answer any more."""
        self.transition_to(HostState.READY if self.ready else HostState.STARTING, "its answer is not needed")


class HostTable(dict[str, HostRecord]):
    """All hosts by their names, in the order of the table; also lost ones.

    Args:
        placement: of the job.
        tasks: of the job.
    """

    def __init__(self, placement: Placement, tasks: Iterable[TaskRecord]) -> None:
        self._counts: Counter[HostState] = Counter()
        hosts = enumerate(placement.agent_hosts())
        super().__init__((host.name, HostRecord(host, number, self._counts)) for number, host in hosts)
        self.place(tasks)
        for host in self.values():
            if host.tasks:
                host.transition_to(HostState.HOLDING, "the launch")

    def place(self, tasks: Iterable[TaskRecord]) -> None:
        """Record where these tasks, all of the job, run from their next start on."""
        for host in self.values():
            host.tasks = []
        for task in tasks:
            self[task.next_host].tasks.append(task)

    def have(self, *states: HostState) -> bool:
        """Whether a host is in one of these states."""
        return any(self._counts[state] for state in states)

    def names(self, *states: HostState) -> list[str]:
        """The hosts in these states."""
        return [name for name, host in self.items() if host.state in states]

    def of(self, tasks: Iterable[TaskRecord]) -> list[str]:
        """The hosts of these tasks, each once."""
        found = {self[task.next_host] for task in tasks}
        return [host.name for host in sorted(found, key=lambda host: host.number)]
