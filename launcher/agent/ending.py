"""Ending tasks: every process of them, all together, rung by rung."""

from __future__ import annotations

import os
import signal
from typing import Callable, Dict, List, Optional, Tuple

from launcher.agent import kernel
from launcher.agent.family import Family
from launcher.agent.kernel import Process
from launcher.agent.task import Ending, Task
from launcher.model.orders import Ladder
from launcher.model.task import TaskId

#: Seconds between two looks at tasks that are ending: children that are not ours die unseen.
LOOK = 0.02


class Endings:
    """The tasks that are being ended.

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

    def next_look(self, now: float) -> Optional[float]:
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
        self._signal_groups()
        orphans = self._family.orphans()
        for task, ending in self._endings():
            members = self._family.members(task.main, orphans.get(task.id, []))
            if members and task in exhausted:
                self._give_up(task, members)
            elif members or not task.exited:
                self._send(task, ending, members)
            else:
                self._let_go(task)
        self._next = now + LOOK

    def _endings(self) -> List[Tuple[Task, Ending]]:
        return [(task, task.ending) for task in self._tasks.values() if task.ending is not None]

    def _signal_groups(self) -> None:
        """First a rung's signal to the main processes' groups: one system call a task, so all together."""
        for task, ending in self._endings():
            if task.main is not None and ending.group_due():
                _prepare(ending.signal, task.pid)
                task.signalled = _signal_group(task.pid, ending.signal) or task.signalled

    def _send(self, task: Task, ending: Ending, members: List[Process]) -> None:
        if not ending.told and task.main is not None:
            ending.group_had(members, task.pid)
        due = ending.due(members)
        for process in due:
            _prepare(ending.signal, process.pid)
            kernel.send(process, ending.signal)
        for process in members:
            if process.state == "T":  # stopped: it would never notice
                kernel.send(process, signal.SIGCONT)
        if task.exited:
            task.leftovers.update(process.pid for process in due)
        if not ending.told and (members or task.signalled):
            ending.told = True
            self._tell(task, ending.signal, len(members))

    def _give_up(self, task: Task, members: List[Process]) -> None:
        """Not even SIGKILL helped (uninterruptible sleep): say so instead of waiting for ever."""
        task.unkillable = tuple(process.pid for process in members)
        task.exited = True
        self._let_go(task)

    def _let_go(self, task: Task) -> None:
        task.ending = None
        del self._tasks[task.id]
        self._done.append(task)


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except OSError:  # it runs as somebody else by now
        return False
    return True


def _prepare(number: int, pid: int) -> None:
    """SIGABRT is sent for the stacks it makes Python print, not for a core of 500 MB."""
    if number != signal.SIGABRT:
        return
    import resource

    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        # 1, not 0: a core that is piped to a program is only left out at exactly 1 (core(5)).
        resource.prlimit(pid, resource.RLIMIT_CORE, (min(1, hard) if hard >= 0 else 1, hard))
    except OSError:
        return
