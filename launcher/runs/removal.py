"""Removes ended runs from this machine: the files that docs/environment.md lists, and nothing else.

A folder may contain files of others: notes of the user, links, what a program has written beside its log.
They stay, and so do their folders. Links are never followed. Of a run with a ``--run-dir`` only the link in
the state folder is removed.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from launcher.job import RunPaths
from launcher.output.log_times import index_of
from launcher.runs.run import Run, runs_folder, tasks, tasks_of

#: The end of the name of a file that was about to replace another one.
_REPLACEMENT_ENDING = r"\.\d+\.new$"


def link_of(run: Run) -> str:
    """Return the path of the link to a run with a ``--run-dir``, or an empty text for any other run."""
    entry = f"{runs_folder()}/{run.name}"
    return entry if os.path.islink(entry) else ""


def has_results(run: Run) -> bool:
    """Return whether `remove_run` would remove what tasks have written, or what ``--collect`` has fetched."""
    if link_of(run):
        return False
    folders = filter(_is_folder, _result_folders(run.paths))
    return any(not _is_folder(path) for folder in folders for path in _left_in(folder))


def remove_run(run: Run) -> list[str]:
    """Remove the files of a run that has ended, and its folder if nothing else is in there.

    What identifies the run is removed last, so that a removal that was interrupted can be repeated.

    Returns:
        The paths in its folder that stay, because launch has not made them.

    Raises:
        BlockingIOError: Another process removes the run just now.
        OSError: A file cannot be removed.
    """
    if link := link_of(run):
        _unlink(link)
        return []
    root = run.paths.root
    try:
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_files(run)
        finally:
            os.close(lock)
    except FileNotFoundError:  # Another process has just removed it.
        return []
    return sorted(os.path.relpath(path, root) for path in _left_in(root))


def _remove_files(run: Run) -> None:
    """Remove the files in the folder of a run, and the folder if nothing else is in there."""
    paths = run.paths
    _remove_files_of_tasks(paths, {task.file_stem for task in (*tasks(run), *tasks_of(run.report()))})
    messages = (paths.events, paths.messages, paths.on_end, paths.stop_asked, paths.earlier)
    # The report comes last, because by it the run counts as ended.
    own = (*messages, paths.plan, paths.owner, paths.report)
    _unlink_files(paths.root, map(os.path.basename, own))
    with suppress(OSError):  # It is not empty.
        os.rmdir(paths.root)


def _result_folders(paths: RunPaths) -> tuple[str, str]:
    """Return the folders in the folder of a run in which each task has a folder of its own."""
    return f"{paths.root}/output", f"{paths.root}/collected"


def _remove_files_of_tasks(paths: RunPaths, names: Collection[str]) -> None:
    """Remove the logs and the results of tasks, and their folders if nothing else is in there.

    Args:
        paths: The files of the run.
        names: The names of the tasks, as in names of files. They contain no slash.
    """
    if _is_folder(paths.logs):
        logs = [f"{name}.log" for name in names]
        _unlink_files(paths.logs, [*logs, *map(index_of, logs)])
    for folder in filter(_is_folder, _result_folders(paths)):
        for name in names:  # A link in place of the folder of a task stays.
            shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
    for folder in (paths.logs, *_result_folders(paths)):
        with suppress(OSError):  # It is missing, a link, or not empty.
            os.rmdir(folder)


def _unlink_files(folder: str, names: Iterable[str]) -> None:
    """Remove files in a folder, and what was about to replace them when a launcher was killed.

    Anything else of such a name, such as a link, stays: launch has not made it.

    Args:
        folder: The folder.
        names: The names of the files, in the order in which they are removed.
    """
    order = {name: number for number, name in enumerate(names)}
    with os.scandir(folder) as entries:
        files = {entry.path: entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    numbers = {path: order.get(re.sub(_REPLACEMENT_ENDING, "", name)) for path, name in files.items()}
    own = [(number, path) for path, number in numbers.items() if number is not None]
    for _, path in sorted(own):
        _unlink(path)


def _left_in(root: str) -> Iterator[str]:
    """Yield the files, the links and the empty folders in a folder. Links are not followed."""
    for folder, folders, files in os.walk(root):
        links = [name for name in folders if os.path.islink(f"{folder}/{name}")]
        yield from (f"{folder}/{name}" for name in (*files, *links))
        if folder != root and not (folders or files):
            yield folder


def _is_folder(path: str) -> bool:
    """Return whether there is a folder, and not a link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def _unlink(path: str) -> None:
    """Remove a file or a link, unless another process has just done so."""
    with suppress(FileNotFoundError):
        os.unlink(path)
