"""Makes the file of ``launch report --html``: a run as one page that needs no server, and can be sent.

It contains no script and loads nothing. All texts of hosts and tasks are escaped, and its size is bounded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from launcher.clock_times import time_with_zone
from launcher.common.record import Record
from launcher.common.report import Report, TaskReport
from launcher.common.text import duration, escape_controls, join_names, shortened
from launcher.output.attempts import ATTEMPT_HEADERS, attempt_rows
from launcher.output.logs import last_lines
from launcher.output.table import RESULT_HEADERS, result_cells
from launcher.page.charts import TimeAxis, charts
from launcher.page.content import page_content, shown
from launcher.runs.graphs import graphs
from launcher.runs.run import versions_of
from launcher.runs.timeline import timeline
from launcher.runs.view import RunView, TaskRow

_TEMPLATES = os.path.join(os.path.dirname(__file__), "templates")
_TASK_HEADERS = (*RESULT_HEADERS, "CPU time", "step", "steps/s")
_MAX_TASKS = 1000
#: The largest number of tasks whose last lines are shown. The tasks that failed come first.
_MAX_LOGS = 20
_LOG_LINES = 20
_LOG_BYTES = 16 * 1024
_MAX_HOSTS = 5
_MAX_FACT_CHARACTERS = 2000


class _Table(Record):
    """A table of the page."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: How many rows, the first ones, stand out.
    bad_count: int = 0


def report_html(view: RunView, folder: str) -> str:
    """Return the page of a run.

    Args:
        view: What there is to see of it.
        folder: The folder that the user knows, as the view may be of a copy.
    """
    return _environment().get_template("report.html").render(**_content(view, folder))


def report_body(view: RunView) -> str:
    """Return the page of a run without its frame, for a page that contains more, such as a notebook."""
    return _environment().get_template("report_body.html").render(**_content(view, view.run.paths.root))


def _environment() -> Environment:
    """Return the templates, in whose texts control characters and those that change direction are shown."""
    loader = FileSystemLoader(_TEMPLATES)
    environment = Environment(
        autoescape=True, finalize=_harmless, loader=loader, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["duration"] = duration
    return environment


def _harmless(value: Any) -> Any:
    """Return a value of a template with escapes for what is not printable, but for the ends of lines."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "\n".join(map(escape_controls, value.expandtabs().split("\n")))


def _content(view: RunView, folder: str) -> dict[str, Any]:
    """Return what the templates show of a run, by the names that they use for it."""
    content, report = page_content(view), view.report
    first = report.failure.task if report.failure else None
    # What is wrong stands first, and before all others what failed first.
    ranked = sorted(
        zip(report.tasks, view.rows(), strict=True),
        key=lambda pair: (pair[0].task != first, not pair[1].is_remarkable),
    )
    bad_count = sum(task.task == first or row.is_remarkable for task, row in ranked)
    cells = [_task_cells(task, row, report) for task, row in ranked[:_MAX_TASKS]]
    attempts, left_out = attempt_rows(report, view.run.paths)
    axis = TimeAxis(report.started_at, max(report.started_at, report.ended_at))
    logs = {
        task.task: "\n".join(last_lines(view.run.paths.root, task.task, _LOG_LINES, _LOG_BYTES))
        for task, _ in ranked[:_MAX_LOGS]
    }
    return {
        **content,
        "facts": _facts(view, content, folder),
        "tasks": _table(_TASK_HEADERS, cells, bad_count),
        "more_tasks": len(ranked) - len(cells),
        "attempts": _table(ATTEMPT_HEADERS, attempts),
        "more_attempts": left_out,
        "axis": axis,
        "charts": charts(graphs(view.samples), axis, first or ""),
        "timeline": sorted(timeline(report), key=lambda row: row.name != first),
        "messages": [(time_with_zone(round(at)), text) for at, text in view.history.messages],
        "logs": {task: text for task, text in logs.items() if text},
    }


def _facts(view: RunView, content: Mapping[str, Any], folder: str) -> list[tuple[str, str]]:
    """Return what is to be known about the run beside its tasks: names and texts. Empty ones are left out."""
    report, versions = view.report, versions_of(view.run.plan())
    hosts = dict.fromkeys(task.host for task in report.tasks)
    facts = [
        ("Command", content["command"]),
        ("Note", content["note"]),
        ("Began", time_with_zone(round(report.started_at))),
        ("Took" if view.has_ended else "Runs for", duration(view.seconds)),
        ("Seen at", "" if view.has_ended else time_with_zone(round(view.seen_at))),
        ("Exit code", str(report.exit_code) if view.has_ended else ""),
        ("Tasks", f"{len(report.tasks)} on {join_names([*hosts], _MAX_HOSTS)}"),
        ("Restarts", str(report.restarts or "")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Folder", folder),
    ]
    return [(name, shortened(text, _MAX_FACT_CHARACTERS)) for name, text in facts if text]


def _task_cells(task: TaskReport, row: TaskRow, report: Report) -> list[str]:
    """Return the cells of a task: those of the table at the end of a job, and those of its samples."""
    # In a terminal an arrow stands before the remark about a task.
    step = shown(row.step) + (f" of {shown(row.total)}" if row.total else "")
    *cells, remark = result_cells(task, report)
    return [*cells, remark.removeprefix("<- "), duration(task.cpu_s), step, shown(row.rate)]


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], bad_count: int = 0) -> _Table:
    """Return a table without columns that are empty in every row. Its first `bad_count` rows stand out."""
    used = [number for number in range(len(headers)) if any(row[number] not in ("", "-") for row in rows)]
    return _Table([headers[number] for number in used], [[row[n] for n in used] for row in rows], bad_count)
