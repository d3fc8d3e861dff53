"""The failure report: the first task that failed, the reason, its last lines and its Python traceback.

The console shows it at the end of a job, and ``launch attach`` and ``launch report`` show it again from the
files of the run. It only reads these files, which may be missing or cut.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from launcher.common.cluster import TaskId
from launcher.common.record import from_attributes, replace
from launcher.common.report import Failure, Reason, Report, TaskReport, TaskState
from launcher.common.text import escape_controls, join_names, shortened
from launcher.job import RunPaths, TaskPlan, is_loopback
from launcher.output.github import annotation
from launcher.output.hints import FailureFacts, hints
from launcher.output.lines import clean_lines, coloured
from launcher.output.logs import tail
from launcher.output.renderers import TaskPlace
from launcher.output.table import BAD_COLOUR
from launcher.output.tensorflow_notices import without_start_up_messages

_MAX_LAST_LINES = 20
#: The number of lines that are shown at the start and at the end of a long traceback.
_MAX_TRACEBACK_ENDS = (15, 30)
_MAX_LISTED_TASKS = 10
#: Lines are cut at this length, but never the last line of a traceback.
_MAX_LINE_CHARACTERS = 2000
#: An array with more rows is cut.
_MAX_ARRAY_ROWS = 4
#: The end of the line that Python prints on SIGABRT before the stack of a thread.
_STACKS_LINE = b" (most recent call first):\n"

_HINT_PREFIX = "  hint: "
_HINT_COLOUR = "1"
_EXCEPTION_COLOUR = "31"
_TRACEBACK_HEAD = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
#: How many other lines, from the log of another thread, may be between the lines of a traceback.
_MAX_FOREIGN_LINES = 10
#: Exceptions that a mistake in the program raises, but not the end of another task.
_MISTAKE_EXCEPTIONS = re.compile(
    r"(AssertionError|AttributeError|FileNotFoundError|ImportError|IndentationError|IndexError|KeyError"
    r"|ModuleNotFoundError|NameError|SyntaxError|TypeError|ZeroDivisionError)\b"
)


def with_advice(report: Report, paths: RunPaths, place: TaskPlace, plan: TaskPlan | None) -> Report:
    """Return the report of a job with all that is known to help against its failure, a hint on each line.

    The supervisor, which knows the states of all tasks, has given a hint, but does not know their output.

    Args:
        report: How the job ended, with a failure.
        paths: The files of the run. Its logs contain the last lines of the tasks.
        place: Where the tasks ran.
        plan: How the task that failed was started, as the launcher knows it: a task may have changed
            ``plan.json``. None if no task failed, or if there was no plan yet.
    """
    failure = report.failure
    assert failure is not None
    if failure.task is not None:
        advice = _advice_about_task(failure, failure.task, paths, _facts(failure, place, plan))
    elif failure.reason is Reason.TIMEOUT:  # Tasks that were stopped by SIGABRT have printed their stacks.
        hung = [task.task for task in report.tasks if _STACKS_LINE in tail(paths.log(task.task))[0]]
        stacks = f"stacks are at the end of the output of {join_names(hung)}" if hung else ""
        advice = [stacks or failure.hint]
    else:
        advice = [failure.hint]
    return replace(report, failure=replace(failure, hint="\n".join(filter(None, advice))))


def _advice_about_task(failure: Failure, task: TaskId, paths: RunPaths, facts: FailureFacts) -> list[str]:
    """Return the hints about a task that failed, by what it printed and by what the supervisor knows."""
    lines, traceback = _output_of(task, paths)
    # Many lines may follow the traceback, so its last line, which names the exception, is looked at, too.
    exception = lines[traceback.stop - 1] if traceback else ""
    telling_lines = [failure.text, *lines[-_MAX_LAST_LINES:], exception]
    # For a mistake, the hint of the supervisor would name tasks that had ended before and are not the cause.
    hint = "" if _MISTAKE_EXCEPTIONS.match(exception) else failure.hint
    return [*hints(telling_lines, facts), hint]


def failure_report(
    report: Report,
    paths: RunPaths,
    *,
    colour: bool = False,
    with_last_lines: bool = True,
    is_alone: bool = False,
) -> str:
    """Return the failure report of a job, as lines for the user.

    Args:
        report: How the job ended.
        paths: The files of the run. Its logs contain the last lines of the tasks.
        colour: Whether to colour the failure, its exception and the hints.
        with_last_lines: Whether to show the last lines of the task.
        is_alone: Whether the user sees no verdict beside it.

    Returns:
        The report, which ends with a newline. Empty if nothing failed.
    """
    failure = report.failure
    if failure is None:
        return ""
    # Other tasks may have failed because of this one.
    first = "first to fail: " if failure.task and len(report.tasks) > 1 else ""
    # The report may be that of another user. Its text may have several lines.
    head = "\n".join(map(escape_controls, f"launch: {first}{failure.text}".split("\n")))
    # The verdict says who has stopped the job.
    is_in_verdict = failure.reason is Reason.INTERRUPTED and not is_alone
    lines = [] if is_in_verdict else [coloured(head, BAD_COLOUR) if colour else head]
    if failure.task is not None and with_last_lines:
        lines += _about_output(failure.task, report, paths, colour=colour)
    if failure.stacks:
        stacks = [
            shortened(escape_controls(line), _MAX_LINE_CHARACTERS) for line in failure.stacks.split("\n")
        ]
        lines += ["  where the tasks were:", *(f"    {line}" for line in stacks)]
    lines += _also_failed(report, failure, paths)
    prefix = coloured(_HINT_PREFIX, _HINT_COLOUR) if colour else _HINT_PREFIX
    lines += [f"{prefix}{escape_controls(hint)}" for hint in failure.hint.splitlines()]
    return "".join(f"{line}\n" for line in lines)


def github_annotation(failure: Failure, paths: RunPaths) -> str:
    """Return the line that annotates a failure in GitHub Actions."""
    lines, traceback = ([], None) if failure.task is None else _output_of(failure.task, paths)
    return annotation(failure, lines[traceback.start : traceback.stop] if traceback else [], os.environ)


def _output_of(task: TaskId, paths: RunPaths, attempt: int | None = None) -> tuple[list[str], range | None]:
    """Return what a task printed at last, without TensorFlow start-up messages, and where its traceback is.

    Args:
        task: The task.
        paths: The files of the run.
        attempt: The number of the attempt. None for the last one.
    """
    data, is_cut = tail(paths.log(task), attempt=attempt)
    lines = _without_inner_rows(without_start_up_messages(clean_lines(data, is_cut=is_cut)))
    return lines, last_traceback(lines)


def _about_output(task: TaskId, report: Report, paths: RunPaths, *, colour: bool) -> list[str]:
    """Return the last lines of a task, or that it printed nothing. Empty if it never started."""
    lines, traceback = _output_of(task, paths)
    if lines:
        return _last_lines(lines, traceback, colour=colour)
    if not any(each.task == task and each.started_at is not None for each in report.tasks):
        return []
    # `_output_of` has left out the start-up messages, which the log contains.
    but_messages = " but TensorFlow start-up messages" if tail(paths.log(task))[0] else ""
    return [f"  it printed nothing{but_messages}"]


def _last_lines(lines: Sequence[str], traceback: range | None, *, colour: bool) -> list[str]:
    """Return the last lines of a task, and before them its traceback, unless it is among them.

    Args:
        lines: What the task has printed.
        traceback: Which of the lines are the last traceback. None if there is none.
        colour: Whether to colour the line with the exception.
    """
    shown = [shortened(line, _MAX_LINE_CHARACTERS) for line in lines]
    report: list[str] = []
    first = max(0, len(lines) - _MAX_LAST_LINES)
    if traceback is not None:
        exception = lines[traceback.stop - 1]  # This line is never cut.
        shown[traceback.stop - 1] = coloured(exception, _EXCEPTION_COLOUR) if colour else exception
        if traceback.start < first:
            traceback_lines = shown[traceback.start : traceback.stop]
            head, end = _MAX_TRACEBACK_ENDS
            left_out = len(traceback_lines) - head - end
            if left_out > 1:  # It is an endless recursion.
                traceback_lines[head:-end] = [f"  ... {left_out} lines ..."]
            report += ["  its Python traceback:", *(f"    {line}" for line in traceback_lines)]
            first = max(first, traceback.stop)
    if first < len(lines):
        report += ["  its last lines:", *(f"    {line}" for line in shown[first:])]
    return report


def exception_of(task: TaskId, paths: RunPaths, attempt: int | None = None) -> str:
    """Return the exception with which an attempt of a task ended: the last line of its last traceback.

    Empty if there is no traceback. Without the number of an attempt it is the last one.
    """
    lines, traceback = _output_of(task, paths, attempt)
    return lines[traceback.stop - 1] if traceback else ""


def _also_failed(report: Report, failure: Failure, paths: RunPaths) -> list[str]:
    """Return a line about the other tasks that failed, without the tasks that launch stopped.

    Returns:
        A list with the line. Empty if no other task failed.
    """
    failed = [task for task in report.tasks if task.state is TaskState.FAILED and not task.sidecar]
    others = [task for task in failed if task.task != failure.task]
    if not others:
        return []
    others.sort(key=lambda task: task.ended_at or 0.0)
    # The exception of the first task, with which those of the others are compared.
    exception = "" if failure.task is None else exception_of(failure.task, paths)
    named = [_other_failure(task, failure, exception, paths) for task in others[:_MAX_LISTED_TASKS]]
    more = [f"{len(others) - _MAX_LISTED_TASKS} more"] if len(others) > _MAX_LISTED_TASKS else []
    return [f"  also failed: {', '.join([*named, *more])}"]


def _other_failure(task: TaskReport, failure: Failure, exception: str, paths: RunPaths) -> str:
    """Return a task that failed, too, as in ``worker/1 on node1 (exit code 1, the same exception)``.

    Args:
        task: The task.
        failure: The first failure.
        exception: The exception of the task that failed first. Empty if there is none.
        paths: The files of the run.
    """
    # A host says nothing new if it is this machine, or a pod or container of this task alone, which has the
    # name of the task.
    host_is_clear = task.task.is_own_host(task.host) or is_loopback(task.host)
    host = "" if host_is_clear else f" on {task.host}"
    # The reason why a task could not be started may be long, so it is not repeated.
    if task.started_at is None and failure.text.endswith(task.detail):
        return escape_controls(f"{task.task}{host} (the same)")
    # The detail may contain text of the user's program, which must not control the terminal.
    same = ", the same exception" if exception and exception_of(task.task, paths) == exception else ""
    return escape_controls(f"{task.task}{host} ({task.detail}{same})")


# ---------------------------------------------------------------------- the lines of a task


def _without_inner_rows(lines: Sequence[str]) -> list[str]:
    """Return lines without the inner rows of large arrays, which exceptions of TensorFlow show."""
    kept: list[str] = []
    for are_rows, lines_of_group in itertools.groupby(lines, _is_row):
        group = list(lines_of_group)
        # Lists that a program prints line by line are no array: each closes its brackets.
        # The first row of an array leaves a bracket open. A blank line before it is in the group, too.
        opens_array = any(line.count("[") > line.count("]") for line in group[:2])
        if are_rows and len(group) > _MAX_ARRAY_ROWS and opens_array:
            group[1:-1] = [f"... {len(group) - 2} lines of values ..."]
        kept += group
    return kept


def _is_row(line: str) -> bool:
    """Return whether a line contains nothing but values, as numpy prints them."""
    without_words = re.sub(r"array\(|nan|inf|True|False|, (?:shape|dtype)=.*", "", line)
    return not without_words.strip("0123456789+-.e,[]() ")


def _facts(failure: Failure, place: TaskPlace, plan: TaskPlan | None) -> FailureFacts:
    """Return what is known about the task that failed, which decides about the hints.

    Args:
        failure: The failure of the job.
        place: Where the tasks ran.
        plan: How the task was started. None if that is not known.
    """
    argv: tuple[str, ...] = ("",)  # The empty text stands for a program that is not known.
    passed, venv = place.passed, ""
    if plan is not None:
        argv, passed, venv = plan.argv + plan.args, passed | plan.env.keys(), plan.venv or ""
    is_elsewhere = place.other_machines and not is_loopback(failure.host or "")
    is_here = not (is_elsewhere or place.in_container)
    runs_python = os.path.basename(argv[0]).startswith("python")
    python = os.path.join(venv, "bin", "python") if venv else argv[0]
    # The path of an environment that `launch prepare` made is known only on its host.
    is_python_known = runs_python and (not venv or "/" in venv)
    # The user may have activated another environment than that of launch, whose Python runs the task.
    active = os.environ.get("VIRTUAL_ENV", "")
    is_other_active = bool(active) and os.path.realpath(active) != os.path.realpath(sys.prefix)
    folders = [".", *(os.path.dirname(word) for word in argv[1:2])]
    # Tasks on this machine inherit the environment of launch.
    inherited = frozenset(os.environ if is_here else ())
    # The fields that are not given here are taken from the place, where they have the same names.
    return from_attributes(
        FailureFacts,
        place,
        python=escape_controls(python) if is_python_known else "",
        beside_active_environment=is_other_active and argv[0] == sys.executable,
        elsewhere=is_elsewhere and not place.in_container,
        over_ssh=is_elsewhere and place.over_ssh,
        prepare=place.prepare if is_elsewhere else "launch prepare",
        modules_here=frozenset(_modules_in(folders)),
        not_passed=frozenset() if is_here else frozenset(os.environ.keys() - passed),
        passed=frozenset(passed | inherited),
    )


def _modules_in(folders: Iterable[str]) -> Iterator[str]:
    """Yield the names of the Python modules and packages in folders.

    A folder that cannot be read has none.
    """
    for folder in folders:
        with suppress(OSError), os.scandir(folder or ".") as entries:
            names = [entry.name.removesuffix(".py") for entry in entries]
            yield from (name for name in names if "." not in name)


def last_traceback(lines: Sequence[str]) -> range | None:
    """Return which lines are the last complete Python traceback, with the tracebacks that are chained to it.

    Args:
        lines: What a task has printed.

    Returns:
        The range of line numbers. None if there is no traceback.
    """
    last: range | None = None
    for start, line in enumerate(lines):
        end = _traceback_end(lines, start) if _TRACEBACK_HEAD in line else 0
        if end:
            is_chained = last is not None and _is_chained(lines, last.stop, start)
            last = range(last.start if last and is_chained else start, end)
    return last


def _traceback_end(lines: Sequence[str], start: int) -> int:
    """Return the number of the line after a traceback, which ends with an exception.

    Args:
        lines: What a task has printed.
        start: The number of the first line of the traceback.

    Returns:
        The number. 0 if no line looks like the exception.
    """
    foreign_lines = 0
    for number, line in enumerate(lines[start + 1 :], start + 1):
        if line.startswith((" ", "\t")):  # It names a place in the program, or shows its code.
            continue
        if re.match(r"[A-Za-z_][\w.]*(?::|$)", line):  # This is the name of an exception.
            return number + 1
        foreign_lines += 1  # Another thread has printed between the lines of the traceback.
        if _TRACEBACK_HEAD in line or foreign_lines > _MAX_FOREIGN_LINES:
            return 0
    return 0


def _is_chained(lines: Sequence[str], end: int, start: int) -> bool:
    """Return whether the lines between two tracebacks say that the first one led to the second.

    Args:
        lines: What a task has printed.
        end: The number of the line after the first traceback.
        start: The number of the first line of the second traceback.
    """
    between = [line for line in lines[end:start] if line.strip()]
    return 0 < len(between) <= 1 + _MAX_FOREIGN_LINES and any(between[-1].endswith(text) for text in _CHAINED)
