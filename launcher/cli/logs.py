"""``launch logs``: print the output of the tasks of a run, in bounded memory."""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import time
from collections.abc import Sequence
from typing import BinaryIO

from launcher.cli.completion import completes, runs_and_tasks
from launcher.config.values import argument, whole
from launcher.errors import Fault, InputError, LaunchError
from launcher.output.lines import LineCutter, labels
from launcher.runs.logs import open_regular
from launcher.runs.run import Run, RunState, all_runs, exit_code_of, find, tasks

SUMMARY = "print the output of the tasks of a run"

EXAMPLES = """\
launch logs                        the newest run, each line with its task's name
launch logs worker/0 > FILE        one task of it, byte for byte
launch logs -f ps worker/1         all ps and one worker, until the run has ended
launch logs --lines 20 k3f9m       the last lines of each task of another run"""

#: Seconds between two looks at logs that grow.
_PERIOD = 0.1
_CHUNK = 1 << 18


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch logs``."""
    selected = parser.add_argument(
        "selected", metavar="RUN | TASK", nargs="*",
        help="the run (default: the newest), then tasks such as worker/0, or roles",
    )  # fmt: skip
    completes(selected, runs_and_tasks)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    lines = argument(whole(0, 10**12))
    parser.add_argument("-n", "--lines", metavar="N", type=lines, help="only the last N lines of each task")


def run(args: argparse.Namespace) -> int:
    """Print the logs.

    Raises:
        InputError: no such run, or no such task in it.
        LaunchError: a log can't be read.
    """
    found, names = _run_and_tasks(args.selected)
    logs = _logs(found, names, args.lines)
    out = sys.stdout.buffer
    try:
        while args.follow:
            over = found.state in (RunState.ENDED, RunState.DIED)  # before the last bytes are read
            logs = logs or _logs(found, names, args.lines)
            grown = [log.write(out) for log in logs]
            out.flush()
            if over and not any(grown):
                break
            if not any(grown):
                time.sleep(_PERIOD)
        for log in logs:
            log.write_rest(out)
        out.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if not logs:
        print(f"launch: no task of {found.job} was started, so it has no logs", file=sys.stderr)
    if args.follow:
        code = exit_code_of(found.report())
        ended = "its launcher died" if code is None else f"exit code {code}"
        print(f"launch: {found.job} has ended: {ended}", file=sys.stderr)
    return 0


def _run_and_tasks(selected: Sequence[str]) -> tuple[Run, Sequence[str]]:
    """The run, and the names of tasks; the first argument may be a run or a task."""
    if not selected:
        return find(None), ()
    try:
        return find(selected[0]), selected[1:]
    except InputError:
        newest = all_runs()[-1:]
        if not newest or (
            "/" not in selected[0] and all(selected[0] != task.role for task in tasks(newest[0]))
        ):
            raise
        return newest[0], selected


def _logs(run: Run, names: Sequence[str], lines: int | None) -> list[_Log]:
    """The selected logs, in the order of the plan; empty before the plan is written.

    Raises:
        InputError: a name is not that of a task.
    """
    if os.path.islink(run.paths.logs):
        raise LaunchError(f"can't read {run.paths.logs!r}: it is a link")
    hosts = tasks(run)
    unknown = [name for name in names if hosts and not any(name in (task, task.role) for task in hosts)]
    if unknown:
        roles = ", ".join(dict.fromkeys(task.role for task in hosts))
        expected = f"expected ROLE or ROLE/INDEX of {roles}"
        raise InputError(Fault("", f"run {run.job} has no task {name!r}", expected) for name in unknown)
    chosen = [task for task in hosts if not names or task in names or task.role in names]
    shown = labels(hosts, chosen) if len(chosen) > 1 else {}
    return [_Log(run.paths.log(task), shown.get(task, ""), lines) for task in chosen]


class _Log:
    """A log that may not exist yet.

    Without a label it is copied byte for byte into a file or pipe. With a label, and to a terminal, it is
    written in lines as on the console.

    Args:
        path: the file.
        label: of the task; empty: none.
        lines: the number of last lines to start with; ``None``: all.
    """

    def __init__(self, path: str, label: str, lines: int | None) -> None:
        self._path = path
        self._lines = lines
        self._file: BinaryIO | None = None
        first, later = (f"{label}{mark}".encode(errors="surrogateescape") for mark in (" | ", " + "))
        terminal = sys.stdout.isatty()
        self._cutter = LineCutter(first if label else b"", later if label else b"", terminal)
        self._raw = not label and not terminal

    def write(self, out: BinaryIO) -> bool:
        """Write the bytes since the last call, up to a limit. Returns whether there were any."""
        data, now = self._read(), time.monotonic()
        if self._raw:
            out.write(data)
        else:
            out.write(self._cutter.feed(data, now) if data else self._cutter.snapshot(now))
        return bool(data)

    def write_rest(self, out: BinaryIO) -> None:
        """Write the rest of the log, also a last line without a newline."""
        while self.write(out):
            pass
        out.write(self._cutter.end())
        if self._file is not None:
            self._file.close()

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


def _start_of_last(lines: int, file: BinaryIO) -> int:
    """The offset of the last ``lines`` lines of a file; the last one may have no newline."""
    size = os.fstat(file.fileno()).st_size
    if not size:
        return 0
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as text:
        at = size - 1  # a newline at the end does not count
        for _ in range(lines):
            at = text.rfind(b"\n", 0, at)
            if at < 0:
                break
        return at + 1
