"""The live line at the bottom of a terminal: ``3 running, 1 starting, 2 ended · 00:12``."""

from __future__ import annotations

import os

from launcher import events
from launcher.job import Placement
from launcher.output.base import Shown
from launcher.output.writer import Writer
from launcher.text import shortened

_ERASE = b"\r\x1b[K"
_ORDER = ("running", "starting", "stopping", "ended")
#: Least seconds between two drawings.
_PAUSE = 0.1


class StatusLine:
    """Drawn through the writer that also prints the lines, so that the two never mix.

    Args:
        writer: what it writes to.
        fd: the terminal.
        width: columns; 0: ask the terminal each time.
        placement: the tasks to count.
        began: the start, by the clock that `tick` is given.
    """

    def __init__(self, writer: Writer, fd: int, width: int, placement: Placement, began: float) -> None:
        self._writer = writer
        self._fd = fd
        self._width = width
        self._states = dict.fromkeys((placed.task for placed in placement.tasks), "starting")
        self._hosts = {placed.task: placed.host.name for placed in placement.tasks}
        self._began = began
        self._drawn = ""
        self._drawn_at = float("-inf")

    def on(self, event: Shown) -> None:
        """Count the tasks by state."""
        if isinstance(event, events.TaskStarted):
            self._states[event.task] = "running"
        elif isinstance(event, (events.TaskExited, events.TaskNotStarted)):
            self._states[event.task] = "ended"
        elif isinstance(event, events.TaskSignalled) and self._states.get(event.task) == "running":
            self._states[event.task] = "stopping"
        elif isinstance(event, events.AgentLost):
            lost = (task for task, host in self._hosts.items() if host == event.host)
            self._states.update(dict.fromkeys(lost, "ended"))

    def erase(self) -> None:
        """Make room for lines."""
        if self._drawn:
            self._writer.write(self._fd, _ERASE)
            self._drawn = ""

    def tick(self, now: float) -> float:
        """Draw it if it is time; returns the seconds until the next call is needed."""
        if now - self._drawn_at < _PAUSE:
            return self._drawn_at + _PAUSE - now
        columns = self._width or columns_of(self._fd) or 80
        text = shortened(f"  {self._counts()} · {_clock(now - self._began)}", columns - 1)
        if text != self._drawn and not self._writer.waiting(self._fd):
            self._writer.write(self._fd, _ERASE + text.encode())
            self._drawn, self._drawn_at = text, now
        return max(_PAUSE, 1.0 - (now - self._began) % 1.0) if self._drawn else _PAUSE

    def _counts(self) -> str:
        states = list(self._states.values())
        return ", ".join(f"{states.count(state)} {state}" for state in _ORDER if state in states)


def columns_of(fd: int) -> int:
    """The width of the terminal; 0 if the descriptor is not one, or does not say."""
    try:
        return os.get_terminal_size(fd).columns
    except OSError:
        return 0


def _clock(seconds: float) -> str:
    """``00:12``, ``1:02:03``."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes:02}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
