"""The one way to tell the user something.

All code in the process of a launcher, a command, or a program that uses the API calls `say`. There is one
place for messages, as in `logging`, so no function has to pass it on. The supervisor must not use this
module, because it is pure: it emits the command `launcher.common.events.Tell`. The agent, which has no user,
sends events.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.common.events import Tell
from launcher.common.text import escape_controls

if TYPE_CHECKING:
    from typing_extensions import Self

#: When more messages wait for a console, the oldest are dropped.
_MAX_WAITING = 1000
#: Guards `_queues`. It also guards the pipe of a queue: once closed, its number may soon be another file's.
_lock = threading.RLock()
#: The open queues. Messages go to the last one.
_queues: list[MessageQueue] = []
#: What each line of a message begins with, as a format of `time.strftime`.
_prefix_format = "launch: "


def begin_with_times() -> None:
    """Let all messages of this process begin with the time, because a file keeps them."""
    global _prefix_format
    _prefix_format = "%Y-%m-%d %H:%M:%S launch: "


def message_prefix() -> str:
    """Return what each line of a message begins with: ``launch:``, after the time if a file keeps it."""
    return time.strftime(_prefix_format)


def say(text: str, *, urgent: bool = True) -> None:
    """Tell the user something.

    While a job runs, the message goes through its console. At other times it is printed on stderr. Each line
    begins with ``launch:``, and control characters are escaped. Any thread may call this.

    Args:
        text: The message, of one line or several.
        urgent: Whether the console shows it even with ``--quiet``.
    """
    with _lock:
        if _queues:
            _queues[-1].put(Tell(text, urgent))
            return
    _print(text)


class MessageQueue:
    """A queue that collects the messages of `say` for the console of a running job.

    It is a context manager. While it is open, `say` adds to it. What is left when it closes is printed.
    """

    def __init__(self) -> None:
        #: The messages that the console has not shown yet, the oldest first.
        self._waiting: deque[Tell] = deque(maxlen=_MAX_WAITING)
        #: The descriptor that is readable while messages wait, for the event loop.
        self.fd, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        with _lock:
            _queues.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the queue and print the messages that still wait."""
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
        with suppress(BlockingIOError):  # A full pipe is readable already.
            os.write(self._write_end, b".")

    def drain(self) -> list[Tell]:
        """Remove and return the messages that wait, the oldest first."""
        # The bytes in the pipe only say that messages wait. Without them `fd` is no longer readable.
        with suppress(BlockingIOError):
            os.read(self.fd, 65536)
        drained = []
        # Another thread may add messages meanwhile, so they are taken one by one.
        while self._waiting:
            drained.append(self._waiting.popleft())
        return drained


def _print(text: str) -> None:
    """Print a message on stderr, with a prefix on each line."""
    for line in text.rstrip("\n").split("\n"):
        print(f"{message_prefix()}{escape_controls(line)}", file=sys.stderr, flush=True)
