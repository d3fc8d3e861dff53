"""Finds the project file of a launch: ``launch.toml``, or ``[tool.launch]`` of ``pyproject.toml``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from launcher.common.errors import Fault, JobError
from launcher.config.settings import FileContent, FileSection, Setting

#: The project files, and the keys that lead to their tables.
_FILES = {"launch.toml": (), "pyproject.toml": ("tool", "launch")}


def find_project_file(
    script: str, rows: Sequence[Setting[Any]], sections: Sequence[FileSection]
) -> FileContent:
    """Read the project file beside a program; without any, that of the current folder.

    Args:
        script: The path of a ``.py`` program on this machine; empty: it is another program.
        rows, sections: What it may have.

    Raises:
        JobError: A file can't be read, or is another user's; both files of a folder have settings.
    """
    # The owner of the program may as well choose its hosts: in a container root runs the user's files.
    users = {os.stat(script).st_uid} if script else set()
    for folder in dict.fromkeys([os.path.dirname(script), ""]):
        paths = [path for name in _FILES if os.path.isfile(path := os.path.join(folder, name))]
        if not paths:
            continue
        from launcher.config.levels import read_project  # most launches have no such file

        read = [read_project(path, _FILES[os.path.basename(path)], rows, sections, users) for path in paths]
        found = [content for content in read if content is not None]
        faulty = [content for content in found if content.faults]
        if len(found) > 1 and not faulty:
            names = " and ".join(_FILES)
            problem = f"{names} of {os.path.abspath(folder)!r} both have defaults"
            raise JobError([Fault("", problem, "expected one of them")])
        if found:
            return (faulty or found)[0]
    return FileContent()
