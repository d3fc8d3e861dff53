"""Which processes belong to which task, whatever they did to get away.

A child subreaper inherits every orphan below it, so all that a task ever started is a descendant of its main
process or of the agent. An orphan is recognized by its tag (`launcher.agent.processes`), which it can't lose
by accident, else by its session. One without either belongs to no task, unless there is only one task: it
ends when the agent closes.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Set, Tuple

from launcher.agent import processes
from launcher.agent.processes import Process
from launcher.job import TaskId

#: By task; ``None``: those that belong to no task.
Orphans = Dict[Optional[TaskId], List[Process]]


class Families:
    """Follows main processes, and finds the other processes of their tasks."""

    def __init__(self) -> None:
        self._children: Set[int] = set()
        self._sessions: Dict[int, TaskId] = {}
        self._tags: Dict[int, TaskId] = {}
        self._known: Dict[Tuple[int, int], Optional[TaskId]] = {}

    def add(self, task: TaskId, pid: int, tag: int) -> None:
        """``pid`` is the main process of ``task``; what it starts carries this tag (0: none)."""
        self._children.add(pid)
        self._sessions[pid] = task
        self._tags[tag or -pid] = task

    def ignore(self, pid: int) -> None:
        """``pid`` is a child of ours that belongs to no task."""
        self._children.add(pid)

    def child_ended(self, pid: int) -> None:
        """A child that we started was reaped; its number may be used again, its session lives on."""
        self._children.discard(pid)

    def forget(self, task: TaskId) -> None:
        """The task is gone."""
        self._sessions = {pid: other for pid, other in self._sessions.items() if other != task}
        self._tags = {tag: other for tag, other in self._tags.items() if other != task}
        if not self._sessions:
            self._known.clear()

    def orphans(self) -> Orphans:
        """The living orphans that the agent inherited."""
        found: Orphans = {}
        for pid in processes.children_of(os.getpid()):
            process = None if pid in self._children else processes.look_at(pid)
            if process is not None and not process.ended:
                found.setdefault(self._owner(process), []).append(process)
        return found

    def may_be_more(self) -> bool:
        """Whether the last look may have missed a process.

        Only an orphan inherited during the look can be missed; then its parent ended and was not reaped yet.
        """
        return bool(processes.ended_child())

    def members(self, main: Optional[int], orphans: List[Process]) -> List[Process]:
        """Everything alive of one task: its main process (unless reaped), its orphans, all below them."""
        roots = list(orphans)
        process = None if main is None else processes.look_at(main)
        if process is not None:
            roots.insert(0, process)
        below = [child for root in roots for child in processes.descendants_of(root.pid)]
        return [process for process in (*roots, *below) if not process.ended]

    def _owner(self, process: Process) -> Optional[TaskId]:
        key = (process.pid, process.start)
        if key not in self._known:
            self._known[key] = self._find_owner(process)
        return self._known[key]

    def _find_owner(self, process: Process) -> Optional[TaskId]:
        owner = self._tags.get(processes.tag_of(process.pid)) or self._sessions.get(process.session)
        tasks = set(self._sessions.values())
        return tasks.pop() if owner is None and len(tasks) == 1 else owner
