"""Makes of a run what its page shows: as JSON, and the first time as HTML.

The server of the page calls it. The comment at the top of ``static/page.js`` tells the keys. All texts may
come from hosts and tasks: the template escapes them, and the script adds them as text only.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader

from launcher.common.report import Reason, TaskState
from launcher.common.text import byte_size, duration, escape_controls, plural, shortened
from launcher.job import RunPaths
from launcher.output.failure import exception_of, failure_report
from launcher.output.logs import last_line_of
from launcher.output.renderers import record_as_dict
from launcher.runs.graphs import MAX_LINES
from launcher.runs.run import Run, command_of, program_of
from launcher.runs.timeline import timeline
from launcher.runs.view import FoldedRow, RunView, TaskRow, named_and_folded

_TEMPLATES = os.path.join(os.path.dirname(__file__), "templates")
_MAX_COMMAND_CHARACTERS = 20_000
_MAX_PROBLEMS = 20
#: The columns of the table of tasks: a key of its rows, the header, and the form of the values.
_COLUMNS = (
    ("task", "Task", "text"),
    ("state", "State", "text"),
    ("attempt", "Attempt", "number"),
    ("step", "Step", "number"),
    ("rate", "Steps/s", "number"),
    ("ends_at", "Time left", "until"),
    ("printed_at", "Silent for", "since"),
    ("cpu", "CPU", "cores"),
    ("memory", "Memory", "bytes"),
    ("gpu", "GPU %", "number"),
    ("gpu_memory", "GPU memory", "bytes"),
    ("host", "Host", "text"),
    ("last_line", "Last line", "text"),
)


def page_content(view: RunView) -> dict[str, Any]:
    """Return what the page shows of a run as it was at one moment, by key, ready for JSON."""
    rows, report, seen_at = view.rows(), view.report, view.seen_at
    # Tasks are folded where the lines of the graphs are.
    named, folded = named_and_folded(rows, MAX_LINES)
    lines = {row.task: last_line_of(view.run.paths.root, row.task) for row in named}
    problems = [row for row in rows if row.is_remarkable][:_MAX_PROBLEMS]
    return {
        "title": view.run.title,
        "state": view.state.value,
        "verdict": view.headline,
        "tone": _tone(view, has_problems=bool(problems)),
        "problems": [_problem(row, view.run.paths) for row in problems],
        "command": _command(view.run),
        "note": escape_controls(view.run.origin.note),
        "started_at": report.started_at,
        "ended_at": report.ended_at if view.has_ended else None,
        "seen_at": seen_at,
        # Without rounding, this would change a little, and be sent again, at each look at the run.
        "stops_at": None if view.time_left is None else round(seen_at + view.time_left),
        "restarts": report.restarts,
        "restarts_left": view.restarts_left,
        "run_dir": view.run.paths.root,
        "tensorboard": report.tensorboard,
        "failure": failure_report(report, view.run.paths).removeprefix("launch: "),
        "tasks": [_task_content(row, seen_at, lines.get(row.task, "")) for row in rows],
        # The table shows these tasks and the folded ones, until the user asks for others.
        "first": [row.task for row in named],
        "folded": [_folded_content(row, seen_at) for row in folded],
        "timeline": [record_as_dict(row) for row in timeline(report)],
        "messages": [{"at": at, "text": text} for at, text in view.history.messages],
    }


def page_html(content: Mapping[str, Any], *, may_act: bool) -> str:
    """Return the page as it is sent first.

    Args:
        content: What `page_content` returned.
        may_act: Whether this viewer may stop and restart tasks.
    """
    by_name = {task["task"]: task for task in content["tasks"]}
    rows = [*(by_name[name] for name in content["first"]), *content["folded"]]
    template = _environment().get_template("index.html")
    # Columns in which no row has a value are hidden.
    known = {"task", "state"}.union(*rows)
    return template.render(content=content, rows=rows, columns=_COLUMNS, known=known, may_act=may_act)


@cache
def _environment() -> Environment:
    """Return the templates of the page, with `shown` as a filter that writes values.

    The result is cached, because each browser that opens the page needs the compiled templates.
    """
    environment = Environment(autoescape=True, loader=FileSystemLoader(_TEMPLATES), trim_blocks=True)
    environment.filters["shown"] = shown
    return environment


def _problem(row: TaskRow, paths: RunPaths) -> str:
    """Return in words what is wrong with a task, which its text names."""
    if row.noticed:
        return "; ".join(row.noticed.values())
    exception = exception_of(row.task, paths) if row.state is TaskState.FAILED else ""
    return ": ".join(filter(None, (f"{row.task} {row.state_text}", row.detail, escape_controls(exception))))


def _command(run: Run) -> str:
    """Return the command line of a run, as its plan contains it: without secret values."""
    # Without a plan, as in a queue, only what the user typed is known.
    command = shlex.join(command_of(run.plan())) or program_of(run)
    return shortened(escape_controls(command), _MAX_COMMAND_CHARACTERS)


def _tone(view: RunView, *, has_problems: bool) -> str:
    """Return whether the run is ``good``, ``bad``, to be looked at (``warn``), or simply runs (``plain``)."""
    failure = view.report.failure
    if failure is not None:
        # A run that the user has stopped is neither good nor bad.
        return "plain" if failure.reason is Reason.INTERRUPTED else "bad"
    if view.has_ended:
        return "good" if view.report.exit_code == 0 else "bad"
    return "warn" if has_problems else "plain"


def _task_content(row: TaskRow, seen_at: float, last_line: str) -> dict[str, Any]:
    """Return a row of the table of tasks: its columns, its role, and a mark for a task with a problem.

    Args:
        row: What is known about the task.
        seen_at: When this was known. With it durations become moments, see `_row_fields`.
        last_line: The last line of the log. Empty if there is none.
    """
    is_bad = row.state in (TaskState.FAILED, TaskState.LOST)
    return _row_fields(
        row,
        seen_at,
        role=row.task.role,
        ends_at=None if row.left is None else round(seen_at + row.left),
        last_line=last_line or row.detail,
        mark="bad" if is_bad else "warn" if row.is_remarkable else "",
    )


def _folded_content(row: FoldedRow, seen_at: float) -> dict[str, Any]:
    """Return a row of the table for tasks of one role in the same state, with the same keys."""
    steps = row.steps and " to ".join(dict.fromkeys(map(shown, row.steps)))
    name = f"{row.role}: {plural(row.count, 'task')}"
    return _row_fields(row, seen_at, task=name, role=row.role, step=steps)


def _row_fields(row: TaskRow | FoldedRow, seen_at: float, **more: Any) -> dict[str, Any]:
    """Return the fields of a row of the table by key, without those whose value is unknown or empty.

    Args:
        row: What is known about a task, or about several tasks that share a row.
        seen_at: The time of the look at the run.
        more: Fields that the row does not have, or has in another form, which are returned as they are.
    """
    fields = {key: getattr(row, key, None) for key, _, _ in (*_COLUMNS, ("total", "", ""))}
    fields["state"] = row.state_text
    # This is a moment and no duration, so that a row, which is sent at each change, stays the same while its
    # task is silent.
    fields["printed_at"] = None if row.silent is None else round(seen_at - row.silent, 1)
    return {key: value for key, value in (fields | more).items() if value not in (None, "")}


def shown(value: Any, form: str = "", seen_at: float = 0.0) -> str:
    """Return a value of a column or a graph as the page shows it.

    Args:
        value: The value. It is shown as an empty text if it is None.
        form: The form of a column, see `_COLUMNS`, or the unit of a graph.
        seen_at: The time of the look at the run, from which ``since`` and ``until`` count.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if form == "bytes":
        return byte_size(value)
    if form == "cores":
        return f"{value:.2f}"
    if form == "since":
        return duration(max(0.0, seen_at - value))
    if form == "until":
        return duration(max(0.0, value - seen_at))
    # At most three digits, behind the point only where it is small.
    is_whole = 100 <= abs(value) < 1e12 or (abs(value) < 100 and value == int(value))
    return f"{value:,.0f}" if is_whole else f"{value:.3g}"
