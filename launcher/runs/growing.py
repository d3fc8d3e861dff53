"""What a run writes down, read while it grows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.job import RunPaths, TaskId
from launcher.runs.folder import runs_folder
from launcher.runs.owner import open_regular
from launcher.runs.run import json_of

if TYPE_CHECKING:
    from typing import Any

#: At how many of the newest runs one looks for that of a launcher.
_LOOKED_AT = 50
#: Bytes of a log that are looked at for its last lines, and characters of a line that are shown.
_SIZE, _LONGEST = 64 * 1024, 500


def run_of(launcher: int, environ: Mapping[str, str]) -> str | None:
    """The folder of the run that a launcher owns, unless it was told where to make it.

    Args:
        launcher: the number of its process.
        environ: its environment.

    Returns:
        ``None``: it has none yet.
    """
    folder = runs_folder(environ)
    try:
        names = sorted(os.listdir(folder), reverse=True)[:_LOOKED_AT]
    except OSError:
        return None
    for root in [root for name in names if not os.path.islink(root := f"{folder}/{name}")]:
        record = json_of(RunPaths(root).owner)
        if record is not None and record.get("pid") == launcher:
            return root
    return None


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


class Events:
    """The lines of ``events.jsonl`` of a run, as they come.

    Args:
        root: the run's folder.
    """

    def __init__(self, root: str) -> None:
        self._file = GrowingFile(RunPaths(root).events)
        self._rest = b""

    def more(self) -> list[Mapping[str, Any]]:
        """Those that have come since the last call."""
        *lines, self._rest = (self._rest + self._file.more()).split(b"\n")
        return [json.loads(line) for line in lines]


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
