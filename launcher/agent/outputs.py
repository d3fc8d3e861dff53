"""What the tasks print: read as it comes, and left in their pipes while the launcher takes nothing."""

from __future__ import annotations

import os
import selectors
import time
from typing import TYPE_CHECKING

from launcher.agent.pipe import HIGH_WATER, LOW_WATER, Pipe
from launcher.agent.task import Task

if TYPE_CHECKING:
    from typing import Callable, Dict, Optional

#: Seconds that output may stay open after the last process of a task is over: some other process holds it.
DRAIN = 1.0
_CHUNK = 256 * 1024
#: Reads that empty a pipe (64 KiB) and see its end at once.
_LAST_READS = 3


class Outputs:
    """The open outputs of all tasks.

    Args:
        selector: wakes us when one can be read.
        pipe: where it goes.
        closed: called with a task when its output has come to its end.
    """

    def __init__(self, selector: selectors.BaseSelector, pipe: Pipe, closed: Callable[[Task], None]) -> None:
        self._selector = selector
        self._pipe = pipe
        self._closed = closed
        self._paused = False
        self._hurried = False
        self._open: Dict[int, Task] = {}
        self._last: Dict[int, float] = {}

    def add(self, task: Task) -> None:
        """Read what ``task`` prints from now on."""
        if task.output is not None:
            self._open[task.output] = task
            if not self._paused:
                self._listen(task.output)

    def heed_the_link(self) -> None:
        """Leave everything in the tasks' pipes while too much waits to be sent, or go on."""
        paused = self._pipe.pending > (LOW_WATER if self._paused else HIGH_WATER)
        if paused == self._paused:
            return
        self._paused = paused
        now = time.monotonic()
        self._last = dict.fromkeys(self._last, now + DRAIN)
        for output in self._open:
            if paused:
                self._selector.unregister(output)
            else:
                self._listen(output)

    def hurry(self) -> None:
        """Whoever reads the link has gone, or may have: no task's end waits for them any more."""
        self._hurried = True

    def read_rest(self, task: Task) -> None:
        """All processes of ``task`` are over: take what is left, and give up on what stays open."""
        for _ in range(_LAST_READS):
            self._read(task)
        if task.output is not None:
            self._last[task.output] = time.monotonic() + DRAIN

    def let_go(self, task: Task) -> None:
        """Nobody waits any more for who else holds the output of a task that is over."""
        if task.output is not None and not self._paused:
            self._close(task, task.output)

    def next_end(self) -> Optional[float]:
        """When `on_time` is due (monotonic); ``None``: never."""
        return min(self._last.values()) if self._last else None

    def on_time(self, now: float) -> None:
        """Close what has stayed open for too long; not what we have not read yet, unless nobody will."""
        for output in [output for output, until in self._last.items() if until <= now]:
            if self._paused and not self._hurried:
                self._last[output] = now + DRAIN
            else:
                self._close(self._open[output], output)

    def _listen(self, output: int) -> None:
        task = self._open[output]
        self._selector.register(output, selectors.EVENT_READ, lambda: self._read(task))

    def _read(self, task: Task) -> None:
        output = task.output
        if output is None or self._paused:
            return
        try:
            data = os.read(output, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._pipe.output(task.id, task.attempt, data)
            self.heed_the_link()
        else:
            self._close(task, output)

    def _close(self, task: Task, output: int) -> None:
        if not self._paused:
            self._selector.unregister(output)
        del self._open[output]
        self._last.pop(output, None)
        os.close(output)
        task.output = None
        self._closed(task)
