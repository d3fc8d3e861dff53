"""Follows a run until it has ended, for ``launch attach``, ``logs --follow``, ``ps --watch`` and ``stop``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.backends.batch_queue import OVER, PENDING
from launcher.backends.queued_runs import states
from launcher.common.errors import LaunchError
from launcher.common.text import escape_controls
from launcher.messages import say
from launcher.runs.client import EventStream
from launcher.runs.run import Run, RunState

#: The first event after a connection to the launcher was made: what happened before is not among the events.
CONNECTED = "Connected"
#: Seconds between two attempts to ask the launcher for its events.
_RETRY_SECONDS = 0.5
#: Seconds for the launcher's answer, if the follower can do without it.
_ANSWER_TIMEOUT_SECONDS = 1.0
#: Seconds between two questions to a queue; the same when the report is written.
_QUEUE_POLL_SECONDS = 10.0
_LAST_QUEUE_POLL_SECONDS = 0.3
#: Seconds after the report in which the launcher may print its last lines, if a queue can't tell its end.
_LAST_LINES_SECONDS = 5.0


class RunFollower:
    """Follows a run until it has ended, by the events of its launcher.

    There are none while the launcher can't be asked: it has not begun, copies files, is suspended, or runs
    on another machine.

    Args:
        run: The run.
        output: Whether to be told when logs have grown, too. The follower then can do without the events:
            it reads the logs.
    """

    def __init__(self, run: Run, *, output: bool = False) -> None:
        self._run, self._output = run, output
        self._stream: EventStream | None = None
        self._retry_at = 0.0
        #: When to ask the queue next; what it said last.
        self._ask_queue_at, self._queue_text = 0.0, ""
        #: Until when the launcher may add to its messages. 0 before it has written the report.
        self._last_lines_until = 0.0

    @property
    def is_live(self) -> bool:
        """Whether the launcher sends its events. Then the run has not ended."""
        return self._stream is not None

    def wait(self, seconds: float | None = None) -> Sequence[Mapping[str, Any]]:
        """Wait for events of the launcher.

        Args:
            seconds: How long to wait. None: until there are some, or a moment while it can't be asked.

        Returns:
            The events. None of them if the time is up, or if the launcher can't be asked, perhaps no longer.

        Raises:
            LaunchError: The launcher refuses or does not answer, and the follower can't do without it.
        """
        if self._stream is None:
            if self._connect():
                return [{"event": CONNECTED}]
            time.sleep(_RETRY_SECONDS if seconds is None else seconds)
            return []
        events = self._stream.wait(seconds)
        if self._stream.has_ended:
            self._stream.close()
            self._stream = None
        return events

    def _connect(self) -> bool:
        now = time.monotonic()
        if now < self._retry_at or self._run.state is not RunState.RUNNING:
            return False
        try:
            if self._output:
                self._stream = EventStream(self._run, with_output=True, seconds=_ANSWER_TIMEOUT_SECONDS)
            else:
                self._stream = EventStream(self._run)
        except ConnectionError:  # it prepares the start of the tasks, or copies files
            pass
        except LaunchError:
            if not self._output:
                raise
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        return self._stream is not None

    def is_over(self) -> bool:
        """Return whether the launcher has ended. Tells the user why its job is pending in a queue."""
        if self.is_live:
            return False
        state = self._run.state
        if self._run.batch is None or state is RunState.RUNNING:
            return state in (RunState.ENDED, RunState.DIED)
        now = time.monotonic()
        is_reported = state is RunState.ENDED
        pause = _LAST_QUEUE_POLL_SECONDS if is_reported else _QUEUE_POLL_SECONDS
        if is_reported and not self._last_lines_until:
            self._last_lines_until, self._ask_queue_at = now + _LAST_LINES_SECONDS, 0.0
        if now < self._ask_queue_at:
            return False
        self._ask_queue_at = now + pause
        queued = states([self._run]).get(self._run.name)
        if queued is None:
            return is_reported
        if queued.state == PENDING and queued.text != self._queue_text:
            self._queue_text = queued.text
            say(escape_controls(queued.text))
        return queued.state == OVER or (is_reported and now > self._last_lines_until)
