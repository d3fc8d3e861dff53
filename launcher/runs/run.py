"""One run: what its folder says of it, and whether it runs, has ended, or died."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from launcher.job import RunPaths
from launcher.runs.owner import (
    AGENTS,
    Keeper,
    Owner,
    is_alive,
    is_elsewhere,
    open_regular,
    read_record,
    user_of,
    write_record,
)
from launcher.text import printable

if TYPE_CHECKING:
    from typing import Any


class RunState(enum.Enum):
    """Where a run is in its life."""

    RUNNING = "running"  #: its launcher is alive
    ENDED = "ended"  #: there is a report
    DIED = "died"  #: its launcher is gone and left no report
    ELSEWHERE = "elsewhere"  #: its launcher is another machine's, and there is no report yet


class Run(NamedTuple):
    """One run: its name, its files, and its launcher (``None`` if nobody wrote it down)."""

    job: str
    paths: RunPaths
    owner: Owner | None
    #: Seconds since the epoch.
    started_at: float
    #: The agents on this machine of which something may be left if it died.
    agents: tuple[Keeper, ...] = ()
    #: The user its ``launcher.json`` belongs to.
    written_by: int = -1

    @property
    def state(self) -> RunState:
        """What is true of it now."""
        alive = self.owner is not None and is_alive(self.owner)  # asked first: it may end in between
        if os.path.exists(self.paths.report) and not alive:
            return RunState.ENDED
        if alive:
            return RunState.RUNNING
        elsewhere = self.owner is not None and is_elsewhere(self.owner)
        return RunState.ELSEWHERE if elsewhere else RunState.DIED

    @property
    def is_ours(self) -> bool:
        """Whether this user (or root) wrote down its processes: nobody else may choose whom we kill."""
        return self.written_by in (0, os.geteuid())

    @property
    def is_believed(self) -> bool:
        """Whether the record may name this launcher: it is ours, or of that launcher's own user."""
        return self.is_ours or (self.owner is not None and self.written_by == user_of(self.owner.pid))

    def plan(self) -> Mapping[str, Any]:
        """What ``plan.json`` holds; empty until there is one."""
        return json_of(self.paths.plan) or {}

    def report(self) -> Mapping[str, Any]:
        """What ``report.json`` holds; empty until there is one."""
        return json_of(self.paths.report) or {}


def load(path: str) -> Run | None:
    """The run whose folder this is, or ``None`` if it is no run's folder."""
    paths = RunPaths(os.path.realpath(path))
    record, written_by = _record(paths)
    if not record and not os.path.exists(paths.plan) and not os.path.exists(paths.report):
        return None
    job = record.get("job")
    return Run(
        printable(job if isinstance(job, str) else os.path.basename(paths.root)),
        paths,
        _owner(record),
        _seconds(record.get("started_at"), paths.root),
        _agents(record.get(AGENTS)),
        written_by,
    )


def forget_agents(run: Run) -> None:
    """Nothing of this run is left: nobody need look again."""
    record = {name: value for name, value in _record(run.paths)[0].items() if name != AGENTS}
    try:
        write_record(run.paths, record)
    except OSError:  # then somebody looks again
        return


#: Seconds since the epoch: a run of the year 5000 is no run.
_FAR = 1e11
#: Bytes of a plan or a report: of ten thousand tasks it has less.
_LARGEST = 1 << 30


def json_of(path: str) -> Mapping[str, Any] | None:
    """The object in a file that is there whole or not at all; ``None``: it is not, or no object is in it."""
    try:
        with open_regular(path) as file:
            return _object(file.read()) if os.fstat(file.fileno()).st_size <= _LARGEST else None
    except OSError:
        return None


def _record(paths: RunPaths) -> tuple[Mapping[str, Any], int]:
    """The object in ``launcher.json``, empty if there is none, and whose file it is."""
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
    """The process that a ``launcher.json`` names, if it names one."""
    fields = [record.get(name) for name in Owner._fields]
    kinds = (int, int, str, str, str)
    if not all(isinstance(field, kind) for field, kind in zip(fields, kinds, strict=True)):
        return None
    return Owner._make(fields)


def _agents(found: object) -> tuple[Keeper, ...]:
    """The agents in a list; what is none is left out."""
    each = [one for one in found if isinstance(one, list)] if isinstance(found, list) else []
    whole = [one for one in each if len(one) == len(Keeper._fields) and all(type(n) is int for n in one)]
    return tuple(map(Keeper._make, whole))


def _seconds(found: object, root: str) -> float:
    """When a run was started; for a foreign record, when its folder was last touched."""
    if isinstance(found, (int, float)) and 0 <= found < _FAR:
        return float(found)
    try:
        return os.stat(root).st_mtime
    except OSError:
        return 0.0
