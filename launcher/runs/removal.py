"""Removes ended runs from this machine: the files that docs/environment.md lists, and nothing else.

A folder may contain files of others: notes of the user, links, what a program has written beside its log.
They stay, and so do their folders. Links are never followed. Of a run with a ``--run-dir`` only the link in
the state folder is removed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
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

    The report is removed last, because by it the run counts as ended: a removal that was interrupted can be
    repeated. Another process may remove the run at the same time.

    Returns:
        The paths in its folder that stay, because launch has not made them.

    Raises:
        OSError: A file cannot be removed.
    """
    if link := link_of(run):
        _unlink(link)
        return []
    paths, names = run.paths, {task.file_stem for task in (*tasks(run), *tasks_of(run.report()))}
    logs = {f"{name}.log" for name in names}
    _unlink_files(paths.logs, logs | set(map(index_of, logs)))
    for folder in filter(_is_folder, _result_folders(paths)):
        for name in names:  # A link in place of the folder of a task stays.
            shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
    files = (paths.events, paths.samples, paths.messages, paths.on_end, paths.stop_asked, paths.earlier)
    _unlink_files(paths.root, set(map(os.path.basename, (*files, paths.page, paths.plan, paths.record))))
    _unlink_files(paths.root, {os.path.basename(paths.report)})
    for folder in (paths.logs, *_result_folders(paths), paths.root):
        with suppress(OSError):  # It is missing, a link, or not empty.
            os.rmdir(folder)
    return sorted(os.path.relpath(path, paths.root) for path in _left_in(paths.root))


def _result_folders(paths: RunPaths) -> tuple[str, str]:
    """Return the folders in the folder of a run in which each task has a folder of its own."""
    return f"{paths.root}/output", f"{paths.root}/collected"


def _unlink_files(folder: str, names: Collection[str]) -> None:
    """Remove files in a folder, and what was about to replace them when a launcher was killed.

    Anything else of such a name, such as a link, stays: launch has not made it.
    """
    with suppress(FileNotFoundError):  # Another process removes the folder, too.
        for entry in os.scandir(folder) if _is_folder(folder) else ():
            is_own = re.sub(_REPLACEMENT_ENDING, "", entry.name) in names
            if is_own and entry.is_file(follow_symlinks=False):
                _unlink(entry.path)


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
