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
        width: no line of the task's is longer; 0: 200.
    """
    lines: list[str] = []
    if report.failure is not None:
        said = _said(report.failure, tails)
        lines = [_headline(report, report.failure), *(shortened(line, width or 200) for line in said)]
        lines += _where_to_look(report.failure, paths) + _others(report, report.failure)
    return "".join(f"{line}\n" for line in lines + _unkillable(report))


def _headline(report: Report, failure: Failure) -> str:
    """Who, where and why; the sentence may name task and host itself."""
    several = len({task.host for task in report.tasks}) > 1
    where = failure.host if failure.host and several and failure.host not in failure.text else ""
    if failure.task is None or failure.task in failure.text:
        first = "first to fail: " if failure.task else ""
        return f"launch: {first}{failure.text}" + (f" (on {where})" if where else "")
    return f"launch: first to fail: {failure.task}{where and f' on {where}'}: {failure.text}"


def _where_to_look(failure: Failure, paths: RunPaths | None) -> list[str]:
    lines = [f"  hint: {failure.hint}"] if failure.hint else []
    return [*lines, f"  log: {paths.log(failure.task)}"] if paths and failure.task else lines


def _said(failure: Failure, tails: Tails) -> list[str]:
    """The task's last lines, and its traceback unless they hold it."""
    if failure.task is None:
        return []
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
