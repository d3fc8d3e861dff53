"""``--output-dirs``: a folder for what each task makes, named in its ``OUTPUT_DIR``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from launcher.errors import LaunchError
from launcher.job import OUTPUT_DIR, Placement, RunPaths, TaskId


def make_output_dirs_here(placement: Placement, paths: RunPaths, mode: int = 0o700) -> Placement:
    """Make a folder for every task in the run's folder, for those that have none on their host.

    Raises:
        LaunchError: it can't be made.
    """
    folders = {placed.task: paths.output(placed.task) for placed in placement.tasks}
    try:
        for folder in folders.values():
            os.makedirs(folder, mode=0o700, exist_ok=True)
            os.chmod(folder, mode)
    except OSError as error:
        raise LaunchError(f"can't make the folder {error.filename!r}: {error.strerror}") from error
    elsewhere = {placed.task for placed in placement.tasks if OUTPUT_DIR in dict(placed.env)}
    return with_output_dirs(placement, {t: path for t, path in folders.items() if t not in elsewhere})


def with_output_dirs(placement: Placement, folders: Mapping[TaskId, str]) -> Placement:
    """The placement whose tasks find these folders in their environment."""
    return placement.told({task: {OUTPUT_DIR: folder} for task, folder in folders.items()})
