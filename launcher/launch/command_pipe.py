"""The pipe by which a program that started ``launch`` commands it to signal tasks: ``--commands-fd``.

The orchestrator opens it while the job runs. A command that is wrong must never end the job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from typing import TypeAlias

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import ProtocolError
from launcher.common.text import sanitize_host_text
from launcher.common.validation import FieldReader
from launcher.event_loop import EventLoop
from launcher.messages import say

#: The longest line of a command, and how much is read at a time at most.
_MAX_COMMAND_BYTES = 64 * 1024

#: Receives a task, the number of a signal, and whether all processes of the task get the signal.
OnSignal: TypeAlias = Callable[[TaskId, int, bool], None]


class CommandPipe:
    """The reader of the pipe. Each command is a line of JSON with the fields of `events.SignalTask`.

    A line that is not one is reported and left out, so that a mistake of that program ends no job.

    Args:
        loop: Watches the pipe.
        fd: The inherited descriptor of the pipe.
        tasks: The tasks that commands may name.
        on_signal: Signals a task.
    """

    def __init__(self, loop: EventLoop, fd: int, tasks: Collection[TaskId], *, on_signal: OnSignal) -> None:
        self._loop, self._fd, self._on_signal = loop, fd, on_signal
        #: Checks the fields of commands.
        self._reader = FieldReader(tasks=tasks)
        #: The start of a line whose end has not arrived yet.
        self._partial_line = b""

    def open(self) -> None:
        """Read commands from now on. Tasks do not inherit the pipe."""
        os.set_inheritable(self._fd, False)
        self._loop.watch(self._fd, self._read)

    def close(self) -> None:
        """Read no more commands. The descriptor stays open."""
        self._loop.watch(self._fd)  # Without a function it is no longer watched.

    def _read(self) -> None:
        """Execute the complete lines that have arrived, and stop reading at the end of the pipe."""
        data = os.read(self._fd, _MAX_COMMAND_BYTES)
        # What follows the last newline is the start of a line whose end has not arrived yet.
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._execute(line)
        if len(self._partial_line) > _MAX_COMMAND_BYTES:
            say(f"a command by --commands-fd is longer than {_MAX_COMMAND_BYTES} bytes: no more are read")
            self.close()
        elif not data:
            self.close()

    def _execute(self, line: bytes) -> None:
        """Execute the command in a line, or tell the user what is wrong with the line."""
        try:
            task, number, to_all = self._reader.read(events.SignalTask, json.loads(line))
        except (ProtocolError, ValueError, RecursionError) as error:
            say(sanitize_host_text(f"a command by --commands-fd is not valid: {error}"))
        else:
            self._on_signal(task, number, to_all)
