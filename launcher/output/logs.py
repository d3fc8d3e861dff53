"""Reads files of a run, even while they grow.

The folder may belong to another user, who could put a pipe or a link in the place of a file.
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

#: Bytes at the end of a log that are read for its last lines; characters of a line that are shown.
_TAIL_BYTES = 64 * 1024
_MAX_LINE_CHARACTERS = 500
#: Bytes of a log that are read at once.
_READ_BYTES = 1 << 18


def content(path: str) -> bytes:
    """Return the content of a file, or nothing if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError:
        return b""


def tail(path: str, size: int = _TAIL_BYTES) -> tuple[bytes, bool]:
    """Return the last bytes of the last attempt's output in a log, and whether there is more of it.

    Empty if the log cannot be read.
    """
    try:
        with open_regular(path, links=False) as file:
            start = max(0, os.fstat(file.fileno()).st_size - size)
            file.seek(start)
            data = file.read(size)
    except OSError:
        return b"", False
    marks = (
        list(re.finditer(ATTEMPT_MARK_PATTERN, data)) if b"launch: attempt" in data else []
    )  # the search is slow
    return (data[marks[-1].end() :], False) if marks else (data, start > 0)


def last_lines(root: str, task: str, count: int = sys.maxsize, size: int = _TAIL_BYTES) -> list[str]:
    """Return the last lines of a task of the run in a folder, without control sequences and shortened."""
    return shown_lines(tail(RunPaths(root).log(TaskId(task)), size)[0].decode("utf-8", "replace"), count)


def shown_lines(text: str, count: int) -> list[str]:
    """Return the last lines of a text, without control sequences, long lines shortened."""
    lines = clean_lines(text.encode(), is_cut=False)
    return [shortened(line, _MAX_LINE_CHARACTERS) for line in lines[-count:]]


class GrowingLog:
    """A log that grows, and may not exist yet. It is open only while it is read, as a run may have many.

    Without a label it is copied byte for byte into a file or pipe. With a label, and to a terminal, it is
    written in lines as on the console.

    Args:
        path: The file.
        label: The label of the task, if its lines shall have one.
        lines: The number of last lines to start with. By default all are written.
        is_terminal: Whether a terminal shows it.
    """

    def __init__(
        self, path: str, label: str = "", lines: int | None = None, *, is_terminal: bool = False
    ) -> None:
        self._path = path
        self._lines = lines
        #: How many bytes of it were read.
        self._at = 0
        first, later = (f"{label}{mark}".encode(errors="surrogateescape") for mark in (" | ", " + "))
        self._cutter = LineCutter(first if label else b"", later if label else b"", keep_colours=is_terminal)
        self._is_raw = not label and not is_terminal

    def take_label(self, other: GrowingLog) -> None:
        """Have the label of another log from now on."""
        new, cutter = other._cutter, self._cutter
        cutter.prefix, cutter.continued_prefix = new.prefix, new.continued_prefix

    def write(self, out: BinaryIO) -> bool:
        """Write the bytes since the last call, up to a limit. Returns whether there were any.

        Raises:
            LaunchError: The log cannot be read.
        """
        data, now = self._read(), time.monotonic()
        if self._is_raw:
            out.write(data)
        else:
            out.write(self._cutter.feed(data, now) if data else self._cutter.snapshot(now))
        return bool(data)

    def write_rest(self, out: BinaryIO) -> None:
        """Write the rest of the log, also a last line without a newline."""
        while self.write(out):
            pass
        self.write_line(out)

    def write_line(self, out: BinaryIO) -> None:
        """Write the last line of a log that is complete, if it has no newline."""
        out.write(self._cutter.end())

    def _read(self) -> bytes:
        try:
            status, data = os.lstat(self._path), b""
            if status.st_size > self._at or not stat.S_ISREG(status.st_mode):
                with open_regular(self._path, links=False) as file:
                    start = self._at if self._lines is None else _start_of_last(self._lines, file)
                    file.seek(start)
                    data = file.read(_READ_BYTES)
                self._at = start + len(data)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise LaunchError(f"cannot read {self._path!r}: {error.strerror}") from error
        self._lines = None
        return data


def _start_of_last(lines: int, file: BinaryIO) -> int:
    """Return the offset of the last ``lines`` lines of a file; the last one may have no newline."""
    size = os.fstat(file.fileno()).st_size
    if not size:
        return 0
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as text:
        at = size - 1  # a newline at the end does not count
        for _ in range(lines):
            at = text.rfind(b"\n", 0, at)
            if at < 0:
                break
        return at + 1
