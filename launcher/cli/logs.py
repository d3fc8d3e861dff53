"""``launch logs``: what the tasks of a run printed."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from launcher.cli.tail import Log, copy, follow
from launcher.errors import Fault, InputError
from launcher.job import TaskId
from launcher.output.lines import labels
from launcher.runs.progress import tasks
from launcher.runs.registry import find
from launcher.runs.run import Run, RunState, load

SUMMARY = "print what the tasks of a run printed"

EXAMPLES = """\
launch logs                        the newest run, every line with its task (when there are several)
launch logs worker/0 > FILE        one task of it, byte for byte (a terminal gets no escapes but colours)
launch logs -f ps worker/1         all ps and one worker, until the run has ended
launch logs --lines 20 k3f9m       the last lines of each task of another run"""

_TASK = re.compile(r"[^/]+/\d+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch logs``."""
    parser.add_argument(
        "words", metavar="RUN | TASK", nargs="*",
        help="the run (default: the newest), then tasks such as worker/0, or roles",
    )  # fmt: skip
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument("-n", "--lines", metavar="N", type=_count, help="only the last N lines of each task")


def run(args: argparse.Namespace) -> int:
    """Print the logs.

    Raises:
        InputError: no such run, or no such task in it.
    """
    found, selectors = _run_and_selectors(args.words)
    logs = _Selection(found, selectors, args.lines)
    out = sys.stdout.buffer
    try:
        if args.follow:
            follow(logs.current, lambda: found.state in (RunState.ENDED, RunState.DIED), out)
        else:
            copy(logs.current(), out)
        out.flush()
        if not logs.current():
            print(f"{found.job} has no logs: nothing was started", file=sys.stderr)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class _Selection:
    """The logs that are meant: they may come into being while we look."""

    def __init__(self, run: Run, selectors: Sequence[str], lines: int | None) -> None:
        self._run = run
        self._selectors = selectors
        self._lines = lines
        self._logs: dict[TaskId, Log] = {}
        self._planned: dict[TaskId, str] = {}

    def current(self) -> Sequence[Log]:
        """One log a task, in the order of the plan; the same objects at every call."""
        if not self._planned:
            self._planned = _tasks(self._run)
            chosen = _chosen(self._run, self._planned, self._selectors) if self._planned else []
            said = labels(self._planned, chosen)
            for task in chosen:
                label = said[task].encode(errors="surrogateescape") if len(chosen) > 1 else b""
                self._logs[task] = Log(self._run.paths.log(task), label, self._lines, sys.stdout.isatty())
        return list(self._logs.values())


def _run_and_selectors(words: Sequence[str]) -> tuple[Run, Sequence[str]]:
    """The run, and what of it; the first word may be either."""
    if not words:
        return find(None), ()
    is_folder = os.path.isdir(words[0]) and load(words[0]) is not None
    if is_folder or not _names_tasks(words[0]):
        return find(words[0]), words[1:]
    return find(None), words


def _names_tasks(word: str) -> bool:
    """Whether the word is a task's name, or a role of the newest run."""
    if _TASK.fullmatch(word):
        return True
    try:
        return any(task.role == word for task in tasks(find(None)))
    except InputError:
        return False


def _tasks(run: Run) -> dict[TaskId, str]:
    """The tasks of a run and their hosts; without a plan, those that left a log."""
    planned = tasks(run)
    if planned:
        return planned
    try:
        names = [name for name in os.listdir(run.paths.logs) if name.endswith(".log") and name.isprintable()]
    except OSError:
        return {}
    stems = [name[:-4].rpartition("-") for name in names]
    found = sorted((role, int(index)) for role, _, index in stems if index.isdigit())
    return {TaskId.of(role, index): "" for role, index in found}


def _chosen(run: Run, planned: dict[TaskId, str], selectors: Sequence[str]) -> list[TaskId]:
    """The tasks that are meant, in the order of the plan.

    Raises:
        InputError: a word that means none of them.
    """
    unknown = [word for word in selectors if not any(word in (task, task.role) for task in planned)]
    if unknown:
        roles = ", ".join(dict.fromkeys(task.role for task in planned))
        expected = f"expected ROLE or ROLE/INDEX of {roles}"
        raise InputError(Fault("", f"run {run.job} has no task {word!r}", expected) for word in unknown)
    return [task for task in planned if not selectors or task in selectors or task.role in selectors]


def _count(text: str) -> int:
    """A number of lines."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of lines")
    return int(text)
