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
from launcher.common.report import TaskReport
from launcher.common.text import duration, escape_controls, join_names, shortened
from launcher.output.attempts import ATTEMPT_HEADERS, attempt_rows
from launcher.output.logs import last_lines
from launcher.output.table import MAX_ROWS, RESULT_HEADERS, result_cells
from launcher.page.charts import bars, charts, shown, time_ticks
from launcher.page.content import page_content
from launcher.runs.graphs import graphs
from launcher.runs.timeline import timeline
from launcher.runs.view import RunView, TaskRow, named_and_folded

_TEMPLATES = os.path.join(os.path.dirname(__file__), "templates")
_TASK_HEADERS = (*RESULT_HEADERS, "CPU time", "step", "steps/s")
_MAX_TASKS = 1000
_MAX_ATTEMPTS = 60
#: Of so many tasks the last lines are shown, the worst first.
_MAX_LOGS = 20
_LOG_LINES = 20
_LOG_BYTES = 16 * 1024
_MAX_HOSTS = 5
_MAX_FACT_CHARACTERS = 2000


class _Table(Record):
    """A table without the columns that are empty in every row."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: The class of each row in the template. It may be empty.
    classes: Sequence[str] = ()


def report_html(view: RunView, folder: str) -> str:
    """Return the page of a run.

    Args:
        view: What there is to see of it.
        folder: The folder that the user knows, as the view may be of a copy.
    """
    return _environment().get_template("report.html").render(**_content(view, folder))


def report_body(view: RunView) -> str:
    """Return the same without its frame, for a page that contains more, such as a notebook."""
    return _environment().get_template("report_body.html").render(**_content(view, view.run.paths.root))


def table_html(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a page with one table."""
    template = _environment().get_template("report.html")
    return template.render(title="", verdict=title, tone="", tasks=_table(headers, rows))


def _environment() -> Environment:
    """Return the templates, in whose texts control characters and those that change direction are shown."""
    loader = FileSystemLoader(_TEMPLATES)
    return Environment(
        autoescape=True, finalize=_harmless, loader=loader, trim_blocks=True, lstrip_blocks=True
    )


def _harmless(value: Any) -> Any:
    """Return a value of a template with escapes for what is not printable, but for the ends of lines."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "\n".join(map(escape_controls, value.expandtabs().split("\n")))


def _content(view: RunView, folder: str) -> dict[str, Any]:
    """Return what the template shows of a run."""
    content, report = page_content(view), view.report
    rows = {row.task: row for row in view.rows()}
    first = report.failure.task if report.failure else None
    # What is wrong stands first, and before all others what failed first.
    ranked = sorted(report.tasks, key=lambda task: (task.task != first, not rows[task.task].is_remarkable))
    began_at, ended_at = report.started_at, max(report.started_at, report.ended_at)
    attempts, left_out = attempt_rows(report, view.run.paths, _MAX_ATTEMPTS)
    lanes = sorted(timeline(report), key=lambda row: row.name != first)
    named, _ = named_and_folded([rows[task.task] for task in ranked])
    cells = [_task_cells(task, rows[task.task], view) for task in ranked[:_MAX_TASKS]]
    classes = ["bad" if task.task == first or rows[task.task].is_remarkable else "" for task in ranked]
    return {
        **content,
        "facts": _facts(view, content, folder),
        "tasks": _table(_TASK_HEADERS, cells[:MAX_ROWS], classes),
        "other_tasks": _table(_TASK_HEADERS, cells[MAX_ROWS:], classes[MAX_ROWS:]),
        "more_tasks": max(0, len(ranked) - _MAX_TASKS),
        "attempts": _table(ATTEMPT_HEADERS, attempts),
        "more_attempts": left_out,
        "charts": charts(graphs(view.samples), began_at, ended_at, first or ""),
        "timeline": [(row.name, bars(row, began_at, ended_at)) for row in lanes],
        "ticks": time_ticks(max(1e-3, ended_at - began_at)),
        "messages": [(time_with_zone(round(at)), text) for at, text in view.history.messages],
        "logs": [
            (row.task, "\n".join(lines))
            for row in named[:_MAX_LOGS]
            if (lines := last_lines(view.run.paths.root, row.task, _LOG_LINES, _LOG_BYTES))
        ],
    }


def _facts(view: RunView, content: Mapping[str, Any], folder: str) -> list[tuple[str, str]]:
    """Return what is to be known about the run beside its tasks: names and texts. Empty ones are left out."""
    report, plan = view.report, view.run.plan()
    versions = plan.get("versions")
    hosts = dict.fromkeys(task.host for task in report.tasks)
    named = versions.items() if isinstance(versions, dict) else ()
    facts = [
        ("Command", content["command"]),
        ("Note", content["note"]),
        ("Began", time_with_zone(round(report.started_at))),
        ("Took" if view.has_ended else "Runs for", duration(view.seconds)),
        ("Seen at", "" if view.has_ended else time_with_zone(round(view.seen_at))),
        ("Exit code", str(report.exit_code) if view.has_ended else ""),
        ("Tasks", f"{len(report.tasks)} on {join_names([*hosts], _MAX_HOSTS)}"),
        ("Restarts", str(report.restarts or "")),
        ("Versions", ", ".join(f"{name} {version}" for name, version in named)),
        ("Folder", folder),
    ]
    return [(name, shortened(text, _MAX_FACT_CHARACTERS)) for name, text in facts if text]


def _task_cells(task: TaskReport, row: TaskRow, view: RunView) -> list[str]:
    """Return the cells of a task: those of the table at the end of a job, and those of its samples."""
    step = shown(row.step) + (f" of {shown(row.total)}" if row.total else "")
    *cells, remark = result_cells(task, view.report)
    return [*cells, remark.removeprefix("<- "), duration(task.cpu_s), step, shown(row.rate)]


def _table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] = ()
) -> _Table | None:
    """Return a table. None if there are no rows."""
    used = [number for number in range(len(headers)) if any(row[number] not in ("", "-") for row in rows)]
    cells = [[row[number] for number in used] for row in rows]
    return _Table([headers[number] for number in used], cells, classes or [""] * len(cells)) if used else None
