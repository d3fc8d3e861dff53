"""The console: lines of tasks, notices, the live line, and at the end the failure report and the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from launcher import events
from launcher.events import Tell
from launcher.job import RunPaths, TaskId
from launcher.output.base import Opening, Shown
from launcher.output.failure import failure_report
from launcher.output.lines import RESET, LineCutter, labels, strip_controls
from launcher.output.selection import Selection
from launcher.output.statusline import StatusLine
from launcher.output.table import result_table
from launcher.output.task_lines import Tails
from launcher.output.writer import Writer
from launcher.report import Report

#: Colours of the tasks' labels; red is for failures.
_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
#: Seconds between two looks at lines without an end.
_LOOK = 0.5


class Options(NamedTuple):
    """How to show a job."""

    stdout: int = 1
    stderr: int = 2
    #: stdout is a terminal.
    terminal: bool = False
    #: stderr is a terminal too: draw a live line.
    live: bool = False
    colour: bool = False
    #: Columns of the terminal; 0: ask it, each time.
    width: int = 0
    show: Selection = Selection()
    #: Only urgent notices, and why the job failed.
    quiet: bool = False
    #: The failure report has the last lines of the task.
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
        writer: what it writes to; the caller closes it.
        options: how to show the job.
        clock: seconds, the same as `tick` is given.
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
        #: When to look at these again.
        self._look_at = 0.0
        self._labels: dict[TaskId, str] = {}
        self._colours: dict[TaskId, str] = {}
        self._status: StatusLine | None = None
        self._paths: RunPaths | None = None
        #: The last notice, if no line was printed since.
        self._last_notice = ""

    def begin(self, opening: Opening) -> None:
        """Learn the labels; nothing is printed."""
        self._paths = opening.paths
        hosts = {placed.task: placed.host.name for placed in opening.placement.tasks}
        self._labels = labels(hosts, list(hosts))
        self._colours = {task: _COLOURS[n % len(_COLOURS)] for n, task in enumerate(self._labels)}
        if self._options.live and not self._options.quiet:
            options = self._options
            self._status = StatusLine(
                self._writer, options.stderr, options.width, opening.placement, self._clock()
            )

    def on(self, event: Shown) -> None:
        """Show output and notices."""
        if isinstance(event, events.TaskOutput):
            self._output(event)
            return
        if self._status is not None:
            self._status.on(event)
        if isinstance(event, Tell):
            self._notice(event)
        elif isinstance(event, events.TaskStarted):
            self._tails.forget(event.task)
        elif isinstance(event, events.TaskGone):
            self._end(event.task)

    def tick(self, now: float) -> float | None:
        """Show lines without an end, draw the live line."""
        if self._unfinished and self._writer.full():
            self._look_at = now + 4 * _LOOK  # launch holds the output: the task is not quiet
        if self._unfinished and now >= self._look_at:
            self._look_at = now + _LOOK
            for task, cutter in list(self._unfinished.items()):
                self._print(cutter.snapshot(now))
                if not cutter.unfinished:
                    del self._unfinished[task]
        waits = [self._status.tick(now)] if self._status else []
        if self._unfinished:
            waits.append(max(0.0, self._look_at - now))
        return min(waits) if waits else None

    def close(self, report: Report) -> None:
        """The last lines, why the job failed, the table."""
        for task in list(self._cutters):
            self._end(task)
        if self._status:
            self._status.erase()
        options = self._options
        why = failure_report(report, self._tails, self._paths, options.last_lines)
        if self._last_notice:
            why = why.removeprefix(f"launch: {self._last_notice}\n")
        self._writer.write(options.stderr, why.encode("utf-8", "replace"), urgent=True)
        if not options.quiet:
            table = result_table(report, options.colour).encode("utf-8", "replace")
            self._writer.write(options.stdout, table, urgent=True)

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
            label = f"{self._labels.get(task, task)} {bar}"
            if self._options.colour:
                label = f"\x1b[{self._colours.get(task, '0')}m{label}{RESET}"
            prefixes.append(f"{label} ".encode())
        return LineCutter(prefixes[0], prefixes[1], self._options.colour)

    def _print(self, lines: bytes) -> None:
        if not lines:
            return
        self._last_notice = ""
        if self._status and self._options.terminal:
            self._status.erase()
        self._writer.write(self._options.stdout, lines)

    def _end(self, task: TaskId) -> None:
        """The task prints no more."""
        self._unfinished.pop(task, None)
        cutter = self._cutters.pop(task, None)
        if cutter is not None:
            self._print(cutter.end())

    def _notice(self, notice: Tell) -> None:
        if self._options.quiet and not notice.urgent:
            return
        if self._status:
            self._status.erase()
        self._last_notice = notice.text
        text = strip_controls(notice.text).replace("\n", "\nlaunch: ")
        self._writer.write(
            self._options.stderr, f"launch: {text}\n".encode("utf-8", "replace"), notice.urgent
        )
