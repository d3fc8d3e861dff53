"""A bounded copy of the files of a run, renewed while the run goes on, for viewers on another machine.

`send_files` runs on the machine of the launcher, and writes to a stream what is new again and again. The
other end, `MirroredFiles`, believes nothing of it. A message is a JSON object on a line, such as
``{"file": "events.jsonl", "size": 120, "append": true}``, then so many bytes. An empty object ends a round.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from typing import IO

from launcher.common.errors import ProtocolError
from launcher.common.trusted_io import open_regular
from launcher.job import RunPaths
from launcher.runs.run import Run, RunState

#: Seconds between two rounds.
_ROUND_SECONDS = 1.0
#: How much of the end of a log is sent at first, or when more than this is new.
_LOG_BYTES = 64 * 1024
#: The same for each other file.
_FILE_BYTES = 32 << 20
#: A copy of a log that is longer than this is cut to `_LOG_BYTES`.
_MAX_LOG_BYTES = 4 * _LOG_BYTES
#: All files together may have at most this size.
_MAX_BYTES = 1 << 30
_MAX_HEADER_BYTES = 1024
_GROWING_FILES = ("events.jsonl", "samples.jsonl", "launcher.log")
#: It is sent as a whole. The report is not sent, because at the end of the run the queue fetches all files.
_PLAN_FILE = "plan.json"
_LOG_PATTERN = r"logs/[\w-][\w.-]*\.log"


def send_files(run: Run, stream: IO[bytes]) -> None:
    """Write the files of a run to a stream until the run has ended, see the module.

    Raises:
        BrokenPipeError: The reader has gone.
    """
    sent: dict[str, _SentFile] = {}
    while True:
        # After a round that began with the run over, nothing is new any more.
        is_over = run.state not in (RunState.RUNNING, RunState.ELSEWHERE)
        for name in (*_GROWING_FILES, _PLAN_FILE, *_names_of_logs(run.paths)):
            path = f"{run.paths.root}/{name}"
            sent.setdefault(name, _SentFile(name, path)).send_new(stream)
        stream.write(b"{}\n")  # Even if nothing is new, so that it is noticed that the reader has gone.
        stream.flush()
        if is_over:
            return
        time.sleep(_ROUND_SECONDS)


def _names_of_logs(paths: RunPaths) -> list[str]:
    """Return the names of the logs of tasks, without their indexes."""
    with suppress(OSError):
        return [name for each in os.listdir(paths.logs) if re.fullmatch(_LOG_PATTERN, name := f"logs/{each}")]
    return []


class _SentFile:
    """A file of which the other end has got a part.

    Args:
        name: Its name below the folder of the run.
        path: Its path.
    """

    def __init__(self, name: str, path: str) -> None:
        self._name, self._path = name, path
        self._is_whole = name == _PLAN_FILE
        self._max_bytes = _LOG_BYTES if name.startswith("logs/") else _FILE_BYTES
        #: Its inode, its size, and when it was written, when it was last sent.
        self._inode, self._size, self._mtime = 0, 0, 0

    def send_new(self, stream: IO[bytes]) -> None:
        """Write what is new in the file, or its last part if that is too much.

        Raises:
            BrokenPipeError: The reader has gone.
        """
        try:
            status = os.stat(self._path, follow_symlinks=False)
            if (status.st_ino, status.st_size, status.st_mtime_ns) == (self._inode, self._size, self._mtime):
                return
            with open_regular(self._path, links=False) as file:
                status = os.fstat(file.fileno())
                start = self._size
                append = status.st_ino == self._inode and status.st_size >= start and not self._is_whole
                if not append or status.st_size - start > self._max_bytes:
                    start, append = max(0, status.st_size - self._max_bytes), False
                file.seek(start)
                data = file.read(status.st_size - start)
        except OSError:  # It is missing, at least now.
            return
        self._inode, self._size, self._mtime = status.st_ino, start + len(data), status.st_mtime_ns
        header = {"file": self._name, "size": len(data), "append": append}
        stream.write(json.dumps(header).encode() + b"\n" + data)


class MirroredFiles:
    """The other end: the copies of the files in a folder.

    Args:
        root: The folder, which is private and empty.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        os.mkdir(f"{root}/logs")
        self._sizes: dict[str, int] = {}
        #: The sum of all sizes.
        self._total = 0

    def read_round(self, stream: IO[bytes]) -> bool:
        """Read the messages of a round, and write the files.

        Returns:
            Whether there was a whole round. False if the stream has ended.

        Raises:
            ProtocolError: A message is wrong, or the files are too large.
            OSError: A file cannot be written.
        """
        while line := stream.readline(_MAX_HEADER_BYTES):
            try:
                header = json.loads(line)
                if header == {}:
                    return True
                name, size, append = header["file"], header["size"], header["append"] is True
                is_known = name in (*_GROWING_FILES, _PLAN_FILE) or re.fullmatch(_LOG_PATTERN, name)
                is_good = bool(is_known) and type(size) is int and 0 <= size <= _FILE_BYTES
            except (ValueError, LookupError, TypeError, RecursionError):
                is_good = False
            if not is_good:
                raise ProtocolError(f"a message about a file is wrong: {line[:100]!r}")
            data = stream.read(size)
            if len(data) < size:
                return False
            self._write(name, data, append=append)
        return False

    def _write(self, name: str, data: bytes, *, append: bool) -> None:
        """Write a part of a file, or replace the file, so that readers see the old one or the new one."""
        path, size = f"{self._root}/{name}", self._sizes.get(name, 0)
        if append and name.startswith("logs/") and size + len(data) > _MAX_LOG_BYTES:
            with open(path, "rb") as file:
                file.seek(max(0, size - _LOG_BYTES))
                data, append = file.read() + data, False
        self._sizes[name] = len(data) + (size if append else 0)
        self._total += self._sizes[name] - size
        if self._total > _MAX_BYTES:
            raise ProtocolError(f"the files are larger than {_MAX_BYTES >> 20} MiB")
        if append:
            with open(path, "ab") as file:
                file.write(data)
            return
        with open(f"{path}.new", "wb") as file:
            file.write(data)
        os.replace(f"{path}.new", path)
