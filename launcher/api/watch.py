"""Looks after a launcher while it runs: what it writes down, what its tasks say, and what that means."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from launcher.api.ends import End, Ends
from launcher.api.failures import LINES, explained, launch_failed, task_failed
from launcher.api.launcheroutput import LauncherOutput
from launcher.api.members import Member
from launcher.api.talk import Word
from launcher.errors import JobFailed, LaunchError
from launcher.feed.waiting import FIRST
from launcher.runs.growing import Events, last_lines, run_of
from launcher.runs.process import LauncherProcess

#: Seconds between two looks at what the launcher writes down.
_LOOK = 0.05
#: Seconds that a task which has ended may take to be heard to the end; and one that says that it failed, to
#: end.
_HEAR, _END = 0.5, 0.7


class Told(NamedTuple):
    """Who is told of what; each is called in the watch's thread, and must be quick."""

    #: A task is over.
    ended: Callable[[End], None]
    #: The job has failed.
    failed: Callable[[LaunchError], None]


class Watch:
    """A thread that knows how the job is.

    Args:
        process: the launcher.
        output: its own.
        members: its tasks.
        told: who is told.
        patient: the job goes on without tasks that have failed.
        environ: of the launcher.
        run_dir: of its run; ``None``: among the runs of the user.
    """

    def __init__(
        self,
        process: LauncherProcess,
        output: LauncherOutput,
        members: Mapping[str, Member],
        told: Told,
        patient: bool,
        environ: Mapping[str, str],
        run_dir: str | None,
    ) -> None:
        self._process = process
        self._output = output
        self._members = members
        self._told = told
        self._patient = patient
        self._environ = environ
        self._root = run_dir
        self._ends = Ends()
        self._events: Events | None = None
        #: Read, and not yet looked at.
        self._coming: deque[Mapping[str, Any]] = deque()
        self._since = time.monotonic()
        #: What the launcher has said that is no failure.
        self._remarks: set[str] = set()
        self._lock = threading.Lock()
        self._waking, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name="launch-watch", daemon=True)
        #: It was asked to end: how it ends is no failure.
        self.asked = False
        #: The first failure, as an exception; ``None``: there was none.
        self.error: LaunchError | None = None
        #: Set when the launcher has ended and all is known.
        self.over = threading.Event()
        self._thread.start()

    @property
    def run_dir(self) -> str:
        """The folder of the run; empty: it has none yet."""
        if self._root is None:
            self._root = run_of(self._process.pid, self._environ)
        return self._root or ""

    def last_lines(self, task: str) -> list[str]:
        """The last lines that a task has printed."""
        return last_lines(self.run_dir, task, LINES) if self.run_dir else []

    @property
    def ends_itself(self) -> bool:
        """Whether the launcher is ending the job, or was asked to."""
        return self.asked or (
            self.error is not None and (self._ends.first is not None or self._ends.trouble != "")
        )

    def look(self) -> None:
        """There is something to be seen: do not wait."""
        try:
            os.write(self._wake, b".")
        except OSError:  # all is over
            pass

    def send(self, number: int) -> None:
        """Signal the launcher."""
        self.asked = True
        with self._lock:
            self._process.send(number)

    def end(self) -> None:
        """See to it that the launcher is over, at once."""
        self.asked = True
        with self._lock:
            self._process.end()
        self.look()

    def close(self) -> None:
        """The launcher is over: nothing is left of the watch."""
        self._thread.join()
        for number in (self._waking, self._wake):
            os.close(number)

    # ------------------------------------------------------------------ in its thread

    def _run(self) -> None:
        try:
            code = self._watched()
            self._last_words(code)
        except Exception as error:  # noqa: BLE001 - a fault of ours: who waits is told, and nothing goes on
            self._fail(JobFailed(f"the job can't be watched: {type(error).__name__}: {error}"))
            self._process.end()
        finally:
            self.over.set()

    def _watched(self) -> int:
        """Look until the launcher has ended; its exit code."""
        while True:
            code = self._exit_code()  # asked first: what came up to then is looked at once more
            self._look()
            if code is not None:
                return code
            poll = select.poll()
            poll.register(self._waking, select.POLLIN)
            if poll.poll(_LOOK * 1000):
                os.read(self._waking, 4096)

    def _exit_code(self) -> int | None:
        with self._lock:
            return self._process.exit_code

    def _look(self) -> None:
        if self._events is None and self.run_dir:
            self._events = Events(self.run_dir)
        self._coming += self._events.more() if self._events else ()
        if self._coming or time.monotonic() > self._since + FIRST:
            self._output.show()
        while self._coming:
            event = self._coming.popleft()
            if event["event"] == "Tell":
                self._remarks.update(event["text"].splitlines())
            for end in self._ends.take(event):
                self._task_over(end)
        self._judge()

    def _task_over(self, end: End) -> None:
        member = self._members.get(end.task)
        if member is not None and member.here.is_set():
            member.silent.wait(_HEAR)  # what it said last may still be on its way
        if end.failed:
            self._until_gone(end.task)
        if member is not None:
            member.ended.set()
        self._judge()  # first, so that who waits for this task is told why it is gone
        self._told.ended(explained(end, member.outcome if member is not None else None))

    def _until_gone(self, task: str) -> None:
        """Wait, not long, until the launcher says that a task's output is complete: its last lines are to be
        told."""
        until = time.monotonic() + _HEAR
        while self._events is not None and time.monotonic() < until:
            if any(event["event"] == "TaskGone" and event["task"] == task for event in self._coming):
                return
            time.sleep(_LOOK / 5)
            self._coming += self._events.more()

    def _last_words(self, code: int) -> None:
        """The launcher has ended."""
        self._output.finish()
        self._patient = False
        self._judge()
        self._judge_late_words()
        only_launch = bool(code) and self.error is None and not self.asked
        if only_launch:
            self._fail(launch_failed(code, self._output.said, self.run_dir, self._remarks))
        self._output.settle(told=only_launch, raised=self.error is not None or self.asked)
        for member in self._members.values():
            member.ended.set()

    # ------------------------------------------------------------------ what it means

    def _judge(self) -> None:
        """Whether the job has failed, as far as is known."""
        if self.error is not None or self.asked or self._patient:
            return
        if self._ends.first is not None:
            self._task_failed(self._ends.first)
        elif self._ends.trouble:
            self._fail(JobFailed(self._ends.trouble, self.run_dir))
        else:
            self._judge_words()

    def _judge_words(self) -> None:
        """A task that says it has failed, and does not end: something keeps its process."""
        for member in self._members.values():
            if member.outcome is not None and member.outcome.word is Word.RAISED:
                if member.failed_at is None:
                    member.failed_at = time.monotonic()
                elif time.monotonic() > member.failed_at + _END:
                    self._task_failed(End(member.name, failed=True))
                    return

    def _judge_late_words(self) -> None:
        """A task that had failed when the job was done and all others were ended: it has failed all the
        same."""
        for member in self._members.values():
            if self.error is None and not self.asked and self._had_failed(member):
                self._task_failed(End(member.name, failed=True))

    def _had_failed(self, member: Member) -> bool:
        """Whether its function had raised by itself, and not because the task was being ended."""
        if member.outcome is None or member.outcome.word is not Word.RAISED:
            return False
        if member.replied_at < self._ends.signalled.get(member.name, math.inf):
            return True  # a server's word may come later: it has nobody whom it could miss
        return member.name.startswith("ps/") and bool(member.outcome.facts.get("unasked"))

    def _task_failed(self, end: End) -> None:
        member = self._members.get(end.task)
        outcome = member.outcome if member is not None else None
        self._fail(task_failed(end, outcome, self.last_lines(end.task), self.run_dir))

    def _fail(self, error: LaunchError) -> None:
        self.error = error
        self._told.failed(error)
