"""The console: tasks' lines, remarks, the live line, and at the end the failure report and the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from launcher import events
from launcher.events import Tell
from launcher.job import RunPaths, TaskId
from launcher.output import escapes
from launcher.output.base import Opening, Shown
from launcher.output.human import columns_of
from launcher.output.labels import labels
from launcher.output.lines import LineCutter
from launcher.output.selection import Selection
from launcher.output.tails import Tails
from launcher.output.writer import Writer
from launcher.report import Report

if TYPE_CHECKING:  # each is imported by what needs it: a plain launch that goes well needs little
    from launcher.output.statusline import Counts, StatusLine

#: Colours of the tasks' names; none is red: red is for failures.
_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")

#: Seconds between two looks at lines that are not over: rewritten, or without an end for a while.
_LOOK = 0.5


class Options(NamedTuple):
    """How to show things."""

    stdout: int = 1
    stderr: int = 2
    #: Is stdout a terminal? Then the table is drawn by rich.
    terminal: bool = False
    #: Is stderr one? Then there is a live line.
    live: bool = False
    colour: bool = False
    #: Columns of the terminal; 0: ask it, each time.
    width: int = 0
    show: Selection = Selection()
    #: Only what is urgent, and why it failed.
    quiet: bool = False
    #: Whether the failure report has what the task printed last.
    last_lines: bool = True


def wants_colour(is_tty: bool, environ: Mapping[str, str]) -> bool:
    """Whether to use colours: ``NO_COLOR`` forbids, ``FORCE_COLOR`` and ``CLICOLOR_FORCE`` demand them."""
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return is_tty and environ.get("TERM") != "dumb"


_DEFAULTS = Options()


class Console:
    """The renderer for people.

    Args:
        writer: what everything goes through; stays the caller's to close.
        options: how to show things.
        clock: seconds, the same as ``tick`` is given.
    """

    def __init__(
        self, writer: Writer, options: Options = _DEFAULTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._writer = writer
        self._options = options
        self._clock = clock
        self._tails = Tails()
        self._cutters: dict[TaskId, LineCutter] = {}
        self._unfinished: dict[TaskId, LineCutter] = {}
        self._look_at = 0.0  # when to look at those again
        self._labels: dict[TaskId, str] = {}
        self._colours: dict[TaskId, str] = {}
        self._counts: Counts | None = None
        self._status: StatusLine | None = None
        self._paths: RunPaths | None = None
        #: What was told last, while nothing else was printed.
        self._told = ""

    def begin(self, opening: Opening) -> None:
        """Learn the names; nothing is printed."""
        self._paths = opening.paths
        hosts = {placed.task: placed.host.name for placed in opening.placement.tasks}
        self._labels = labels(hosts, hosts)
        for place, task in enumerate(self._labels):
            self._colours[task] = _COLOURS[place % len(_COLOURS)]
        if self._options.live and not self._options.quiet:
            from launcher.output.statusline import Counts, StatusLine

            self._counts = Counts(opening.placement)
            options = self._options
            began = self._clock()
            self._status = StatusLine(self._writer, options.stderr, options.width, self._counts, began)

    def on(self, event: Shown) -> None:
        """Show what is for the eyes of the user."""
        if isinstance(event, events.TaskOutput):
            self._output(event)
            return
        if self._counts is not None:
            self._counts.take(event)
        if isinstance(event, Tell):
            self._tell(event)
        elif isinstance(event, events.TaskStarted):
            self._tails.forget(event.task)
        elif isinstance(event, events.TaskGone):
            self._end(event.task)

    def tick(self, now: float) -> float | None:
        """Show lines that are not over, draw the live line."""
        if self._unfinished and now >= self._look_at:
            self._look_at = now + _LOOK
            self._look(now)
        wish = self._status.tick(now) if self._status else None
        if not self._unfinished:
            return wish
        look = max(0.0, self._look_at - now)
        return look if wish is None else min(wish, look)

    def _look(self, now: float) -> None:
        """Progress bars' new states, and starts of lines of tasks that are quiet."""
        for task, cutter in list(self._unfinished.items()):
            self._print(cutter.snapshot(now))
            if not cutter.unfinished:
                del self._unfinished[task]

    def close(self, report: Report) -> None:
        """The last lines, why it failed, the table."""
        for task in list(self._cutters):
            self._end(task)
        if self._status:
            self._status.erase()
        options = self._options
        why = self._failure(report, self._told).encode("utf-8", "replace")
        self._writer.write(options.stderr, why, urgent=True)
        if not options.quiet:
            self._writer.write(options.stdout, self._table(report).encode("utf-8", "replace"), urgent=True)

    def _output(self, event: events.TaskOutput) -> None:
        task = event.task
        self._tails.add(task, event.data)
        if self._options.quiet or not self._options.show.shows(task):
            return
        cutter = self._cutters.get(task)
        if cutter is None:
            cutter = self._cutters[task] = self._cutter(task)
        now = self._clock()
        self._print(cutter.feed(event.data, now))
        if not cutter.unfinished:
            self._unfinished.pop(task, None)
            return
        if not self._unfinished:
            self._look_at = now + _LOOK
        self._unfinished[task] = cutter

    def _cutter(self, task: TaskId) -> LineCutter:
        prefixes: list[bytes] = []
        for bar in "|+":
            name = f"{self._labels.get(task, task)} {bar}"
            if self._options.colour:
                name = f"\x1b[{self._colours.get(task, '0')}m{name}{escapes.RESET}"
            prefixes.append(f"{name} ".encode())
        return LineCutter(prefixes[0], prefixes[1], self._options.colour)

    def _print(self, lines: bytes) -> None:
        if not lines:
            return
        self._told = ""
        if self._status and self._options.terminal:
            self._status.erase()
        self._writer.write(self._options.stdout, lines)

    def _end(self, task: TaskId) -> None:
        """It will print no more."""
        self._unfinished.pop(task, None)
        cutter = self._cutters.pop(task, None)
        if cutter is not None:
            self._print(cutter.end())

    def _tell(self, tell: Tell) -> None:
        if self._options.quiet and not tell.urgent:
            return
        if self._status:
            self._status.erase()
        self._told = tell.text
        text = escapes.strip(tell.text, False).replace("\n", "\nlaunch: ")
        self._writer.write(self._options.stderr, f"launch: {text}\n".encode("utf-8", "replace"), tell.urgent)

    def _failure(self, report: Report, told: str) -> str:
        """Why it failed; not what was the last thing that was told anyway."""
        if report.failure is None and not any(task.unkillable for task in report.tasks):
            return ""
        from launcher.output.failure import failure_report

        text = failure_report(report, self._tails, self._paths, self._options.last_lines)
        return text.removeprefix(f"launch: {told}\n") if told else text

    def _table(self, report: Report) -> str:
        from launcher.output.table import plain

        if not self._options.terminal:
            return plain(report)
        try:
            from launcher.output.richtable import rich_text
        except ImportError:
            return plain(report)
        width = self._options.width or columns_of(self._options.stdout) or 120
        return rich_text(report, width, self._options.colour)
