"""Reads the output of tasks and sends it to the launcher.

The agent calls `Outputs`. While the launcher takes nothing, output stays in the pipes of the tasks, so that
the agent needs no memory for it, and the tasks wait. Nothing is dropped here.
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

#: How long an output may stay open after the last process of its task has ended: a process of another task
#: may hold it.
DRAIN_SECONDS = 1.0
#: Output is read again when no more than this waits to be sent.
_LOW_WATER_BYTES = WINDOW_BYTES // 2
_READ_BYTES = 64 * 1024
#: As many reads empty a pipe (64 KiB) and see its end.
_MAX_LAST_READS = 3

OnClosed = Callable[[RunningTask], None]


class Outputs:
    """The open outputs of all tasks.

    Args:
        selector: Wakes the agent when an output can be read.
        connection: The connection to the launcher.
        on_closed: Called with a task when its output has ended.
    """

    def __init__(
        self, selector: selectors.BaseSelector, connection: LauncherConnection, *, on_closed: OnClosed
    ) -> None:
        self._selector = selector
        self._connection = connection
        self._on_closed = on_closed
        self._is_paused = False
        self._open: Dict[int, RunningTask] = {}
        #: When to close the output of a task whose processes have all ended (monotonic).
        self._close_at: Dict[int, float] = {}

    def __contains__(self, fd: object) -> bool:
        return fd in self._open

    def add(self, task: RunningTask) -> None:
        """Read the output of a task from now on."""
        if task.output is not None:
            self._open[task.output] = task
            if not self._is_paused:
                self._listen(task.output)

    def pause_or_go_on(self) -> None:
        """Leave everything in the tasks' pipes while too much waits to be sent, or go on."""
        is_paused = self._connection.pending > (_LOW_WATER_BYTES if self._is_paused else WINDOW_BYTES)
        if is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        now = time.monotonic()
        self._close_at = dict.fromkeys(self._close_at, now + DRAIN_SECONDS)
        for output in self._open:
            if is_paused:
                self._selector.unregister(output)
            else:
                self._listen(output)

    def read_rest(self, task: RunningTask) -> None:
        """Read what a task whose processes have all ended left in its pipe. Soon after, close the pipe."""
        for _ in range(_MAX_LAST_READS):
            self._read(task)
        if task.output is not None:
            self._close_at[task.output] = time.monotonic() + DRAIN_SECONDS

    def let_go(self, task: RunningTask) -> None:
        """Do not wait for other processes that hold the output of a task that has ended."""
        if task.output is not None and not self._is_paused:
            self._close(task, task.output)

    def next_due(self) -> Optional[float]:
        """Return when `on_time` is due (monotonic), or None if it never is."""
        return min(self._close_at.values(), default=None)

    def on_time(self, now: float) -> None:
        """Close outputs that have stayed open for too long."""
        for output in [output for output, until in self._close_at.items() if until <= now]:
            if self._is_paused:
                self._close_at[output] = now + DRAIN_SECONDS
            else:
                self._close(self._open[output], output)

    def _listen(self, output: int) -> None:
        task = self._open[output]
        self._selector.register(output, selectors.EVENT_READ, lambda: self._read(task))

    def _read(self, task: RunningTask) -> None:
        output = task.output
        if output is None or self._is_paused:
            return
        try:
            data = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._connection.send(
                TaskOutput(host="", task=task.id, attempt=task.attempt, data=data), bulk=True
            )
            self.pause_or_go_on()
        else:
            self._close(task, output)

    def _close(self, task: RunningTask, output: int) -> None:
        if not self._is_paused:
            self._selector.unregister(output)
        del self._open[output]
        self._close_at.pop(output, None)
        os.close(output)
        task.output = None
        self._on_closed(task)
