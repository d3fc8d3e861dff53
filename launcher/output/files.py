"""The files of a run: the raw output of every task, the events, the report."""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from launcher.events import TaskOutput, Tell
from launcher.job import RunPaths
from launcher.output.base import Opening, Shown
from launcher.output.jsonl import event_as_dict, report_as_dict
from launcher.report import Report
from launcher.text import listed

#: Log files that are open at a time, and as a part of the limit for all files; of more the one opened first
#: is closed until it is needed again.
_MOST_OPEN, _PART = 256, 4
#: Seconds that a report waits for the reader of a pipe.
_READER_LIMIT = 5.0
# A run's folder may lie in another user's folder, who could put a link or a pipe in the place of our files.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Files:
    """Writes the run's folder. Unbuffered: what a task has printed is there, also if launch is killed.

    A file that can't be written (full disk) gets nothing more, so that it has no gap; the job goes on.

    Args:
        warn: called once when a file can't be written, urgently if it is the report; and at the end with the
            logs that are not complete.
        clock: seconds since the epoch, for notices in ``events.jsonl``.
    """

    def __init__(self, warn: Callable[[Tell], None], clock: Callable[[], float] = time.time) -> None:
        self._warn = warn
        self._clock = clock
        self._paths: RunPaths | None = None
        self._most_open = min(_MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _PART)
        #: Open files by path, the one opened first first.
        self._fds: dict[str, int] = {}
        #: Lines for ``events.jsonl`` since the last tick.
        self._events: list[bytes] = []
        #: Files that can't be written to.
        self._broken: dict[str, OSError] = {}
        #: A file of the run is missing or not complete.
        self.unwritten = False

    def begin(self, opening: Opening) -> None:
        """Create every file: a program that follows a log need not wait for its first line."""
        self._paths = opening.paths
        if self._paths is None:
            return
        try:
            os.makedirs(self._paths.logs, exist_ok=True)
        except OSError:
            pass  # creating the first file fails with the same reason
        logs = [self._paths.log(placed.task) for placed in opening.placement.tasks]
        for path in (self._paths.events, *logs):
            try:
                self._keep(path, self._open(path, _APPEND | os.O_CREAT | os.O_EXCL))
            except OSError as error:
                self._give_up(path, error)

    def on(self, event: Shown) -> None:
        """Output goes to its task's log, everything else to ``events.jsonl``."""
        if self._paths is None:
            return
        if isinstance(event, TaskOutput):
            self._append(self._paths.log(event.task), event.data)
            return
        line = _compact(event_as_dict(event, self._clock()))
        self._events.append(f"{line}\n".encode("utf-8", "backslashreplace"))

    def tick(self, now: float) -> float | None:
        """Write the events of this turn of the loop."""
        if self._events and self._paths is not None:
            self._append(self._paths.events, b"".join(self._events))
            self._events.clear()
        return None

    def close(self, report: Report) -> None:
        """Write the report, close the logs."""
        if self._paths is None:
            return
        self.tick(0.0)
        if len(self._broken) > 1:
            names = [os.path.basename(path) for path in self._broken]
            self._warn(Tell(f"not complete in {self._paths.root}: {listed(names, 10)}"))
        for fd in self._fds.values():
            _close(fd)
        self._fds.clear()
        try:
            write_json(self._paths.report, report_as_dict(report))
        except OSError as error:
            self.unwritten = True
            self._warn(Tell(f"{self._paths.report} can't be written: {error.strerror}", urgent=True))

    def _open(self, path: str, flags: int) -> int:
        """Open a file; where no descriptor is left, in the place of the one opened first.

        Raises:
            OSError: it can't be opened.
        """
        while True:
            try:
                return os.open(path, flags, 0o600)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._fds:
                    raise
            self._close_oldest()

    def _close_oldest(self) -> None:
        _close(self._fds.pop(next(iter(self._fds))))

    def _keep(self, path: str, fd: int) -> None:
        self._fds[path] = fd
        if len(self._fds) > self._most_open:
            self._close_oldest()

    def _append(self, path: str, data: bytes) -> None:
        if path in self._broken:
            return
        try:
            fd = self._fds.get(path)
            if fd is None:  # without O_CREAT: a log that was deleted must not seem to begin anew
                fd = self._open(path, _APPEND)
                self._keep(path, fd)
            written = os.write(fd, data)
            while written < len(data):
                written += os.write(fd, memoryview(data)[written:])
        except OSError as error:
            self._give_up(path, error)

    def _give_up(self, path: str, error: OSError) -> None:
        self.unwritten = True
        first = not self._broken
        self._broken[path] = error
        if path in self._fds:
            _close(self._fds.pop(path))
        if first:
            self._warn(Tell(f"{path} can't be written: {error.strerror}; it ends here, the job goes on"))


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file of a run, whole or not at all, readable by this user only.

    A file or link in its place is replaced, not followed.

    Raises:
        OSError: it can't be written; what was there before is unchanged.
    """
    _replace(path, _json(value), 0o600)


def write_json_for_user(path: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file that the user has named, with the permissions of the umask; a link is followed.

    A regular file is there whole or not at all. Into a pipe it is written as far as a reader is there.

    Raises:
        OSError: it can't be written; what was there before is unchanged. A pipe has no reader.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        found = None
    if found is not None and not stat.S_ISREG(found.st_mode):
        _write_to_pipe(path, b"".join(_json(value)))
        return
    _replace(os.path.realpath(path), _json(value), 0o666)


def _write_to_pipe(path: str, data: bytes) -> None:
    """Write to a pipe or device that may have no reader, or one that does not read."""
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        while data:
            if not poll.poll(_READER_LIMIT * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"its reader took nothing for {_READER_LIMIT:.0f} s")
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def _json(value: Mapping[str, Any]) -> Iterator[bytes]:
    """An object as JSON, in pieces: a line for each field, and for each item of a list of records.

    A field that is an iterator of records is never in memory as a whole.
    """
    separator = "{"
    for name, field in sorted(value.items()):
        yield f"{separator}\n  {_compact(name)}: ".encode("utf-8", "backslashreplace")
        separator = ","
        records = isinstance(field, Iterator) or (
            isinstance(field, (list, tuple)) and field and not isinstance(field[0], str)
        )
        for piece in _records(field) if records else (_compact(field),):
            yield piece.encode("utf-8", "backslashreplace")
    yield b"\n}\n"


def _records(records: Iterable[Any]) -> Iterator[str]:
    separator = "["
    for record in records:
        yield f"{separator}\n    {_compact(record)}"
        separator = ","
    yield "\n  ]"


_compact = json.JSONEncoder(ensure_ascii=False).encode


def _replace(path: str, pieces: Iterable[bytes], mode: int) -> None:
    new = f"{path}.{os.getpid()}.new"
    try:
        with open(_created(new, mode), "wb") as file:
            file.writelines(pieces)
        os.replace(new, path)
    except OSError:
        try:
            os.unlink(new)
        except OSError:
            pass
        raise


def _created(path: str, mode: int) -> int:
    """A new file; one that a killed launch has left there is removed."""
    try:
        return os.open(path, _NEW, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, _NEW, mode)


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass  # some file systems (NFS) report a full disk only now; the data was counted as written
