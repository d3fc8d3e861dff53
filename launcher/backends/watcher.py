"""Watches a run for ``launch top`` and ``launch page``: what there is to see of it, again and again.

The files of the run tell everything, so its launcher does not notice who watches. Nothing in the files
makes the watcher fail, and no file keeps it busy for long.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.backends.batch_queue import BatchJobStatus, JobPhase
from launcher.backends.queued_runs import queue_of, shares_files, states
from launcher.common.errors import LaunchError, ProtocolError, TransportError
from launcher.common.record import replace
from launcher.common.report import Report
from launcher.common.text import escape_controls, last_line
from launcher.job import RunPaths
from launcher.messages import say
from launcher.runs.history import HistoryReader
from launcher.runs.mirror import receive_files
from launcher.runs.run import Run, RunState, load, time_in
from launcher.runs.samples import SampleReader
from launcher.runs.view import RunView, report_from_files
from launcher.threads import start_function

if TYPE_CHECKING:
    from typing_extensions import Self

#: Seconds between two looks whether files have changed.
_POLL_SECONDS = 0.2
#: How long the events are read at one look.
_READ_SECONDS = 0.25
#: The pause after a look is this many times as long as the look took.
_PAUSE_FACTOR = 4.0
#: Seconds between two questions to the queue of a cluster.
_QUEUE_POLL_SECONDS = 5.0
#: How long the first copies may take, and the end of the copying.
_COPY_TIMEOUT_SECONDS = 30.0
#: How much of what the command that copies says about its failure is read.
_MESSAGE_BYTES = 4 * 1024


class RunWatcher:
    """A watcher of one run. It is a context manager, in which `look` is called by one thread.

    If the files of the run are not on this machine, it reads a private copy of them, which is removed at the
    end. Its `run` is then that copy: its paths are those to read. Requests, such as to stop the run, are for
    the run itself.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        """Prepare to watch a run. Nothing is read before the first `look`."""
        #: The run of the user, and the run whose files are read: the same, or a copy.
        self._origin = self.run = run
        #: What reads the events and the samples of `run`.
        self._history, self._samples = HistoryReader(run.paths), SampleReader(run.paths)
        #: The copy of the run's files. None if the files are on this machine, or while nothing copies them.
        self._mirror: _Mirror | None = None
        #: Why the files of the run could not be copied. Empty if copying them has not failed.
        self._copy_error = ""
        #: What the queue of a cluster last said about the run, and when it is asked again.
        self._queued: BatchJobStatus | None = None
        self._ask_queue_at = 0.0
        #: What `_files` returned at the last look. None: the next look does not wait for a change.
        self._seen_files: list[object] | None = None
        #: The least number of seconds until the next look.
        self._pause = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the copies of files."""
        self._replace_mirror(None)

    def look(self, seconds: float) -> RunView:
        """Wait for a change, and return what there is to see then. The first call does not wait.

        Args:
            seconds: How long to wait at most.
        """
        until = time.monotonic() + seconds
        time.sleep(min(seconds, self._pause))
        while self._files() == self._seen_files and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_SECONDS))
        started = time.monotonic()
        self._find_files()
        self._seen_files = self._files()
        # A long history is read piece by piece, for a limited time. If more is left, the next look need not
        # wait for a change.
        while (is_behind := self._history.read()) and time.monotonic() < started + _READ_SECONDS:
            continue
        if is_behind:
            self._seen_files = None
        self._samples.read()
        view = self._view()
        # After a look that took long, the next pause is longer, so that watching a large run takes only a
        # part of a processor.
        self._pause = _PAUSE_FACTOR * (time.monotonic() - started)
        return view

    def _files(self) -> list[object]:
        """Return what is different once the run has changed: its state, the time and size of its files."""
        paths = self.run.paths
        found: list[object] = [self.run.state]
        for path in (paths.record, paths.plan, paths.events, paths.samples, paths.report):
            with suppress(OSError):
                status = os.stat(path)
                found.append((path, status.st_mtime_ns, status.st_size))
        return found

    def _find_files(self) -> None:
        """Read the record of the run again, which a queue or another launcher may have changed.

        If the files are not on this machine, a copy of them is read instead, as long as the launcher runs.
        """
        self._origin = origin = load(self._origin.paths.root) or self._origin
        if origin.batch is not None and not (self._mirror and self._mirror.is_live):
            self._ask_queue(origin)
        root = origin.paths.root if self._mirror is None else self._mirror.root
        if root != self.run.paths.root:
            paths = RunPaths(root)
            self._history, self._samples = HistoryReader(paths), SampleReader(paths)
        self.run = load(root) or origin

    def _ask_queue(self, origin: Run) -> None:
        """Ask the queue of a cluster about the run, and copy its files if it runs elsewhere."""
        if time.monotonic() < self._ask_queue_at:
            return
        # Once the launcher has ended, the question also fetches the files.
        self._queued = states([origin]).get(origin.name)
        phase = self._queued.phase if self._queued else None
        if shares_files(origin) or phase is JobPhase.OVER:
            self._replace_mirror(None)
        elif phase is JobPhase.RUNNING and origin.batch is not None and origin.batch.node:
            try:
                self._replace_mirror(_Mirror(origin))
                self._copy_error = ""
            except (TransportError, OSError) as error:  # It has perhaps ended just now.
                self._copy_error = escape_controls(str(error))
        self._ask_queue_at = time.monotonic() + _QUEUE_POLL_SECONDS

    def _replace_mirror(self, mirror: _Mirror | None) -> None:
        """Read another copy of the files from now on, or none."""
        old, self._mirror = self._mirror, mirror
        if old is not None:
            old.close()

    def _view(self) -> RunView:
        """Return what the files tell now."""
        run, history, now = self.run, self._history.history(), time.time()
        state, note = run.state, ""
        if state is RunState.ELSEWHERE:
            queued = escape_controls(self._queued.text) if self._queued else ""
            note = self._copy_error or queued or f"may run on {run.machine}"
            if self._queued and self._queued.phase is JobPhase.OVER:
                state, note = RunState.DIED, f"died: {queued}"
        try:
            report = report_from_files(run, history, state, now)
        except LaunchError as error:
            note = escape_controls(str(error))
            report = Report(run.name, 0, run.started_at or now, now, (), run_dir=run.paths.root)
        view = RunView(run, state, report, history, self._samples.series, now, note)
        plan = run.plan()
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
        """Start to copy the files, and wait until all were copied once."""
        queue = queue_of(run)
        assert queue is not None, "only a run in a queue is copied"
        # With the hidden option --files, `launch top` there only writes the files to its stdout.
        argv, environ = queue.command_there(run, ("top", "--files", run.paths.root))
        #: The private folder of the copies, and its path without links.
        self._folder = tempfile.TemporaryDirectory(prefix="launch-", ignore_cleanup_errors=True)
        self.root = os.path.realpath(self._folder.name)
        shutil.copyfile(run.paths.record, RunPaths(self.root).record)
        #: The command that runs this `launch top` where the files are. It calls
        #: `launcher.runs.mirror.send_files`.
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
        )
        #: Whether the files are still renewed.
        self.is_live = True
        #: It is set when all files were copied once, or when copying has ended.
        self._has_files = threading.Event()
        # A thread renews the copies for as long as the user watches the run.
        self._thread = start_function(self._copy, name="launch-mirror")
        if not self._has_files.wait(_COPY_TIMEOUT_SECONDS) or not self.is_live:
            # The copying has failed. The reason is what kubectl or srun, or the launch there, has printed.
            self._process.kill()
            assert self._process.stderr is not None
            said = self._process.stderr.read(_MESSAGE_BYTES).decode("utf-8", "replace")
            self.close()
            raise TransportError(f"{run.called}: its files cannot be copied: {last_line(said, 'no answer')}")

    def _copy(self) -> None:
        """Write the copies in a thread of their own, until the launcher or the connection has ended."""
        assert self._process.stdout is not None
        try:
            for _ in receive_files(self._process.stdout, self.root):
                self._has_files.set()
        except (OSError, ProtocolError) as error:
            say(f"the files of a run are no longer copied: {error}")
            self._process.kill()
        self.is_live = False
        self._has_files.set()

    def close(self) -> None:
        """End the copying, and remove the copies."""
        with self._process:  # At the end of the context it has ended, and its pipes are closed.
            self._process.kill()
            self._thread.join(_COPY_TIMEOUT_SECONDS)
        self._folder.cleanup()
