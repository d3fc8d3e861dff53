"""Folds lines of tasks on a terminal: start-up notices, and tracebacks that another task has shown."""

from __future__ import annotations

import re

from launcher.output.notices import StartUp
from launcher.task_id import TaskId
from launcher.text import counted

#: Lines of a task's output, from its start on, among which notices are looked for.
_START = 200
#: The longest traceback that is held, in lines and bytes; seconds until its lines are shown anyway.
_LINES, _BYTES, _SECONDS = 100, 16 * 1024, 2.0
#: Number of tracebacks that are remembered.
_REMEMBERED = 20

_TRACEBACK = b"Traceback (most recent call last):"
_EXCEPTION = re.compile(rb"[A-Za-z_][\w.]*(?::|$)")


class Folding:
    """What was folded in a job."""

    def __init__(self) -> None:
        self._notices = 0
        self._tasks: set[TaskId] = set()
        #: The first task that has shown a traceback.
        self._shown: dict[bytes, TaskId] = {}

    def count(self, task: TaskId) -> None:
        """Count a notice of a task."""
        self._notices += 1
        self._tasks.add(task)

    def first(self, task: TaskId, traceback: bytes) -> TaskId:
        """The task that was the first to show this traceback: perhaps this one."""
        if len(self._shown) < _REMEMBERED:
            self._shown.setdefault(traceback, task)
        return self._shown.get(traceback, task)

    def summary(self) -> str:
        """One line about all notices; empty if there were none."""
        if not self._notices:
            return ""
        notices, tasks = counted(self._notices, "start-up notice"), counted(len(self._tasks), "task")
        verb = "is" if self._notices == 1 else "are"
        where = f"{verb} in the logs only; --verbose shows them"
        return f"{notices} of TensorFlow ({tasks}) {where}"


class TaskFolding:
    """Folds the lines of one attempt of a task.

    Args:
        task: of the lines.
        prefix: that each line begins with.
        folding: of the job.
    """

    def __init__(self, task: TaskId, prefix: bytes, folding: Folding) -> None:
        self._task, self._prefix, self._folding = task, prefix, folding
        self._start_up, self._start_left = StartUp(), _START
        #: The lines of a traceback, until its last line comes; their bytes; when they are shown anyway.
        self._held: list[bytes] = []
        self._size = 0
        self._due = 0.0

    @property
    def holds(self) -> bool:
        """Whether `release` must be called later."""
        return bool(self._held)

    def feed(self, lines: bytes, now: float) -> bytes:
        """Take complete lines; return the lines to show."""
        if not self._start_left and not self._held and _TRACEBACK not in lines:
            return lines
        return b"".join(self._take(line, now) for line in lines.splitlines(keepends=True))

    def release(self, now: float = float("inf")) -> bytes:
        """The lines that were held for too long."""
        if now < self._due:
            return b""
        held, self._held, self._size = b"".join(self._held), [], 0
        return held

    def _take(self, line: bytes, now: float) -> bytes:
        text = line.removeprefix(self._prefix).rstrip(b"\n")
        if self._start_left:
            self._start_left -= 1
            if not self._held and self._start_up.is_notice(text):
                self._folding.count(self._task)
                return b""
        if not self._held:
            if not text.startswith(_TRACEBACK):
                return line
            self._due = now + _SECONDS
        self._held.append(line)
        self._size += len(line)
        if len(self._held) == _LINES or self._size > _BYTES:
            return self.release()
        return self._folded() if _EXCEPTION.match(text) and len(self._held) > 1 else b""

    def _folded(self) -> bytes:
        """The traceback, or one line instead of it."""
        count = len(self._held)
        lines = self.release()
        first = self._folding.first(self._task, lines.replace(self._prefix, b""))
        if first == self._task:
            return lines
        text = f"(the same traceback as {first}, {count} lines; --verbose shows it)"
        return self._prefix + text.encode() + b"\n"
