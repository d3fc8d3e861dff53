"""Reads the output of tasks and sends it to the launcher.

The agent calls `Outputs`. While the launcher accepts nothing, output stays in the pipes of the tasks, so that
the agent needs no memory for it, and the tasks wait. Nothing may be dropped here.
"""

from __future__ import annotations

import os
import selectors
import time
from typing import Callable, Dict, Optional

from launcher.agent.connection import LauncherConnection
from launcher.agent.stopping import RunningTask
from launcher.common.events import TaskOutput
from launcher.common.protocol import WINDOW_BYTES

#: The output of a task is closed this long after its last process has ended. A process of another task may
#: keep it open.
DRAIN_SECONDS = 1.0
#: After a pause, output is read again when no more than this waits to be sent.
_LOW_WATER_BYTES = WINDOW_BYTES // 2
_READ_BYTES = 64 * 1024
# So many reads empty a full pipe (64 KiB) and reach its end.
_MAX_LAST_READS = 3

OnClosed = Callable[[RunningTask], None]


class Outputs:
    """The open outputs of all tasks: it reads them, and pauses while the launcher is too slow.

    Args:
        selector: Wakes the agent when an output can be read.
        connection: The connection to the launcher.
        on_closed: Called with a task when its output was closed.
    """

    def __init__(
        self, selector: selectors.BaseSelector, connection: LauncherConnection, *, on_closed: OnClosed
    ) -> None:
        """Manage the outputs of tasks, of which none is open at first."""
        self._selector = selector
        self._connection = connection
        self._on_closed = on_closed
        #: Whether output is left in the pipes for now, because the launcher is too slow.
        self._is_paused = False
        #: The tasks by the descriptors of their open outputs.
        self._open: Dict[int, RunningTask] = {}
        #: When to close the outputs of tasks whose processes have all ended (monotonic), by descriptor.
        self._close_at: Dict[int, float] = {}

    def __contains__(self, fd: object) -> bool:
        """Return whether a descriptor is the open output of a task."""
        return fd in self._open

    def add(self, task: RunningTask) -> None:
        """Read the output of a task whenever there is some, from now on."""
        # The output of a task that has just started is open.
        if task.output is not None:
            self._open[task.output] = task
            if not self._is_paused:
                self._listen(task.output)

    def pause_or_go_on(self) -> None:
        """Stop reading while too much waits to be sent to the launcher, or continue when little is left.

        The output of a task that has ended is closed after a time. This time starts again here, because
        nothing was read during a pause.
        """
        # The limits differ, so that reading does not pause and continue all the time.
        limit = _LOW_WATER_BYTES if self._is_paused else WINDOW_BYTES
        is_paused = self._connection.pending > limit
        if is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        self._close_at = dict.fromkeys(self._close_at, time.monotonic() + DRAIN_SECONDS)
        for output in self._open:
            if is_paused:
                self._selector.unregister(output)
            else:
                self._listen(output)

    def read_rest(self, task: RunningTask) -> None:
        """Read what a task has left in its pipe when all its processes have ended.

        The pipe is closed `DRAIN_SECONDS` later, even if a process of another task keeps it open.
        """
        for _ in range(_MAX_LAST_READS):
            self._read(task)
        # It is still open if another process keeps the pipe open, or during a pause.
        if task.output is not None:
            self._close_at[task.output] = time.monotonic() + DRAIN_SECONDS

    def let_go(self, task: RunningTask) -> None:
        """Close the output of a task that has ended, even if other processes keep it open.

        During a pause nothing is closed, because the pipe may contain output that was not read.
        """
        if task.output is not None and not self._is_paused:
            self._close(task, task.output)

    def next_due(self) -> Optional[float]:
        """Return when `on_time` is due (monotonic), or None if it never is."""
        return min(self._close_at.values(), default=None)

    def on_time(self, now: float) -> None:
        """Close outputs that have stayed open for too long after the end of their tasks.

        Args:
            now: The time (monotonic).
        """
        for output in [output for output, close_at in self._close_at.items() if close_at <= now]:
            # During a pause, the pipe may contain output that was not read.
            if self._is_paused:
                self._close_at[output] = now + DRAIN_SECONDS
            else:
                self._close(self._open[output], output)

    def _listen(self, output: int) -> None:
        """Let the selector wake the agent when this output can be read."""
        task = self._open[output]
        self._selector.register(output, selectors.EVENT_READ, lambda: self._read(task))

    def _read(self, task: RunningTask) -> None:
        """Send what can be read from a task's output to the launcher, and close the output at its end."""
        output = task.output
        # The selector may have reported it before it was closed, or before too much waited to be sent.
        if output is None or self._is_paused:
            return
        try:
            data = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            # The launcher fills in the host.
            self._connection.send(TaskOutput("", task.id, task.attempt, data=data), bulk=True)
            # So much may wait now that reading has to pause.
            self.pause_or_go_on()
        else:
            self._close(task, output)

    def _close(self, task: RunningTask, output: int) -> None:
        """Close the output of a task, and report that.

        Args:
            task: The task.
            output: The descriptor of its output.
        """
        # During a pause the selector does not watch any output.
        if not self._is_paused:
            self._selector.unregister(output)
        del self._open[output]
        self._close_at.pop(output, None)
        os.close(output)
        task.output = None
        self._on_closed(task)
