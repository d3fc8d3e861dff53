"""The one way to tell the user something.

Whatever runs in the process of a launcher, a command, or a program that uses the API calls `say`: there is
one place that messages go to, as in `logging`, so nobody passes it on. The supervisor is pure and emits the
command `launcher.common.events.Tell` instead. The agent has no user: it sends events.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.common.events import Tell
from launcher.common.text import escape_controls

if TYPE_CHECKING:
    from typing_extensions import Self

#: The most messages that wait for a console. The oldest are dropped.
_MAX_WAITING = 1000
#: Guards `_queues`, and the pipe of a queue that is being closed: its number may soon be another file's.
_lock = threading.RLock()
#: The open queues. The last one gets the messages.
_queues: list[MessageQueue] = []


def say(text: str, *, urgent: bool = True) -> None:
    """Tell the user something, on stderr after ``launch:``; while a job runs, through its console.

    Any thread may call it. Control characters are escaped; each line gets its own prefix.

    Args:
        text: What to tell: one line, or several.
        urgent: Whether the console shows it even with ``--quiet``.
    """
    with _lock:
        if _queues:
            _queues[-1].put(Tell(text, urgent))
            return
    _print(text)


class MessageQueue:
    """While open, `say` queues for the console of the running job. The rest is printed at the end."""

    def __init__(self) -> None:
        self._waiting: deque[Tell] = deque(maxlen=_MAX_WAITING)
        #: Readable when messages wait.
        self.fd, self._write_end = os.pipe()
        for fd in (self.fd, self._write_end):
            os.set_blocking(fd, False)

    def __enter__(self) -> Self:
        with _lock:
            _queues.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _queues.remove(self)
            rest = self.drain()
            os.close(self.fd)
            os.close(self._write_end)
        for message in rest:
            _print(message.text)

    def put(self, message: Tell) -> None:
        """Add a message and make `fd` readable."""
        self._waiting.append(message)
        with suppress(BlockingIOError):  # the pipe is full: it is readable
            os.write(self._write_end, b".")

    def drain(self) -> list[Tell]:
        """Remove and return the messages that wait."""
        with suppress(BlockingIOError):
            os.read(self.fd, 65536)
        drained = []
        while self._waiting:
            drained.append(self._waiting.popleft())
        return drained


def _print(text: str) -> None:
    for line in text.rstrip("\n").split("\n"):
        print(f"launch: {escape_controls(line)}", file=sys.stderr, flush=True)
