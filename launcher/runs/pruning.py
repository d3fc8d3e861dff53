"""Forgets old runs, a few at each launch."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence

from launcher.job import RunPaths
from launcher.runs.answers import answers
from launcher.runs.run import RunState, load

#: How many runs are removed at a time, so that no launch pays for the two hundred before it.
MOST_AT_ONCE = 20

#: The same of links to runs with a ``--run-dir``: there is little to remove.
MOST_LINKS = 200

#: Seconds for all folders elsewhere to say whether their runs are over.
_ANSWER = 0.5

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
    old = [f"{folder}/{name}" for name in runs[: max(0, len(runs) - keep)]]
    links = {path for path in old if os.path.islink(path)}
    for link in _over_elsewhere([path for path in old if path in links][:MOST_LINKS]):
        _removed(os.unlink, link)
    removed = 0
    for path in old:
        if removed == MOST_AT_ONCE:
            return
        if path not in links and _is_over(path):
            removed += _removed(_remove_tree, path)


def _over_elsewhere(links: Sequence[str]) -> list[str]:
    """Those whose runs are over, as far as it is known in time: a folder may never answer."""
    over: list[str] = []

    def look(_: str) -> None:
        for link in links:
            if _is_over(link):
                over.append(link)

    if links:
        answers(look, links[:1], _ANSWER)  # one thread for all: hundreds would cost more than what they do
    return list(over)


def _removed(remove: Callable[[str], None], path: str) -> bool:
    try:
        remove(path)
    except OSError:
        return False
    return True


def _is_over(path: str) -> bool:
    """Whether nobody can still be writing to the run."""
    try:
        return _has_ended(path)
    except OSError:
        return False


def _has_ended(path: str) -> bool:
    run = load(path)
    state = None if run is None else run.state
    if state is RunState.RUNNING:
        return False
    if state in (RunState.ENDED, RunState.DIED) or (state is None and _has_vanished(path)):
        return True
    return os.lstat(path).st_mtime < time.time() - PATIENCE


def _has_vanished(path: str) -> bool:
    """Whether a link leads to nothing: the user has removed the run.

    A link is made after the record, so none is just being made; but where a home is shared the run may be on
    another machine's own disk.
    """
    if not os.path.islink(path):
        return False
    from launcher.runs.sharing import is_shared  # few have such links

    target = os.path.join(os.path.dirname(path), os.readlink(path))
    if is_shared(os.path.dirname(path)) or not os.path.isdir(os.path.dirname(target)):
        return False  # on another machine, or on a disk that is not mounted now
    try:
        os.stat(RunPaths(path).owner)
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


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
