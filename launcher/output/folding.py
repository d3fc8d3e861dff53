"""Leaves TensorFlow's start-up notices out of what a terminal shows of the tasks, and counts them."""

from __future__ import annotations

import re

from launcher.common.cluster import TaskId
from launcher.common.text import plural
from launcher.output.tensorflow_notices import StartUp

#: Lines of a task's output, from its start on, among which notices are looked for.
_START_LINES = 200

_TRACEBACK = b"Traceback (most recent call last):"
_EXCEPTION = re.compile(rb"[A-Za-z_][\w.]*(?::|$)")


class Folding:
    """What was folded in a job."""

    def __init__(self) -> None:
        self._notices = 0
        self._tasks: set[TaskId] = set()

    def count(self, task: TaskId) -> None:
        """Count a notice of a task."""
        self._notices += 1
        self._tasks.add(task)

    def summary(self) -> str:
        """One line about all notices; empty if there were none."""
        if not self._notices:
            return ""
        notices, tasks = plural(self._notices, "start-up notice"), plural(len(self._tasks), "task")
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
        self._start_up, self._start_left = StartUp(), _START_LINES
        self._in_traceback = False

    def feed(self, lines: bytes) -> bytes:
        """Take complete lines; return the lines to show."""
        if not self._start_left:
            return lines
        return b"".join(line for line in lines.splitlines(keepends=True) if not self._is_notice(line))

    def _is_notice(self, line: bytes) -> bool:
        if not self._start_left:
            return False
        self._start_left -= 1
        text = line.removeprefix(self._prefix).rstrip(b"\n")
        if self._in_traceback:
            # It shows lines of the program, which may have the text of a notice.
            self._in_traceback = not _EXCEPTION.match(text)
            return False
        self._in_traceback = text.startswith(_TRACEBACK)
        if not self._start_up.is_notice(text):
            return False
        self._folding.count(self._task)
        return True
