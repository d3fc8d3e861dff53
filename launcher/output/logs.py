"""Reads files of a run, even while they grow.

``launch logs``, ``launch attach`` and the failure report use it. The folder may belong to another user, who
could put a pipe or a link in the place of a file, so only regular files are read.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

from launcher.clock_times import time_stamp
from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError
from launcher.common.record import Record
from launcher.common.text import shortened
from launcher.common.trusted_io import open_regular
from launcher.job import RunPaths
from launcher.output.lines import ATTEMPT_MARK_PATTERN, LineCutter, attempt_mark, clean_lines
from launcher.output.log_times import LogTimes
from launcher.output.tensorflow_notices import Folding, NoticeCutter, last_of_program

#: How much of the end of a log is read for its last lines.
_TAIL_BYTES = 64 * 1024
#: The same for its last line only.
_LAST_LINE_BYTES = 8 * 1024
_MAX_LINE_CHARACTERS = 500
_READ_BYTES = 1 << 18


def content(path: str) -> bytes:
    """Return the content of a file. Empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError:
        return b""


def tail(path: str, size: int = _TAIL_BYTES, attempt: int | None = None) -> tuple[bytes, bool]:
    """Return the end of what an attempt of a task has printed.

    Args:
        path: The path of the log.
        size: How many bytes to read at most.
        attempt: The number of an earlier attempt. None for the last one.

    Returns:
        The bytes, empty if the log cannot be read. Whether the output of this attempt is longer.
    """
    try:
        with open_regular(path, links=False) as file:
            end = os.fstat(file.fileno()).st_size
            if attempt is not None:
                # Without the mark of the next attempt nothing is known.
                end = _last_offset(b"\n" + attempt_mark(attempt + 1), file, end)
            start = max(0, end - size)
            file.seek(start)
            data = file.read(end - start)
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


def last_line_of(root: str, task: str) -> str:
    """Return the last line of a task that is no start-up message of TensorFlow; see `last_lines`."""
    return last_of_program(last_lines(root, task, size=_LAST_LINE_BYTES))


def shown_lines(text: str, count: int) -> list[str]:
    """Return the last lines of a text, without control sequences and shortened.

    Args:
        text: The text.
        count: How many lines to return at most.
    """
    lines = clean_lines(text.encode(), is_cut=False)
    return [shortened(line, _MAX_LINE_CHARACTERS) for line in lines[-count:]]


class LogSelection(Record):
    """Which part of a log is shown, and how."""

    #: The number of last lines. None for all.
    lines: int | None = None
    #: Since and until when the part was printed, in seconds since the epoch. None for no limit.
    since: float | None = None
    until: float | None = None
    #: Whether each line gets its time.
    timestamps: bool = False
    #: Counts the start-up messages of TensorFlow that are left out. None to show them.
    folding: Folding | None = None

    @property
    def needs_times(self) -> bool:
        """Whether the index of the log is needed."""
        return self.timestamps or self.since is not None or self.until is not None


#: The whole log without times.
WHOLE_LOG = LogSelection()


class GrowingLog:
    """A log that grows, and that may not exist yet. It is open only while it is read, as a run may have many.

    With all messages, and without a label and times, it is copied byte for byte into a file or pipe.
    Otherwise it is written in lines as on the console. The time of a line is that of its end.

    Args:
        path: The path of the log.
        label: The label of the task before each line. Empty if the lines get none.
        selection: Which part of the log is shown.
        is_terminal: Whether a terminal shows it.
    """

    def __init__(
        self, path: str, label: str = "", selection: LogSelection = WHOLE_LOG, *, is_terminal: bool = False
    ) -> None:
        self._path, self._label, self._selection = path, label, selection
        #: When each part of the log was printed. It is read only if the selection needs times.
        self._times = LogTimes(path)
        #: How many bytes of the log were read or skipped.
        self._offset = 0
        #: Whether it was read before, so its last lines were chosen.
        self._was_read = False
        #: Whether a part of it was written.
        self.has_begun = False
        #: Cuts the log into lines, without start-up messages of TensorFlow if these are to be left out.
        if selection.folding is None:
            self._cutter = LineCutter(b"", b"", keep_colours=is_terminal)
        else:
            self._cutter = NoticeCutter(b"", b"", selection.folding, keep_colours=is_terminal)
        #: Whether it is copied byte for byte.
        self._is_raw = not (label or is_terminal or selection.timestamps or selection.folding)

    def take_label(self, other: GrowingLog) -> None:
        """Use the label of another log from now on, because the labels of all logs have become wider."""
        self._label = other._label

    def write(self, out: BinaryIO) -> bool:
        """Write what was added to the log since the last call, up to a limit.

        Args:
            out: Where to write it.

        Returns:
            Whether anything was added.

        Raises:
            LaunchError: The log cannot be read, or its times are not known.
        """
        data, now = self._read(), time.monotonic()
        if self._is_raw:
            out.write(data)
        elif not data:  # An unfinished line may be due.
            out.write(self._cutter.snapshot(now))
        elif self._selection.timestamps:
            for second, part in self._times.parts(self._offset - len(data), data):
                out.write(self._cut(part, now, f"{time_stamp(second)} "))
        else:
            out.write(self._cut(data, now))
        return bool(data)

    def _cut(self, data: bytes, now: float, time: str = "") -> bytes:
        """Return the lines of a part of the log, each after the time and the label.

        A later part of a line whose start was shown unfinished begins with another mark.
        """
        marks = (" | ", " + ") if self._label else ("", "")
        first, later = (f"{time}{self._label}{mark}".encode(errors="surrogateescape") for mark in marks)
        self._cutter.prefix, self._cutter.continued_prefix = first, later
        return self._cutter.feed(data, now)

    def write_rest(self, out: BinaryIO) -> None:
        """Write the rest of the log, and its last line even if it has no newline."""
        while self.write(out):
            pass
        self.write_line(out)
        # This frees the index that was read, because a large job has many large ones.
        self._times = LogTimes(self._path)

    def write_line(self, out: BinaryIO) -> None:
        """Write the last line of a log that no longer grows, if the line has no newline."""
        out.write(self._cutter.end())

    def _read(self) -> bytes:
        """Return the next bytes of the log. Empty if there are none, or if it does not exist yet.

        Raises:
            LaunchError: The log cannot be read, or its times are not known.
        """
        try:
            status, data = os.lstat(self._path), b""
            if status.st_size < self._offset:  # It was truncated, so all of it is new.
                self._offset = 0
            # To open anything else than a regular file raises the error for the user.
            if status.st_size > self._offset or not stat.S_ISREG(status.st_mode):
                with open_regular(self._path, links=False) as file:
                    start, end = self._next_range(file)
                    file.seek(start)
                    data = file.read(min(_READ_BYTES, end - start))
                self._offset = start + len(data)
                self.has_begun = self.has_begun or bool(data)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise LaunchError(f"cannot read {self._path!r}: {error.strerror}") from error
        self._was_read = True
        return data

    def _next_range(self, file: BinaryIO) -> tuple[int, int]:
        """Return where the next bytes that are shown begin and end in the log.

        Args:
            file: The log, which is open for reading.

        Raises:
            LaunchError: The times of the log are needed and not known.
        """
        lines, since, until = self._selection.lines, self._selection.since, self._selection.until
        start, end = self._offset, os.fstat(file.fileno()).st_size
        if self._selection.needs_times:
            self._times.refresh()  # The launcher notes times before it writes the log up to this end.
            end = end if until is None else min(end, self._times.end(until))
            if since is not None and not self.has_begun:
                first = self._times.start(since)
                # That may be in the middle of a line, which is shown from its beginning.
                start = max(start, _start_of_last(1, file, first + 1) if first < end else end)
        if lines is not None and not self._was_read:
            start = max(start, _start_of_last(lines, file, end))
        return start, max(start, end)


def _start_of_last(lines: int, file: BinaryIO, size: int) -> int:
    """Return the offset of the last lines of a file, the last of which may lack a newline.

    Args:
        lines: The number of lines.
        file: The file, which is open for reading.
        size: How much of the file counts.
    """
    if not lines:
        return size
    for start, block in _blocks_before(size - 1, file):  # A newline at the end does not count.
        count = block.count(b"\n")
        if count >= lines:
            newline_at = len(block)
            for _ in range(lines):
                newline_at = block.rfind(b"\n", 0, newline_at)
            return start + newline_at + 1
        lines -= count
    return 0  # The file has fewer lines.


def _last_offset(wanted: bytes, file: BinaryIO, end: int) -> int:
    """Return the offset at which bytes are last in a file before another offset. 0 if they are not there."""
    following = b""  # The bytes may begin in one block and end in the next one.
    for start, block in _blocks_before(end, file):
        found = (block + following).rfind(wanted)
        if found >= 0:
            return start + found
        following = block[: len(wanted) - 1]
    return 0


def _blocks_before(end: int, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the offsets and the contents of blocks of a file, from an offset back to the start of the file.

    The file is not mapped into memory: if its task truncated it then, a signal would end this process.
    """
    while end > 0:
        start = max(0, end - _READ_BYTES)
        file.seek(start)
        yield start, file.read(end - start)
        end = start
