"""Which processes belong to which task, whatever they did to get away.

A child subreaper inherits every orphan below it, so all that a task ever started is a descendant of
its main process or of the agent. An orphan is known by its watermark (`launcher.model.watermark`), which
it can't lose by accident, else by its session. One that has neither is nobody's, unless there is but one
task: it goes when the agent closes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.job import TaskId
from launcher.processes import kernel
from launcher.processes.kernel import Process

if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set, Tuple

    Orphans = Dict[Optional[TaskId], List[Process]]


class Family:
    """Follows main processes, and finds what else there is of their tasks."""

    def __init__(self) -> None:
        self._children: Set[int] = set()
        self._sessions: Dict[int, TaskId] = {}
        self._watermarks: Dict[int, TaskId] = {}
        self._known: Dict[Tuple[int, int], Optional[TaskId]] = {}

    def add(self, task: TaskId, pid: int, watermark: int) -> None:
        """``pid`` is the main process of ``task``; what it starts carries this watermark (0: none)."""
        self._children.add(pid)
        self._sessions[pid] = task
        self._watermarks[watermark or -pid] = task

    def ignore(self, pid: int) -> None:
        """``pid`` is a child of ours that belongs to no task."""
        self._children.add(pid)

    def child_ended(self, pid: int) -> None:
        """A child that we started was reaped; its number may be used again, its session lives on."""
        self._children.discard(pid)

    def forget(self, task: TaskId) -> None:
        """The task is gone."""
        self._sessions = {pid: other for pid, other in self._sessions.items() if other != task}
        self._watermarks = {mark: other for mark, other in self._watermarks.items() if other != task}
        if not self._sessions:
            self._known.clear()

    def orphans(self) -> Orphans:
        """What the agent inherited and is alive, by task; ``None``: nobody's."""
        found: Orphans = {}
        for pid in kernel.children_of(os.getpid()):
            process = None if pid in self._children else kernel.look_at(pid)
            if process is not None and not process.ended:
                found.setdefault(self._owner(process), []).append(process)
        return found

    def may_be_more(self) -> bool:
        """Whether the last look may have missed somebody.

        Only who was inherited during the look can be missed, and whoever left him to us ended then and
        was not reaped yet. Ask again after reaping.
        """
        return bool(kernel.ended_child())

    def members(self, main: Optional[int], orphans: List[Process]) -> List[Process]:
        """Everything alive of one task: its main process (unless reaped), its orphans, all below them."""
        roots = list(orphans)
        process = None if main is None else kernel.look_at(main)
        if process is not None:
            roots.insert(0, process)
        below = [child for root in roots for child in kernel.descendants_of(root.pid)]
        return [process for process in (*roots, *below) if not process.ended]

    def _owner(self, process: Process) -> Optional[TaskId]:
        key = (process.pid, process.start)
        if key not in self._known:
            self._known[key] = self._find_owner(process)
        return self._known[key]

    def _find_owner(self, process: Process) -> Optional[TaskId]:
        owner = self._watermarks.get(kernel.watermark_of(process.pid)) or self._sessions.get(process.session)
        tasks = set(self._sessions.values())
        return tasks.pop() if owner is None and len(tasks) == 1 else owner
