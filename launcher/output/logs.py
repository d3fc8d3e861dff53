"""Reads files of a run, even while they grow.

``launch logs``, ``launch attach`` and the failure report use it. The folder may belong to another user, who
could put a pipe or a link in the place of a file, so only regular files are read.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import sys
import time
from typing import BinaryIO

from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError
from launcher.common.text import shortened
from launcher.common.trusted_io import open_regular
from launcher.job import RunPaths
from launcher.output.lines import ATTEMPT_MARK_PATTERN, LineCutter, clean_lines

#: How much of the end of a log is read for its last lines.
_TAIL_BYTES = 64 * 1024
_MAX_LINE_CHARACTERS = 500
_READ_BYTES = 1 << 18


def content(path: str) -> bytes:
    """Return the content of a file. Empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError:
        return b""


def tail(path: str, size: int = _TAIL_BYTES) -> tuple[bytes, bool]:
    """Return the end of the last attempt's output in a log.

    Args:
        path: The path of the log.
        size: How many bytes to read at most.

    Returns:
        The bytes, empty if the log cannot be read. Whether the output of this attempt is longer.
    """
    try:
        with open_regular(path, links=False) as file:
            start = max(0, os.fstat(file.fileno()).st_size - size)
            file.seek(start)
            data = file.read(size)
    except OSError:
        return b"", False
    # A line marks the start of each later attempt. The search for its pattern is slow.
    marks = list(re.finditer(ATTEMPT_MARK_PATTERN, data)) if b"launch: attempt" in data else []
    return (data[marks[-1].end() :], False) if marks else (data, start > 0)


def last_lines(root: str, task: str, count: int = sys.maxsize, size: int = _TAIL_BYTES) -> list[str]:
    """Return the last lines of a task, without control sequences and shortened.

    Args:
        root: The folder of the run.
        task: The name of the task.
        count: How many lines to return at most.
        size: How many bytes of the log to read at most.
    """
    return shown_lines(tail(RunPaths(root).log(TaskId(task)), size)[0].decode("utf-8", "replace"), count)


def shown_lines(text: str, count: int) -> list[str]:
    """Return the last lines of a text, without control sequences and shortened.

    Args:
        text: The text.
        count: How many lines to return at most.
    """
    lines = clean_lines(text.encode(), is_cut=False)
    return [shortened(line, _MAX_LINE_CHARACTERS) for line in lines[-count:]]


class GrowingLog:
    """A log that grows, and that may not exist yet. It is open only while it is read, as a run may have many.

    Without a label it is copied byte for byte into a file or pipe. With a label, and to a terminal, it is
    written in lines as on the console.

    Args:
        path: The path of the log.
        label: The label of the task before each line. Empty if the lines get none.
        lines: The number of last lines to start with. None for the whole log.
        is_terminal: Whether a terminal shows it.
    """

    def __init__(
        self, path: str, label: str = "", lines: int | None = None, *, is_terminal: bool = False
    ) -> None:
        self._path = path
        #: The number of last lines to start with. None for the whole log, and after the first read.
        self._start_lines = lines
        #: How many bytes of the log were read.
        self._offset = 0
        # The text before each line, and before a later part of a line whose start was shown unfinished.
        first, later = (f"{label}{mark}".encode(errors="surrogateescape") for mark in (" | ", " + "))
        self._cutter = LineCutter(first if label else b"", later if label else b"", keep_colours=is_terminal)
        #: Whether it is copied byte for byte.
        self._is_raw = not label and not is_terminal

    def take_label(self, other: GrowingLog) -> None:
        """Use the label of another log from now on, because the labels of all logs have become wider."""
        self._cutter.prefix = other._cutter.prefix
        self._cutter.continued_prefix = other._cutter.continued_prefix

    def write(self, out: BinaryIO) -> bool:
        """Write what was added to the log since the last call, up to a limit.

        Args:
            out: Where to write it.

        Returns:
            Whether anything was added.

        Raises:
            LaunchError: The log cannot be read.
        """
        data, now = self._read(), time.monotonic()
        if self._is_raw:
            out.write(data)
        else:  # If nothing was added, an unfinished line may be due.
            out.write(self._cutter.feed(data, now) if data else self._cutter.snapshot(now))
        return bool(data)

    def write_rest(self, out: BinaryIO) -> None:
        """Write the rest of the log, and its last line even if it has no newline."""
        while self.write(out):
            pass
        self.write_line(out)

    def write_line(self, out: BinaryIO) -> None:
        """Write the last line of a log that no longer grows, if the line has no newline."""
        out.write(self._cutter.end())

    def _read(self) -> bytes:
        """Return the next bytes of the log. Empty if there are none, or if it does not exist yet.

        Raises:
            LaunchError: The log cannot be read.
        """
        try:
            status, data = os.lstat(self._path), b""
            # To open anything else than a regular file raises the error for the user.
            if status.st_size > self._offset or not stat.S_ISREG(status.st_mode):
                with open_regular(self._path, links=False) as file:
                    lines = self._start_lines
                    start = self._offset if lines is None else _start_of_last(lines, file)
                    file.seek(start)
                    data = file.read(_READ_BYTES)
                self._offset = start + len(data)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise LaunchError(f"cannot read {self._path!r}: {error.strerror}") from error
        self._start_lines = None
        return data


def _start_of_last(lines: int, file: BinaryIO) -> int:
    """Return the offset of the last lines of a file, the last of which may lack a newline.

    Args:
        lines: The number of lines.
        file: The file, which is open for reading.
    """
    size = os.fstat(file.fileno()).st_size
    if not size:
        return 0
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as text:
        newline_at = size - 1  # A newline at the end does not count.
        for _ in range(lines):
            newline_at = text.rfind(b"\n", 0, newline_at)
            if newline_at < 0:  # The file has fewer lines, so the result is 0.
                break
        return newline_at + 1
