"""The failure report: who failed first, why, and what it said last."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.model.report import Failure, Report, TaskReport
from launcher.model.rundir import RunPaths
from launcher.model.status import Reason, TaskState
from launcher.output.human import shortened
from launcher.output.lines import LineCutter
from launcher.output.tails import Tails
from launcher.output.tracebacks import Block, last_traceback

#: Lines of the task that are shown; of a traceback those at its two ends; and tasks in a list.
_LAST = 20
_TRACEBACK_ENDS = (15, 30)
_LISTED = 10

_BY_ITSELF = (Reason.EXIT, Reason.SIGNAL, Reason.OUT_OF_MEMORY, Reason.NOT_FOUND, Reason.NOT_RUNNABLE)


def failure_report(report: Report, tails: Tails, paths: RunPaths | None, width: int = 0) -> str:
    """The text for the user, ended by a newline; empty if there is nothing to say.

    Args:
        report: how the job ended.
        tails: what the tasks printed last.
        paths: where the logs are, if anywhere.
        width: no line is longer; 0: 200.
    """
    lines = [] if report.failure is None else _first(report, report.failure, tails, paths)
    lines += _unkillable(report)
    if not lines:
        return ""
    return "".join(f"{shortened(line, width or 200)}\n" for line in lines) + _places(report, paths)


def _places(report: Report, paths: RunPaths | None) -> str:
    """Where its whole output is: never shortened."""
    task = report.failure.task if report.failure else None
    return f"  log: {paths.log(task)}\n" if paths and task else ""


def _first(report: Report, failure: Failure, tails: Tails, paths: RunPaths | None) -> list[str]:
    where = f" on {failure.host}" if failure.host else ""
    lines = [f"launch: {failure.text}"]
    if failure.task is not None:
        lines = [f"launch: {failure.task}{where} failed first: {failure.text}", *_said(failure, tails)]
    elif where and str(failure.host) not in failure.text:
        lines = [f"launch: {failure.text} ({failure.host})"]
    if failure.hint:
        lines.append(f"  hint: {failure.hint}")
    return lines + _others(report, failure)


def _said(failure: Failure, tails: Tails) -> list[str]:
    """The task's last lines, and its traceback unless they hold it."""
    assert failure.task is not None
    data, cut = tails.tail(failure.task)
    lines = clean_lines(data, cut)
    if failure.reason in (Reason.NOT_FOUND, Reason.NOT_RUNNABLE) and not lines:
        return []
    if not lines:
        return ["  it printed nothing"]
    said: list[str] = []
    block = last_traceback(lines)
    if block is not None and block.start < len(lines) - _LAST:
        said += ["  its Python traceback:", *(f"    {line}" for line in _abridged(lines, block))]
    return [*said, "  its last lines:", *(f"    {line}" for line in lines[-_LAST:])]


def clean_lines(data: bytes, cut: bool) -> list[str]:
    """Output as the console shows it, without blank lines at its end.

    Args:
        data: raw bytes.
        cut: there was more before them, so that the first line is not whole.
    """
    cutter = LineCutter(b"", b"", interval=float("inf"))
    text = (cutter.feed(data, 0.0) + cutter.end()).decode("utf-8", "replace").rstrip()
    lines = text.split("\n") if text else []
    return lines[1:] if cut and len(lines) > 1 else lines


def _abridged(lines: Sequence[str], block: Block) -> list[str]:
    """A traceback without the middle of an endless recursion."""
    shown = list(lines[block.start : block.end])
    head, tail = _TRACEBACK_ENDS
    left_out = len(shown) - head - tail
    return shown if left_out <= 1 else [*shown[:head], f"  ... {left_out} lines ...", *shown[-tail:]]


def _others(report: Report, failure: Failure) -> list[str]:
    """Those that failed by themselves, not because we stopped them."""
    others = [
        task
        for task in report.tasks
        if task.task != failure.task and task.state is TaskState.FAILED and task.reason in _BY_ITSELF
    ]
    others.sort(key=lambda task: task.ended_at or 0.0)
    if not others:
        return []
    named = [f"{task.task} on {task.host} ({_why(task)})" for task in others[:_LISTED]]
    more = [f"{len(others) - _LISTED} more"] if len(others) > _LISTED else []
    return [f"  also failed: {', '.join([*named, *more])}"]


def _why(task: TaskReport) -> str:
    if task.detail:
        return task.detail
    return f"exit code {task.status.code}" if task.status.code is not None else f"signal {task.status.signal}"


def _unkillable(report: Report) -> list[str]:
    return [
        f"launch: {task.task} on {task.host}: pid {', '.join(map(str, task.unkillable))} survived SIGKILL"
        for task in report.tasks
        if task.unkillable
    ]
