"""All tasks of a job, and which of them are still waited for."""

from __future__ import annotations

from collections.abc import Collection

from launcher.events import Ladder, StopTasks
from launcher.job import Placement, TaskId
from launcher.report import Reason, TaskState
from launcher.supervision import policy
from launcher.supervision.record import Record


class Roster:
    """The tasks of a job.

    Args:
        placement: who runs where.
    """

    def __init__(self, placement: Placement) -> None:
        self.records: dict[TaskId, Record] = {placed.task: Record(placed) for placed in placement.tasks}
        #: Tasks that are not over.
        self.open: set[TaskId] = set(self.records)
        #: Tasks whose ends end the job, and which have not ended.
        self.undecided: set[TaskId] = set(policy.deciders(placement))
        #: Tasks that were to be started, and nobody has said yet that they were.
        self.starting: set[TaskId] = set()
        self._by_host: dict[str, list[TaskId]] = {}
        for task, record in self.records.items():
            self._by_host.setdefault(record.host, []).append(task)

    def on(self, host: str) -> tuple[TaskId, ...]:
        """The tasks of this host."""
        return tuple(self._by_host[host])

    def open_on(self, host: str) -> tuple[TaskId, ...]:
        """Those of them that are not over."""
        return tuple(task for task in self._by_host[host] if task in self.open)

    def only_sidecars_on(self, host: str) -> bool:
        """Whether the job can do without this host."""
        return all(self.records[task].sidecar for task in self._by_host[host])

    def hosts_of(self, tasks: Collection[TaskId]) -> tuple[str, ...]:
        """Where these tasks run, each host once, in the order of the table."""
        return tuple(host for host, own in self._by_host.items() if any(task in tasks for task in own))

    def named(self, tasks: Collection[TaskId]) -> tuple[str, ...]:
        """Their names, in the order of the table."""
        return tuple(str(task) for task in self.records if task in tasks)

    def progress(self) -> tuple[list[tuple[str, float]], tuple[str, ...]]:
        """Those that have ended by themselves and after how many seconds; and those that are waited for."""
        own = [record for record in self.records.values() if not record.service]
        times = ((record.task, record.started_at, record.ended_at) for record in own)
        ended = [
            (str(task), end - start) for task, start, end in times if start is not None and end is not None
        ]
        return ended, self.named(self.undecided)

    def succeeded(self) -> dict[str, float]:
        """Those that have ended well, services and sidecars excepted, and when."""
        own = [record for record in self.records.values() if not record.service and not record.sidecar]
        return {
            str(record.task): record.ended_at
            for record in own
            if record.outcome is TaskState.SUCCEEDED and record.ended_at is not None
        }

    def alive(self) -> int:
        """How many have a process of their own, as far as anybody said."""
        return sum(map(self._has_process, self.open))

    def _has_process(self, task: TaskId) -> bool:
        return self.records[task].state is not TaskState.ENDED

    def over(self, task: TaskId) -> None:
        """Nothing more can happen to it."""
        self.open.discard(task)
        self.undecided.discard(task)
        self.starting.discard(task)

    def ended(self, task: TaskId) -> bool:
        """Its process is over. Whether the job's end hung on it."""
        decides = task in self.undecided
        self.undecided.discard(task)
        return decides

    def to_stop(self, but: Collection[TaskId] = ()) -> None:
        """The job is over: what runs is to be stopped, what was not started never will be.

        Args:
            but: these go on.
        """
        for task, record in self.records.items():
            if task in but:
                continue
            if record.state is TaskState.PENDING:
                record.move(TaskState.CANCELLED, "the job was over")
                record.reason = Reason.NEVER_STARTED
                self.over(record.task)
            elif record.state in (TaskState.STARTING, TaskState.RUNNING):
                record.move(TaskState.STOPPING, "the job is over")

    def stops(self, ladder: Ladder, ended: bool, but: Collection[TaskId] = ()) -> list[StopTasks]:
        """Orders to end them, one a host.

        Args:
            ladder: how.
            ended: also those whose own process is over; what they left behind is on a ladder already.
            but: not these.
        """
        orders = []
        for host in self._by_host:
            open_here = (task for task in self.open_on(host) if task not in but)
            tasks = tuple(task for task in open_here if ended or self._has_process(task))
            if tasks:
                orders.append(StopTasks(host, tasks, ladder))
        return orders
