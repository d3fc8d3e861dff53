"""``launch logs``: what the tasks of a run printed. Bytes in, bytes out, in bounded memory."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import BinaryIO

from launcher.cli.completion import completes, runs_and_tasks
from launcher.config.values import argument, whole
from launcher.errors import Fault, InputError, LaunchError
from launcher.job import TaskId
from launcher.output.lines import LineCutter, labels
from launcher.runs.logs import open_regular
from launcher.runs.run import Run, RunState, exit_code_of, find, load, tasks

SUMMARY = "print what the tasks of a run printed"

EXAMPLES = """\
launch logs                        the newest run, every line with its task (when there are several)
launch logs worker/0 > FILE        one task of it, byte for byte (a terminal gets no escapes but colours)
launch logs -f ps worker/1         all ps and one worker, until the run has ended
launch logs --lines 20 k3f9m       the last lines of each task of another run"""

_TASK = re.compile(r"[^/]+/\d+")
#: Seconds between two looks at logs that grow.
_PERIOD = 0.1
_CHUNK = 1 << 18


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch logs``."""
    words = parser.add_argument(
        "words", metavar="RUN | TASK", nargs="*",
        help="the run (default: the newest), then tasks such as worker/0, or roles",
    )  # fmt: skip
    completes(words, runs_and_tasks)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    lines = argument(whole(0, 10**12))
    parser.add_argument("-n", "--lines", metavar="N", type=lines, help="only the last N lines of each task")


def run(args: argparse.Namespace) -> int:
    """Print the logs.

    Raises:
        InputError: no such run, or no such task in it.
        LaunchError: a log can't be read.
    """
    found, names = _run_and_tasks(args.words)
    logs = _logs(found, names, args.lines)
    out = sys.stdout.buffer
    try:
        while args.follow:
            over = found.state in (RunState.ENDED, RunState.DIED)  # before the last bytes are read
            logs = logs or _logs(found, names, args.lines)
            grown = [log.write_new(out) for log in logs]
            out.flush()
            if over and not any(grown):
                break
            if not any(grown):
                time.sleep(_PERIOD)
        for log in logs:
            log.write_all(out)
        out.flush()
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if not logs:
        print(f"{found.job} has no logs: nothing was started", file=sys.stderr)
    if args.follow:
        code = exit_code_of(found.report())
        ended = "its launcher died" if code is None else f"exit code {code}"
        print(f"launch: {found.job} has ended: {ended}", file=sys.stderr)
    return 0


def _run_and_tasks(words: Sequence[str]) -> tuple[Run, Sequence[str]]:
    """The run, and the words for tasks; the first word may be either."""
    if not words:
        return find(None), ()
    is_folder = os.path.isdir(words[0]) and load(words[0]) is not None
    if not is_folder and _TASK.fullmatch(words[0]):
        return find(None), words
    if not is_folder:
        try:
            newest = find(None)
        except InputError:
            return find(words[0]), words[1:]
        if any(task.role == words[0] for task in tasks(newest)):
            return newest, words
    return find(words[0]), words[1:]


def _logs(run: Run, names: Sequence[str], lines: int | None) -> list[_Log]:
    """The logs that are meant, in the order of the plan; none while there is no plan.

    Raises:
        InputError: a word means no task.
    """
    if os.path.islink(run.paths.logs):
        raise LaunchError(f"can't read {run.paths.logs!r}: it is a link")
    hosts = tasks(run) or _tasks_with_logs(run)
    unknown = [word for word in names if hosts and not any(word in (task, task.role) for task in hosts)]
    if unknown:
        roles = ", ".join(dict.fromkeys(task.role for task in hosts))
        expected = f"expected ROLE or ROLE/INDEX of {roles}"
        raise InputError(Fault("", f"run {run.job} has no task {word!r}", expected) for word in unknown)
    chosen = [task for task in hosts if not names or task in names or task.role in names]
    named = labels(hosts, chosen)
    shown = [named[task].encode(errors="surrogateescape") if len(chosen) > 1 else b"" for task in chosen]
    terminal = sys.stdout.isatty()
    return [
        _Log(run.paths.log(task), label, lines, terminal) for task, label in zip(chosen, shown, strict=True)
    ]


def _tasks_with_logs(run: Run) -> dict[TaskId, str]:
    """The tasks that left a log, for a run without a plan."""
    try:
        names = [name for name in os.listdir(run.paths.logs) if name.endswith(".log") and name.isprintable()]
    except OSError:
        return {}
    stems = [name[:-4].rpartition("-") for name in names]
    found = sorted((role, int(index)) for role, _, index in stems if index.isdigit())
    return {TaskId.of(role, index): "" for role, index in found}


class _Log:
    """A log that may not exist yet.

    Into a file or pipe it is copied byte for byte, with its label before each line. For a terminal, and where
    it is followed beside others, its lines are cut as the console cuts them: colours stay, nothing moves the
    cursor, and the state of a progress bar is shown now and then.

    Args:
        path: the file.
        label: of the task; empty: none.
        lines: start with the last lines, this many; ``None``: at the beginning.
        terminal: it is written to a terminal.
    """

    def __init__(self, path: str, label: bytes, lines: int | None, terminal: bool) -> None:
        self._path = path
        self._prefix = label and label + b" | "
        self._lines = lines
        self._file: BinaryIO | None = None
        #: The last byte that was written is not a newline.
        self._within_line = False
        self._cutter = LineCutter(self._prefix, label and label + b" + ", terminal)
        self._cut = terminal

    def write_all(self, out: BinaryIO) -> None:
        """Write the rest of the log, also a last line without a newline."""
        while data := self._read():
            self._write(data, out)
        if self._cut:
            out.write(self._cutter.end())
        elif self._within_line and self._prefix:
            out.write(b"\n")
            self._within_line = False
        if self._file is not None:
            self._file.close()

    def write_new(self, out: BinaryIO) -> bool:
        """Write what is new, as whole lines if they have a label; return whether there is something new."""
        data = self._read()
        self._cut = self._cut or bool(self._prefix)
        self._write(data, out)
        if self._cut:
            out.write(self._cutter.snapshot(time.monotonic()))
        return bool(data)

    def _read(self) -> bytes:
        if self._file is None:
            try:
                self._file = open_regular(self._path, links=False)
            except FileNotFoundError:
                return b""
            except OSError as error:
                raise LaunchError(f"can't read {self._path!r}: {error.strerror}") from error
            if self._lines is not None:
                self._file.seek(_start_of_last(self._lines, self._file))
        return self._file.read(_CHUNK)

    def _write(self, data: bytes, out: BinaryIO) -> None:
        if not data:
            return
        if self._cut:
            out.write(self._cutter.feed(data, time.monotonic()))
            return
        if self._prefix:
            newline = b"\n" if data.endswith(b"\n") else b""
            first = b"" if self._within_line else self._prefix
            data = first + data.removesuffix(newline).replace(b"\n", b"\n" + self._prefix) + newline
            self._within_line = not newline
        out.write(data)


def _start_of_last(lines: int, file: BinaryIO) -> int:
    """Where the last lines of a file begin, this many; the last one need not have a newline."""
    position = file.seek(0, os.SEEK_END)
    skip = 1  # the newline that ends the last line does not count
    while position > 0 and lines > 0:
        step = min(_CHUNK, position)
        position -= step
        file.seek(position)
        block = file.read(step)
        at, skip = len(block) - skip, 0
        while (at := block.rfind(b"\n", 0, max(at, 0))) >= 0:
            lines -= 1
            if lines == 0:
                return position + at + 1
    return position
