"""Tables: the result of a job, with a row for each task and a line for the job, and the tables of commands.

The console, ``launch ps`` and its like call it. All texts of hosts are escaped here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from launcher.common.report import Reason, Report, TaskReport, TaskState
from launcher.common.text import byte_size, duration, escape_controls, plural, shortened, signal_name
from launcher.output.lines import RESET

#: The columns of the result. The last one is shown only for a job with restarts.
HEADERS = ["HOST", "PORT", "ROLE", "INDEX", "STATE", "EXIT", "TIME", "PEAK MEM", "ATTEMPT"]
#: The columns that are aligned to the right in all tables, because they contain numbers.
_NUMBER_HEADERS = frozenset(
    ("slots", "max slots", "attempt", "port", "index", "pid", "cpu", "memory", "peak mem", "time")
)
#: In a job of more tasks than this, tasks that ended as expected get no row and are only counted.
MAX_ROWS = 40
_EXPECTED_STATES = (TaskState.SUCCEEDED, TaskState.STOPPED, TaskState.CANCELLED)
_BAD_COLOUR = "1;31"
_GOOD_COLOUR = "1;32"
_COLOURS = {
    TaskState.SUCCEEDED: "32",
    TaskState.FAILED: _BAD_COLOUR,
    TaskState.LOST: _BAD_COLOUR,
    TaskState.STOPPED: "33",
    TaskState.CANCELLED: "2",
}


def result_table(report: Report, *, colour: bool = False, run_continues: bool = False) -> str:
    """Return the result of a job as lines: the table, the path of the run's folder, and the verdict.

    Args:
        report: How the job ended.
        colour: Whether to colour the states and the verdict.
        run_continues: Whether another launcher continues the run, so that this is not its end.
    """
    tasks, groups = _tasks_to_show(report)
    logs = [f"logs: {escape_controls(report.run_dir)}"] if report.run_dir else []
    last_line = verdict(report)
    if run_continues:
        elapsed = duration(report.ended_at - report.started_at)
        last_line = f"job {report.job}: stopped after {elapsed}, queued again"
    elif colour:
        last_line = _coloured(last_line, _BAD_COLOUR if report.failure or report.exit_code else _GOOD_COLOUR)
    return "\n".join([*_table_lines(report, tasks, colour=colour), *groups, *logs, last_line, ""])


def verdict(report: Report) -> str:
    """Return the last line about a job, as in ``job JOB: ok in 12s``."""
    return f"job {report.job}: {ending(report)}"


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
    text = f"{plural(len(group), 'task')} of {role}: {state.value}"
    return f"{text} ({', '.join(details)})" if details else text


def _table_lines(report: Report, tasks: list[TaskReport], *, colour: bool) -> list[str]:
    """Return the lines of the table with these tasks. Empty if there are no tasks."""
    if not tasks:
        return []
    head = HEADERS if report.restarts else HEADERS[:-1]  # Only a job with restarts needs the attempts.
    rows = [_cells_of(task)[: len(head)] for task in tasks]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [_joined_row(head, widths)]
    for task, row in zip(tasks, rows, strict=True):
        line = _joined_row(row, widths, _COLOURS.get(task.state, "") if colour else "")
        remark = _remark(task, report)
        lines.append(f"{line}  <- {remark}" if remark else line.rstrip())
    return lines


def _joined_row(row: list[str], widths: list[int], colour: str = "") -> str:
    """Return a row of the result as a line with padded cells, and with the state in the colour, if any."""
    cells = [*map(_padded, HEADERS, row, widths)]
    if colour:
        state = HEADERS.index("STATE")
        cells[state] = _coloured(cells[state], colour)
    return "  ".join(cells)


def _padded(header: str, cell: str, width: int) -> str:
    """Return a cell as wide as its column. Numbers are aligned to the right."""
    return cell.rjust(width) if header.lower() in _NUMBER_HEADERS else cell.ljust(width)


def _coloured(text: str, colour: str) -> str:
    """Return a text in a colour of the terminal, as in ``1;31`` for bold red."""
    return f"\x1b[{colour}m{text}{RESET}"


def _cells_of(task: TaskReport) -> list[str]:
    """Return the cells of a task in the result, in the order of `HEADERS`."""
    port = "-" if task.port is None else str(task.port)
    host = f"{task.host} on {task.node}" if task.node else task.host
    identity = [host, port, task.task.role, str(task.task.index)]
    end = [task.state.value, _exit_text(task), duration(task.seconds), byte_size(task.peak_rss)]
    return [*identity, *end, str(task.attempt)]


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
    was_ours = task.state is TaskState.STOPPED or task.reason in (Reason.STOPPED, Reason.STALLED)
    return signal_name(signal) if was_ours else f"{signal_name(signal)} ({signal})"


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
    """Print rows under their headers, without columns that are empty in every row.

    Args:
        headers: The name of each column.
        rows: The cells of each row.
        columns: The width at which to cut lines.
    """
    cells = [[escape_controls(cell) for cell in row] for row in rows]
    # The widths of the columns that are shown, by the numbers of the columns.
    widths: dict[int, int] = {}
    for number, header in enumerate(headers):
        if any(row[number] for row in cells):
            widths[number] = max(len(header), *(len(row[number]) for row in cells))
    for row in (headers, *cells):
        padded = (_padded(headers[number], row[number], width) for number, width in widths.items())
        print(shortened("  ".join(padded).rstrip(), columns))
