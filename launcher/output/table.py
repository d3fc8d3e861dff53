"""The result table: a row a task, and one line for the job."""

from __future__ import annotations

from typing import NamedTuple

from launcher.report import Failure, Reason, Report, TaskReport, TaskState
from launcher.text import byte_size, counted, duration, printable, signal_name

HEAD = ["HOST", "PORT", "ROLE", "INDEX", "STATE", "EXIT", "TIME", "PEAK MEM"]
#: Columns of numbers.
RIGHT = ("PORT", "INDEX", "TIME", "PEAK MEM")

#: Up to so many tasks have a row each. Of more, those are counted whose row says nothing new.
MANY = 40

#: Ends that need no row of their own where there are many.
_EXPECTED = (TaskState.SUCCEEDED, TaskState.STOPPED, TaskState.CANCELLED)
#: What is said of many; of the others it is the state itself.
_WERE = {
    TaskState.STOPPED: "were stopped",
    TaskState.CANCELLED: "were never started",
    TaskState.LOST: "were lost",
}


class Table(NamedTuple):
    """What is shown: rows (``HEAD`` and a remark) and sentences about those left out."""

    rows: list[list[str]]
    others: list[str]


def rows(report: Report) -> list[list[str]]:
    """One row a task: the columns of ``HEAD``, and last a remark, mostly empty."""
    return [_row(task, report) for task in report.tasks]


def table(report: Report) -> Table:
    """The rows worth showing. Up to ``MANY`` tasks all of them."""
    if len(report.tasks) <= MANY:
        return Table(rows(report), [])
    first = report.failure.task if report.failure else None
    notable = [task for task in report.tasks if task.state not in _EXPECTED or task.task == first]
    notable.sort(key=lambda task: task.task != first)
    left_out = [*notable[MANY:], *(task for task in report.tasks if task not in notable)]
    return Table([_row(task, report) for task in notable[:MANY]], _counted(left_out))


def summary(report: Report) -> list[str]:
    """``job JOB: ok in 12s``, or what went wrong; and where the run's folder is."""
    took = duration(max(0.0, report.ended_at - report.started_at))
    if report.failure is not None:
        said = _outcome(report, report.failure)
    elif report.exit_code:
        said = f"ended after {took} with exit code {report.exit_code}"
    else:
        said = f"ok in {took}"
    logs = [f"logs: {printable(report.run_dir)}"] if report.run_dir else []
    return [f"job {report.job}: {said}", *logs]


def _outcome(report: Report, failure: Failure) -> str:
    """How it ended, in a few words: the failure report has said why."""
    code = f"exit code {report.exit_code}"
    if failure.reason is Reason.TIMEOUT:
        after = failure.limit or duration(max(0.0, failure.at - report.started_at))
        return f"timed out after {after}, {code}"
    if failure.reason is Reason.INTERRUPTED:
        return f"{failure.text.rstrip('.')}, {code}"
    who = failure.task or failure.host
    return f"failed, {code} ({who})" if who else f"failed, {code}"


def plain(report: Report) -> str:
    """Table and summary as aligned text."""
    shown = table(report)
    return "\n".join([*aligned(shown.rows), *shown.others, *summary(report), ""])


def aligned(rows: list[list[str]]) -> list[str]:
    """Head and rows in columns, as wide as they need to be; nothing if there are no rows."""
    if not rows:
        return []
    columns = zip(HEAD, *(row[:-1] for row in rows), strict=True)
    widths = [max(map(len, column)) for column in columns]
    return [_aligned(row, widths) for row in ([*HEAD, ""], *rows)]


def _aligned(row: list[str], widths: list[int]) -> str:
    cells = zip(HEAD, row, widths, strict=False)
    shown = [text.rjust(width) if head in RIGHT else text.ljust(width) for head, text, width in cells]
    return "  ".join([*shown, f"<- {row[-1]}" if row[-1] else ""]).rstrip()


def _row(task: TaskReport, report: Report) -> list[str]:
    port = "-" if task.port is None else str(task.port)
    who = [task.host, port, task.task.role, str(task.task.index)]
    how = [task.state.value, _exit(task), duration(task.seconds), byte_size(task.peak_rss)]
    return [*who, *how, _remark(task, report)]


def _exit(task: TaskReport) -> str:
    """``0``, ``7``, ``SIGKILL (9)``; ``SIGTERM`` alone if the signal was ours; ``-`` if nobody saw one."""
    code, signal = task.status
    if code is not None:
        return str(code)
    if signal is None:
        return "-"
    ours = task.state is TaskState.STOPPED or task.reason is Reason.STOPPED
    return signal_name(signal) if ours else f"{signal_name(signal)} ({signal})"


def _remark(task: TaskReport, report: Report) -> str:
    said = []
    if report.failure is not None and report.failure.task == task.task:
        said.append("first")
    if task.reason is Reason.OUT_OF_MEMORY:
        said.append("out of memory")
    if task.unkillable:
        said.append(f"pid {', '.join(map(str, task.unkillable))} could not be ended")
    return ", ".join(said)


def _counted(tasks: list[TaskReport]) -> list[str]:
    """``496 worker tasks succeeded (12s to 14s, up to 120 MB)``, one for each role and end."""
    groups: dict[tuple[str, TaskState], list[TaskReport]] = {}
    for task in tasks:
        groups.setdefault((task.task.role, task.state), []).append(task)
    return [_group(role, state, group) for (role, state), group in groups.items()]


def _group(role: str, state: TaskState, group: list[TaskReport]) -> str:
    times = [task.seconds for task in group if task.seconds is not None]
    sizes = [task.peak_rss for task in group if task.peak_rss is not None]
    shortest, longest = (duration(min(times)), duration(max(times))) if times else ("", "")
    facts = [shortest if shortest == longest else f"{shortest} to {longest}"] if times else []
    facts += [f"up to {byte_size(max(sizes))}"] if sizes else []
    tasks = counted(len(group), "task")
    said = f"{tasks} of {role} {_WERE.get(state, state.value)}"
    said = said.replace(" were ", " was ") if len(group) == 1 else said
    return f"{said} ({', '.join(facts)})" if facts else said
