"""Messages for the user beside the output of the tasks."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.events import Tell
from launcher.text import printable

#: Messages that may wait for the console; the oldest are dropped.
_MOST_WAITING = 1000


def print_notice(text: str) -> None:
    """Print a message on stderr, each line after ``launch:``; parts of it may come from a host."""
    for line in text.rstrip("\n").split("\n"):
        print(f"launch: {printable(line)}", file=sys.stderr, flush=True)


class Notices:
    """Takes messages from any thread. Prints them; while a job runs, queues them for its console."""

    def __init__(self) -> None:
        self._waiting: deque[Tell] = deque(maxlen=_MOST_WAITING)
        self._queueing = False
        #: Readable when messages wait.
        self.fd, self._write_end = os.pipe()
        for fd in (self.fd, self._write_end):
            os.set_blocking(fd, False)

    def __enter__(self) -> Notices:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        os.close(self._write_end)

    def __call__(self, text: str) -> None:
        """Give a message to the user now."""
        if not self._queueing:
            print_notice(text)
            return
        self.add(text, urgent=True)
        try:
            os.write(self._write_end, b".")
        except OSError:  # the pipe is full, or closed at the end of the launch
            pass

    def add(self, text: str, urgent: bool = False) -> None:
        """Queue a message for the console of the job, which is not there yet."""
        self._waiting.append(Tell(text, urgent))

    def take(self) -> list[Tell]:
        """The messages that wait."""
        try:
            os.read(self.fd, 65536)
        except BlockingIOError:
            pass
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken

    @contextmanager
    def queued(self) -> Iterator[None]:
        """While the console of a job takes them."""
        self._queueing = True
        try:
            yield
        finally:
            self._queueing = False
            for message in self.take():
                print_notice(message.text)
