"""What the agent of a host reports, and what becomes of its link."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import Event

FACTS = events.HostFacts(
    hostname="node1", addresses=("10.0.0.1",), cpus=4, memory=1 << 30, python="3.11.7",
    executable="/usr/bin/python3", user=1000,
)  # fmt: skip
#: The port of the first task.
FIRST_PORT = 4000


class HostEvents:
    """Builds the events of one host.

    Args:
        host: Its name.
        now: Its clock.
    """

    def __init__(self, host: str, now: Callable[[], float]) -> None:
        self.host = host
        self._now = now

    def ready(self) -> Event:
        return events.AgentReady(self.host, at=self._now(), pid=1, facts=FACTS)

    def held(self, ports: dict[TaskId, int]) -> Event:
        return events.PortsHeld(self.host, self._now(), ports)

    def refused(self, why: str = "too many open files", **code: int) -> Event:
        return events.PortsRefused(self.host, at=self._now(), why=why, **code)

    def closed(self) -> Event:
        return events.AgentClosed(self.host, self._now())

    def lost(self, **flags: bool) -> Event:
        return events.AgentLost(self.host, at=self._now(), why="connection reset", **flags)

    def started(self, task: TaskId, attempt: int = 1) -> Event:
        return events.TaskStarted(*self._of(task, attempt), pid=1000)

    def not_started(self, task: TaskId, attempt: int = 1, code: int = 127) -> Event:
        return events.TaskNotStarted(*self._of(task, attempt), code=code, why="no such thing")

    def signalled(self, task: TaskId, attempt: int = 1, signal: int = 15) -> Event:
        return events.TaskSignalled(*self._of(task, attempt), signal=signal, processes=1)

    def exited(
        self,
        task: TaskId,
        attempt: int = 1,
        code: int | None = None,
        signal: int | None = None,
        oom: str = "",
    ) -> Event:
        return events.TaskExited(*self._of(task, attempt), code, signal, peak_rss=1 << 20, cpu_s=0.5, oom=oom)

    def gone(
        self, task: TaskId, attempt: int = 1, leftovers: int = 0, unkillable: Sequence[int] = ()
    ) -> Event:
        return events.TaskGone(*self._of(task, attempt), leftovers=leftovers, unkillable=tuple(unkillable))

    def output(self, task: TaskId, attempt: int = 1, data: bytes = b"x") -> Event:
        return events.TaskOutput(self.host, task=task, attempt=attempt, data=data)

    def _of(self, task: TaskId, attempt: int) -> tuple[str, float, TaskId, int]:
        return self.host, self._now(), task, attempt
