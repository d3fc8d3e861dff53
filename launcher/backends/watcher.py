"""Watches a run for ``launch top`` and ``launch page``: what there is to see of it, again and again.

The files of the run tell everything. One connection to its launcher says when to look at them, as long as the
launcher can be asked. Nothing in the files makes the watcher fail, and no file keeps it busy for long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from launcher.backends.follower import RunFollower
from launcher.backends.queued_runs import states
from launcher.common.errors import LaunchError
from launcher.common.record import replace
from launcher.common.report import Report
from launcher.common.text import escape_controls, last_line
from launcher.output.logs import tail
from launcher.runs.history import HistoryReader
from launcher.runs.run import Run, RunState, load, time_in
from launcher.runs.samples import SampleReader
from launcher.runs.view import RunView, report_in_files

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
#: How much of the end of the messages of a launcher in the background is read.
_MESSAGE_BYTES = 4 * 1024


@contextmanager
def watched(run: Run) -> Iterator[RunWatcher]:
    """Open a context with a watcher of a run, also if its files are not on this machine.

    Then the watcher reads a private copy of what is new in them, which is removed at the end, and its ``run``
    is that copy: its paths are those to read. Requests, such as to stop the run, are for the run itself.

    Raises:
        LaunchError: The launcher is elsewhere, and has not begun yet or cannot be reached.
    """
    with RunWatcher(run) as watcher:
        yield watcher


class RunWatcher:
    """A watcher of one run, whose files are on this machine. It is a context manager.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        #: The run, as its record is now.
        self.run = run
        self._follower = RunFollower(run, files=True)
        self._history = HistoryReader(run.paths)
        self._samples = SampleReader(run.paths)
        #: The time and size of each file of the run when it was last looked at.
        self._seen_files: list[tuple[int, int]] = []
        #: When the next look may begin, by the monotonic clock. It is 0 before the first one.
        self._look_at = 0.0
        #: What the queue of a cluster last said about the run, and when it may be asked again.
        self._queue_text = ""
        self._ask_queue_at = 0.0
        #: Whether there are events that were not read for lack of time.
        self._is_behind = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the launcher."""
        self._follower.close()

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
        """Read the record of the run, which a queue or another launcher may have changed."""
        run = load(self.run.paths.root)
        if run is not None and run != self.run:
            if run.owner != self.run.owner:
                self._follower.close()
                self._follower = RunFollower(run, files=True)
            self.run = run

    def _view(self) -> RunView:
        """Return what the files tell now."""
        run, history, now = self.run, self._history.history(), time.time()
        state, note = run.state, ""
        try:
            report = report_in_files(run, history, now)
        except LaunchError as error:
            note = escape_controls(str(error))
            report = Report(run.name, 0, run.started_at or now, now, (), run_dir=run.paths.root)
        plan = run.plan()
        if not report.tasks and state in (RunState.RUNNING, RunState.ELSEWHERE):
            # A launcher in the background says here what it does before the plan is written.
            said = last_line(tail(run.paths.messages, _MESSAGE_BYTES)[0].decode("utf-8", "replace"))
            note = note or (f"starts: {said}" if said else "")
        if state is RunState.ELSEWHERE:
            note = self._text_of_queue() or note or f"may run on {run.machine}"
        view = RunView(run, state, report, history, self._samples.series, history.restarting, now, note)
        restarts, timeout = plan.get("restarts"), time_in(plan, "timeout")
        if isinstance(restarts, int):
            view = replace(view, restarts_left=max(0, restarts - report.restarts))
        if timeout is not None and not view.has_ended:
            view = replace(view, time_left=max(0.0, report.started_at + timeout - now))
        return view

    def _text_of_queue(self) -> str:
        """Return what the queue of a cluster says about the run. Empty without one, or if it is silent."""
        if self.run.batch is not None and time.monotonic() >= self._ask_queue_at:
            queued = states([self.run]).get(self.run.name)
            self._queue_text = "" if queued is None else escape_controls(queued.text)
            self._ask_queue_at = time.monotonic() + _QUEUE_POLL_SECONDS
        return self._queue_text
