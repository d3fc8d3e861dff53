"""One task as the agent sees it, and how far its end has come."""

from __future__ import annotations

from typing import Iterable, List, Optional, Set, Tuple

from launcher.agent.kernel import Process
from launcher.model.orders import Ladder
from launcher.model.task import TaskId

SIGKILL = 9


class Ending:
    """Climbs a stop ladder: which signal is due, who had it already, when the next one is due.

    Args:
        ladder: the rungs, ``(signal, seconds)``.
        now: monotonic seconds.
    """

    def __init__(self, ladder: Ladder, now: float) -> None:
        self._ladder = ladder
        self._rung = 0
        self._had: Set[Tuple[int, int]] = set()
        self._group_had = False
        self.until = now + ladder[0][1]
        #: Whether the present rung's signal was reported yet.
        self.told = False

    @property
    def signal(self) -> int:
        """The signal of the present rung."""
        return self._ladder[self._rung][0]

    def climb(self, now: float) -> bool:
        """Go up a rung if its time has come; ``False``: there is none left."""
        if now < self.until:
            return True
        if self._rung + 1 == len(self._ladder):
            return False
        self._rung += 1
        self._had.clear()
        self._group_had = False
        self.told = False
        self.until = now + self._ladder[self._rung][1]
        return True

    def group_due(self) -> bool:
        """Whether the main process's group is to be signalled as a whole: once a rung, first thing."""
        due = not self._group_had
        self._group_had = True
        return due

    def group_had(self, members: Iterable[Process], group: int) -> None:
        """The signal went to this process group."""
        self._had.update((process.pid, process.start) for process in members if process.group == group)

    def due(self, members: Iterable[Process]) -> List[Process]:
        """Who is to get the present signal now; SIGKILL is sent until it has worked."""
        if self.signal == SIGKILL:
            return list(members)
        due = [process for process in members if (process.pid, process.start) not in self._had]
        self._had.update((process.pid, process.start) for process in due)
        return due


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
        #: When its output is closed even if somebody still holds the other end (monotonic).
        self.drain_until: Optional[float] = None

    @property
    def main(self) -> Optional[int]:
        """The main process's pid while it is ours to signal: reaped ones may be somebody else."""
        return None if self.exited else self.pid
