"""Tasks that may end by themselves when the job is done: an evaluator, a worker after its chief."""

from __future__ import annotations

from launcher.job import TaskId
from launcher.report import TaskState
from launcher.supervisor import messages
from launcher.supervisor.tasks import TaskRecord, Tasks
from launcher.text import listed

#: Seconds of waiting before the first message, then between two messages.
PATIENCE, REPEAT = 2.0, 10.0


class Draining:
    """Which tasks may still go on, and for how long.

    Args:
        tasks: the job's.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        #: Seconds since the job was done: passed, and reported to the user.
        self._passed = 0.0
        self._reported = 0.0
        #: Seconds that will have passed when the timer that was set last fires.
        self._next = 0.0

    def going_on(self) -> tuple[TaskId, ...]:
        """Tasks that have time left, and have not ended."""
        return tuple(task for task, record in self._tasks.records.items() if self._goes_on(record))

    def _goes_on(self, record: TaskRecord) -> bool:
        return record.drain > self._passed and record.state in (TaskState.STARTING, TaskState.RUNNING)

    def works(self) -> bool:
        """Whether tasks that are not services are among them."""
        return any(not record.service and self._goes_on(record) for record in self._tasks.records.values())

    def staying(self) -> frozenset[TaskId]:
        """These tasks, and those that serve them: sidecars; services while a task that is none goes on.

        A worker can't end well when its ps is stopped. Empty if only serving tasks would be left.
        """
        going_on, works = self.going_on(), self.works()
        records = self._tasks.records.items()
        serving = (task for task, record in records if record.sidecar or (works and record.service))
        return frozenset((*going_on, *serving)) if going_on else frozenset()

    def next_end(self) -> float:
        """Seconds until the time of the next of them is over."""
        self._next = min(self._tasks.records[task].drain for task in self.going_on())
        return self._next - self._passed

    def time_up(self) -> str:
        """The time of some is over: the message for the user, empty if all of them have ended."""
        before = self.going_on()
        self._passed = self._next
        late = self._tasks.named({*before}.difference(self.staying()))
        if not late:
            return ""
        return (
            f"{listed(late)} did not finish within {messages.limit(self._passed)} of the job's end: stopped"
        )

    def waiting_for(self) -> str:
        """``waiting for evaluator/0 to finish (58 s left)``; called at `PATIENCE`, then each `REPEAT`."""
        self._reported += REPEAT if self._reported else PATIENCE
        left = (
            max((self._tasks.records[task].drain for task in self.going_on()), default=0.0) - self._reported
        )
        if left <= 0:
            return ""
        return f"waiting for {listed(self._tasks.named(self.going_on()))} to finish ({left:.0f} s left)"
