"""Reads files of a run, also while they grow.

The folder may belong to another user, who could put a pipe or a link in the place of a file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import BinaryIO

from launcher.job import RunPaths
from launcher.output.lines import clean_lines
from launcher.task_id import TaskId
from launcher.text import shortened

#: Bytes at the end of a log that are read for its last lines; characters of a line that are shown.
_SIZE, _LONGEST = 64 * 1024, 500
_ATTEMPT = re.compile(rb"(?m)^launch: attempt \d+ starts here\n")


def open_regular(path: str, links: bool = True) -> BinaryIO:
    """Open a regular file for reading; refuse a pipe or a device in its place.

    Args:
        path: of the file.
        links: whether the last part of the path may be a link.

    Raises:
        OSError: it does not exist, or is not a regular file.
    """
    if stat.S_ISREG(os.stat(path, follow_symlinks=links).st_mode):  # opening some devices has effects
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
        file = os.fdopen(os.open(path, flags), "rb")
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def content(path: str) -> bytes:
    """The content of a file; empty if it can't be read."""
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError:
        return b""


def tail(path: str) -> tuple[bytes, bool]:
    """The last 64 KiB of the last attempt's output in a log, and whether there is more of it.

    Empty if the log can't be read.
    """
    try:
        with open_regular(path, links=False) as file:
            start = max(0, os.fstat(file.fileno()).st_size - _SIZE)
            file.seek(start)
            data = file.read(_SIZE)
    except OSError:
        return b"", False
    marks = list(_ATTEMPT.finditer(data))
    return (data[marks[-1].end() :], False) if marks else (data, start > 0)


def attempt_mark(attempt: int) -> bytes:
    """The line in a task's log before the output of an attempt."""
    return b"launch: attempt %d starts here\n" % attempt


def last_lines(root: str, task: str, count: int) -> list[str]:
    """The last lines of a task of the run in ``root``, without control sequences, long lines shortened."""
    return shown_lines(tail(RunPaths(root).log(TaskId(task)))[0].decode("utf-8", "replace"), count)


def shown_lines(text: str, count: int) -> list[str]:
    """The last lines of a text, without control sequences, long lines shortened."""
    return [shortened(line, _LONGEST) for line in clean_lines(text.encode(), False)[-count:]]
