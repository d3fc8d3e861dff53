"""Who may go on to its own end when the job is done: an evaluator, a worker that a chief has left."""

from __future__ import annotations

from launcher.job import TaskId
from launcher.report import TaskState
from launcher.supervision import waiting, wording
from launcher.supervision.record import Record
from launcher.supervision.roster import Roster
from launcher.text import listed

_WITH_A_PROCESS = (TaskState.STARTING, TaskState.RUNNING)


class Draining:
    """Says who may still go on, and for how long.

    Args:
        tasks: the job's.
    """

    def __init__(self, tasks: Roster) -> None:
        self._tasks = tasks
        #: Seconds since the job was done: those that are over, and those of which the user knows.
        self._over = 0.0
        self._told = 0.0
        #: How many will be over when the timer that was set last fires.
        self._until = 0.0

    def going_on(self) -> tuple[TaskId, ...]:
        """Those that have time left, and have not ended."""
        return tuple(task for task, record in self._tasks.records.items() if self._goes_on(record))

    def _goes_on(self, record: Record) -> bool:
        return record.drain > self._over and record.state in _WITH_A_PROCESS

    def works(self) -> bool:
        """Whether others than services are among them."""
        return any(not record.service and self._goes_on(record) for record in self._tasks.records.values())

    def staying(self) -> frozenset[TaskId]:
        """Those, and who serves them: sidecars, and services while others than services go on.

        A worker can't end well when its ps is stopped under it. Nobody, if it would be only those who serve.
        """
        going_on, works = self.going_on(), self.works()
        records = self._tasks.records.items()
        serving = (task for task, record in records if record.sidecar or (works and record.service))
        return frozenset((*going_on, *serving)) if going_on else frozenset()

    def next_end(self) -> float:
        """Seconds until the time of the next of them is over: for a timer that is set now."""
        self._until = min(self._tasks.records[task].drain for task in self.going_on())
        return self._until - self._over

    def time_up(self) -> str:
        """The time of some is over; what is to be said of them: nothing of those who stay to serve others.

        Whose time it was may have ended by itself meanwhile; the others have what is left of theirs.
        """
        before = self.going_on()
        self._over = self._until
        late = self._tasks.named({*before}.difference(self.staying()))
        if not late:
            return ""
        return f"{listed(late)} did not finish within {wording.limit(self._over)} of the job's end: stopped"

    def words(self) -> str:
        """``waiting for evaluator/0 to finish (58 s left)``; to be called when patience is at its end."""
        self._told += waiting.REPEAT if self._told else waiting.PATIENCE
        left = max((self._tasks.records[task].drain for task in self.going_on()), default=0.0) - self._told
        if left <= 0:
            return ""
        return f"waiting for {listed(self._tasks.named(self.going_on()))} to finish ({left:.0f} s left)"
