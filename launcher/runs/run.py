"""One run: what the files of its folder say."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.job import RunPaths, TaskId
from launcher.runs.owner import (
    AGENTS,
    AgentRecord,
    Owner,
    is_alive,
    is_elsewhere,
    open_regular,
    read_record,
    user_of,
    write_record,
)
from launcher.text import printable

#: Seconds since the epoch: a later start is not believed.
_FAR = 1e11
#: Bytes of a plan or a report: that of ten thousand tasks is smaller.
_LARGEST = 1 << 30


class RunState(enum.Enum):
    """Where a run is in its life."""

    RUNNING = "running"  #: its launcher is alive
    ENDED = "ended"  #: there is a report
    DIED = "died"  #: its launcher is gone and left no report
    ELSEWHERE = "elsewhere"  #: its launcher is another machine's, and there is no report yet


class Run(NamedTuple):
    """One run: its name, its files, and its launcher (``None`` if there is no record of it)."""

    job: str
    paths: RunPaths
    owner: Owner | None
    #: Seconds since the epoch.
    started_at: float
    #: The agents on this machine that may have left processes if it died.
    agents: tuple[AgentRecord, ...] = ()
    #: The user its ``launcher.json`` belongs to.
    written_by: int = -1

    @property
    def state(self) -> RunState:
        """What is true of it now."""
        alive = self.owner is not None and is_alive(self.owner)  # first: it may end in between
        if os.path.exists(self.paths.report) and not alive:
            return RunState.ENDED
        if alive:
            return RunState.RUNNING
        elsewhere = self.owner is not None and is_elsewhere(self.owner)
        return RunState.ELSEWHERE if elsewhere else RunState.DIED

    @property
    def is_ours(self) -> bool:
        """Whether this user (or root) wrote its record: the record of another may not choose what we kill."""
        return self.written_by in (0, os.geteuid())

    @property
    def is_believed(self) -> bool:
        """Whether the record may name this launcher: it is ours, or of that launcher's own user."""
        return self.is_ours or (self.owner is not None and self.written_by == user_of(self.owner.pid))

    def plan(self) -> Mapping[str, Any]:
        """The content of ``plan.json``; empty until there is one."""
        return json_of(self.paths.plan) or {}

    def report(self) -> Mapping[str, Any]:
        """The content of ``report.json``; empty until there is one."""
        return json_of(self.paths.report) or {}


def load(path: str) -> Run | None:
    """The run whose folder this is; ``None`` if it is not a run's folder."""
    paths = RunPaths(os.path.realpath(path))
    record, written_by = _record(paths)
    if not record and not os.path.exists(paths.plan) and not os.path.exists(paths.report):
        return None
    job = record.get("job")
    return Run(
        printable(job if isinstance(job, str) else os.path.basename(paths.root)),
        paths,
        _owner(record),
        _started_at(record, paths.root),
        _agents(record.get(AGENTS)),
        written_by,
    )


def forget_agents(run: Run) -> None:
    """Nothing of this run is left: no later launch needs to look."""
    record = {name: value for name, value in _record(run.paths)[0].items() if name != AGENTS}
    try:
        write_record(run.paths, record)
    except OSError:
        return  # then a later launch looks again


def tasks(run: Run) -> dict[TaskId, str]:
    """The tasks of a run and the host of each, in the order of its plan; empty while there is none."""
    return tasks_of(run.plan())


def tasks_of(plan: Mapping[str, Any]) -> dict[TaskId, str]:
    """The same, from the content of ``plan.json``; entries that are not tasks are left out."""
    planned = plan.get("tasks")
    entries = [entry for entry in planned if isinstance(entry, dict)] if isinstance(planned, list) else []
    named = [(entry.get("task"), entry.get("host", "")) for entry in entries]
    return {
        TaskId(task): printable(str(host))
        for task, host in named
        if isinstance(task, str) and "/" in task and task.isprintable()
    }


def exit_code_of(report: Mapping[str, Any]) -> int | None:
    """The exit code in the content of ``report.json``; ``None`` if there is none."""
    code = report.get("exit_code")
    return code if isinstance(code, int) else None


def remaining(run: Run) -> list[TaskId]:
    """The tasks without an event yet that they are gone."""
    gone = set()
    try:
        with open_regular(run.paths.events) as lines:
            for line in lines:
                event = _object(line) if b"TaskGone" in line else None
                gone.add(str(event.get("task")) if event and event.get("event") == "TaskGone" else "")
    except OSError:
        pass
    return [task for task in tasks(run) if task not in gone]


def json_of(path: str) -> Mapping[str, Any] | None:
    """The object in a JSON file of a run; ``None`` if there is none."""
    try:
        with open_regular(path) as file:
            return _object(file.read()) if os.fstat(file.fileno()).st_size <= _LARGEST else None
    except OSError:
        return None


def _record(paths: RunPaths) -> tuple[Mapping[str, Any], int]:
    """The object in ``launcher.json``, empty if there is none, and the user that the file belongs to."""
    try:
        data, uid = read_record(paths)
    except OSError:
        return {}, -1
    return _object(data) or {}, uid


def _object(data: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _owner(record: Mapping[str, Any]) -> Owner | None:
    """The process that a ``launcher.json`` names."""
    fields = [record.get(name) for name in Owner._fields]
    types = (int, int, str, str, str)
    if not all(isinstance(field, type_) for field, type_ in zip(fields, types, strict=True)):
        return None
    return Owner._make(fields)


def _agents(found: object) -> tuple[AgentRecord, ...]:
    """The agents in a list; entries that are not agents are left out."""
    entries = [entry for entry in found if isinstance(entry, list)] if isinstance(found, list) else []
    size = len(AgentRecord._fields)
    return tuple(
        AgentRecord._make(entry)
        for entry in entries
        if len(entry) == size and all(type(n) is int for n in entry)
    )


def _started_at(record: Mapping[str, Any], root: str) -> float:
    """When the run was started; for a foreign record, when its folder was last changed."""
    found = record.get("started_at")
    if isinstance(found, (int, float)) and 0 <= found < _FAR:
        return float(found)
    try:
        return os.stat(root).st_mtime
    except OSError:
        return 0.0
