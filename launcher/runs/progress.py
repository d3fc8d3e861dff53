"""What a run's own files say about how far it is."""

from __future__ import annotations

import json

from launcher.model.task import TaskId
from launcher.runs.registry import Run


def tasks(run: Run) -> dict[TaskId, str]:
    """The tasks of a run and the host of each, in the order of its plan; empty while there is none."""
    planned = run.plan().get("tasks")
    tasks = [task for task in planned if isinstance(task, dict)] if isinstance(planned, list) else []
    named = [task for task in tasks if isinstance(task.get("task"), str) and "/" in task["task"]]
    return {TaskId(task["task"]): str(task.get("host", "")) for task in named}


def unfinished(run: Run) -> list[TaskId]:
    """The tasks of which no event says yet that they are gone."""
    gone = set()
    try:
        with open(run.paths.events, encoding="utf-8", errors="replace") as lines:
            gone = {_gone(line) for line in lines if "Gone" in line}
    except OSError:
        pass
    return [task for task in tasks(run) if task not in gone]


def _gone(line: str) -> str | None:
    """The task that this event says is gone, if it says so."""
    try:
        event = json.loads(line)
    except ValueError:  # a line that is just being written
        return None
    is_gone = isinstance(event, dict) and event.get("event") == "TaskGone"
    return str(event.get("task")) if is_gone else None
