"""TensorFlow's start-up notices: harmless lines that say nothing about the user's program.

A terminal shows only how many there were: `TaskFolding` leaves them out for the console, and `Folding` counts
them. Logs keep them. docs/tasks.md contains the same list.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from launcher.common.cluster import TaskId
from launcher.common.text import plural
from launcher.package_data import read_table

#: A notice that contains this continues with options of a session, up to an empty line.
_OPTIONS_START = b"] SessionOptions: "
#: Matches a message of TensorFlow's C++ code that is not an error, in the forms of all its versions.
_MESSAGE_PATTERN = r"(?:[\d-]{10} [\d:.]+: )?[IW](?:\d{4} [\d:.]+ +\d+)? [\w/.]+\.(?:cc|h):\d+\] "
_OPTION_PATTERN = (
    rb"(?:\w+ \{|\}|  .+"
    rb"|(?:allow|device|inter|intra|isolate|log_device|operation|placement|share|use_per)_\w+: .+)$"
)


@functools.cache
def _patterns() -> dict[str, bytes]:
    """Return the pattern of notices about the build of TensorFlow, ``build``, and of all notices, ``all``."""
    notices = read_table("output/notices.toml")
    build, server = "|".join(notices["build"]), "|".join(notices["server"])
    return {"build": build.encode(), "all": f"{build}|{server}".encode()}


def is_about_the_build(line: str) -> bool:
    """Return whether a line is a notice about the build of TensorFlow, which never explains a failure."""
    return re.search(_patterns()["build"], line.encode("utf-8", "replace")) is not None


def last_of_program(lines: Sequence[str]) -> str:
    """Return the last line that is not a notice of TensorFlow, or the last line if all are notices.

    Args:
        lines: The lines of a task's output, in order.

    Returns:
        The line. Empty if there are no lines.
    """
    number = len(lines) - 1
    while number >= 0:
        line = lines[number]
        is_notice = re.search(_patterns()["all"], line.encode()) or re.match(_MESSAGE_PATTERN, line)
        if line and not is_notice:
            # It may be one of the options of a session, before which a notice stands.
            first = number
            while first and re.match(_OPTION_PATTERN, lines[first].encode()):
                first -= 1
            if _OPTIONS_START not in lines[first].encode():
                return line
            number = first
        number -= 1
    return lines[-1] if lines else ""


#: Notices are looked for among this many lines at the start of a task's output.
_START_LINES = 200

_TRACEBACK = b"Traceback (most recent call last):"
_EXCEPTION = re.compile(rb"[A-Za-z_][\w.]*(?::|$)")


class Folding:
    """The counter of the notices that were left out in a job."""

    def __init__(self) -> None:
        #: The number of notices, and the tasks that have printed them.
        self._notices = 0
        self._tasks: set[TaskId] = set()

    def count(self, task: TaskId) -> None:
        """Count one notice of a task."""
        self._notices += 1
        self._tasks.add(task)

    def summary(self) -> str:
        """Return one message about all notices that were left out. Empty if there were none."""
        if not self._notices:
            return ""
        notices, tasks = plural(self._notices, "start-up notice"), plural(len(self._tasks), "task")
        verb = "is" if self._notices == 1 else "are"
        return f"{notices} of TensorFlow ({tasks}) {verb} in the logs only; --verbose shows them"


class TaskFolding:
    """The filter that leaves out the notices among the lines of one attempt of a task.

    Args:
        task: The task.
        prefix: The text with which each line starts.
        folding: Counts the notices of the job.
    """

    def __init__(self, task: TaskId, prefix: bytes, folding: Folding) -> None:
        self._task, self._prefix, self._folding = task, prefix, folding
        #: How many more lines are looked at. Notices come at the start of the output only.
        self._start_left = _START_LINES
        #: Whether the last line belonged to a traceback, and to a notice that continues with options of a
        #: session.
        self._in_traceback = self._in_options = False

    def feed(self, lines: bytes) -> bytes:
        """Return the lines to show among these, each of which must be complete."""
        if not self._start_left:  # Notices are looked for at the start only.
            return lines
        return b"".join(line for line in lines.splitlines(keepends=True) if not self._is_notice(line))

    def _is_notice(self, line: bytes) -> bool:
        """Return whether the next line of the task is to be left out, and count it if so.

        Only the first lines of a task are looked at, because TensorFlow prints its notices at the start.
        """
        if not self._start_left:
            return False
        self._start_left -= 1
        text = line.removeprefix(self._prefix).rstrip(b"\n")
        if self._in_traceback:
            # A traceback shows lines of the program, which may contain the text of a notice.
            self._in_traceback = not _EXCEPTION.match(text)  # The line with the exception is the last one.
            return False
        self._in_traceback = text.startswith(_TRACEBACK)
        if not self._belongs_to_notice(text):
            return False
        self._folding.count(self._task)
        return True

    def _belongs_to_notice(self, line: bytes) -> bool:
        """Return whether the next line is a notice, or one of the options with which a notice continues."""
        if self._in_options:
            self._in_options = re.match(_OPTION_PATTERN, line) is not None
            # The empty line after the options belongs to the notice, too.
            if self._in_options or not line:
                return True
        self._in_options = _OPTIONS_START in line
        return re.search(_patterns()["all"], line) is not None
