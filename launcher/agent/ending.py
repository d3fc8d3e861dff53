"""Ending tasks: every process of them, all together, rung by rung."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from launcher.agent.family import Family
from launcher.agent.task import SIGKILL, Ending, Task
from launcher.events import Ladder
from launcher.job import TaskId
from launcher.processes import kernel
from launcher.processes.kernel import Process

if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Tuple

    _Look = Tuple[Task, Ending, List[Process]]

#: Seconds between two looks at tasks that are being killed: they may start new processes meanwhile.
LOOK = 0.01
#: Seconds between two looks at tasks that are asked to end. Every end is noticed without them, as every
#: orphan is a child of ours; this is for what stopped itself.
SLOW_LOOK = 0.25


class Endings:
    """The tasks that are being ended.

    A signal goes once to each process that is there when its rung begins. One that is started later,
    say to save a checkpoint on SIGTERM, is left alone until the next rung; SIGKILL is for all.

    Args:
        family: knows who belongs to a task.
        tell: called once a rung and task with the task, the signal, and how many got it.
    """

    def __init__(self, family: Family, tell: Callable[[Task, int, int], None]) -> None:
        self._family = family
        self._tell = tell
        self._tasks: Dict[TaskId, Task] = {}
        self._done: List[Task] = []
        self._next = 0.0

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def begin(self, task: Task, ladder: Ladder, now: float) -> None:
        """End ``task`` by this ladder, from its first rung, whatever ladder it was on."""
        task.ending = Ending(ladder, now)
        self._tasks[task.id] = task
        self._next = now

    def next_look(self) -> Optional[float]:
        """When `step` is due (monotonic); ``None``: nothing is being ended."""
        return self._next if self._tasks else None

    def done(self) -> List[Task]:
        """Tasks that have no process any more (or only unkillable ones), each told once."""
        done, self._done = self._done, []
        return done

    def step(self, now: float) -> None:
        """Look at all of them: climb where time is up, send what is due, let go what is over."""
        if not self._tasks:
            return
        exhausted = {task for task, ending in self._endings() if not ending.climb(now)}
        looks = self._look()
        unsure = self._family.may_be_more()
        self._signal_groups(looks)
        for task, ending, members in looks:
            if task in exhausted and (members or not task.exited):
                self._give_up(task, members)
            elif members or not task.exited or unsure:
                self._send(task, ending, members)
            else:
                self._let_go(task)
        self._next = min(
            (ending.next_look(now, LOOK, SLOW_LOOK) for _, ending in self._endings()), default=now
        )

    def _endings(self) -> List[Tuple[Task, Ending]]:
        return [(task, task.ending) for task in self._tasks.values() if task.ending is not None]

    def _look(self) -> List[_Look]:
        orphans = self._family.orphans()
        return [
            (task, ending, self._family.members(task.main, orphans.get(task.id, [])))
            for task, ending in self._endings()
        ]

    def _signal_groups(self, looks: List[_Look]) -> None:
        """First a rung's signal to the main processes' groups: one system call a task, so all together."""
        for task, ending, _ in looks:
            # Each process that gets SIGABRT must be kept from leaving a core first.
            if task.main is not None and not ending.sent and ending.signal != signal.SIGABRT:
                ending.group = _signal_group(task.main, ending.signal)
                task.signalled = task.signalled or ending.group is not None

    def _send(self, task: Task, ending: Ending, members: List[Process]) -> None:
        due = [] if ending.sent and ending.signal != SIGKILL else members
        if ending.signal == SIGKILL:
            kernel.kill_groups(due)
        for process in due:
            if ending.sent or process.group != ending.group:
                self._send_one(task, process, ending.signal)
        for process in members:
            if process.state == "T":  # stopped: it would never notice
                kernel.send(process, signal.SIGCONT)
        if task.exited:
            task.leftovers.update(process.pid for process in due)
        if not ending.sent and (members or task.signalled):
            ending.sent = True
            self._tell(task, ending.signal, len(members))

    def _send_one(self, task: Task, process: Process, number: int) -> None:
        if number == signal.SIGABRT:
            _leave_no_core(process.pid)
        if kernel.send(process, number) and process.pid == task.main:
            task.signalled = True

    def _give_up(self, task: Task, members: List[Process]) -> None:
        """Not even SIGKILL helped: say so instead of waiting for ever.

        It sleeps uninterruptibly; or it is dead, but a debugger has not let go of it.
        """
        task.unkillable = tuple(process.pid for process in members) or (task.pid,)
        task.exited = True
        self._let_go(task)

    def _let_go(self, task: Task) -> None:
        task.ending = None
        del self._tasks[task.id]
        self._done.append(task)


def _signal_group(group: int, number: int) -> Optional[int]:
    """Signal a process group; the group, or ``None`` if it did not get it."""
    try:
        os.killpg(group, number)
    except OSError:  # it runs as somebody else by now
        return None
    return group


def _leave_no_core(pid: int) -> None:
    """SIGABRT is sent for the stacks it makes Python print, not for a core of 500 MB."""
    import resource

    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        # 1, not 0: a core that is piped to a program is only left out at exactly 1 (core(5)).
        resource.prlimit(pid, resource.RLIMIT_CORE, (min(1, hard) if hard >= 0 else 1, hard))
    except OSError:
        return
