"""The failure report: the first task that failed, the reason, its last lines and its Python traceback.

The console prints it at the end of a job, and ``launch attach`` prints it again from the
files of the run. It only reads.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from launcher.common.record import from_attributes
from launcher.common.report import Failure, Reason, Report, TaskReport, TaskState
from launcher.common.text import escape_controls, join_names, shortened
from launcher.job import RunPaths, is_loopback
from launcher.output.hints import FailureFacts, hints
from launcher.output.lines import clean_lines
from launcher.output.logs import content, tail
from launcher.output.renderers import TaskPlace
from launcher.output.tensorflow_notices import is_about_the_build

#: Number of last lines that are shown; of lines at the two ends of a traceback; of tasks in a list.
_MAX_LAST_LINES = 20
_MAX_TRACEBACK_ENDS = (15, 30)
_MAX_LISTED = 10
#: Characters of a line that are shown; the last line of a traceback is never cut.
_MAX_LINE_CHARACTERS = 2000
#: The most rows of an array that are shown.
_MAX_ARRAY_ROWS = 4
#: The line that Python prints on SIGABRT before the stack of a thread.
_STACKS_LINE = b" (most recent call first):\n"

_HINT_PREFIX = "  hint: "
_TRACEBACK_HEAD = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
#: Largest number of other lines between the lines of a traceback (the log of another thread).
_MAX_FOREIGN_LINES = 10
#: Exceptions that a mistake in the program raises, and the end of another task does not.
_MISTAKE_EXCEPTIONS = re.compile(
    r"(AssertionError|AttributeError|FileNotFoundError|ImportError|IndentationError|IndexError|KeyError"
    r"|ModuleNotFoundError|NameError|SyntaxError|TypeError|ZeroDivisionError)\b"
)


def failure_report(
    report: Report,
    paths: RunPaths,
    place: TaskPlace | None = None,
    *,
    with_last_lines: bool = True,
) -> str:
    """Return the failure report, which ends with a newline, or an empty text if nothing failed.

    Args:
        report: How the job ended.
        paths: Of the run; its logs have the last lines of the tasks.
        with_last_lines: Whether to show the last lines of the task, or only where its log is.
        place: Where the tasks ran; None if it is not known.
    """
    failure = report.failure
    if failure is None:
        return ""
    first = "first to fail: " if failure.task and len(report.tasks) > 1 else ""
    lines = [
        f"launch: {first}{failure.text}",
        *_about_task(report, failure, paths, place or TaskPlace(), with_last_lines=with_last_lines),
    ]
    lines += _also_failed(report, failure, paths)
    lines.sort(key=lambda line: line.startswith(_HINT_PREFIX))  # what to do is last
    return "".join(f"{line}\n" for line in lines)


def _about_task(
    report: Report, failure: Failure, paths: RunPaths, place: TaskPlace, *, with_last_lines: bool
) -> list[str]:
    """Return the last lines of the task that failed, hints, and the path of its log."""
    hint = failure.hint
    if failure.task is None:
        if failure.reason is Reason.TIMEOUT:
            hung = [task.task for task in report.tasks if _STACKS_LINE in tail(paths.log(task.task))[0]]
            hint = f"stacks are at the end of the output of {join_names(hung)}" if hung else hint
        return [f"{_HINT_PREFIX}{hint}"] if hint else []
    data, is_cut = tail(paths.log(failure.task))
    printed = clean_lines(data, is_cut=is_cut)
    lines = _without_rows([line for line in printed if not is_about_the_build(line)])
    block = last_traceback(lines)
    if block and _MISTAKE_EXCEPTIONS.match(lines[block.stop - 1]):
        hint = ""  # the tasks that ended before are not the cause
    last = [*lines[-_MAX_LAST_LINES:], *(lines[block.stop - 1 : block.stop] if block else [])]
    found = hints([failure.text, *last], _facts(failure, paths, place))
    tips = [f"{_HINT_PREFIX}{each}" for each in [*found, hint] if each]
    started = any(task.task == failure.task and task.started_at is not None for task in report.tasks)
    if not lines and not started:
        return tips
    tips.append(f"  log: {escape_controls(paths.log(failure.task))}")
    if not with_last_lines:
        return tips
    if not lines:
        but = " but TensorFlow's notices at its start" if printed else ""
        return [f"  it printed nothing{but}", *tips]
    return [*_last_lines(lines, block), *tips]


def _last_lines(lines: Sequence[str], block: range | None) -> list[str]:
    """Return the last lines; before them the traceback, unless it is among them."""
    shown = [shortened(line, _MAX_LINE_CHARACTERS) for line in lines]
    text: list[str] = []
    first = max(0, len(lines) - _MAX_LAST_LINES)
    if block is not None:
        shown[block.stop - 1] = lines[block.stop - 1]
        if block.start < first:
            traceback, (head, end) = shown[block.start : block.stop], _MAX_TRACEBACK_ENDS
            left_out = len(traceback) - head - end
            if left_out > 1:  # an endless recursion
                traceback[head:-end] = [f"  ... {left_out} lines ..."]
            text += ["  its Python traceback:", *(f"    {line}" for line in traceback)]
            first = max(first, block.stop)
    if first < len(lines):
        text += ["  its last lines:", *(f"    {line}" for line in shown[first:])]
    return text


def _also_failed(report: Report, failure: Failure, paths: RunPaths) -> list[str]:
    """Return the other tasks that failed, without those that launch stopped."""
    others = [
        task
        for task in report.tasks
        if task.task != failure.task and task.state is TaskState.FAILED and not task.sidecar
    ]
    if not others:
        return []
    others.sort(key=lambda task: task.ended_at or 0.0)
    exception = "" if failure.task is None else _exception(paths.log(failure.task))
    named = [_other(task, exception, paths) for task in others[:_MAX_LISTED]]
    more = [f"{len(others) - _MAX_LISTED} more"] if len(others) > _MAX_LISTED else []
    return [f"  also failed: {', '.join([*named, *more])}"]


def _other(task: TaskReport, exception: str, paths: RunPaths) -> str:
    """``worker/1 on node1 (exit code 1, the same exception)``."""
    host = "" if task.task.is_own_host(task.host) else f" on {task.host}"
    same = ", the same exception" if exception and _exception(paths.log(task.task)) == exception else ""
    return f"{task.task}{host} ({task.detail}{same})"


def _exception(log: str) -> str:
    """Return the last line of the last traceback of a task, or an empty text if there is none."""
    data, is_cut = tail(log)
    lines = clean_lines(data, is_cut=is_cut)
    block = last_traceback(lines)
    return lines[block.stop - 1] if block else ""


# ---------------------------------------------------------------------- the lines of a task


def _without_rows(lines: Sequence[str]) -> list[str]:
    """Return the lines with only the first and the last rows of a large array, as exceptions show them."""
    found: list[str] = []
    for are_rows, group in itertools.groupby(lines, _is_row):
        rows = list(group)
        # A program that prints a list a line closes its brackets.
        if (
            are_rows
            and len(rows) > _MAX_ARRAY_ROWS
            and any(row.count("[") > row.count("]") for row in rows[:2])
        ):
            rows[1:-1] = [f"... {len(rows) - 2} lines of values ..."]
        found += rows
    return found


def _is_row(line: str) -> bool:
    """Return whether a line has nothing but values, as numpy prints them."""
    return not re.sub(r"array\(|nan|inf|True|False|, (?:shape|dtype)=.*", "", line).strip(
        "0123456789+-.e,[]() "
    )


def _facts(failure: Failure, paths: RunPaths, place: TaskPlace) -> FailureFacts:
    """Return what is known about the task that failed, for hints."""
    plan = _plan_of_task(failure, paths)
    argv, env, venv = plan.get("argv") or [""], plan.get("env") or {}, plan.get("venv") or ""
    passed = env.keys() | place.passed
    elsewhere = place.other_machines and not is_loopback(failure.host or "")
    here = not (elsewhere or place.in_container)
    runs_python = os.path.basename(argv[0]).startswith("python")
    python = os.path.join(venv, "bin", "python") if venv else argv[0]
    active = os.environ.get("VIRTUAL_ENV", "")
    beside = bool(active) and os.path.realpath(active) != os.path.realpath(sys.prefix)
    return from_attributes(
        FailureFacts,
        place,
        python=escape_controls(python) if runs_python and (not venv or "/" in venv) else "",
        beside_active_environment=beside and argv[0] == sys.executable,
        elsewhere=elsewhere and not place.in_container,
        over_ssh=elsewhere and place.over_ssh,
        prepare=place.prepare if elsewhere else "launch prepare",
        modules_here=frozenset(_modules_in(".", *(os.path.dirname(word) for word in argv[1:2]))),
        not_passed=frozenset() if here else frozenset(os.environ.keys() - passed),
        passed=frozenset(passed | (os.environ.keys() if here else set())),
    )


def _plan_of_task(failure: Failure, paths: RunPaths) -> dict[str, Any]:
    """Return the part of the plan about the task that failed; empty if the plan could not be written."""
    try:
        tasks = json.loads(content(paths.plan))["tasks"]
        plan: dict[str, Any] = next(each for each in tasks if each["task"] == failure.task)
    except (ValueError, LookupError, TypeError, StopIteration):
        return {}
    return plan


def _modules_in(*folders: str) -> Iterator[str]:
    """Yield the names of Python modules and packages in folders."""
    for folder in folders:
        with suppress(OSError), os.scandir(folder or ".") as entries:
            yield from (
                each.name.removesuffix(".py") for each in entries if "." not in each.name.removesuffix(".py")
            )


def last_traceback(lines: Sequence[str]) -> range | None:
    """Return the lines of the last complete Python traceback, with the tracebacks that are chained to it."""
    found: range | None = None
    for start, line in enumerate(lines):
        end = _traceback_end(lines, start) if _TRACEBACK_HEAD in line else 0
        if end:
            found = range(found.start if found and _is_chained(lines, found.stop, start) else start, end)
    return found


def _traceback_end(lines: Sequence[str], start: int) -> int:
    """Return the number after that of the first line that looks like an exception, or 0 if none does."""
    foreign = 0
    for at, line in enumerate(lines[start + 1 :], start + 1):
        if line.startswith((" ", "\t")):
            continue
        if re.match(r"[A-Za-z_][\w.]*(?::|$)", line):
            return at + 1
        foreign += 1
        if _TRACEBACK_HEAD in line or foreign > _MAX_FOREIGN_LINES:
            return 0
    return 0


def _is_chained(lines: Sequence[str], end: int, start: int) -> bool:
    between = [line for line in lines[end:start] if line.strip()]
    return 0 < len(between) <= 1 + _MAX_FOREIGN_LINES and any(between[-1].endswith(text) for text in _CHAINED)
