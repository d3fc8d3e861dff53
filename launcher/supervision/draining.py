"""Services that may go on to their own end when the job is done: an evaluator and its last evaluation."""

from __future__ import annotations

from launcher.model.status import TaskState
from launcher.model.task import TaskId
from launcher.supervision import waiting, wording
from launcher.supervision.roster import Roster

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

    def going_on(self) -> tuple[TaskId, ...]:
        """Those that have time left, and have not ended."""
        return tuple(
            task
            for task, record in self._tasks.records.items()
            if record.drain > self._over and record.state in _WITH_A_PROCESS
        )

    def staying(self) -> frozenset[TaskId]:
        """Those, and the sidecars, which serve them; nobody if it is only sidecars."""
        going_on = self.going_on()
        sidecars = (task for task, record in self._tasks.records.items() if record.sidecar)
        return frozenset((*going_on, *sidecars)) if going_on else frozenset()

    def next_end(self) -> float:
        """Seconds until the time of the next of them is over."""
        return min(self._tasks.records[task].drain for task in self.going_on()) - self._over

    def time_up(self) -> str:
        """The time of some is over; what is to be said of them."""
        before = self.going_on()
        self._over = min(self._tasks.records[task].drain for task in before)
        late = wording.some(self._tasks.named({*before}.difference(self.going_on())))
        return f"{late} did not finish within {wording.limit(self._over)} of the job's end: stopped"

    def words(self) -> str:
        """``waiting for evaluator/0 to finish (58 s left)``; to be called when patience is at its end."""
        self._told += waiting.REPEAT if self._told else waiting.PATIENCE
        left = max((self._tasks.records[task].drain for task in self.going_on()), default=0.0) - self._told
        if left <= 0:
            return ""
        return f"waiting for {wording.some(self._tasks.named(self.going_on()))} to finish ({left:.0f} s left)"
