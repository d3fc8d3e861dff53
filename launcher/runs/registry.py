"""Finds runs: all of this user's, or the one that some words of a command line mean."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from launcher.errors import Fault, InputError
from launcher.runs.answers import answers
from launcher.runs.folder import runs_folder
from launcher.runs.run import Run, load
from launcher.text import listed

#: The word for the newest run.
LATEST = "latest"

#: Seconds for folders elsewhere (of a ``--run-dir``) to answer.
_ANSWER = 2.0


def all_runs() -> list[Run]:
    """The runs of this user, the oldest first; those in folders that don't answer are named on stderr."""
    folder = runs_folder()
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    runs = _loaded(folder, names)
    # A folder that was used again belongs to the later run only, though an old link still leads there.
    known = (run for name, run in runs if run is not None and run.job == name)
    return sorted(known, key=lambda run: (run.started_at, run.job))


def _loaded(folder: str, names: Sequence[str]) -> list[tuple[str, Run | None]]:
    """The entries of the state folder; a file server that is gone must not hide the runs of others."""
    elsewhere = [name for name in names if os.path.islink(f"{folder}/{name}")]
    here = [(name, load(f"{folder}/{name}")) for name in names if name not in elsewhere]
    found = answers(lambda name: load(f"{folder}/{name}"), elsewhere, _ANSWER) if elsewhere else {}
    silent = [f"{name} in {_target(f'{folder}/{name}')}" for name in elsewhere if name not in found]
    if silent:
        print(f"launch: left out, for its folder does not answer: {listed(silent)}", file=sys.stderr)
    return [*here, *found.items()]


def _target(link: str) -> str:
    """Where a link leads, without going there."""
    try:
        return repr(os.readlink(link))
    except OSError:
        return "another folder"


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
