"""Tables: the result of a job with a row for each task, its verdict, and the tables of all commands.

The console, ``launch ps`` and its like call it. All texts of hosts are escaped here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from launcher.common.report import Reason, Report, TaskReport, TaskState
from launcher.common.text import byte_size, duration, escape_controls, plural, shortened, signal_name
from launcher.job import RunPaths
from launcher.output.lines import coloured

#: The columns of the result. The attempt is shown only for a job with restarts, and remarks only if there
#: are any.
RESULT_HEADERS = ("task", "host", "port", "state", "exit", "time", "peak memory", "attempt", "")
#: The columns that are aligned to the right in all tables, because they contain numbers.
_NUMBER_HEADERS = frozenset(
    ("slots", "max slots", "attempt", "port", "pid", "CPU", "CPUs", "memory", "peak memory", "time")
    + ("free memory", "free disk", "size", "step", "steps/s", "left", "GPU", "GPU memory", "heard", "silent")
)
#: In a job of more tasks than this, tasks that ended as expected get no row and are only counted.
MAX_ROWS = 40
_EXPECTED_STATES = (TaskState.SUCCEEDED, TaskState.STOPPED, TaskState.CANCELLED)
BAD_COLOUR = "1;31"
_GOOD_COLOUR = "1;32"
_COLOURS = {
    TaskState.SUCCEEDED: "32",
    TaskState.FAILED: BAD_COLOUR,
    TaskState.LOST: BAD_COLOUR,
    TaskState.STOPPED: "33",
    TaskState.CANCELLED: "2",
}


def result_table(report: Report, *, colour: bool = False) -> str:
    """Return the tasks of a job as a table, in lines. In a large job, tasks that ended well are only counted.

    Args:
        report: How the job ended, or how it is now.
        colour: Whether to colour the states.
    """
    tasks, groups = _tasks_to_show(report)
    lines = table_lines(
        RESULT_HEADERS,
        [result_cells(task, report) for task in tasks],
        colours=[_COLOURS.get(task.state, "") if colour else "" for task in tasks],
    )
    return "".join(f"{line}\n" for line in [*lines, *groups])


def verdict_lines(report: Report, *, colour: bool = False, run_continues: bool = False) -> str:
    """Return the last lines about a job: the path that matters, and the verdict.

    Args:
        report: How the job ended.
        colour: Whether to colour the verdict.
        run_continues: Whether another launcher continues the run, so this is not its end.
    """
    last_line = verdict(report)
    if run_continues:
        elapsed = duration(report.ended_at - report.started_at)
        last_line = escape_controls(f"job {report.job}: stopped after {elapsed}, queued again")
    elif colour:
        last_line = coloured(last_line, BAD_COLOUR if report.failure or report.exit_code else _GOOD_COLOUR)
    return f"{path_line(report)}{last_line}\n"


def path_line(report: Report) -> str:
    """Return the line with the path that matters: the log of the task that failed first, else the folder.

    Empty if the run has no folder.
    """
    if not report.run_dir:
        return ""
    first = report.failure.task if report.failure else None
    has_log = any(task.task == first and task.started_at is not None for task in report.tasks)
    if first is None or not has_log:
        return f"logs: {escape_controls(_home_relative(report.run_dir))}\n"
    return f"log: {escape_controls(_home_relative(RunPaths(report.run_dir).log(first)))}\n"


def _home_relative(path: str) -> str:
    """Return a path as users write it: ``~/logs`` for a path below their home."""
    home = os.environ.get("HOME", "").rstrip("/")
    return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path


def verdict(report: Report) -> str:
    """Return the last line about a job, as in ``job JOB: ok in 12s``."""
    return escape_controls(f"job {report.job}: {ending(report)}")


def ending(report: Report) -> str:
    """Return in few words how a job ended, as in ``ok in 12s`` or ``failed, exit code 7 (worker/1)``.

    They do not contain the reason of a failure, which the failure report contains.
    """
    elapsed = duration(report.ended_at - report.started_at)
    failure, code = report.failure, f"exit code {report.exit_code}"
    if failure is None:  # The code is that of launch if files or output are missing.
        text = f"ended after {elapsed} with {code}" if report.exit_code else f"ok in {elapsed}"
        text += f", tasks started again {plural(report.restarts, 'time')}" if report.restarts else ""
    elif failure.reason is Reason.TIMEOUT:
        after = failure.limit or duration(failure.at - report.started_at)
        text = f"timed out after {after}, {code}"
    elif failure.reason is Reason.STALLED:
        text = f"stalled, {code} ({failure.task})"
    elif failure.reason is Reason.INTERRUPTED:  # The text says by what, as in ``stopped by Ctrl-C``.
        text = f"{failure.text.rstrip('.')}, {code}"
    else:
        where = failure.task or failure.host
        text = f"failed, {code} ({where})" if where else f"failed, {code}"
    return text


def _tasks_to_show(report: Report) -> tuple[list[TaskReport], list[str]]:
    """Return the tasks that get a row, and lines about groups of the other tasks.

    In a large job only tasks get one that did not end as expected: first the task that failed first.
    """
    if len(report.tasks) <= MAX_ROWS:
        return list(report.tasks), []
    first = report.failure.task if report.failure else None
    # In this order the tasks that get a row come before all others.
    ranked = sorted(report.tasks, key=lambda task: (task.task != first, task.state in _EXPECTED_STATES))
    shown = [task for task in ranked[:MAX_ROWS] if task.state not in _EXPECTED_STATES or task.task == first]
    groups: dict[tuple[str, TaskState], list[TaskReport]] = {}
    for task in ranked[len(shown) :]:
        groups.setdefault((task.task.role, task.state), []).append(task)
    return shown, [_group_line(role, state, group) for (role, state), group in groups.items()]


def _group_line(role: str, state: TaskState, group: list[TaskReport]) -> str:
    """Return a line about tasks, as in ``496 tasks of worker: succeeded (12s to 14s, up to 120 MB)``.

    Args:
        role: The role of the tasks.
        state: Their state.
        group: The tasks.
    """
    times = [task.seconds for task in group if task.seconds is not None]
    sizes = [task.peak_rss for task in group if task.peak_rss is not None]
    shortest, longest = (duration(min(times)), duration(max(times))) if times else ("", "")
    details = [shortest if shortest == longest else f"{shortest} to {longest}"] if times else []
    details += [f"up to {byte_size(max(sizes))}"] if sizes else []
    text = f"{plural(len(group), 'task')} of {escape_controls(role)}: {state.value}"
    return f"{text} ({', '.join(details)})" if details else text


def result_cells(task: TaskReport, report: Report) -> list[str]:
    """Return the cells of a task in the result, in the order of `RESULT_HEADERS`."""
    port = "-" if task.port is None else str(task.port)
    host = f"{task.host} on {task.node}" if task.node else task.host
    end = [task.state.value, _exit_text(task), duration(task.seconds), byte_size(task.peak_rss)]
    remark = _remark(task, report)
    attempt = str(task.attempt) if report.restarts else ""
    return [str(task.task), host, port, *end, attempt, f"<- {remark}" if remark else ""]


def _exit_text(task: TaskReport) -> str:
    """Return how a task ended, as in ``0``, ``7`` or ``SIGKILL (9)``.

    It is ``SIGTERM`` without a number if launch sent the signal, and ``-`` if the end is not known.
    """
    code, signal = task.status.code, task.status.signal
    if code is not None:
        return str(code)
    if signal is None:
        return "-"
    # A task that launch has stopped has this state, or another state for one of these reasons.
    is_by_launch = task.state is TaskState.STOPPED or task.reason in (Reason.STOPPED, Reason.STALLED)
    return signal_name(signal) if is_by_launch else f"{signal_name(signal)} ({signal})"


def _remark(task: TaskReport, report: Report) -> str:
    """Return what is remarkable about a task, for the end of its row. Empty if it is nothing."""
    remarks = []
    if report.failure is not None and report.failure.task == task.task:
        remarks.append("first")
    if task.reason in (Reason.OUT_OF_MEMORY, Reason.STALLED):
        remarks.append(task.reason.value)
    if task.unkillable:
        remarks.append(f"pid {', '.join(map(str, task.unkillable))} could not be stopped")
    return ", ".join(remarks)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, columns: int = sys.maxsize) -> None:
    """Print rows under their headers, see `table_lines`.

    Args:
        headers: The name of each column.
        rows: The cells of each row.
        columns: The width at which to cut lines.
    """
    for line in table_lines(headers, rows):
        print(shortened(line, columns))


def table_lines(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, colours: Sequence[str] = ()
) -> list[str]:
    """Return the lines of a table, without columns that are empty in every row. Empty if there are no rows.

    Args:
        headers: The name of each column, which is shown in capitals.
        rows: The cells of each row.
        colours: The colour of the state in each row, as in ``1;31`` for bold red. Empty for none.
    """
    cells = [[escape_controls(cell) for cell in row] for row in rows]
    # The widths of the columns that are shown, by the numbers of the columns.
    widths: dict[int, int] = {}
    for number, header in enumerate(headers):
        if any(row[number] for row in cells):
            widths[number] = max(len(header), *(len(row[number]) for row in cells))
    header_row = [header.upper() for header in headers]
    # The headers, which are the first row, have no colour.
    state_colours = ["", *(colours or [""] * len(cells))]
    lines = []
    # A table without any text has no rows, not even that of the headers. Then the colours are longer.
    for row, colour in zip([header_row, *cells] if widths else [], state_colours, strict=False):
        shown = {headers[number]: _padded(headers[number], row[number], widths[number]) for number in widths}
        if colour:
            shown["state"] = coloured(shown["state"], colour)
        lines.append("  ".join(shown.values()).rstrip())
    return lines


def _padded(header: str, cell: str, width: int) -> str:
    """Return a cell as wide as its column. Numbers are aligned to the right."""
    return cell.rjust(width) if header in _NUMBER_HEADERS else cell.ljust(width)
