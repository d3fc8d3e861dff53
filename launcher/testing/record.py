"""What a run writes down, read while it grows: events, plan, report, logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.job import RunPaths, TaskId
from launcher.report import ExitStatus, Failure, Reason, Report, TaskReport, TaskState
from launcher.runs.growing import Events, GrowingFile
from launcher.runs.run import json_of


class RunRecord:
    """The folder of a run.

    Args:
        root: its path; it need not exist yet.
    """

    def __init__(self, root: str) -> None:
        self.paths = RunPaths(root)
        self._coming = Events(root)
        self._events: list[Mapping[str, Any]] = []

    def events(self) -> list[Mapping[str, Any]]:
        """All so far, in the order they came: the lines of ``events.jsonl``."""
        self._events += self._coming.more()
        return self._events

    def plan(self) -> Mapping[str, Any] | None:
        """``plan.json``; ``None``: there is none yet."""
        return json_of(self.paths.plan)

    def report(self) -> Report | None:
        """``report.json`` as the record it was made from; ``None``: it has not ended, or nobody wrote it."""
        found = json_of(self.paths.report)
        return None if found is None else _report(found)

    def log(self, task: TaskId) -> bytes:
        """What the task has printed so far."""
        return GrowingFile(self.paths.log(task)).more()


def _report(found: Mapping[str, Any]) -> Report:
    fields = _known(Report, found)
    failure = found["failure"]
    return Report(
        **{
            **fields,
            "tasks": tuple(map(_task, found["tasks"])),
            "failure": None if failure is None else _failure(failure),
        }
    )


def _task(found: Mapping[str, Any]) -> TaskReport:
    status = found["status"]
    special = {
        "task": TaskId(found["task"]),
        "state": TaskState(found["state"]),
        "reason": None if found["reason"] is None else Reason(found["reason"]),
        "status": ExitStatus(status["code"], status["signal"]),
        "unkillable": tuple(found["unkillable"]),
    }
    return TaskReport(**{**_known(TaskReport, found), **special})


def _failure(found: Mapping[str, Any]) -> Failure:
    task = None if found["task"] is None else TaskId(found["task"])
    return Failure(**{**_known(Failure, found), "task": task, "reason": Reason(found["reason"])})


def _known(record: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name in record._fields}
