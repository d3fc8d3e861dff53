"""Finds runs: all of this user's, or the one that a word of a command line names."""

from __future__ import annotations

import os

from launcher.errors import Fault, InputError
from launcher.runs.folder import runs_folder
from launcher.runs.run import Run, load

#: The word for the newest run.
LATEST = "latest"


def all_runs() -> list[Run]:
    """The runs of this user, the oldest first."""
    folder = runs_folder()
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    # A folder that was used again belongs to the later run only, though an old link still leads there.
    runs = [run for name in names if (run := load(f"{folder}/{name}")) is not None and run.job == name]
    return sorted(runs, key=lambda run: (run.started_at, run.job))


def find(text: str | None = None) -> Run:
    """The run that is named.

    Args:
        text: its name, a beginning or the last letters of its name if no other run has them, the path of its
            folder; ``latest`` or ``None`` for the newest.

    Raises:
        InputError: there is none, or more than one.
    """
    if text and (os.sep in text or os.path.isdir(text)):
        run = load(text)
        if run is None:
            expected = "expected one that holds launcher.json or plan.json"
            raise InputError([Fault("", f"{text!r} is not the folder of a run", expected)])
        return run
    runs = all_runs()
    if text in (None, "", LATEST):
        if runs:
            return runs[-1]
        expected = "expected one started before, or the path of its folder"
        raise InputError([Fault("", "there are no runs", expected)])
    found = [run for run in runs if run.job == text] or [
        run for run in runs if run.job.startswith(str(text)) or run.job.endswith(f"-{text}")
    ]
    if not found:
        raise InputError([Fault("", f"no run {text!r}", "`launch ps --all` lists them")])
    if len(found) > 1:
        names = ", ".join(run.job for run in found[-5:])
        raise InputError([Fault("", f"{text!r} may be {len(found)} runs", f"the newest of them: {names}")])
    return found[0]
