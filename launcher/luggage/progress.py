"""What is shown while files travel: a bar on a terminal, else a line after two seconds; a line at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from launcher.luggage.meter import Meter, Reading
from launcher.text import listed, printable

#: Seconds after which somebody wonders what is going on.
_PATIENCE = 2.0
#: Seconds before a bar appears: what is over at once needs none.
_SHORT = 0.3


class Progress(Protocol):
    """Shows how far it is. One after the other: ``begin``, ``tick`` ten times a second, ``end``."""

    def begin(self, verb: str, meter: Meter) -> None:
        """It starts; ``verb``: ``syncing``, ``collecting``."""

    def tick(self) -> None:
        """Look at the meter, and show it. Whatever it raises ends the copying."""

    def end(self, summary: str) -> None:
        """It is over; ``summary`` is one line or several, and empty if it failed."""


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

    lines = Lines(say or print_line)
    return Bar(out, lines) if out.isatty() and os.environ.get("TERM") != "dumb" else lines


class Silent:
    """Shows nothing."""

    def begin(self, verb: str, meter: Meter) -> None:
        """See `Progress`."""

    def tick(self) -> None:
        """See `Progress`."""

    def end(self, summary: str) -> None:
        """See `Progress`."""


class Lines:
    """A line when it takes long, and one at the end.

    Args:
        say: prints a line.
        clock: monotonic seconds.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._verb = ""
        self._meter: Meter | None = None
        self._due = 0.0

    def begin(self, verb: str, meter: Meter) -> None:
        """See `Progress`."""
        self._verb, self._meter = verb, meter
        self._due = self._clock() + _PATIENCE

    def tick(self) -> None:
        """See `Progress`."""
        self._tell_news()
        if self._meter is not None and self._clock() >= self._due:
            self._say(f"{self._verb}: {_state(self._meter.read())}")
            self._due = float("inf")

    def _tell_news(self) -> None:
        for text in self._meter.news() if self._meter is not None else ():
            self._say(text)

    def end(self, summary: str) -> None:
        """See `Progress`."""
        self._tell_news()
        self._meter = None
        for line in summary.splitlines():
            self._say(line)


def _state(reading: Reading) -> str:
    moved = f"{_moved(reading)} so far, " if reading.size else ""
    return f"{moved}waiting for {listed(reading.waiting)}"


def _moved(reading: Reading) -> str:
    """Spelled as in the line at the end, so that both show the same number."""
    return f"{human(reading.moved)} of {human(reading.size)}" if reading.size else ""


class Bar:
    """A bar at the bottom of a terminal. Imports rich when there is something to show.

    Args:
        stream: the terminal.
        lines: for the line at the end.
    """

    def __init__(self, stream: TextIO, lines: Lines) -> None:
        self._stream = stream
        self._lines = lines
        self._verb = ""
        self._meter: Meter | None = None
        self._began = 0.0
        self._bar: Any = None
        self._task: Any = None

    def begin(self, verb: str, meter: Meter) -> None:
        """See `Progress`."""
        self._verb, self._meter, self._began = verb, meter, time.monotonic()

    def tick(self) -> None:
        """See `Progress`."""
        if self._meter is None:
            return
        self._tell_news(self._meter)
        if time.monotonic() - self._began < _SHORT:
            return
        if self._bar is None:
            self._open()
        reading = self._meter.read()
        self._bar.update(
            self._task,
            total=reading.size or None,
            completed=reading.moved,
            moved=_moved(reading),
            left=f"{counted(len(reading.waiting), 'host')} to go",
        )
        self._bar.refresh()

    def _tell_news(self, meter: Meter) -> None:
        """Above the bar."""
        news = meter.news()
        if news and self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._lines.end("\n".join(news))

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TransferSpeedColumn

        self._bar = Progress(
            TextColumn(f"launch: {self._verb}"),
            BarColumn(),
            TextColumn("{task.fields[moved]}"),
            TransferSpeedColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(file=self._stream),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=None, moved="", left="")

    def end(self, summary: str) -> None:
        """See `Progress`."""
        if self._meter is not None:
            self._tell_news(self._meter)
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._meter = None
        self._lines.end(summary)


def human(size: int) -> str:
    """``30 bytes``, ``512 kB``, ``0.3 MB``, ``12 MB``, ``3.4 GB`` (1 kB is 1000 bytes)."""
    if size < 1000:
        return counted(size, "byte")
    if size < 99_500:
        return f"{size / 1e3:.0f} kB"
    if size < 9_950_000:
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e6:.0f} MB" if size < 999_500_000 else f"{size / 1e9:.1f} GB"


def counted(number: int, what: str) -> str:
    """``1 file``, ``2,013 files``."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def shortened(path: str) -> str:
    """A path of this machine as people write it: ``~/results`` for what is in their home."""
    home = os.path.expanduser("~").rstrip("/")
    return "~" + path[len(home) :] if home and f"{path}/".startswith(f"{home}/") else path
