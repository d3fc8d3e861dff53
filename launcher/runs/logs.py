"""Files that a run writes, read while they grow."""

from __future__ import annotations

import os

from launcher.job import RunPaths, TaskId
from launcher.runs.owner import open_regular

#: Bytes of a log that are read for its last lines, and characters of a line that are shown.
_SIZE, _LONGEST = 64 * 1024, 500


class GrowingFile:
    """A file that another process appends to; it may not exist yet."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._at = 0

    def more(self) -> bytes:
        """What was appended since the last call."""
        try:
            if os.stat(self.path).st_size == self._at:
                return b""
            with open_regular(self.path) as file:
                file.seek(self._at)
                data = file.read()
        except OSError:
            return b""
        self._at += len(data)
        return data


def tail(path: str) -> tuple[bytes, bool]:
    """The last 64 KiB of a log, and whether there is more before them; empty if it can't be read."""
    try:
        with open_regular(path, links=False) as file:
            start = max(0, os.fstat(file.fileno()).st_size - _SIZE)
            file.seek(start)
            return file.read(_SIZE), start > 0
    except OSError:
        return b"", False


def last_lines(root: str, task: str, count: int) -> list[str]:
    """The last lines of a task of the run in ``root``, without terminal control."""
    return shown_lines(tail(RunPaths(root).log(TaskId(task)))[0].decode("utf-8", "replace"), count)


def shown_lines(text: str, count: int) -> list[str]:
    """The last lines of a text without terminal control, long ones shortened.

    Of a line that was rewritten with carriage returns only the last state is shown.
    """
    lines = text.rstrip().split("\n")[-count:] if text.strip() else []
    return [_printable(line.rstrip("\r").rpartition("\r")[2]) for line in lines]


def _printable(line: str) -> str:
    text = "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
