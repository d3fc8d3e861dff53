"""Forgets old runs, a few at each launch."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from launcher.runs.registry import RunState, load

#: How many runs are removed at a time, so that no launch pays for the two hundred before it.
MOST_AT_ONCE = 20

#: Seconds after which a run without a report, or without any record, may be forgotten: it may
#: be just being made, or be another machine's that shares this home.
PATIENCE = 30 * 24 * 3600.0

_JOB_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]+")


def prune(folder: str, names: Sequence[str], keep: int) -> None:
    """Remove the oldest runs of ``folder`` beyond the newest ``keep``, those that run excepted.

    Only what a launch has made: a folder with the name of a run, never what a link leads to (of
    a run with a ``--run-dir`` only the link goes).

    Args:
        folder: the runs.
        names: its entries; their names sort by time.
        keep: how many stay.
    """
    runs = sorted(filter(_JOB_ID.fullmatch, names))
    removed = 0
    for name in runs[: max(0, len(runs) - keep)]:
        if removed == MOST_AT_ONCE:
            return
        removed += _forget(f"{folder}/{name}")


def _forget(path: str) -> bool:
    """Remove one run if it is over; ``False`` if it stays."""
    try:
        if not _is_over(path):
            return False
        if os.path.islink(path):
            os.unlink(path)
        else:
            _remove_tree(path)
    except OSError:
        return False
    return True


def _is_over(path: str) -> bool:
    """Whether nobody can still be writing to the run."""
    run = load(path)
    state = RunState.DIED if run is None else run.state
    if state is RunState.RUNNING:
        return False
    if state is RunState.ENDED or (run is not None and state is RunState.DIED):
        return True
    return os.lstat(path).st_mtime < time.time() - PATIENCE


def _remove_tree(path: str) -> None:
    """Remove a folder and what is in it. Every step is relative to an open folder, so no link is followed."""
    for _, folders, files, fd in os.fwalk(path, topdown=False):
        for name in files:
            os.unlink(name, dir_fd=fd)
        for name in folders:
            try:
                os.rmdir(name, dir_fd=fd)
            except NotADirectoryError:  # a link to a folder
                os.unlink(name, dir_fd=fd)
    os.rmdir(path)
