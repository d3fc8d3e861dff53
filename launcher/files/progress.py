"""How far the copying is: a bar on a terminal, else a line after two seconds; a line at the end."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from launcher.text import byte_size, counted, listed, printable

#: Seconds until a line, or a bar, says how far it is.
_LINE_AFTER, _BAR_AFTER = 2.0, 0.3
#: Moves a terminal's cursor to the beginning of the line, and clears it.
_CLEAR_LINE = "\r\x1b[K"


class Meter:
    """Counts over all hosts. For several threads.

    Args:
        hosts: all that take part.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._lock = threading.Lock()
        #: Hosts that are not done.
        self.waiting = dict.fromkeys(hosts)
        #: Bytes of files, before they are compressed: those to be sent, and those that were sent.
        self.size = self.moved = 0
        self._news: list[str] = []

    def expect(self, size: int) -> None:
        """So much more is to be moved."""
        with self._lock:
            self.size += size

    def move(self, size: int) -> None:
        """So much was moved."""
        with self._lock:
            self.moved += size

    def done(self, host: str) -> None:
        """A host is done, or has failed."""
        with self._lock:
            self.waiting.pop(host, None)

    def say(self, text: str) -> None:
        """Something the user should know now."""
        with self._lock:
            self._news.append(text)

    def news(self) -> list[str]:
        """The texts since the last call."""
        with self._lock:
            news, self._news = self._news, []
            return news


class Progress:
    """Shows nothing; subclasses do. In this order: `begin`, `tick` ten times a second, `end`."""

    def begin(self, verb: str, meter: Meter) -> None:
        """It starts; ``verb``: ``syncing``, ``collecting``."""

    def tick(self) -> None:
        """Look at the meter, and show it. An exception from here ends the copying."""

    def end(self, summary: str) -> None:
        """It is over; ``summary`` is one line or several, and empty if it failed."""


class Lines(Progress):
    """A line when it takes long, and one at the end.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def begin(self, verb: str, meter: Meter) -> None:
        """See `Progress`."""
        self._verb, self._meter = verb, meter
        self._due = time.monotonic() + _LINE_AFTER

    def tick(self) -> None:
        """See `Progress`."""
        for text in self._meter.news():
            self._say(text)
        if time.monotonic() >= self._due:
            self._due = float("inf")
            so_far = f"{_moved(self._meter)} so far, " if self._meter.size else ""
            self._say(f"{self._verb}: {so_far}waiting for {listed(list(self._meter.waiting))}")

    def end(self, summary: str) -> None:
        """See `Progress`."""
        for text in (*self._meter.news(), *summary.splitlines()):
            self._say(text)


class Bar(Lines):
    """A line at the bottom of a terminal that is written again and again.

    Args:
        stream: the terminal.
        say: prints a line.
    """

    def __init__(self, stream: TextIO, say: Callable[[str], None]) -> None:
        super().__init__(say)
        self._stream = stream

    def begin(self, verb: str, meter: Meter) -> None:
        """See `Progress`."""
        super().begin(verb, meter)
        self._due = time.monotonic() + _BAR_AFTER

    def tick(self) -> None:
        """See `Progress`."""
        text = ""
        if time.monotonic() >= self._due:
            left = f"{counted(len(self._meter.waiting), 'host')} to go"
            text = ", ".join(filter(None, [_moved(self._meter), left]))
            text = f"launch: {self._verb}: {text}"[: shutil.get_terminal_size().columns - 1]
        news = self._meter.news()
        if news:
            self._stream.write(_CLEAR_LINE)
        for line in news:
            self._say(line)
        self._stream.write(_CLEAR_LINE + text if text else "")
        self._stream.flush()

    def end(self, summary: str) -> None:
        """See `Progress`."""
        self._stream.write(_CLEAR_LINE)
        super().end(summary)


def shown(stream: TextIO | None = None, say: Callable[[str], None] | None = None) -> Progress:
    """What suits a stream.

    Args:
        stream: default: stderr.
        say: prints a line; default: to the stream, with ``launch:`` before it.
    """
    out = sys.stderr if stream is None else stream

    def print_line(text: str) -> None:
        out.write(f"launch: {printable(text)}\n")
        out.flush()

    is_terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    return Bar(out, say or print_line) if is_terminal else Lines(say or print_line)


def _moved(meter: Meter) -> str:
    return f"{byte_size(meter.moved)} of {byte_size(meter.size)}" if meter.size else ""


def shortened(path: str) -> str:
    """A path of this machine as people write it: ``~/results`` for what is in their home."""
    home = os.path.expanduser("~").rstrip("/")
    return "~" + path[len(home) :] if home and f"{path}/".startswith(f"{home}/") else path
