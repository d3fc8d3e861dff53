"""What a run's own files say about how far it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.job import TaskId
from launcher.runs.owner import open_regular
from launcher.runs.run import Run
from launcher.text import printable

if TYPE_CHECKING:
    from typing import Any


def tasks(run: Run) -> dict[TaskId, str]:
    """The tasks of a run and the host of each, in the order of its plan; empty while there is none."""
    return tasks_of(run.plan())


def tasks_of(plan: Mapping[str, Any]) -> dict[TaskId, str]:
    """The same, of what ``plan.json`` holds; what is no task, or has no name fit to be shown, is left out."""
    planned = plan.get("tasks")
    tasks = [task for task in planned if isinstance(task, dict)] if isinstance(planned, list) else []
    named = [task for task in tasks if _is_name(task.get("task"))]
    return {TaskId(task["task"]): printable(str(task.get("host", ""))) for task in named}


def _is_name(found: object) -> bool:
    return isinstance(found, str) and "/" in found and found.isprintable()


def exit_code_of(report: Mapping[str, Any]) -> int | None:
    """The exit code that ``report.json`` tells; ``None``: none."""
    code = report.get("exit_code")
    return code if isinstance(code, int) else None


def remaining(run: Run) -> list[TaskId]:
    """The tasks of which no event says yet that they are gone."""
    gone = set()
    try:
        with open_regular(run.paths.events) as lines:
            gone = {_gone(line) for line in lines if b"Gone" in line}
    except OSError:
        pass
    return [task for task in tasks(run) if task not in gone]


def _gone(line: bytes) -> str | None:
    """The task that this event says is gone, if it says so."""
    try:
        event = json.loads(line)
    except ValueError:  # a line that is just being written
        return None
    is_gone = isinstance(event, dict) and event.get("event") == "TaskGone"
    return str(event.get("task")) if is_gone else None
