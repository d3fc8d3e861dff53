"""Finds runs: all of this user's, or the one that some words of a command line mean."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping

from launcher.errors import Fault, InputError
from launcher.model.records import TYPE_CHECKING, NamedTuple
from launcher.model.rundir import RunPaths
from launcher.runs.folder import AGENTS, runs_folder, write_record
from launcher.runs.owner import Owner, is_alive, is_elsewhere

if TYPE_CHECKING:
    from typing import Any

#: The word for the newest run.
LATEST = "latest"


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
    #: The numbers of agents on this machine of which something may be left if it died.
    agents: tuple[int, ...] = ()

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

    def plan(self) -> Mapping[str, Any]:
        """What ``plan.json`` holds; empty until there is one."""
        return _json(self.paths.plan)

    def report(self) -> Mapping[str, Any]:
        """What ``report.json`` holds; empty until there is one."""
        return _json(self.paths.report)


def all_runs() -> list[Run]:
    """The runs of this user, the oldest first."""
    folder = runs_folder()
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    runs = [(name, load(f"{folder}/{name}")) for name in names]
    # A folder that was used again belongs to the later run only, though an old link still leads there.
    known = (run for name, run in runs if run is not None and run.job == name)
    return sorted(known, key=lambda run: (run.started_at, run.job))


def load(path: str) -> Run | None:
    """The run whose folder this is, or ``None`` if it is no run's folder."""
    paths = RunPaths(os.path.realpath(path))
    record = _json(paths.owner)
    if not record and not os.path.exists(paths.plan) and not os.path.exists(paths.report):
        return None
    job = record.get("job")
    return Run(
        job if isinstance(job, str) else os.path.basename(paths.root),
        paths,
        _owner(record),
        _seconds(record.get("started_at"), paths.root),
        _numbers(record.get(AGENTS)),
    )


def forget_agents(run: Run) -> None:
    """Nothing of this run is left: nobody need look again."""
    record = {name: value for name, value in _json(run.paths.owner).items() if name != AGENTS}
    try:
        write_record(run.paths, record)
    except OSError:  # then somebody looks again
        return


def find(text: str | None = None) -> Run:
    """The run that is meant.

    Args:
        text: its name or a beginning or the last letters of it, if no other run has them; the
            path of its folder; ``latest`` or ``None`` for the newest.

    Raises:
        InputError: there is none, or more than one.
    """
    if text and (os.sep in text or os.path.isdir(text)):
        return _at(text)
    runs = all_runs()
    if text in (None, "", LATEST):
        if runs:
            return runs[-1]
        raise _fault("there are no runs", "expected one started before, or the path of its folder")
    return _named(str(text), runs)


def _at(path: str) -> Run:
    """The run in this folder."""
    run = load(path)
    if run is None:
        what = f"{path!r} is not the folder of a run"
        raise _fault(what, "expected one that holds launcher.json or plan.json")
    return run


def _named(text: str, runs: list[Run]) -> Run:
    """The one run with this name, or with a name that begins or ends so."""
    fits = [run for run in runs if run.job == text] or [
        run for run in runs if run.job.startswith(text) or run.job.endswith(f"-{text}")
    ]
    if not fits:
        raise _fault(f"no run {text!r}", "`launch ps --all` lists them")
    if len(fits) > 1:
        names = ", ".join(run.job for run in fits[-5:])
        raise _fault(f"{text!r} may be {len(fits)} runs", f"the newest of them: {names}")
    return fits[0]


def _fault(what: str, expected: str) -> InputError:
    return InputError([Fault("", what, expected)])


#: Seconds since the epoch: a run of the year 5000 is no run.
_FAR = 1e11


def _json(path: str) -> Mapping[str, Any]:
    """The object in a file; empty if it can't be had. Files are renamed into place, so never half of one."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _owner(record: Mapping[str, Any]) -> Owner | None:
    """The process that a ``launcher.json`` names, if it names one."""
    fields = [record.get(name) for name in Owner._fields]
    kinds = (int, int, str, str, str)
    if not all(isinstance(field, kind) for field, kind in zip(fields, kinds, strict=True)):
        return None
    return Owner._make(fields)


def _numbers(found: object) -> tuple[int, ...]:
    """The numbers in a list; none, if it is none."""
    return tuple(n for n in found if isinstance(n, int)) if isinstance(found, list) else ()


def _seconds(found: object, root: str) -> float:
    """When a run was started; for a foreign record, when its folder was last touched."""
    if isinstance(found, (int, float)) and 0 <= found < _FAR:
        return float(found)
    try:
        return os.stat(root).st_mtime
    except OSError:
        return 0.0
