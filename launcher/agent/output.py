"""Output of tasks: read when it comes, and left in the tasks' pipes while the launcher takes nothing."""

from __future__ import annotations

import os
import selectors
import time
from typing import Callable, Dict, Optional

from launcher.agent.connection import LauncherConnection
from launcher.agent.stopping import RunningTask
from launcher.common.events import TaskOutput
from launcher.common.protocol import WINDOW_BYTES

#: Seconds that an output may stay open after the last process of its task has ended: a process of another
#: task may hold it.
DRAIN_SECONDS = 1.0
#: Bytes that wait to be sent; from there on output is read again.
_LOW_WATER_BYTES = WINDOW_BYTES // 2
_READ_BYTES = 64 * 1024
#: Reads that empty a pipe (64 KiB) and see its end at once.
_MAX_LAST_READS = 3


class Outputs:
    """The open outputs of all tasks.

    Args:
        selector: wakes the agent when an output can be read.
        connection: to the launcher.
        closed: called with a task when its output has ended.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        connection: LauncherConnection,
        closed: Callable[[RunningTask], None],
    ) -> None:
        self._selector = selector
        self._connection = connection
        self._closed = closed
        self._paused = False
        self._open: Dict[int, RunningTask] = {}
        #: When to close the output of a task whose processes have all ended (monotonic).
        self._last: Dict[int, float] = {}

    def __contains__(self, fd: object) -> bool:
        return fd in self._open

    def add(self, task: RunningTask) -> None:
        """Read the output of ``task`` from now on."""
        if task.output is not None:
            self._open[task.output] = task
            if not self._paused:
                self._listen(task.output)

    def pause_or_go_on(self) -> None:
        """Leave everything in the tasks' pipes while too much waits to be sent, or go on."""
        paused = self._connection.pending > (_LOW_WATER_BYTES if self._paused else WINDOW_BYTES)
        if paused == self._paused:
            return
        self._paused = paused
        now = time.monotonic()
        self._last = dict.fromkeys(self._last, now + DRAIN_SECONDS)
        for output in self._open:
            if paused:
                self._selector.unregister(output)
            else:
                self._listen(output)

    def read_rest(self, task: RunningTask) -> None:
        """All processes of ``task`` have ended: read the rest, and close the pipe if it stays open."""
        for _ in range(_MAX_LAST_READS):
            self._read(task)
        if task.output is not None:
            self._last[task.output] = time.monotonic() + DRAIN_SECONDS

    def let_go(self, task: RunningTask) -> None:
        """Do not wait for other processes that hold the output of a task that has ended."""
        if task.output is not None and not self._paused:
            self._close(task, task.output)

    def next_due(self) -> Optional[float]:
        """When `on_time` is due (monotonic); ``None``: never."""
        return min(self._last.values(), default=None)

    def on_time(self, now: float) -> None:
        """Close outputs that stayed open for too long, after reading them."""
        for output in [output for output, until in self._last.items() if until <= now]:
            if self._paused:
                self._last[output] = now + DRAIN_SECONDS
            else:
                self._close(self._open[output], output)

    def _listen(self, output: int) -> None:
        task = self._open[output]
        self._selector.register(output, selectors.EVENT_READ, lambda: self._read(task))

    def _read(self, task: RunningTask) -> None:
        output = task.output
        if output is None or self._paused:
            return
        try:
            data = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._connection.send(TaskOutput("", task.id, task.attempt, data), bulk=True)
            self.pause_or_go_on()
        else:
            self._close(task, output)

    def _close(self, task: RunningTask, output: int) -> None:
        if not self._paused:
            self._selector.unregister(output)
        del self._open[output]
        self._last.pop(output, None)
        os.close(output)
        task.output = None
        self._closed(task)
