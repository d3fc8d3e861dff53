"""The console: lines of tasks, messages, the live line, and at the end the failure report and the table.

`Console` is the renderer for people, which `launcher.launch.display` makes. It writes to a `Writer`, and must
never wait for the reader.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from itertools import cycle

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import Noticed, Tell
from launcher.common.record import Record
from launcher.common.report import Failure, Report, TaskState
from launcher.common.text import duration, shortened
from launcher.job import Placement, RunPaths
from launcher.messages import message_prefix
from launcher.output.lines import RESET, LineCutter, labels, strip_controls
from launcher.output.renderers import DisplayEvent, Renderer, RunInfo
from launcher.output.table import path_line, result_table, verdict_lines
from launcher.output.tensorflow_notices import Folding, NoticeCutter
from launcher.output.writer import Writer

_MAX_KEPT_NOTICES = 1000
#: The colours of the tasks' labels. Red is for failures.
_COLOURS = ("36", "33", "32", "35", "34", "96", "93", "92", "95", "94")
#: The pause between two looks at unfinished lines.
_POLL_SECONDS = 0.5
#: How long after the last start of a task launch has time to load what a failure report needs.
_CALM_SECONDS = 0.5
_ERASE_LINE = b"\r\x1b[K"
#: The states of tasks in the order of the live line.
_STATE_ORDER = ("running", "starting", "stopping", "ended")
#: The shortest time between two drawings of the live line.
_DRAW_SECONDS = 0.1


class ConsoleOptions(Record):
    """The options of the console: how it shows a job."""

    stdout: int = 1
    stderr: int = 2
    #: Whether to draw a live line, because stdout and stderr are a terminal.
    live: bool = False
    #: Whether stdout, and whether stderr gets colours.
    colour: bool = False
    error_colour: bool = False
    #: The tasks whose output is shown. None for all.
    show: frozenset[str] | None = None
    #: Whether to leave out TensorFlow's start-up messages.
    fold: bool = False
    #: Whether the lines of tasks start with the time.
    timestamps: bool = False
    #: Whether to show only urgent messages, and why the job failed.
    quiet: bool = False
    #: Whether the failure report is shown, and whether it contains the last lines of the task.
    failure: bool = True
    last_lines: bool = True
    #: Returns whether tmux covers the terminal now, so messages must wait.
    covered: Callable[[], bool] = lambda: False


class Console(Renderer):
    """The renderer for people, which shows a job on stdout and stderr.

    Args:
        writer: Writes stdout and stderr. The caller closes it.
        options: How to show the job.
        clock: Returns the time by the clock that `tick` gets.
    """

    def __init__(
        self, writer: Writer, options: ConsoleOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._writer, self._options, self._clock = writer, options, clock
        #: Cuts the output of each task that has printed something.
        self._cutters: dict[TaskId, LineCutter] = {}
        #: The cutters that contain the start of a line without its end.
        self._unfinished_cutters: dict[TaskId, LineCutter] = {}
        #: Counts the start-up messages of TensorFlow that were left out.
        self._folding = Folding()
        #: When to look at the unfinished lines again.
        self._poll_at = 0.0
        #: The host of each task. `begin` sets it, and what follows up to `_paths`.
        self._hosts: dict[TaskId, str] = {}
        #: The colour of each task, as in ``1;31``.
        self._colours: dict[TaskId, str] = {}
        #: What stands before each line of a task, see `labels`.
        self._labels: dict[TaskId, str] = {}
        #: The line at the bottom that counts the tasks. None if the output is no terminal or shall be short.
        self._live_line: _LiveLine | None = None
        self._paths: RunPaths
        #: When to load what a failure report needs. Loading it at the end would delay a launch that fails.
        #: Infinite until a task runs, and after it was loaded.
        self._load_at = float("inf")
        #: Whether another launcher continues the run, so what `close` shows is not its end.
        self.run_continues = False
        #: The messages that wait until the terminal is uncovered, the oldest of which may be dropped.
        self._waiting_notices: deque[Tell] = deque(maxlen=_MAX_KEPT_NOTICES)

    def begin(self, run_info: RunInfo) -> None:
        """Make the labels of the tasks. Nothing is printed yet."""
        self._paths = run_info.paths
        self._hosts = {placed.task: placed.host.name for placed in run_info.placement.tasks}
        # The colours begin again when all are used, without end.
        self._colours = dict(zip(self._hosts, cycle(_COLOURS), strict=False))
        self._labels = labels(self._hosts, list(self._hosts))
        if self._options.live and not self._options.quiet:
            self._live_line = _LiveLine(self._writer, self._options, run_info.placement, self._clock())

    def on(self, event: DisplayEvent) -> None:
        """Show output and messages, and update the states of the live line, which counts the tasks.

        When a task has ended, its last line is shown even if it is not complete.
        """
        if isinstance(event, events.TaskOutput):
            self._show_output(event)
            return
        if self._live_line is not None:
            self._live_line.on(event)
        if isinstance(event, (Tell, Noticed)):
            self._waiting_notices.append(event if isinstance(event, Tell) else Tell(event.text))
            self._show_notices()
        elif isinstance(event, events.TaskMoved):
            if event.state is TaskState.RUNNING:
                # `tick` imports a slow module then, so that this does not delay the start of tasks.
                self._load_at = self._clock() + _CALM_SECONDS
            if event.state.is_over:
                self._end_output(event.task)
            # The labels contain the hosts of tasks, and one label may make all of them wider.
            if self._hosts[event.task] != event.host:
                self._hosts[event.task] = event.host
                self._labels = labels(self._hosts, list(self._hosts))

    def tick(self, now: float) -> float | None:
        """Show unfinished lines that are due, and draw the live line.

        Args:
            now: The time by the clock of the console.

        Returns:
            The seconds until it must be called again. None if only an event can make that necessary.
        """
        # The import is slow. It is done while the tasks run, so that a failure report comes at once later.
        if now >= self._load_at:
            from launcher.output import failure  # noqa: F401, PLC0415 - for jobs that run for a while

            self._load_at = float("inf")
        self._show_notices()
        if self._unfinished_cutters and self._writer.should_hold():
            # The agents keep the output, so the end of the line may exist and be on its way.
            self._poll_at = now + 4 * _POLL_SECONDS
        if self._unfinished_cutters and now >= self._poll_at:
            self._poll_at = now + _POLL_SECONDS
            for cutter in self._unfinished_cutters.values():
                self._print(cutter.snapshot(now))
            cutters = self._unfinished_cutters.items()
            self._unfinished_cutters = {t: cutter for t, cutter in cutters if cutter.has_unfinished_line}
        waits = [self._live_line.tick(now)] if self._live_line else []
        if self._unfinished_cutters:
            waits.append(max(0.0, self._poll_at - now))
        if self._load_at < float("inf"):
            waits.append(self._load_at - now)
        return min(waits) if waits else None

    def close(self, report: Report) -> None:
        """Show the last lines of the tasks, then the table, the first failure, and the verdict."""
        self._show_notices()
        for task in list(self._cutters):
            self._end_output(task)
        options = self._options
        if summary := self._folding.summary():
            self._show_notice(summary)
        if self._live_line:
            self._live_line.erase()
        if not options.quiet:
            self._write_end(options.stdout, result_table(report, colour=options.colour))
        if report.failure is not None:
            self._show_failure(report, report.failure)
        if not options.quiet:
            lines = verdict_lines(report, colour=options.colour, run_continues=self.run_continues)
            self._write_end(options.stdout, lines)

    def _show_failure(self, report: Report, failure: Failure) -> None:
        """Show the first failure, and annotate it in GitHub Actions."""
        from launcher.output.failure import failure_report, github_annotation  # noqa: PLC0415 - for failures only

        options = self._options
        if options.failure:
            why = failure_report(
                report,
                self._paths,
                colour=options.error_colour,
                with_last_lines=options.last_lines,
                is_alone=options.quiet,
            )
            self._write_end(options.stderr, why + (path_line(report) if options.quiet else ""))
        if os.environ.get("GITHUB_ACTIONS") == "true":
            self._write_end(options.stdout, github_annotation(failure, self._paths))

    def _write_end(self, fd: int, lines: str) -> None:
        """Write lines about the end of the job, which are not dropped if the reader is slow.

        They are sent at once, so that the lines of stdout and stderr are in order even in two pipes.
        """
        self._writer.write(fd, lines.encode("utf-8", "replace"), is_urgent=True)
        self._writer.flush()

    def _show_output(self, event: events.TaskOutput) -> None:
        """Print the lines that a task has completed.

        Nothing is printed if the user wants no output of the task. `tick` shows lines that stay unfinished.
        """
        task, shown_tasks = event.task, self._options.show
        if self._options.quiet or (shown_tasks is not None and task not in shown_tasks):
            return
        cutter = self._cutters.get(task) or self._cutters.setdefault(task, self._make_cutter(task))
        self._print(cutter.feed(event.data, self._clock()))
        if cutter.has_unfinished_line:
            self._unfinished_cutters[task] = cutter

    def _make_cutter(self, task: TaskId) -> LineCutter:
        """Return what cuts the output of an attempt into lines with the label of the task."""
        colour = reset = ""
        if self._options.colour:
            colour, reset = f"\x1b[{self._colours[task]}m", RESET
        # ``worker/0 |`` starts a line, and ``worker/0 +`` a later part of a line that was shown unfinished.
        first, continued = (f"{colour}{self._labels[task]} {mark}{reset} ".encode() for mark in "|+")
        keep_colours = self._options.colour
        if self._options.fold:
            return NoticeCutter(first, continued, self._folding, keep_colours=keep_colours)
        return LineCutter(first, continued, keep_colours=keep_colours)

    def _print(self, lines: bytes) -> None:
        """Print complete lines of a task, with the time if the user wants it."""
        if not lines:
            return
        if self._live_line:
            self._live_line.erase()
        if self._options.timestamps:
            now = time.time()
            stamp = f"{time.strftime('%H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03} ".encode()
            lines = stamp + lines[:-1].replace(b"\n", b"\n" + stamp) + b"\n"
        self._writer.write(self._options.stdout, lines)

    def _end_output(self, task: TaskId) -> None:
        """Show the last line of a task whose attempt is over."""
        self._unfinished_cutters.pop(task, None)
        cutter = self._cutters.pop(task, None)
        if cutter is not None:
            self._print(cutter.end())

    def _show_notices(self) -> None:
        """Show the messages that wait, unless tmux covers the terminal."""
        if not self._waiting_notices or self._options.covered():
            return
        for notice in self._waiting_notices:
            if notice.urgent or not self._options.quiet:
                self._show_notice(notice.text, is_urgent=notice.urgent)
        self._waiting_notices.clear()

    def _show_notice(self, notice: str, *, is_urgent: bool = False) -> None:
        """Print a message on stderr, above the live line."""
        if self._live_line:
            self._live_line.erase()
        prefix = message_prefix()
        text = prefix + strip_controls(notice).replace("\n", f"\n{prefix}") + "\n"
        self._writer.write(self._options.stderr, text.encode("utf-8", "replace"), is_urgent=is_urgent)


class _LiveLine:
    """The live line at the bottom of a terminal, as in ``3 running, 1 starting, 2 ended · 12s``.

    The writer of the other lines draws it, so that they do not mix.

    Args:
        writer: Writes to the terminal.
        options: Contains the descriptor of the terminal.
        placement: All tasks of the job.
        now: The time at which the job starts, by the clock of the console.
    """

    def __init__(self, writer: Writer, options: ConsoleOptions, placement: Placement, now: float) -> None:
        self._writer = writer
        self._fd = options.stderr
        #: What the line says about each task. States in which a task is over are all ``ended``.
        self._states = dict.fromkeys((placed.task for placed in placement.tasks), "starting")
        self._started_at = now
        #: The text on the screen. Empty if there is none.
        self._drawn_text = ""
        #: When it was drawn, by the clock of the console.
        self._drawn_at = float("-inf")

    def on(self, event: DisplayEvent) -> None:
        """Note the new state of a task."""
        if isinstance(event, events.TaskMoved):
            self._states[event.task] = "ended" if event.state.is_over else event.state.value

    def erase(self) -> None:
        """Erase the line, before other lines are printed."""
        if self._drawn_text:
            self._writer.write(self._fd, _ERASE_LINE)
            self._drawn_text = ""

    def tick(self, now: float) -> float:
        """Draw the line when it is due.

        Args:
            now: The time by the clock of the console.

        Returns:
            The seconds until it must be called again.
        """
        if now - self._drawn_at < _DRAW_SECONDS:
            return self._drawn_at + _DRAW_SECONDS - now
        states = list(self._states.values())
        counts = ", ".join(f"{states.count(state)} {state}" for state in _STATE_ORDER if state in states)
        try:
            columns = os.get_terminal_size(self._fd).columns or 80
        except OSError:
            columns = 80
        elapsed = duration(int(now - self._started_at)).replace(".0s", "s")
        # With a character in the last column, some terminals wrap the line.
        text = shortened(f"  {counts} · {elapsed}", columns - 1)
        # For a slow reader no more text is queued, as it would be old when it is read.
        if text != self._drawn_text and not self._writer.blocked():
            self._writer.write(self._fd, _ERASE_LINE + text.encode())
            self._drawn_text, self._drawn_at = text, now
        # The text shows whole seconds, so it next changes when one is over.
        return max(_DRAW_SECONDS, 1.0 - (now - self._started_at) % 1.0) if self._drawn_text else _DRAW_SECONDS
