"""One task as the agent sees it, and how far its end has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.events import Ladder
from launcher.job import TaskId

if TYPE_CHECKING:
    from typing import Optional, Set, Tuple

SIGKILL = 9


class Ending:
    """Climbs a stop ladder: which signal is due, whether it was sent, when the next one is due.

    Args:
        ladder: the rungs, ``(signal, seconds)``.
        now: monotonic seconds.
    """

    def __init__(self, ladder: Ladder, now: float) -> None:
        self._ladder = ladder
        self._rung = 0
        self._until = now + ladder[0][1]
        #: Whether the present rung's signal was sent, and told.
        self.sent = False
        #: The process group that got it as a whole.
        self.group: Optional[int] = None

    @property
    def signal(self) -> int:
        """The signal of the present rung."""
        return self._ladder[self._rung][0]

    def climb(self, now: float) -> bool:
        """Go up a rung if its time has come; ``False``: there is none left."""
        if now < self._until:
            return True
        if self._rung + 1 == len(self._ladder):
            return False
        self._rung += 1
        self._until = now + self._ladder[self._rung][1]
        self.sent = False
        self.group = None
        return True

    def next_look(self, now: float, killing: float, asking: float) -> float:
        """When to look at the task again: these many seconds later, by rung, but not after its time."""
        due = min(self._until, now + (killing if self.signal == SIGKILL else asking))
        return due if due > now else now + killing


class Task:
    """A task that was started and is not gone.

    Args:
        task, attempt: its name, and which start of it this is.
        pid: its main process, leader of its session and group.
        output: reading end of what it prints.
        ladder: how what it leaves behind is ended.
    """

    def __init__(self, task: TaskId, attempt: int, pid: int, output: int, ladder: Ladder) -> None:
        self.id = task
        self.attempt = attempt
        self.pid = pid
        self.output: Optional[int] = output
        self.ladder = ladder
        #: The main process was reaped.
        self.exited = False
        #: A signal of ours went to it before it was reaped.
        self.signalled = False
        #: No process of it is left.
        self.empty = False
        self.ending: Optional[Ending] = None
        #: Processes it left behind that we ended.
        self.leftovers: Set[int] = set()
        self.unkillable: Tuple[int, ...] = ()

    @property
    def main(self) -> Optional[int]:
        """The main process's pid while it is ours to signal: reaped ones may be somebody else."""
        return None if self.exited else self.pid
