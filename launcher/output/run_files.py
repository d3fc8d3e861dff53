"""Writes the files of a run: the raw output of every task, the events, and the report.

`Files` is a renderer, which `launcher.launch.display` makes. A file that cannot be written is named once, and
must never end the job.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import stat
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from launcher.common.cluster import TaskId
from launcher.common.events import TaskMoved, TaskOutput
from launcher.common.report import Report
from launcher.common.text import join_names
from launcher.common.trusted_io import open_regular
from launcher.job import RunPaths
from launcher.messages import say
from launcher.output.lines import attempt_mark
from launcher.output.log_times import LogIndex, index_content, index_of
from launcher.output.renderers import DisplayEvent, Renderer, RunInfo, event_as_dict, record_as_dict
from launcher.output.writer import Writer

#: To open more files than this, the file that was opened last is closed. Tasks often print in turns, and all
#: other files stay open.
_MAX_OPEN_FILES = 10_000
#: How many descriptors are left for others.
_SPARE_DESCRIPTORS = 128
#: How many bytes of the last lines of ``events.jsonl`` are kept in memory for any job.
_RECENT_BYTES = 1 << 20
#: How many bytes more are kept for each of its tasks.
_RECENT_BYTES_PER_TASK = 1 << 10
# The folder of a run may be in a folder of another user, who could put a link or a pipe in place of a file.
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class EventBuffer:
    """The last lines of ``events.jsonl`` in memory, numbered from 1 on. New lines replace the oldest."""

    def __init__(self) -> None:
        #: How many bytes the lines may have together.
        self.max_bytes = _RECENT_BYTES
        #: The number of the next line.
        self.next = 1
        #: Whether tasks have printed something since followers were last informed.
        self.printed = False
        #: The lines that are kept, each with its number in it.
        self._lines: deque[bytes] = deque()
        #: How many bytes these have together.
        self._size = 0

    @property
    def first(self) -> int:
        """The number of the oldest line that is still kept."""
        return self.next - len(self._lines)

    def add(self, line: bytes) -> None:
        """Add the next line, which is a JSON object, and give it a number."""
        # The number becomes the first field of the object, in place of its opening brace.
        self._lines.append(b'{"number": %d, %b' % (self.next, line[1:]))
        self.next += 1
        self._size += len(self._lines[-1])
        while self._size > self.max_bytes:
            self._size -= len(self._lines.popleft())

    def after(self, number: int, size: int) -> list[bytes]:
        """Return lines from a number on.

        Args:
            number: The number of the first line, which must still be kept.
            size: After how many bytes to stop. The last line may exceed them.
        """
        lines = []
        for line in islice(self._lines, number - self.first, None):
            lines.append(line)
            size -= len(line)
            if size <= 0:
                break
        return lines


def _ends_mid_line(path: str) -> bool:
    """Return whether a log ends in the middle of a line, so the next attempt must begin a new one.

    A log that is empty or cannot be read does not.
    """
    with contextlib.suppress(OSError), open_regular(path, links=False) as file:
        size = file.seek(0, os.SEEK_END)  # The offset of the end is the size.
        file.seek(max(0, size - 1))
        return size > 0 and file.read() != b"\n"
    return False


class Files(Renderer):
    """The renderer that writes the files of a run.

    It uses no buffers, so that the files are complete if launch is killed. A file that cannot be written,
    because the disk is full for example, gets no more data, so that it has no gap. The job continues.

    Args:
        clock: Returns the seconds since the epoch, for messages in ``events.jsonl`` and the indexes of logs.
        is_resumed: Whether the files may exist, because a launcher before this one has begun the run.
    """

    def __init__(self, clock: Callable[[], float] = time.time, *, is_resumed: bool = False) -> None:
        #: Whether a launcher before this one may have written a part of the files.
        self._is_resumed = is_resumed
        #: The flags for the first opening of a file. In a new run no file may exist yet.
        self._create_flags = _APPEND_FLAGS | os.O_CREAT | (0 if is_resumed else os.O_EXCL)
        #: Whether another launcher continues the run, so the report is written only for it.
        self.run_continues = False
        self._clock = clock
        self._paths: RunPaths
        #: How many files are open at once. `begin` computes it from the limit of the process.
        self._max_open_files = 1
        #: Open files by path, in the order in which they were opened.
        self._open_fds: dict[str, int] = {}
        #: Tasks whose log ends in the middle of a line.
        self._in_mid_line: set[TaskId] = set()
        #: The index of the log of each task that has printed something.
        self._indexes: dict[TaskId, LogIndex] = {}
        #: The attempts of tasks that have started again.
        self._attempts: dict[TaskId, int] = {}
        #: Events for ``events.jsonl`` since the last tick, each with the time of its arrival.
        self._waiting_events: list[tuple[DisplayEvent, float]] = []
        #: The paths of files that cannot be written.
        self._broken_paths: list[str] = []
        #: The last lines of ``events.jsonl``, for programs that follow the job.
        self.event_buffer = EventBuffer()
        #: Whether a file of the run is missing or not complete.
        self.unwritten = False

    def begin(self, run_info: RunInfo) -> None:
        """Create every file, so that other programs can open a log before its first line.

        In a run that continues after an earlier launcher, a log may end in the middle of a line.
        """
        self._paths = paths = run_info.paths
        self.event_buffer.max_bytes += _RECENT_BYTES_PER_TASK * len(run_info.placement.tasks)
        # Links to agents and other files of this process need descriptors, too: `_SPARE_DESCRIPTORS` of them,
        # or three quarters of what is free if that is little.
        free = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))
        self._max_open_files = min(_MAX_OPEN_FILES, max(1, free // 4, free - _SPARE_DESCRIPTORS))
        with contextlib.suppress(OSError):  # If it fails, so does the creation of the first file.
            os.makedirs(paths.logs, exist_ok=True)
        # To append nothing creates a file.
        for path in (paths.events, *(paths.log(placed.task) for placed in run_info.placement.tasks)):
            self._append(path, b"", self._create_flags)
        if self._is_resumed:
            tasks = [placed.task for placed in run_info.placement.tasks]
            self._in_mid_line.update(task for task in tasks if _ends_mid_line(paths.log(task)))

    def on(self, event: DisplayEvent) -> None:
        """Append output to the log of its task, and keep any other event for ``events.jsonl``."""
        if isinstance(event, TaskOutput):
            self._append_output(event.task, event.data)
            self.event_buffer.printed = True
            is_in_mid_line = not event.data.endswith(b"\n")
            self._in_mid_line.add(event.task) if is_in_mid_line else self._in_mid_line.discard(event.task)
            return
        if isinstance(event, TaskMoved) and event.state.is_over:
            log = self._paths.log(event.task)
            for path in (log, index_of(log)):
                self._close_file(path)  # If the task starts again, it is opened again.
        elif isinstance(event, TaskMoved) and event.attempt > self._attempts.get(event.task, 1):
            self._attempts[event.task] = event.attempt  # It has started again, which its log shows.
            newline = b"\n" if event.task in self._in_mid_line else b""
            self._append_output(event.task, newline + attempt_mark(event.attempt))
        self._waiting_events.append((event, self._clock()))

    def tick(self, now: float) -> float | None:
        """Write the events of this turn of the loop to ``events.jsonl``, and keep them for followers.

        Returns:
            None, because nothing waits for a time.
        """
        if self._waiting_events:
            texts = (f"{_compact(event_as_dict(*each))}\n" for each in self._waiting_events)
            lines = [text.encode("utf-8", "backslashreplace") for text in texts]
            self._append(self._paths.events, b"".join(lines))
            for line in lines:
                self.event_buffer.add(line)
            self._waiting_events.clear()
        return None

    def close(self, report: Report) -> None:
        """Write the last events and the report, and close the logs."""
        self.tick(0.0)
        if len(self._broken_paths) > 1:  # The user was told about the first one when it broke.
            names = [os.path.basename(path) for path in self._broken_paths]
            say(f"not complete in {self._paths.root}: {join_names(names, 10)}")
        for path in list(self._open_fds):
            self._close_file(path)
        try:
            path = self._paths.earlier if self.run_continues else self._paths.report
            write_json(path, record_as_dict(report))
        except OSError as error:
            self.unwritten = True
            say(f"{self._paths.report} cannot be written: {error.strerror}")

    def _append_output(self, task: TaskId, data: bytes) -> None:
        """Append data to the log of a task, and before that the time to the index of the log if it is due."""
        log, index, second = self._paths.log(task), self._indexes.get(task), int(self._clock())
        if index is None or index.second != second:
            self._note_time(task, log, second)
        self._append(log, data)

    def _note_time(self, task: TaskId, log: str, second: int) -> None:
        """Note in the index of a log that what follows in the log was printed in this second."""
        try:
            log_size = os.lstat(log).st_size
        except OSError:  # The log was removed.
            return
        index = self._indexes.get(task)
        if index is None:  # A launcher before this one may have begun it.
            index = self._indexes[task] = LogIndex(index_content(log), len(self._indexes))
        data, replaces = index.add(second, log_size, lambda: index_content(log))
        self._append(index_of(log), data, _APPEND_FLAGS | os.O_CREAT, replaces=replaces)

    def _append(self, path: str, data: bytes, flags: int = _APPEND_FLAGS, *, replaces: bool = False) -> None:
        """Append data to a file, or replace what it contains.

        If that fails, the file is not written again, and the user is told the first time.

        Args:
            path: The path of the file.
            data: The data.
            flags: The flags to open the file with. Without O_CREAT a log that was deleted is not created
                again.
            replaces: Whether the data replaces the content, so that no reader sees a part of it.
        """
        if path in self._broken_paths:
            return
        try:
            if replaces:
                self._close_file(path)
                replace_file(path, data.decode(), 0o600)
                return
            fd = self._open_fds.get(path)
            if fd is None:
                if len(self._open_fds) >= self._max_open_files:
                    # If many files take turns, to close the oldest one would close each before its turn. So
                    # the last one that was opened is closed.
                    self._close_file(next(reversed(self._open_fds)))
                fd = self._open_fds[path] = os.open(path, flags, 0o600)
            written = os.write(fd, data)
            while written < len(data):
                written += os.write(fd, memoryview(data)[written:])
        except OSError as error:
            self.unwritten = True
            self._broken_paths.append(path)
            self._close_file(path)
            if len(self._broken_paths) == 1:  # `close` names all of them if there are more.
                say(f"{path} cannot be written: {error.strerror}; it stays incomplete; job continues")

    def _close_file(self, path: str) -> None:
        """Close a file if it is open. It is opened again if more is appended."""
        if path in self._open_fds:
            with contextlib.suppress(OSError):  # NFS may report a full disk only now.
                os.close(self._open_fds.pop(path))


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write a JSON file of a run, completely or not at all, readable by this user only.

    A file or a link in its place is replaced.

    Args:
        path: The path of the file.
        value: The JSON object.

    Raises:
        OSError: It cannot be written. What was there before is unchanged.
    """
    replace_file(path, json_text(value), 0o600)


def write_for_user(path: str, text: str) -> None:
    """Write a file that the user has named, with the permissions of the umask. A link is followed.

    A regular file is written completely or not at all.

    Args:
        path: The path of the file, pipe or device.
        text: Its content.

    Raises:
        OSError: It cannot be written, or a pipe has no reader. What was there before is unchanged.
    """
    try:
        is_regular = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:  # A regular file is created.
        is_regular = True
    if is_regular:
        replace_file(os.path.realpath(path), text, 0o666)
    else:
        _write_to_pipe(path, text.encode("utf-8", "backslashreplace"))


def _write_to_pipe(path: str, data: bytes) -> None:
    """Write to a pipe or device within the time limits of a `Writer`.

    Raises:
        OSError: It cannot be written, or its reader is too slow.
    """
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    writer = Writer()
    try:
        writer.write(fd, data, is_urgent=True)
        if not writer.close():
            raise TimeoutError(errno.ETIMEDOUT, "its reader is too slow")
    finally:
        os.close(fd)
    error = writer.broken(fd)
    if error is not None:
        raise error


def json_text(value: Mapping[str, Any]) -> str:
    """Return an object as JSON, with a line for each field and for each item of a list."""
    fields = ",".join(f"\n  {_compact(name)}: {_field(field)}" for name, field in sorted(value.items()))
    return f"{{{fields}\n}}\n"


def _field(field: object) -> str:
    """Return the value of a field as JSON, with a line for each item if it is a list."""
    if not isinstance(field, (list, tuple)) or not field:
        return _compact(field)
    items = ",".join(f"\n    {_compact(item)}" for item in field)
    return f"[{items}\n  ]"


_compact = json.JSONEncoder(ensure_ascii=False).encode


def replace_file(path: str, text: str, mode: int) -> None:
    """Write a new file and move it over an earlier one, so that no reader sees a part of it.

    Args:
        path: The path of the file.
        text: Its content.
        mode: Its permissions.

    Raises:
        OSError: It cannot be written. What was there before is unchanged.
    """
    new = f"{path}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)  # It is left by a process with the same pid that was killed.
    try:
        fd = os.open(new, _CREATE_FLAGS, mode)
        with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
