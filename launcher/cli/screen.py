"""The living view of a run on a terminal, for ``launch top`` and ``launch ps --watch``.

A thread watches the run, and this one draws what there is to see, and handles keys and signals. Whatever ends
the view, the terminal is then as it was. Only these two commands import the module, because rich takes time.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.text import Text

from launcher.backends.watcher import watched
from launcher.common.errors import LaunchError
from launcher.common.text import byte_size, duration, escape_controls, last_line, plural
from launcher.itself import launch_command
from launcher.messages import MessageQueue
from launcher.output.lines import wants_colour
from launcher.output.logs import last_lines
from launcher.output.table import result_table
from launcher.runs.run import Run, RunState
from launcher.runs.view import FoldedRow, RunView, TaskRow, named_and_folded
from launcher.threads import start_function

#: Seconds between two looks at a run in which nothing else happens.
_LOOK_SECONDS = 2.0
#: The columns with the least widths, in the order in which they are left out of a narrow terminal.
_EXPENDABLE = ("left", "heard", "gpu", "attempt", "host", "silent", "cpu")
_HEADERS = (
    "task", "host", "heard", "state", "attempt", "step", "steps/s", "left", "silent", "cpu", "memory", "gpu",
    "last line",
)  # fmt: skip
_NUMBERS = frozenset(("heard", "attempt", "step", "steps/s", "left", "silent", "cpu", "memory", "gpu"))
#: The least width of the last line of a task.
_MIN_LINE_WIDTH = 16
#: The largest width of any other column, and the blanks between two.
_MAX_WIDTH = 32
_GAP = 2
#: How much of the end of a log is shown, and of the output of a command.
_LOG_BYTES = 64 * 1024
_MAX_OUTPUT_BYTES = 1 << 20
_READ_BYTES = 4096
#: How long the thread that watches may take to end.
_END_SECONDS = 5.0
_MINUTE = 59.5
_ESCAPE = "\x1b"
_HELP = "s sort  / filter  l log  p stacks  k stop  q quit"
#: What ``s`` sorts by in turn: a name, and the key of a row, the smallest first.
_ORDERS: Mapping[str, Callable[[TaskRow], float]] = {
    "": lambda row: 0.0,
    "steps/s": lambda row: float("inf") if row.rate is None else row.rate,
    "silent": lambda row: -(row.silent or 0.0),
    "cpu": lambda row: -(row.cpu or 0.0),
    "memory": lambda row: -float(row.memory or 0),
}
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Signals after which the view is drawn anew: Ctrl-Z, and another size of the terminal.
_DRAWING_SIGNALS = (signal.SIGTSTP, signal.SIGWINCH)


class _SignalledError(Exception):
    """A signal ends the view. Its argument is the number."""


def _raise_signalled(number: int, _: object) -> None:
    """Handle a signal that ends the view."""
    raise _SignalledError(number)


def _ignore(*_: object) -> None:
    """Handle a signal whose number the wakeup descriptor reports."""


def watch_on_terminal(run: Run) -> int | None:
    """Show a run on the terminal of stdout until it has ended, or the user leaves it.

    Returns:
        The exit code if the user or a signal has ended the view. None if the run has ended.

    Raises:
        LaunchError: The run is elsewhere, and cannot be watched; or its launcher died.
    """
    gc.enable()  # The command goes on for long.
    screen = _Screen(run)
    try:
        # Messages of other modules must not get between what is drawn.
        with MessageQueue() as messages, screen.handlers(), screen.drawn():
            code = screen.show(messages)
    except _SignalledError as error:
        return 128 + int(error.args[0])
    if code is None and screen.view is not None and screen.view.state is RunState.DIED:
        # There is no report that could be printed.
        print(result_table(screen.view.report), end="")
        raise LaunchError(f"{run.called}: {screen.view.headline}; `launch report {run.called}` tells more")
    return code


class _Screen:
    """The terminal with the view of one run, and what the user has typed.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._console = Console(no_color=not wants_colour(os.environ, is_tty=True), highlight=False)
        #: The keyboard, or None if stdin is none.
        self._keys: int | None = 0 if os.isatty(0) else None
        self._cooked = termios.tcgetattr(0) if self._keys is not None else []
        #: Wakes the thread that draws: a signal, a new view, or the end of a command.
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        #: What there is to see. None before the first look.
        self.view: RunView | None = None
        #: Whether the view ends, so that the thread that watches shall end, too.
        self._is_leaving = False
        #: Why the run can no longer be watched.
        self._error: LaunchError | None = None
        self._order, self._filter = "", ""
        #: What the user types now: the question, and the answer so far. None while nothing is asked.
        self._question: str | None = None
        self._answer = ""
        #: The task whose log is shown. Empty for the table.
        self._log_task = ""
        #: What a command has printed, to be shown instead of the table, and the last line of another one.
        self._pages: Sequence[str] = ()
        self._status = ""

    # ------------------------------------------------------------------ the terminal

    @contextmanager
    def handlers(self) -> Iterator[None]:
        """Handle signals until the context ends. The number of each is also written to the pipe."""
        kept = {number: signal.getsignal(number) for number in (*_ENDING_SIGNALS, *_DRAWING_SIGNALS)}
        for number, old_handler in kept.items():
            # A caller that ignores a signal, as nohup does, wants it ignored.
            if old_handler is not signal.SIG_IGN:
                signal.signal(number, _raise_signalled if number in _ENDING_SIGNALS else _ignore)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            for number, old_handler in kept.items():
                signal.signal(number, old_handler)

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw on the other screen of the terminal, where keys come one by one, until the context ends."""
        try:
            self._enter()
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        """Change to the other screen, and get each key at once and without its echo."""
        if self._keys is not None:
            tty.setcbreak(self._keys, termios.TCSANOW)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def _leave(self) -> None:
        """Restore the terminal, which may be gone. Another Ctrl-C does not interrupt that."""
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING_SIGNALS}
        with suppress(OSError, termios.error):
            if self._keys is not None:
                termios.tcsetattr(self._keys, termios.TCSANOW, self._cooked)
        with suppress(OSError):
            self._console.set_alt_screen(False)
            self._console.show_cursor(True)
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def _suspend(self) -> None:
        """Stop this process as Ctrl-Z asks, with the terminal as it was, until the user continues it."""
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, _ignore)
        self._enter()

    # ------------------------------------------------------------------ the loop

    def show(self, messages: MessageQueue) -> int | None:
        """Draw the view until the run has ended or the user leaves it; see `watch_on_terminal`.

        Raises:
            LaunchError: The run can no longer be watched.
        """
        watching = start_function(self._watch, name="launch-watch")
        try:
            return self._loop(messages)
        finally:
            self._is_leaving = True
            if self.view is not None and self.view.run.paths != self._run.paths:
                watching.join(_END_SECONDS)  # It removes its copy of the files.

    def _loop(self, messages: MessageQueue) -> int | None:
        """Draw, and handle keys and signals; see `show`."""
        while True:
            for message in messages.drain():
                self._status = escape_controls(message.text)
            self._draw()
            readable = [self._wake_read, messages.fd] + ([] if self._keys is None else [self._keys])
            ready, _, _ = select.select(readable, [], [], _LOOK_SECONDS)
            if self._wake_read in ready and signal.SIGTSTP in os.read(self._wake_read, _READ_BYTES):
                self._suspend()
            if self._error is not None:
                raise self._error
            if self.view is not None and self.view.has_ended:
                return None
            if self._keys is not None and self._keys in ready:
                typed = os.read(self._keys, _READ_BYTES).decode("utf-8", "replace")
                if not typed:  # The terminal is closed.
                    self._keys = None
                # Arrows and the like begin with an escape, and mean nothing here.
                for key in typed if typed == _ESCAPE or not typed.startswith(_ESCAPE) else "":
                    if self._press(key):
                        return 0

    def _watch(self) -> None:
        """Watch the run in a thread of its own."""
        try:
            with watched(self._run) as watcher:
                while not self._is_leaving and not (self.view and self.view.has_ended):
                    self.view = watcher.look(_LOOK_SECONDS)
                    self._wake()
        except LaunchError as error:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        """Let the main thread draw. A full pipe wakes it already."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    # ------------------------------------------------------------------ keys

    def _press(self, key: str) -> bool:
        """Handle a key, and return whether the user leaves the view."""
        self._status = ""
        if self._question is not None:
            self._type(key)
        elif self._log_task or self._pages:
            self._log_task, self._pages = "", ()
        elif key == "q":
            return True
        elif key == "s":
            names = [*_ORDERS]
            self._order = names[(names.index(self._order) + 1) % len(names)]
        elif key in ("/", "l", "p", "k"):
            self._question = {
                "/": "filter (task, host or state): ",
                "l": "log of the task: ",
                "p": "stacks of the tasks (none: all): ",
                "k": f"stop {self._run.called}? y/n ",
            }[key]
            self._answer = ""
        return False

    def _type(self, key: str) -> None:
        """Add a key to the answer of the user, or end it."""
        question, answer = self._question or "", self._answer
        if question.startswith("stop "):
            self._question = None
            if key == "y":
                self._start("stop")
        elif key in ("\r", "\n"):
            self._question = None
            if question.startswith("filter"):
                self._filter = answer
            elif question.startswith("stacks"):
                self._start("stacks", *answer.split())
            elif self.view and answer in {task.task for task in self.view.report.tasks}:
                self._log_task = answer
            elif answer:
                self._status = f"there is no task {answer!r}"
        elif key == _ESCAPE:
            self._question = None
        elif key in ("\x7f", "\b"):
            self._answer = answer[:-1]
        elif key.isprintable():
            self._answer += key

    def _start(self, command: str, *words: str) -> None:
        """Start a command of launch for this run, whose output is then shown."""
        self._status = f"launch {command} runs"
        start_function(self._execute, command, *words, name="launch-command")

    def _execute(self, command: str, *words: str) -> None:
        """Execute a command of launch in a thread of its own, and keep what it prints."""
        argv = launch_command(command, self._run.paths.root, *words)
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            printed = process.stdout.read(_MAX_OUTPUT_BYTES).decode("utf-8", "replace")
        if command == "stop":
            self._status = last_line(printed, "stopped")
        else:
            self._pages = [escape_controls(line) for line in printed.splitlines()]
            self._status = ""
        self._wake()

    # ------------------------------------------------------------------ what is drawn

    def _draw(self) -> None:
        """Draw what there is to see now."""
        width, height = self._console.size
        view = self.view
        if view is None:
            body = [Text(f"{self._run.title}: looking")]
        else:
            body = self._body(view, width, height - 1)
        body = body[: height - 1]
        footer = self._status or _HELP
        if self._question is not None:
            footer = f"{self._question}{self._answer}"
        elif self._log_task or self._pages:
            footer = self._status or "any key: back"
        blank = [Text("")] * (height - 1 - len(body))
        lines = [*body, *blank, Text(footer, style="dim" if footer == _HELP else "bold")]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
        self._console.update_screen(Group(*lines))

    def _body(self, view: RunView, width: int, height: int) -> list[Text]:
        """Return the lines above the last one."""
        rows = view.rows()
        head = [self._headline(view, rows)]
        if self._pages:
            left_out = len(self._pages) - (height - 2)
            more = [f"... and {left_out} more lines"] if left_out > 1 else []
            return [*head, *map(Text, [*self._pages[: height - 1 - len(more)], *more])]
        if self._log_task:
            lines = last_lines(view.run.paths.root, self._log_task, height - 2, _LOG_BYTES)
            return [*head, Text(f"log of {self._log_task}", style="bold"), *map(Text, lines)]
        head.append(Text(_facts(view, self._order, self._filter)))
        if view.history.messages:
            at, text = view.history.messages[-1]
            head.append(Text(f"{time.strftime('%H:%M:%S', time.localtime(at))} {text}", style="dim"))
        if view.note and view.note not in view.headline:
            head.append(Text(view.note, style="bold"))
        return [*head, *self._table(view, rows, width, height - len(head))]

    def _headline(self, view: RunView, rows: Sequence[TaskRow]) -> Text:
        """Return the first line: which run it is, and how it is."""
        is_bad = view.report.failure is not None or any(row.is_remarkable for row in rows)
        line = Text(f"{view.run.title}: ", style="bold")
        return line.append(view.headline, style="bold red" if is_bad else "bold green")

    def _table(self, view: RunView, rows: list[TaskRow], width: int, height: int) -> list[Text]:
        """Return the lines of the table of tasks. If they are too many, tasks that are alike are folded."""
        folded = list[FoldedRow]()
        most = max(1, height - 2)  # The headers and what is left out have a line each.
        if self._filter:
            rows = [row for row in rows if self._filter in f"{row.task} {row.host} {row.state_text}"]
        if self._order:
            rows.sort(key=lambda row: (not row.is_remarkable, _ORDERS[self._order](row)))
        elif not self._filter:
            rows, folded = named_and_folded(rows, most)
        left_out = max(0, len(rows) + len(folded) - most)
        rows = view.with_last_lines(rows[: max(0, most - len(folded))])
        cells = [_cells_of(row) for row in rows] + [_folded_cells(row) for row in folded]
        styles = ["bold red" if row.is_remarkable else "" for row in rows] + [""] * len(folded)
        lines = _table_lines(cells, styles, width)
        if left_out:
            lines.append(Text(f"... and {left_out} more: / filters, s sorts"))
        return lines


def _facts(view: RunView, order: str, filtered: str) -> str:
    """Return the second line: how long the run takes, and what its limits are."""
    facts = [f"for {duration(view.seconds)}", plural(len(view.report.tasks), "task")]
    if view.restarts_left is not None:
        facts.append(f"{plural(view.restarts_left, 'restart')} left")
    if view.time_left is not None:
        facts.append(f"{duration(view.time_left)} until --timeout")
    if view.report.tensorboard:
        facts.append(f"TensorBoard: {escape_controls(view.report.tensorboard)}")
    facts += [f"by {order}"] if order else []
    facts += [f"filter {escape_controls(filtered)!r}"] if filtered else []
    return " · ".join(facts)


def _cells_of(row: TaskRow) -> dict[str, str]:
    """Return the cells of a task by the names of their columns. Those without a value are empty."""
    cells = {
        **_usage_cells(row),
        "task": row.task,
        "host": "" if row.host == "localhost" else row.host,
        "state": row.state_text + (f": {row.detail}" if row.detail and row.is_remarkable else ""),
        "attempt": str(row.attempt) if row.attempt > 1 else "",
        "step": "" if row.step is None else f"{row.step:g}" + (f"/{row.total:g}" if row.total else ""),
        "left": _seconds(row.left),
        "last line": row.last_line,
    }
    cells["gpu"] += "" if row.gpu_memory is None else f" {byte_size(row.gpu_memory)}"
    return cells


def _folded_cells(row: FoldedRow) -> dict[str, str]:
    """Return the cells of tasks that are alike, as `_cells_of` does for one."""
    steps = "" if row.steps is None else "-".join(f"{step:g}" for step in dict.fromkeys(row.steps))
    more = {"task": f"{row.role} x{row.count}", "state": row.state_text, "step": steps}
    return {**_usage_cells(row), **more}


def _usage_cells(row: TaskRow | FoldedRow) -> dict[str, str]:
    """Return the cells that tasks and folded tasks both have."""
    return {
        "heard": _seconds(row.heard),
        "steps/s": "" if row.rate is None else f"{row.rate:.3g}",
        "silent": _seconds(row.silent),
        "cpu": "" if row.cpu is None else f"{row.cpu:.2f}",
        "memory": "" if row.memory is None else byte_size(row.memory),
        "gpu": "" if row.gpu is None else f"{row.gpu:.0f}%",
    }


def _table_lines(rows: Sequence[Mapping[str, str]], styles: Sequence[str], width: int) -> list[Text]:
    """Return a table under its headers, without columns that are empty or for which there is no room.

    Args:
        rows: The cells of each row, by the names of their columns.
        styles: The style of each row.
        width: The width of the terminal. The last line of a task gets what is left of it.
    """
    widths = {
        header: min(_MAX_WIDTH, max(len(header), *(cell_len(row.get(header, "")) for row in rows)))
        for header in _HEADERS[:-1]
        if any(row.get(header) for row in rows)
    }
    for header in _EXPENDABLE:
        if sum(widths.values()) + _GAP * len(widths) + _MIN_LINE_WIDTH > width:
            widths.pop(header, None)
    widths[_HEADERS[-1]] = max(0, width - sum(widths.values()) - _GAP * len(widths))
    lines = []
    headers = {header: header.upper() for header in widths}
    for row, style in zip([headers, *rows], ["bold", *styles], strict=True):
        cells = []
        for header, size in widths.items():
            cell = row.get(header, "")
            padding = " " * (size - cell_len(cell)) if header in _NUMBERS else ""
            cells.append(set_cell_size(padding + cell, size))
        lines.append(Text((" " * _GAP).join(cells), style=style))
    return lines


def _seconds(value: float | None) -> str:
    """Return whole seconds in words. Empty if they are not known."""
    if value is None:
        return ""
    return f"{value:.0f}s" if value < _MINUTE else duration(value)
