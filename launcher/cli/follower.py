"""Follows a run until it has ended, for ``launch attach``, ``logs --follow``, ``ps --watch`` and ``stop``.

The launcher of the run sends its events as long as it can be asked. Otherwise the files of the run, and the
queue of a cluster if there is one, tell whether the run has ended. The module never changes a run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.backends.batch_queue import JobPhase
from launcher.backends.queued_runs import states
from launcher.common.errors import LaunchError
from launcher.common.text import escape_controls
from launcher.messages import say
from launcher.runs.client import EventStream
from launcher.runs.run import Run, RunState

#: An event of the follower itself: it has connected to the launcher. Earlier events are not reported.
CONNECTED = "Connected"
#: Seconds between two attempts to connect to the launcher.
_RETRY_SECONDS = 0.5
#: The time limit for the launcher's answer if the follower can do without it.
_ANSWER_TIMEOUT_SECONDS = 1.0
#: Seconds between two questions to a queue.
_QUEUE_POLL_SECONDS = 10.0
#: Seconds between two questions to a queue once the report is written, as the launcher is about to exit then.
_LAST_QUEUE_POLL_SECONDS = 0.3
#: How long after the report the launcher may print its last lines, if a queue cannot tell when it exits.
_LAST_LINES_SECONDS = 5.0


class RunFollower:
    """A follower of one run, which waits for the events of its launcher and notices its end.

    There are no events while the launcher cannot be asked: it has not started yet, copies files, is
    suspended, or runs on another machine.

    Args:
        run: The run.
        output: Whether the events shall also tell when logs have grown. The caller then reads the logs, and
            can do without events, so a launcher that refuses or does not answer is no error.
    """

    def __init__(self, run: Run, *, output: bool = False) -> None:
        self._run, self._output = run, output
        #: The connection to the launcher. None while there is none.
        self._stream: EventStream | None = None
        #: When the launcher may be asked again after an attempt to connect, by the monotonic clock.
        self._retry_at = 0.0
        #: When the queue may be asked again, by the monotonic clock.
        self._ask_queue_at = 0.0
        #: What the queue last said about a pending job. The user is told only what is new.
        self._queue_text = ""
        #: Until when the launcher may still write its last messages after the report, by the monotonic clock.
        #: It is 0 as long as no report was seen.
        self._last_lines_until = 0.0

    @property
    def is_live(self) -> bool:
        """Whether the follower is connected to the launcher, so the run has not ended."""
        return self._stream is not None

    def wait(self, seconds: float | None = None) -> Sequence[Mapping[str, Any]]:
        """Wait for events of the launcher, and connect to it first if necessary.

        Args:
            seconds: How long to wait at most. By default there is no limit while the launcher is connected,
                and a short one otherwise.

        Returns:
            The events. There are none if the time is up, or if the launcher cannot be asked now. After a
            connection was made the only one is `CONNECTED`.

        Raises:
            LaunchError: The launcher refuses or does not answer, and the caller cannot do without events.
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
        """Connect to the launcher if it runs and the last attempt was long enough ago.

        Returns:
            Whether the launcher is connected now.

        Raises:
            LaunchError: The launcher refuses or does not answer, and the caller cannot do without events.
        """
        now = time.monotonic()
        if now < self._retry_at or self._run.state is not RunState.RUNNING:
            return False
        try:
            if self._output:  # The caller can do without events, so it does not wait long for them.
                self._stream = EventStream(self._run, with_output=True, seconds=_ANSWER_TIMEOUT_SECONDS)
            else:
                self._stream = EventStream(self._run)
        except ConnectionError:
            # The launcher prepares the start of the tasks, or copies files. It can be asked later.
            pass
        except LaunchError:
            if not self._output:
                raise
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        return self._stream is not None

    def is_over(self) -> bool:
        """Return whether the run has ended and its launcher adds nothing to its messages.

        If a queue of a cluster starts the launcher, the queue is asked, but not at every call. The user is
        told why the queue has not started the launcher yet.
        """
        if self.is_live:
            return False
        state = self._run.state
        # Without a queue, or with a launcher on this machine, the files and processes here tell the state.
        if self._run.batch is None or state is RunState.RUNNING:
            return state in (RunState.ENDED, RunState.DIED)
        # The report is the last file of a run, but a launcher on another machine may still print its last
        # lines.
        now = time.monotonic()
        is_reported = state is RunState.ENDED
        pause = _LAST_QUEUE_POLL_SECONDS if is_reported else _QUEUE_POLL_SECONDS
        if is_reported and not self._last_lines_until:  # The report is new, so the queue is asked at once.
            self._last_lines_until, self._ask_queue_at = now + _LAST_LINES_SECONDS, 0.0
        if now < self._ask_queue_at:
            return False
        self._ask_queue_at = now + pause
        queued = states([self._run]).get(self._run.name)
        if queued is None:  # The queue does not know the job, or cannot be asked.
            return is_reported
        if queued.phase is JobPhase.PENDING and queued.text != self._queue_text:
            self._queue_text = queued.text
            say(escape_controls(queued.text))
        return queued.phase is JobPhase.OVER or (is_reported and now > self._last_lines_until)
