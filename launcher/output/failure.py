"""The failure report: the first task that failed, why, and its last lines."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.job import RunPaths
from launcher.output.task_lines import Block, Tails, clean_lines, hints, last_traceback, without_notices
from launcher.report import Failure, Reason, Report, TaskReport, TaskState
from launcher.text import listed, printable, shortened

#: Lines of the task that are shown; of a traceback those at its two ends; and tasks in a list.
_LAST = 20
_TRACEBACK_ENDS = (15, 30)
_LISTED = 10
#: Characters of a line that are shown; the last line of a traceback is never cut.
_LONGEST = 2000
#: What Python writes before the stack of a thread when it is sent SIGABRT.
_STACKS = b" (most recent call first):\n"

_NOT_STARTED = (Reason.NOT_FOUND, Reason.NOT_RUNNABLE)
_BY_ITSELF = (Reason.EXIT, Reason.SIGNAL, Reason.OUT_OF_MEMORY, *_NOT_STARTED)


def failure_report(report: Report, tails: Tails, paths: RunPaths | None, last_lines: bool = True) -> str:
    """The text for the user, ended by a newline; empty if nothing failed.

    Args:
        report: how the job ended.
        tails: the last output of the tasks.
        paths: where the logs are, if there are any.
        last_lines: whether to show the last lines of the task, or only where its log is.
    """
    lines: list[str] = []
    failure = report.failure
    if failure is not None:
        first = "first to fail: " if failure.task and len(report.tasks) > 1 else ""
        lines.append(f"launch: {first}{failure.text}")
        lines += _about_task(report, failure, tails, paths, last_lines)
        lines += _also_failed(report, failure)
    for task in report.tasks:
        if task.unkillable:
            pids = ", ".join(map(str, task.unkillable))
            lines.append(f"launch: {task.task} on {task.host}: pid {pids} survived SIGKILL")
    return "".join(f"{line}\n" for line in lines)


def _about_task(
    report: Report, failure: Failure, tails: Tails, paths: RunPaths | None, last_lines: bool
) -> list[str]:
    """The last lines of the task that failed, what to try, where its log is."""
    if failure.task is None:
        hung = [task.task for task in report.tasks if _STACKS in tails.tail(task.task)[0]]
        hint = failure.hint
        if hung and failure.reason is Reason.TIMEOUT:
            hint = f"stacks are at the end of the output of {listed(hung)}"
        return [f"  hint: {hint}"] if hint else []
    printed = clean_lines(*tails.tail(failure.task))
    lines = without_notices(printed)
    block = last_traceback(lines)
    last = [*lines[-_LAST:], *(lines[block.end - 1 : block.end] if block else [])]
    tips = [f"  hint: {hint}" for hint in [*hints(last), failure.hint] if hint]
    started = any(task.task == failure.task and task.started_at is not None for task in report.tasks)
    if not lines and (not started or failure.reason in _NOT_STARTED):
        return tips
    log = [f"  log: {printable(paths.log(failure.task))}"] if paths else []
    if not last_lines:
        return [*tips, *log]
    if not lines:
        but = " but TensorFlow's notices" if printed else ""
        return [f"  it printed nothing{but}", *tips, *log]
    return [*_last_lines(lines, block), *tips, *log]


def _last_lines(lines: Sequence[str], block: Block | None) -> list[str]:
    """The last lines, and before them the traceback unless they hold it."""
    shown = [shortened(line, _LONGEST) for line in lines]
    text: list[str] = []
    first = max(0, len(lines) - _LAST)
    if block is not None:
        shown[block.end - 1] = lines[block.end - 1]
        if block.start < first:
            text += ["  its Python traceback:", *(f"    {line}" for line in _abridged(shown, block))]
            first = max(first, block.end)
    if first < len(lines):
        text += ["  its last lines:", *(f"    {line}" for line in shown[first:])]
    return text


def _abridged(lines: Sequence[str], block: Block) -> list[str]:
    """A traceback without the middle of an endless recursion."""
    shown = list(lines[block.start : block.end])
    head, tail = _TRACEBACK_ENDS
    left_out = len(shown) - head - tail
    return shown if left_out <= 1 else [*shown[:head], f"  ... {left_out} lines ...", *shown[-tail:]]


def _also_failed(report: Report, failure: Failure) -> list[str]:
    """The other tasks that failed by themselves, not because launch stopped them."""
    others = [
        task
        for task in report.tasks
        if task.task != failure.task and task.state is TaskState.FAILED and task.reason in _BY_ITSELF
        if not task.sidecar
    ]
    if not others:
        return []
    others.sort(key=lambda task: task.ended_at or 0.0)
    named = [f"{task.task}{_on(task)} ({_why(task)})" for task in others[:_LISTED]]
    more = [f"{len(others) - _LISTED} more"] if len(others) > _LISTED else []
    return [f"  also failed: {', '.join([*named, *more])}"]


def _on(task: TaskReport) -> str:
    return "" if task.task.names(task.host) else f" on {task.host}"


def _why(task: TaskReport) -> str:
    if task.detail:
        return task.detail
    return f"exit code {task.status.code}" if task.status.code is not None else f"signal {task.status.signal}"
