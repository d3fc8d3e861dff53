"""The live line at the bottom of a terminal: ``3 running, 1 starting, 2 ended · 00:12``."""

from __future__ import annotations

from launcher import events
from launcher.job import Placement
from launcher.output.base import Shown
from launcher.output.human import clock, columns_of, shortened
from launcher.output.writer import Writer

_ERASE = b"\r\x1b[K"
_ORDER = ("running", "starting", "stopping", "ended")

#: Seconds between two drawings at least.
_PAUSE = 0.1


class Counts:
    """In which state each task is, as far as the line is concerned."""

    def __init__(self, placement: Placement) -> None:
        self._states = dict.fromkeys((placed.task for placed in placement.tasks), "starting")
        self._hosts = {placed.task: placed.host.name for placed in placement.tasks}

    def take(self, event: Shown) -> None:
        """Note what an event means for the states."""
        if isinstance(event, events.TaskStarted):
            self._states[event.task] = "running"
        elif isinstance(event, (events.TaskExited, events.TaskNotStarted)):
            self._states[event.task] = "ended"
        elif isinstance(event, events.TaskSignalled) and self._states.get(event.task) == "running":
            self._states[event.task] = "stopping"
        elif isinstance(event, events.AgentLost):
            lost = (task for task, host in self._hosts.items() if host == event.host)
            self._states.update(dict.fromkeys(lost, "ended"))

    def text(self) -> str:
        """``3 running, 1 starting, 2 ended``."""
        numbers: dict[str, int] = {}
        for state in self._states.values():
            numbers[state] = numbers.get(state, 0) + 1
        return ", ".join(f"{numbers[state]} {state}" for state in _ORDER if state in numbers)


class StatusLine:
    """Drawn through the writer that also prints the lines, so that the two never mix.

    Args:
        fd: the terminal.
        width: its columns; 0: ask it each time.
        began: the time on the clock that ``tick`` is given.
    """

    def __init__(self, writer: Writer, fd: int, width: int, counts: Counts, began: float) -> None:
        self._writer = writer
        self._fd = fd
        self._width = width
        self._counts = counts
        self._began = began
        self._drawn: str | None = None
        self._drawn_at = float("-inf")

    def erase(self) -> None:
        """Make way for lines."""
        if self._drawn is not None:
            self._writer.write(self._fd, _ERASE)
            self._drawn = None

    def tick(self, now: float) -> float:
        """Draw it, if it is time; returns the seconds until the next tick is wanted."""
        if now - self._drawn_at < _PAUSE:
            return self._drawn_at + _PAUSE - now
        columns = self._width or columns_of(self._fd) or 80
        text = shortened(f"  {self._counts.text()} · {clock(now - self._began)}", columns - 1)
        if text != self._drawn and not self._writer.waiting(self._fd):
            self._writer.write(self._fd, _ERASE + text.encode())
            self._drawn, self._drawn_at = text, now
        return max(_PAUSE, 1.0 - (now - self._began) % 1.0) if self._drawn else _PAUSE
