"""The failure report: who failed first, why, and what it said last."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.job import RunPaths
from launcher.output.hints import hints
from launcher.output.human import shortened
from launcher.output.lines import LineCutter
from launcher.output.notices import without_notices
from launcher.output.tails import Tails
from launcher.output.tracebacks import Block, last_traceback
from launcher.report import Failure, Reason, Report, TaskReport, TaskState
from launcher.text import listed, printable

#: Lines of the task that are shown; of a traceback those at its two ends; and tasks in a list.
_LAST = 20
_TRACEBACK_ENDS = (15, 30)
_LISTED = 10

#: Characters of one of its lines; the line a traceback ends with is never cut.
_LONGEST = 2000

#: What Python writes before the stack of a thread, of a program that hung.
_STACKS = b" (most recent call first):\n"

_NOT_STARTED = (Reason.NOT_FOUND, Reason.NOT_RUNNABLE)
_BY_ITSELF = (Reason.EXIT, Reason.SIGNAL, Reason.OUT_OF_MEMORY, Reason.NOT_FOUND, Reason.NOT_RUNNABLE)


def failure_report(report: Report, tails: Tails, paths: RunPaths | None, last_lines: bool = True) -> str:
    """The text for the user, ended by a newline; empty if there is nothing to say.

    Args:
        report: how the job ended.
        tails: what the tasks printed last.
        paths: where the logs are, if anywhere.
        last_lines: whether it has what the task printed last; else it only says where that is.
    """
    lines: list[str] = []
    if report.failure is not None:
        part = _task_part(report, report.failure, tails, paths, last_lines)
        lines = [_headline(report, report.failure), *part]
        lines += _others(report, report.failure)
    return "".join(f"{line}\n" for line in lines + _unkillable(report))


def _headline(report: Report, failure: Failure) -> str:
    """Who, where and why."""
    first = "first to fail: " if failure.task and len(report.tasks) > 1 else ""
    return f"launch: {first}{failure.text}"


def _task_part(
    report: Report, failure: Failure, tails: Tails, paths: RunPaths | None, last_lines: bool
) -> list[str]:
    """What the task that is to blame said, what to try, where its log is."""
    if failure.task is None:
        hung = _where_it_hung(report, tails) if failure.reason is Reason.TIMEOUT else ""
        hint = hung or failure.hint
        return [f"  hint: {hint}"] if hint else []
    printed = clean_lines(*tails.tail(failure.task))
    lines = without_notices(printed)
    block = last_traceback(lines)
    said = [*lines[-_LAST:], *(lines[block.end - 1 : block.end] if block else [])]
    tips = [f"  hint: {hint}" for hint in [*hints(said), failure.hint] if hint]
    if not lines and not _was_started(report, failure):
        return tips
    log = [f"  log: {printable(paths.log(failure.task))}"] if paths else []
    what = " but TensorFlow's notices" if printed else ""
    return [*(_said(lines, block, what) if last_lines else []), *tips, *log]


def _was_started(report: Report, failure: Failure) -> bool:
    """Whether its program ever ran: else its log holds nothing."""
    started = any(task.task == failure.task and task.started_at is not None for task in report.tasks)
    return started and failure.reason not in _NOT_STARTED


def _where_it_hung(report: Report, tails: Tails) -> str:
    """Whose stacks are to be seen, of a job that took too long."""
    tasks = [task.task for task in report.tasks if _STACKS in tails.tail(task.task)[0]]
    return f"stacks are at the end of what {listed(tasks)} printed" if tasks else ""


def _said(lines: Sequence[str], block: Block | None, but: str = "") -> list[str]:
    """The task's last lines, and before them its traceback unless they hold it.

    Args:
        lines: its own.
        block: where its traceback is in them.
        but: what else it printed, if it is that.
    """
    if not lines:
        return [f"  it printed nothing{but}"]
    said: list[str] = []
    last = max(0, len(lines) - _LAST)
    shown = [
        line if block and at == block.end - 1 else shortened(line, _LONGEST) for at, line in enumerate(lines)
    ]
    if block is not None and block.start < last:
        said += ["  its Python traceback:", *(f"    {line}" for line in _abridged(shown, block))]
        last = max(last, block.end)
    if last < len(lines):
        said += ["  its last lines:", *(f"    {line}" for line in shown[last:])]
    return said


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
        if not task.sidecar
    ]
    others.sort(key=lambda task: task.ended_at or 0.0)
    if not others:
        return []
    named = [f"{task.task}{_on(task)} ({_why(task)})" for task in others[:_LISTED]]
    more = [f"{len(others) - _LISTED} more"] if len(others) > _LISTED else []
    return [f"  also failed: {', '.join([*named, *more])}"]


def _on(task: TaskReport) -> str:
    return "" if task.task.names(task.host) else f" on {task.host}"


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
