"""What a run writes down, read while it grows."""

from __future__ import annotations

import os

from launcher.job import RunPaths, TaskId
from launcher.runs.owner import open_regular

#: Bytes of a log that are looked at for its last lines, and characters of a line that are shown.
_SIZE, _LONGEST = 64 * 1024, 500


class GrowingFile:
    """A file that somebody else appends to; it may not be there yet."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._at = 0

    def more(self) -> bytes:
        """What has come since the last call."""
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


def last_lines(root: str, task: str, count: int) -> list[str]:
    """The last lines that a task of the run in ``root`` has printed, fit to be shown."""
    try:
        with open_regular(RunPaths(root).log(TaskId(task))) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _SIZE))
            text = file.read(_SIZE).decode("utf-8", "replace")
    except OSError:
        return []
    return shown_lines(text, count)


def shown_lines(text: str, count: int) -> list[str]:
    """The last lines of a text without what would move a terminal's cursor, too long ones shortened.

    A line that a progress bar has written again and again is what it was at last.
    """
    lines = text.rstrip().split("\n")[-count:] if text.strip() else []
    return [_shown(line.rstrip("\r").rpartition("\r")[2]) for line in lines]


def _shown(line: str) -> str:
    """A line without what would move a terminal's cursor."""
    plain = "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}... ({len(plain)} characters)"
