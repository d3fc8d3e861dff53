"""The files of a run: every task's raw output, the events, the report."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from launcher.events import TaskOutput, Tell
from launcher.job import RunPaths
from launcher.output.base import Opening, Shown
from launcher.output.reportjson import event_as_dict, report_as_dict
from launcher.report import Report

if TYPE_CHECKING:
    from typing import Any

#: Log files open at a time; with more tasks the one opened first is closed, and opened again when needed.
_OPEN = 256

# The folder of a run may be another user's, who may put a link or a pipe in the place of a file of ours.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Files:
    """The renderer for later. Unbuffered: what a task has printed is there, also if we are killed.

    A file that can't be written to (disk full, folder gone) is left alone from then on, so that
    nothing in it seems to follow what does not; the job goes on.

    Args:
        warn: told once when a file can't be written, urgently if it is the report; and at the end
            which logs are not complete.
        clock: seconds since the epoch, for remarks in ``events.jsonl``.
    """

    def __init__(self, warn: Callable[[Tell], None], clock: Callable[[], float] = time.time) -> None:
        self._warn = warn
        self._clock = clock
        self._paths: RunPaths | None = None
        self._fds: dict[str, int] = {}
        #: Lines for ``events.jsonl`` that came in this turn of the loop.
        self._events: list[bytes] = []
        self._dead: list[str] = []
        self._dead_set: set[str] = set()
        #: A file of the run is not there, or not whole.
        self.unwritten = False

    def begin(self, opening: Opening) -> None:
        """Create every file: who follows a log need not wait for its first line."""
        self._paths = opening.paths
        if self._paths is None:
            return
        try:
            os.makedirs(self._paths.logs, exist_ok=True)
        except OSError:
            pass  # the first file says it, with the same reason
        self._create(self._paths.events)
        for placed in opening.placement.tasks:
            self._create(self._paths.log(placed.task))

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
        self._write_events()
        return None

    def _write_events(self) -> None:
        if self._events and self._paths is not None:
            self._append(self._paths.events, b"".join(self._events))
            self._events.clear()

    def close(self, report: Report) -> None:
        """Write the report, close the logs."""
        if self._paths is None:
            return
        self._write_events()
        self._warn_of_incomplete(self._paths)
        for fd in self._fds.values():
            _close(fd)
        self._fds.clear()
        try:
            write_json(self._paths.report, report_as_dict(report))
        except OSError as error:
            self.unwritten = True
            self._warn(Tell(f"{self._paths.report} can't be written: {error.strerror}", urgent=True))

    def _create(self, path: str) -> None:
        try:
            fd = self._opened(path, _APPEND | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            self._give_up(path, error)
        else:
            self._keep(path, fd)

    def _opened(self, path: str, flags: int) -> int:
        """A descriptor of it; with none left to have, that of the file opened first.

        Raises:
            OSError: it can't be opened.
        """
        while True:
            try:
                return os.open(path, flags, 0o600)  # it may hold what is nobody else's business
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._fds:
                    raise
            self._close_oldest()

    def _close_oldest(self) -> None:
        _close(self._fds.pop(next(iter(self._fds))))

    def _keep(self, path: str, fd: int) -> None:
        self._fds[path] = fd
        if len(self._fds) > _OPEN:
            self._close_oldest()

    def _append(self, path: str, data: bytes) -> None:
        if path in self._dead_set:
            return
        try:
            fd = self._fds.get(path)
            if fd is None:  # never created here: what was deleted must not seem to begin anew
                fd = self._opened(path, _APPEND)
                self._keep(path, fd)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError as error:
            self._give_up(path, error)

    def _give_up(self, path: str, error: OSError) -> None:
        self.unwritten = True
        self._dead.append(path)
        self._dead_set.add(path)
        if path in self._fds:
            _close(self._fds.pop(path))
        if len(self._dead) == 1:
            self._warn(Tell(f"{path} can't be written: {error.strerror}; it ends here, the job goes on"))

    def _warn_of_incomplete(self, paths: RunPaths) -> None:
        """All but the first, of which the user knows."""
        if len(self._dead) > 1:
            named = ", ".join(os.path.basename(path) for path in self._dead[:10])
            more = f" and {len(self._dead) - 10} more" if len(self._dead) > 10 else ""
            self._warn(Tell(f"not complete in {paths.root}: {named}{more}"))


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file of a run so that it is there whole or not at all, for this user's eyes only.

    Whatever is in its place is replaced: a link that somebody has put there is not followed.

    Raises:
        OSError: it can't be written; what was there before is unchanged.
    """
    _replace(path, _json(value), 0o600)


def write_json_for_user(path: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file that the user has named: as the umask has it, along a link (which stays one).

    It is there whole or not at all; into what is no file (a pipe), it is just written.

    Raises:
        OSError: it can't be written, or the system does not let us follow this link; what was there before is
            unchanged.
    """
    try:
        found = os.stat(path)  # by the system's own rules for links in folders that all may write to
    except FileNotFoundError:
        found = None
    if found is not None and not stat.S_ISREG(found.st_mode):
        with open(path, "wb") as file:
            file.write(_json(value))
        return
    _replace(os.path.realpath(path), _json(value), 0o666)


def _json(value: Mapping[str, Any]) -> bytes:
    """An object as JSON.

    A field is a line, and so is an item of a list: as good to read as indented all through, and written by
    json's fast half (for 256 tasks the other one takes longer than starting them).
    """
    fields = (f"{_compact(name)}: {_one_a_line(field)}" for name, field in sorted(value.items()))
    text = "{\n  " + ",\n  ".join(fields) + "\n}\n"
    return text.encode("utf-8", "backslashreplace")


def _replace(path: str, data: bytes, mode: int) -> None:
    new = f"{path}.{os.getpid()}.new"
    try:
        with open(_new(new, mode), "wb") as file:
            file.write(data)
        os.replace(new, path)
    except OSError:
        try:
            os.unlink(new)
        except OSError:
            pass
        raise


def _new(path: str, mode: int) -> int:
    """A file that nobody else has open; what a killed launch has left there is removed."""
    try:
        return os.open(path, _NEW, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, _NEW, mode)


def _one_a_line(field: Any) -> str:
    if not isinstance(field, (list, tuple)) or not field or isinstance(field[0], str):
        return _compact(field)
    return "[\n    " + ",\n    ".join(map(_compact, field)) + "\n  ]"


_compact = json.JSONEncoder(ensure_ascii=False).encode


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass  # some file systems (NFS) report a full disk only now; the data was counted as written
