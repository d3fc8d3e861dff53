"""The agent's end of the link: frames out without ever blocking, bytes in."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

from launcher import wire
from launcher.events import Event
from launcher.job import TaskId

if TYPE_CHECKING:
    from typing import Deque, List, Optional

    #: What travels as a whole, in pieces.
    Frame = List[memoryview]

#: Bytes that may wait to be sent before the tasks' output is left in their pipes, and when it is read again.
HIGH_WATER = 4 * 1024 * 1024
LOW_WATER = 1024 * 1024
#: Most buffers one system call takes (IOV_MAX is 1024 on Linux).
_MANY = 512


class Pipe:
    """Sends facts and output to the launcher.

    Facts overtake output, for somebody acts on them: a task's end need not wait until all is read that the
    tasks have printed. What must come after a task's output (that it is gone) goes the way of the output.

    Args:
        writing: file descriptor, made non-blocking.
    """

    def __init__(self, writing: int) -> None:
        self.fd = writing
        #: Nobody takes anything any more: what is put in is thrown away.
        self.broken = False
        #: It takes nothing at the moment.
        self._full = False
        self._held = False
        self._begun: Optional[Frame] = None
        self._facts: Deque[Frame] = deque()
        self._output: Deque[Frame] = deque()
        #: Bytes that wait.
        self.pending = 0
        os.set_blocking(writing, False)
        self._put(self._facts, wire.MAGIC)

    @property
    def waiting(self) -> bool:
        """Whether there is something to send as soon as the link takes it."""
        return bool(self._begun or self._facts or (self._output and not self._held))

    def fact(self, fact: Event) -> None:
        """Queue a fact before all output, and send what the pipe takes."""
        self._put(self._facts, wire.encode(fact))
        self._send()

    def fact_after_output(self, fact: Event) -> None:
        """Queue a fact behind all output there is so far, and send what the pipe takes."""
        self._put(self._output, wire.encode(fact))
        self._send()

    def output(self, task: TaskId, attempt: int, data: bytes) -> None:
        """Queue what a task printed, and send what the pipe takes."""
        self._put(self._output, wire.output_head(task, attempt, len(data)), data)
        self._send()

    def hold(self, on: bool) -> None:
        """Keep the output (not the facts) here until told otherwise: whoever it is for can't take more."""
        self._held = on
        self._send()

    def hang_up(self) -> None:
        """Send what the pipe takes now, then let the launcher see the end of the link."""
        self.flush()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fd, inheritable=False)
        os.close(nothing)
        self._break()

    def _put(self, queue: Deque[Frame], *parts: bytes) -> None:
        if not self.broken:
            queue.append([memoryview(part) for part in parts if part])
            self.pending += sum(map(len, parts))

    def _send(self) -> None:
        if not self._full:
            self.flush()

    def flush(self) -> None:
        """Send what the pipe takes now; once it is broken everything is thrown away."""
        try:
            while self.waiting:
                self._sent(os.writev(self.fd, self._next()))
            self._full = False
        except BlockingIOError:
            self._full = True
        except OSError:
            self._break()

    def _next(self) -> List[memoryview]:
        """What comes next: the rest of a frame that was begun, facts, output."""
        buffers = list(self._begun or ())
        for queue in (self._facts,) if self._held else (self._facts, self._output):
            for frame in queue:
                if len(buffers) >= _MANY:
                    return buffers
                buffers += frame
        return buffers

    def _sent(self, count: int) -> None:
        """So many bytes of `_next` were taken."""
        self.pending -= count
        while count:
            frame = self._begun or (self._facts or self._output).popleft()
            size = sum(map(len, frame))
            self._begun = _rest(frame, count) if count < size else None
            count -= min(count, size)

    def _break(self) -> None:
        self.broken = True
        self._begun = None
        self._facts.clear()
        self._output.clear()
        self.pending = 0


def _rest(frame: Frame, count: int) -> Frame:
    """What is left of a frame of which so many bytes were taken."""
    rest: Frame = []
    for part in frame:
        taken = min(count, len(part))
        count -= taken
        if taken < len(part):
            rest.append(part[taken:])
    return rest
