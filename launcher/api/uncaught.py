"""A failure that nobody catches ends the program with Python's own report: not with lines that were just
shown.

What a function raises is shown when its node prints it, and the exception has all of it too: for a notebook,
a log, a mail. In a script both would come out at the same place, one below the other.
"""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from launcher.errors import TaskFailed
from launcher.job import RunPaths, TaskId

#: The failure whose traceback was shown, and its text without.
_shown: tuple[Callable[[], BaseException | None], str] = (lambda: None, "")


def expect(error: BaseException | None, output: str) -> None:
    """If the traceback of this failure was just shown where Python's own goes, let Python only refer to it.

    Args:
        error: what the job has failed of.
        output: the last of what was shown of the nodes' output, as ``launch`` prints it.
    """
    global _shown
    if not isinstance(error, TaskFailed) or not _is_in(error, output) or not _one_place():
        return
    log = RunPaths(error.run_dir).log(TaskId(error.task))
    text = str(error).partition("\n")[0]
    _shown = weakref.ref(error), f"{text}\n  its traceback is above, among the output, and in {log}"
    if sys.excepthook is sys.__excepthook__:  # whoever has one of his own shows what he likes
        sys.excepthook = _report


def _report(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    found, text = _shown
    if found() is error:
        error.args = (text,)
    sys.__excepthook__(kind, error, frames)


def _is_in(error: TaskFailed, output: str) -> bool:
    """Whether the task's lines in the output have all of its traceback."""
    lines = re.findall(rf"^(?:\S+ )?{re.escape(error.task)} +\| (.*)$", output, re.MULTILINE)
    return error.traceback.strip() != "" and error.traceback.strip() in "\n".join(lines)


def _one_place() -> bool:
    """Whether what the program prints and what Python says of its end come out at the same terminal, or
    file."""
    streams: list[Any] = [sys.stdout, sys.stderr]
    if streams != [sys.__stdout__, sys.__stderr__]:
        return False
    try:
        return os.path.samestat(*(os.fstat(stream.fileno()) for stream in streams))
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        return False
