"""The living view of a run on a terminal, for ``launch top`` and ``launch ps --watch``.

It draws what there is to see, and handles keys and signals. Whatever ends the view, the terminal is then as
it was. Only these two commands import the module, because rich takes time.
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

from rich.console import Console, Group
from rich.text import Text

from launcher.backends.watcher import RunWatcher
from launcher.common.errors import LaunchError
from launcher.common.text import byte_size, duration, escape_controls, plural, shortened
from launcher.itself import launch_command
from launcher.messages import MessageQueue
from launcher.output.lines import wants_colour
from launcher.output.logs import last_line_of, last_lines
from launcher.output.table import table_lines
from launcher.runs.run import Run, RunState
from launcher.runs.view import FoldedRow, RunView, TaskRow, named_and_folded

#: The least pause between two looks at the run: in seconds, and as a multiple of the time that a look takes.
#: So looks at a very large job take at most a fifth of the time.
_LOOK_SECONDS = 1.0
_PAUSE_FACTOR = 4.0
_HEADERS = (
    "task", "host", "heard", "state", "attempt", "step", "steps/s", "left", "silent", "CPU", "memory", "GPU",
    "GPU memory",
)  # fmt: skip
#: The columns that are left out of a narrow terminal, in this order.
_EXPENDABLE = ("heard", "GPU memory", "GPU", "attempt", "host", "left", "silent", "CPU")
#: The least width of the last line of a task, and the largest width of its host and its state.
_MIN_LINE_WIDTH = 16
_MAX_WIDTH = 32
#: How much of the output of a command is shown.
_MAX_OUTPUT_BYTES = 1 << 20
_READ_BYTES = 4096
_ESCAPE = "\x1b"
_HELP = "s sort  / filter  l log  p stacks  k stop  q quit"
#: What the user is asked after a key.
_QUESTIONS = {
    "/": "filter (task, host or state): ",
    "l": "log of the task: ",
    "p": "stacks of the tasks (none: all): ",
    "k": "stop the run? y/n: ",
}
#: What ``s`` sorts by in turn: a name, and the key of a row, the smallest first.
_ORDERS: Mapping[str, Callable[[TaskRow], float]] = {
    "": lambda row: 0.0,
    "steps/s": lambda row: float("inf") if row.rate is None else row.rate,
    "silent": lambda row: -(row.silent or 0.0),
    "CPU": lambda row: -(row.cpu or 0.0),
    "memory": lambda row: -float(row.memory or 0),
}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


class _SignalledError(Exception):
    """A signal ends the view, or Ctrl-Z interrupts it. The argument is the number of the signal."""


def watch_on_terminal(run: Run) -> int | None:
    """Show a run on the terminal of stdin and stdout until it has ended, or the user leaves it.

    Returns:
        The exit code if the user or a signal has ended the view. None if the run has ended.

    Raises:
        LaunchError: Its launcher died.
    """
    gc.enable()  # `launcher.__main__` has disabled it for short commands.
    screen = _Screen(run)
    while True:
        try:
            # Messages of other modules must not get between what is drawn.
            with MessageQueue() as messages, _signals_raised(), screen.drawn(), RunWatcher(run) as watcher:
                return screen.show(watcher, messages)
        except _SignalledError as error:
            if error.args[0] != signal.SIGTSTP:
                return 128 + int(error.args[0])
        # The signal of Ctrl-Z stops this process until the user continues it. Then the view is drawn again.
        signal.raise_signal(signal.SIGTSTP)


@contextmanager
def _signals_raised() -> Iterator[None]:
    """Return a context in which the first signal raises an error. Later ones do not interrupt the end."""
    kept = {number: signal.getsignal(number) for number in _SIGNALS}
    # A caller that ignores a signal, as nohup does, wants it ignored.
    handled = [number for number in _SIGNALS if kept[number] is not signal.SIG_IGN]

    def raise_signalled(number: int, _: object) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise _SignalledError(number)

    try:
        for number in handled:
            signal.signal(number, raise_signalled)
        yield
    finally:
        for number in handled:
            signal.signal(number, kept[number])


class _Screen:
    """The terminal with the view of one run, and what the user has typed.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._console = Console(no_color=not wants_colour(os.environ, is_tty=True), highlight=False)
        #: The name in `_ORDERS` by which tasks are sorted. Empty: the order of the run.
        self._sorted_by = ""
        #: The text that all shown tasks contain. Empty if the user filters none out.
        self._filter = ""
        #: The key that has led to the question which the user is asked now. Empty while nothing is asked.
        self._asked = ""
        #: What the user has typed as the answer so far.
        self._answer = ""
        #: The task whose log is shown. Empty for the table.
        self._log_task = ""
        #: A command of launch that runs for the user. None if none does.
        self._command: subprocess.Popen[bytes] | None = None
        #: What it or the last one has printed. Empty if the user has closed that.
        self._printed = b""
        #: What the last line says for now, instead of the help.
        self._status = ""

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Return a context with the second screen of the terminal, in which keys are read without Enter."""
        cooked = termios.tcgetattr(0)
        try:
            tty.setcbreak(0, termios.TCSANOW)
            with self._console.screen():
                yield
        finally:
            with suppress(termios.error):  # The terminal may be gone.
                termios.tcsetattr(0, termios.TCSANOW, cooked)

    def show(self, watcher: RunWatcher, messages: MessageQueue) -> int | None:
        """Draw the view until the run has ended or the user leaves it.

        Each turn looks at the run if that is due, draws, and waits for a key, for output of a command that
        the user has started, or for the next look.

        Args:
            watcher: Watches the run.
            messages: The messages of launch meanwhile. The last one is shown instead of the help.

        Returns:
            0 if the user has left the view, or None if the run has ended.

        Raises:
            LaunchError: The launcher of the run died.
        """
        self._console.update_screen(Text(f"{self._run.title}: looking"))
        look_at = 0.0
        while True:
            if (now := time.monotonic()) >= look_at:
                view = watcher.look(0.0)
                if view.state is RunState.DIED:
                    text = f"{self._run.called}: {view.headline}"
                    raise LaunchError(f"{text}; `launch report {self._run.called}` tells more")
                if view.has_ended:
                    return None
                rows = view.rows()
                look_at = time.monotonic() + max(_LOOK_SECONDS, _PAUSE_FACTOR * (time.monotonic() - now))
            for message in messages.drain():
                self._status = escape_controls(message.text)
            self._draw(view, rows)
            readable = [0]  # This is the terminal.
            if self._command is not None and self._command.stdout is not None:
                readable.append(self._command.stdout.fileno())
            ready, _, _ = select.select(readable, [], [], max(0.0, look_at - time.monotonic()))
            # The command, if one runs, has printed something or has ended.
            if readable[-1] in ready and readable[-1] != 0:
                self._read_output()
            if 0 in ready:
                typed = os.read(0, _READ_BYTES).decode("utf-8", "replace")
                if not typed:  # The terminal is closed.
                    return 0
                # Arrows and the like begin with an escape, and mean nothing here.
                for key in typed if typed == _ESCAPE or not typed.startswith(_ESCAPE) else "":
                    if self._press(key, view):
                        return 0

    # ------------------------------------------------------------------ keys

    def _press(self, key: str, view: RunView) -> bool:
        """Handle a key, and return whether the user leaves the view.

        ``q`` leaves it, ``s`` sorts by the next column, and the keys of `_QUESTIONS` ask something. Any key
        closes a log or the output of a command.
        """
        self._status = ""
        if self._asked:
            self._type(key, view)
        elif self._log_task or self._printed:
            self._log_task, self._printed = "", b""
        elif key == "q":
            return True
        elif key == "s":
            orders = [*_ORDERS]
            self._sorted_by = orders[(orders.index(self._sorted_by) + 1) % len(orders)]
        elif key in _QUESTIONS:
            self._asked, self._answer = key, ""
        return False

    def _type(self, key: str, view: RunView) -> None:
        """Add a key to the answer of the user. Enter ends the answer, and Escape drops it.

        What was asked is the key that was pressed before: ``/`` filters tasks, ``p`` prints their stacks,
        ``k`` stops the run, and ``l`` shows a log.
        """
        if key == _ESCAPE:
            self._asked = ""
        elif key in "\x7f\b":
            self._answer = self._answer[:-1]
        elif key.isprintable():
            self._answer += key
        elif key in "\r\n":
            asked, self._asked = self._asked, ""
            if asked == "/":
                self._filter = self._answer
            elif asked == "p":
                self._start("stacks", *self._answer.split())
            elif asked == "k" and self._answer == "y":
                self._start("stop")
            elif asked == "l" and self._answer in {task.task for task in view.report.tasks}:
                self._log_task = self._answer
            elif asked == "l":
                self._status = f"there is no task {self._answer!r}"

    def _start(self, command: str, *words: str) -> None:
        """Start a command of launch for this run, whose output is then shown."""
        if self._command is not None:
            self._status = "another command still runs"
            return
        self._status = f"launch {command} runs"
        # The screen goes on to show the run meanwhile. `_read_output` reads what the command prints.
        argv = launch_command(command, self._run.paths.root, *words)
        self._command = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def _read_output(self) -> None:
        """Read what the command has printed, or notice its end."""
        assert self._command is not None and self._command.stdout is not None
        piece = os.read(self._command.stdout.fileno(), _READ_BYTES)
        self._printed = (self._printed + piece)[:_MAX_OUTPUT_BYTES]
        if not piece:
            with self._command:  # Leaving it waits for the end, and closes the pipe.
                self._command, self._status = None, ""

    # ------------------------------------------------------------------ what is drawn

    def _draw(self, view: RunView, rows: Sequence[TaskRow]) -> None:
        """Draw a title, then the output of a command, a log or the table, and at last one line for the user.

        That line is a question, the status, or the help. Every line is cut to the width of the terminal.
        """
        width, height = self._console.size
        is_bad = view.report.failure is not None or any(row.is_remarkable for row in rows)
        title = f"{view.run.title}: {view.headline}"
        lines = [Text(title, style="bold red" if is_bad else "bold green")]
        if self._printed:
            printed = self._printed.decode("utf-8", "replace").splitlines()
            left_out = len(printed) - (height - 3)
            more = [f"... and {left_out} more lines"] if left_out > 1 else []
            lines += map(Text, [*map(escape_controls, printed[: height - 2 - len(more)]), *more])
        elif self._log_task:
            lines.append(Text(f"log of {self._log_task}", style="bold"))
            lines += map(Text, last_lines(view.run.paths.root, self._log_task, max(1, height - 3)))
        else:
            lines += self._facts(view)
            lines += self._table(view, rows, width, height - 1 - len(lines))
        lines = lines[: height - 1]
        lines += [Text("")] * (height - 1 - len(lines))
        if self._asked:
            lines.append(Text(f"{_QUESTIONS[self._asked]}{self._answer}", style="bold"))
        else:
            help_text = "any key: back" if self._log_task or self._printed else _HELP
            lines.append(Text(self._status or help_text, style="bold" if self._status else "dim"))
        for line in lines:
            line.truncate(width, overflow="ellipsis")
            line.no_wrap = True
        self._console.update_screen(Group(*lines))

    def _facts(self, view: RunView) -> Iterator[Text]:
        """Yield lines: how long the run takes, what its limits are, its last message, and a note."""
        facts = [f"for {duration(view.seconds)}", plural(len(view.report.tasks), "task")]
        if view.restarts_left is not None:
            facts.append(f"{plural(view.restarts_left, 'restart')} left")
        if view.time_left is not None:
            facts.append(f"{duration(view.time_left)} until --timeout")
        if view.report.tensorboard:
            facts.append(f"TensorBoard: {escape_controls(view.report.tensorboard)}")
        if self._sorted_by:
            facts.append(f"sorted by {self._sorted_by}")
        if self._filter:
            facts.append(f"filter {self._filter!r}")
        yield Text(" · ".join(facts))
        for at, text in view.history.messages[-1:]:
            yield Text(f"{time.strftime('%H:%M:%S', time.localtime(at))} {text}", style="dim")
        if view.note and view.note not in view.headline:
            yield Text(view.note, style="bold")

    def _table(self, view: RunView, rows: Sequence[TaskRow], width: int, height: int) -> Iterator[Text]:
        """Yield the lines of the table of tasks, each with the last line that its task has printed.

        If there are too many tasks, those that are alike are folded into one line. A user who filters or
        sorts looks for certain tasks, so then the last ones are left out instead.

        Args:
            view: What there is to see of the run.
            rows: The rows of all its tasks.
            width: The width of the terminal.
            height: How many lines there is room for.
        """
        folded = list[FoldedRow]()
        most = max(1, height - 2)  # The headers and the note about tasks that are left out have a line each.
        if self._filter:
            rows = [row for row in rows if self._filter in f"{row.task} {row.host} {row.state_text}"]
        if self._sorted_by:
            rows = sorted(rows, key=lambda row: (not row.is_remarkable, _ORDERS[self._sorted_by](row)))
        elif not self._filter:
            rows, folded = named_and_folded(rows, most)
        left_out = max(0, len(rows) + len(folded) - most)
        rows = rows[: max(0, most - len(folded))]
        cells = [*map(_cells, rows), *map(_folded_cells, folded)]
        root = view.run.paths.root
        # The first line is that of the headers. A folded row stands for many tasks, so it has no last line.
        last_column = ["LAST LINE", *(last_line_of(root, row.task) for row in rows), *[""] * len(folded)]
        styles = ["bold", *("bold red" if row.is_remarkable else "" for row in rows), *[""] * len(folded)]
        # If the filter leaves no task there is no line, not even one for the headers.
        for line, last_line, style in zip(_narrow_table(cells, width), last_column, styles, strict=False):
            yield Text(f"{line}  {last_line}", style=style)
        if left_out:
            yield Text(f"... and {left_out} more: / filters, s sorts")


def _narrow_table(rows: Sequence[Mapping[str, str]], width: int) -> list[str]:
    """Return the lines of a table, all equally wide, beside which there is room for the last lines of tasks.

    As many columns of `_EXPENDABLE` are left out as that needs. If even all of them are not enough, the table
    is too wide.

    Args:
        rows: The cells of each row, by the names of their columns.
        width: The width of the terminal.
    """
    for count in range(len(_EXPENDABLE) + 1):
        headers = [header for header in _HEADERS if header not in _EXPENDABLE[:count]]
        lines = table_lines(headers, [[row.get(header, "") for header in headers] for row in rows])
        widest = max(map(len, lines), default=0)
        if widest + _MIN_LINE_WIDTH <= width:
            break
    return [line.ljust(widest) for line in lines]


def _cells(row: TaskRow) -> dict[str, str]:
    """Return the cells of a task by the names of their columns."""
    detail = f": {row.detail}" if row.detail and row.is_remarkable else ""
    more = {
        "task": row.task,
        "host": "" if row.host == "localhost" else shortened(row.host, _MAX_WIDTH),
        "state": shortened(f"{row.state_text}{detail}", _MAX_WIDTH),
        "attempt": str(row.attempt) if row.attempt > 1 else "",
        "step": _shown(row.step, "{:g}".format) + (f"/{row.total:g}" if row.total else ""),
        "left": _shown(row.left, duration),
        "GPU memory": _shown(row.gpu_memory, byte_size),
    }
    return _usage_cells(row) | more


def _folded_cells(row: FoldedRow) -> dict[str, str]:
    """Return the cells of tasks that are alike, as `_cells` does for one."""
    steps = "" if row.steps is None else "-".join(f"{step:g}" for step in dict.fromkeys(row.steps))
    more = {"task": f"{row.role} x{row.count}", "state": row.state_text, "step": steps}
    return _usage_cells(row) | more


def _usage_cells(row: TaskRow | FoldedRow) -> dict[str, str]:
    """Return the cells that tasks and folded tasks both have."""
    return {
        "heard": _shown(row.heard, duration),
        "steps/s": _shown(row.rate, "{:.3g}".format),
        "silent": _shown(row.silent, duration),
        "CPU": _shown(row.cpu, "{:.2f}".format),
        "memory": _shown(row.memory, byte_size),
        "GPU": _shown(row.gpu, "{:.0f}%".format),
    }


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    """Return a value as the text that a function makes of it. Empty if the value is not known."""
    return "" if value is None else form(value)
