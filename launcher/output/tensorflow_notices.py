"""TensorFlow's start-up notices: harmless lines that say nothing about the user's program.

A terminal shows only how many there were: `TaskFolding` leaves them out, and `Folding` counts them. Logs keep
them. docs/tasks.md has the same list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.common.cluster import TaskId
from launcher.common.text import plural

#: Parts of lines, as regular expressions, that TensorFlow 2.4 to 2.21 prints at each start: about its build
#: and this machine. They never explain a failure.
BUILD_NOTICES = (
    r"All log messages before absl::InitializeLog\(\) is called are written to STDERR",
    "oneDNN custom operations are on. You may see slightly different numerical results",
    "This TensorFlow binary is optimized ",
    "To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags",
    "Could not find cuda drivers on your machine, GPU will not be used",
    r"failed call to cuInit: .*(?:CUDA_ERROR_NO_DEVICE|UNKNOWN ERROR \(303\))",
    "TF-TRT Warning: Could not find TensorRT",
    "factory: Attempting to register factory for plugin cu",
    "computation placer already registered. Please check linkage",
)
#: The same about servers and their connections to the other tasks. They may explain why a task waits.
SERVER_NOTICES = (
    "Started server with target: grpc://",
    "Initialize GrpcChannelCache for job ",
    "Initializing CoordinationService",
    "has connected to coordination service. Incarnation: ",
    "Coordination agent has successfully connected",
    r"coordination_service.cc:\d+\] Waiting for \d+/\d+ tasks to connect",
    r"coordination_service.cc:\d+\] Example stragglers:",
    r"^/job:\w+/replica:0/task:\d+$",
    r"Barrier\(WaitForAllTasks::\d+::\d+\) has passed with status: OK",
    r"master.cc:\d+\] Scanning workers for devices: \d+ total workers",
    "MLIR V1 optimization pass is not enabled",
    "Creating (?:a)?sync eager service context with rendezvous_id",
    r"eager_service_impl.cc:\d+\] SessionOptions: ",
)
# Compiled at the first use, which takes 1 ms each: most failures need none of them.
_BUILD_NOTICE_PATTERN = "|".join(BUILD_NOTICES).encode()
_NOTICE_PATTERN = "|".join((*BUILD_NOTICES, *SERVER_NOTICES)).encode()
#: The last one goes on with options of a session, up to an empty line.
_OPTIONS_START = b"] SessionOptions: "
#: A message of TensorFlow's C++ code that is not an error, in the forms of all its versions.
_MESSAGE_PATTERN = r"(?:[\d-]{10} [\d:.]+: )?[IW](?:\d{4} [\d:.]+ +\d+)? [\w/.]+\.(?:cc|h):\d+\] "
_OPTION_PATTERN = (
    rb"(?:\w+ \{|\}|  .+"
    rb"|(?:allow|device|inter|intra|isolate|log_device|operation|placement|share|use_per)_\w+: .+)$"
)


def is_about_the_build(line: str) -> bool:
    """Whether a line is a start-up notice that never explains a failure."""
    return re.search(_BUILD_NOTICE_PATTERN, line.encode("utf-8", "replace")) is not None


def last_of_program(lines: Sequence[str]) -> str:
    """The last line that is not a notice of TensorFlow; if all are, the last one; empty without lines.

    Args:
        lines: of a task's output, in order.
    """
    at = len(lines) - 1
    while at >= 0:
        line = lines[at]
        if line and not re.search(_NOTICE_PATTERN, line.encode()) and not re.match(_MESSAGE_PATTERN, line):
            first = at
            while first and re.match(_OPTION_PATTERN, lines[first].encode()):
                first -= 1
            if _OPTIONS_START not in lines[first].encode():
                return line
            at = first
        at -= 1
    return lines[-1] if lines else ""


class StartUp:
    """Recognizes the start-up notices of one task."""

    def __init__(self) -> None:
        self._in_options = False

    def is_notice(self, line: bytes) -> bool:
        """Whether the task's next line is a notice, or belongs to one.

        Args:
            line: without its newline.
        """
        if self._in_options:
            self._in_options = re.match(_OPTION_PATTERN, line) is not None
            if self._in_options or not line:
                return True
        self._in_options = _OPTIONS_START in line
        return re.search(_NOTICE_PATTERN, line) is not None


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
