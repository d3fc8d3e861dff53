"""Watches a run for ``launch top`` and ``launch page``: what there is to see of it, again and again.

The files of the run tell everything. One connection to its launcher says when to look at them, as long as the
launcher can be asked. Nothing in the files makes the watcher fail, and no file keeps it busy for long.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.backends.batch_queue import BatchJobStatus, JobPhase
from launcher.backends.follower import RunFollower
from launcher.backends.queued_runs import queue_of, shares_files, states
from launcher.common.errors import LaunchError, ProtocolError, TransportError
from launcher.common.record import replace
from launcher.common.report import Report
from launcher.common.text import escape_controls, last_line
from launcher.job import RunPaths
from launcher.messages import say
from launcher.output.logs import tail
from launcher.runs.history import HistoryReader
from launcher.runs.mirror import MirroredFiles
from launcher.runs.run import Run, RunState, load, time_in
from launcher.runs.samples import SampleReader
from launcher.runs.view import RunView, report_in_files
from launcher.threads import start_function

if TYPE_CHECKING:
    from typing_extensions import Self

#: Seconds between two looks whether files have changed.
_POLL_SECONDS = 0.5
#: How long the events are read at one look.
_READ_SECONDS = 0.25
#: The pause after a look is at least this many times as long as the look took.
_PAUSE_FACTOR = 4.0
#: Seconds between two questions to the queue of a cluster.
_QUEUE_POLL_SECONDS = 10.0
#: The same while the copying of files has ended, because the launcher has or because the connection is lost.
_LOST_POLL_SECONDS = 2.0
#: How long the first copies may take.
_COPY_TIMEOUT_SECONDS = 30.0
#: How much of the end of the messages of a launcher in the background is read.
_MESSAGE_BYTES = 4 * 1024


@contextmanager
def watched(run: Run) -> Iterator[RunWatcher]:
    """Open a context with a watcher of a run, also if its files are not on this machine.

    Then the watcher reads a private copy of what is new in them, which is removed at the end, and its ``run``
    is that copy: its paths are those to read. Requests, such as to stop the run, are for the run itself.
    """
    with RunWatcher(run) as watcher:
        yield watcher


class RunWatcher:
    """A watcher of one run. It is a context manager, in which `look` is called by one thread.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        #: The run of the user, and the run whose files are read: the same, or a copy.
        self._origin = self.run = run
        #: What copies the files of a run that are not on this machine. None as long as nothing does.
        self._mirror: _Mirror | None = None
        self._open(run)
        #: The time and size of each file of the run when it was last looked at.
        self._seen_files: list[tuple[int, int]] = []
        #: When the next look may begin, by the monotonic clock. It is 0 before the first one.
        self._look_at = 0.0
        #: What the queue of a cluster last said about the run, and when, by the monotonic clock.
        self._queued: BatchJobStatus | None = None
        self._asked_queue_at = -_QUEUE_POLL_SECONDS
        #: Why the files could not be copied. Empty if they could.
        self._copy_error = ""
        #: Whether there are events that were not read for lack of time.
        self._is_behind = False

    def _open(self, run: Run) -> None:
        """Read the files of a run from their beginning."""
        self.run = run
        self._follower = RunFollower(run, files=True)
        self._history = HistoryReader(run.paths)
        self._samples = SampleReader(run.paths)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the launcher, and remove the copies of files."""
        self._follower.close()
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = None

    def look(self, seconds: float) -> RunView:
        """Wait for a change, and return what there is to see then. The first call does not wait.

        Args:
            seconds: How long to wait at most. After a look that took long, it is a little longer.
        """
        if self._look_at:
            self._wait(seconds)
        started = time.monotonic()
        self._reload()
        self._seen_files = self._files()
        while (is_behind := self._history.read()) and time.monotonic() < started + _READ_SECONDS:
            continue
        self._is_behind = is_behind
        self._samples.read()
        view = self._view()
        now = time.monotonic()
        self._look_at = now + _PAUSE_FACTOR * (now - started)
        return view

    def _wait(self, seconds: float) -> None:
        """Wait until something has changed, at most for some seconds, and not less than after a long look."""
        now = time.monotonic()
        until = now + seconds
        time.sleep(max(0.0, self._look_at - now))
        while not self._is_behind:
            left = until - time.monotonic()
            if self._follower.wait(max(0.0, min(left, _POLL_SECONDS))):
                # The events themselves are in the files. Those of one moment are one change.
                while self._follower.wait(0.0) and time.monotonic() < until:
                    continue
                return
            if left <= 0 or self._files() != self._seen_files:
                return

    def _files(self) -> list[tuple[int, int]]:
        """Return the time and the size of each file whose content is shown. Zeros if it is missing."""
        paths = self.run.paths
        found = []
        for path in (paths.owner, paths.plan, paths.events, paths.samples, paths.report, paths.messages):
            try:
                status = os.stat(path)
            except OSError:
                found.append((0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_size))
        return found

    def _reload(self) -> None:
        """Read the record of the run, which a queue or another launcher may have changed.

        If the files are not on this machine, a copy of them is read instead, as long as the launcher runs.
        """
        origin = load(self._origin.paths.root) or self._origin
        if origin.owner != self._origin.owner:
            self._follower.close()
            self._follower = RunFollower(origin, files=True)
        self._origin = origin
        if self._mirror is None or not self._mirror.is_live:
            self._ask_queue()
            phase = self._queued.phase if self._queued else None
            if shares_files(origin) or phase is JobPhase.OVER:
                self._replace_mirror(None)  # All files that there are have been fetched.
            elif phase is JobPhase.RUNNING and origin.batch is not None and origin.batch.node:
                try:
                    self._replace_mirror(_Mirror(origin))
                    self._copy_error = ""
                except (TransportError, OSError) as error:  # It has perhaps ended just now.
                    self._copy_error = escape_controls(str(error))
        root = origin.paths.root if self._mirror is None else self._mirror.root
        if root != self.run.paths.root:
            self._follower.close()
            self._open(load(root) or origin)
        else:
            self.run = load(root) or self.run

    def _replace_mirror(self, mirror: _Mirror | None) -> None:
        """Read another copy of the files from now on, or none."""
        old, self._mirror = self._mirror, mirror
        if old is not None:
            old.close()

    def _ask_queue(self) -> None:
        """Ask the queue of a cluster about the run, if there is one and the last answer is old enough."""
        pause = _QUEUE_POLL_SECONDS if self._mirror is None else _LOST_POLL_SECONDS
        if self._origin.batch is not None and time.monotonic() >= self._asked_queue_at + pause:
            # Once the launcher has ended, the question also fetches the files.
            self._queued = states([self._origin]).get(self._origin.name)
            self._asked_queue_at = time.monotonic()

    def _view(self) -> RunView:
        """Return what the files tell now."""
        run, history, now = self.run, self._history.history(), time.time()
        state, note = run.state, ""
        if state is RunState.ELSEWHERE and self._queued and self._queued.phase is JobPhase.OVER:
            state, note = RunState.DIED, f"died: {escape_controls(self._queued.text)}"
        try:
            report = report_in_files(run, history, now, state)
        except LaunchError as error:
            note = escape_controls(str(error))
            report = Report(run.name, 0, run.started_at or now, now, (), run_dir=run.paths.root)
        plan = run.plan()
        if not report.tasks and state in (RunState.RUNNING, RunState.ELSEWHERE):
            # A launcher in the background says here what it does before the plan is written.
            # The address of a page of --page, which is for the user alone, may be there, too.
            said = last_line(tail(run.paths.messages, _MESSAGE_BYTES)[0].decode("utf-8", "replace"))
            if said and "?token=" not in said:
                note = note or f"starts: {said.rpartition('launch: ')[2]}"
        if state is RunState.ELSEWHERE:
            queued = escape_controls(self._queued.text) if self._queued else f"may run on {run.machine}"
            note = self._copy_error or note or queued
        view = RunView(run, state, report, history, self._samples.series, history.restarting, now, note)
        restarts, timeout = plan.get("restarts"), time_in(plan, "timeout")
        if isinstance(restarts, int) and restarts > 0:
            view = replace(view, restarts_left=max(0, restarts - history.counted_restarts))
        if timeout is not None and not view.has_ended:
            view = replace(view, time_left=max(0.0, report.started_at + timeout - now))
        return view


class _Mirror:
    """A private copy of the files of a run whose launcher runs elsewhere; see `launcher.runs.mirror`.

    Args:
        run: The run.

    Raises:
        TransportError: The files cannot be copied.
    """

    def __init__(self, run: Run) -> None:
        queue = queue_of(run)
        assert queue is not None, "only a run in a queue is copied"
        argv, environ = queue.command_there(run, ("top", "--files", run.paths.root))
        self._folder = tempfile.TemporaryDirectory(prefix="launch-", ignore_cleanup_errors=True)
        self.root = os.path.realpath(self._folder.name)
        shutil.copyfile(run.paths.owner, RunPaths(self.root).owner)
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
        )
        #: Whether the files are still renewed.
        self.is_live = True
        self._has_files = threading.Event()
        self._thread = start_function(self._copy, name="launch-mirror")
        if not self._has_files.wait(_COPY_TIMEOUT_SECONDS) or not self.is_live:
            # What kubectl or srun said, or the launch there. It has ended, or is ended now.
            self._process.kill()
            assert self._process.stderr is not None
            said = self._process.stderr.read(_MESSAGE_BYTES).decode("utf-8", "replace")
            self.close()
            raise TransportError(f"{run.called}: its files cannot be copied: {last_line(said, 'no answer')}")

    def _copy(self) -> None:
        """Write the copies in a thread of their own, until the launcher or the connection has ended."""
        files = MirroredFiles(self.root)
        assert self._process.stdout is not None
        try:
            while files.read_round(self._process.stdout):
                self._has_files.set()
        except (OSError, ProtocolError) as error:
            say(f"the files of a run are no longer copied: {error}")
            self._process.kill()
        self._process.wait()
        self.is_live = False
        self._has_files.set()

    def close(self) -> None:
        """End the copying, and remove the copies."""
        self._process.kill()
        self._thread.join(_COPY_TIMEOUT_SECONDS)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()
