"""The agent's end of the link: frames out without ever blocking, bytes in."""

from __future__ import annotations

import os
from collections import deque

from launcher import wire
from launcher.model.facts import Fact
from launcher.model.records import TYPE_CHECKING
from launcher.model.task import TaskId

if TYPE_CHECKING:
    from typing import Deque, List

#: Bytes that may wait to be sent before the tasks' output is left in their pipes, and when it is read again.
HIGH_WATER = 4 * 1024 * 1024
LOW_WATER = 1024 * 1024
#: Most buffers one system call takes (IOV_MAX is 1024 on Linux).
_MANY = 512


class Pipe:
    """Sends facts and output to the launcher, in order.

    Args:
        writing: file descriptor, made non-blocking.
    """

    def __init__(self, writing: int) -> None:
        self.fd = writing
        #: Nobody takes anything any more: what is put in is thrown away.
        self.broken = False
        #: It takes nothing at the moment.
        self._full = False
        self._queue: Deque[memoryview] = deque()
        #: Bytes that wait.
        self.pending = 0
        os.set_blocking(writing, False)
        self._put(wire.MAGIC)

    def fact(self, fact: Fact) -> None:
        """Queue a fact, and send what the pipe takes."""
        self._put(wire.encode(fact))
        self._send()

    def output(self, task: TaskId, attempt: int, data: bytes) -> None:
        """Queue what a task printed, and send what the pipe takes."""
        self._put(wire.output_head(task, attempt, len(data)))
        self._put(data)
        self._send()

    def hang_up(self) -> None:
        """Send what the pipe takes now, then let the launcher see the end of the link."""
        self.flush()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fd, inheritable=False)
        os.close(nothing)
        self._break()

    def _put(self, data: bytes) -> None:
        if data and not self.broken:
            self._queue.append(memoryview(data))
            self.pending += len(data)

    def _send(self) -> None:
        if not self._full:
            self.flush()

    def flush(self) -> None:
        """Send what the pipe takes now; once it is broken everything is thrown away."""
        try:
            while self._queue:
                buffers: List[memoryview] = [self._queue[i] for i in range(min(len(self._queue), _MANY))]
                self._sent(os.writev(self.fd, buffers))
            self._full = False
        except BlockingIOError:
            self._full = True
        except OSError:
            self._break()

    def _break(self) -> None:
        self.broken = True
        self._queue.clear()
        self.pending = 0

    def _sent(self, count: int) -> None:
        self.pending -= count
        while count:
            first = self._queue[0]
            if count < len(first):
                self._queue[0] = first[count:]
                return
            count -= len(first)
            self._queue.popleft()
