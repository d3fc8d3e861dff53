"""Defaults of launches: ``launch.toml``, or the table ``[tool.launch]`` of ``pyproject.toml``."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from launcher.common.errors import Fault, JobError
from launcher.common.text import escape_controls
from launcher.common.trusted_io import is_ours
from launcher.config.documents import FaultList, parse_toml, read_text
from launcher.config.jobfile import read_defaults
from launcher.config.settings import FileContent, FileSection

#: The files, and the keys that lead to their tables of defaults.
_TABLES_BY_FILE = {"launch.toml": (), "pyproject.toml": ("tool", "launch")}


def find_defaults(script: str, sections: Sequence[FileSection]) -> FileContent:
    """The defaults beside a program; without any, those of the current folder.

    Args:
        script: the path of a ``.py`` program on this machine; empty: it is another program.
        sections: those of the backends.

    Returns:
        It has a fault if a file can't be read, or is another user's, or both files of a folder have defaults.
    """
    # The owner of the program may as well choose its hosts: in a container root runs the user's files.
    users = {os.stat(script).st_uid} if script else set()
    for folder in dict.fromkeys([os.path.dirname(script), ""]):
        paths = [path for name in _TABLES_BY_FILE if os.path.isfile(path := os.path.join(folder, name))]
        found = [content for path in paths if (content := _read(path, sections, users)) is not None]
        faulty = [content for content in found if content.faults]
        if len(found) > 1 and not faulty:
            names = " and ".join(_TABLES_BY_FILE)
            problem = f"{names} of {os.path.abspath(folder)!r} both have defaults"
            return FileContent(faults=(Fault("", problem, "expected one of them"),))
        if found:
            return (faulty or found)[0]
    return FileContent()


def _read(path: str, sections: Sequence[FileSection], users: Collection[int]) -> FileContent | None:
    """The defaults of one file, which these users may have written, too; ``None``: there are none."""
    table, shown = _TABLES_BY_FILE[os.path.basename(path)], escape_controls(path)
    folder = os.path.dirname(os.path.abspath(path))
    try:
        text, faults = read_text(path, "file of defaults", JobError), FaultList(shown)
    except JobError as error:
        return FileContent(faults=error.faults)
    if table and table[-1] not in text:  # faults of other programs' tables do not matter
        return None
    node = parse_toml(text, table, faults)
    if node is None:
        return FileContent(faults=faults.all()) if faults else None
    owners = (os.stat(path).st_uid, os.lstat(path).st_uid)  # of the file, and of a link to it
    if not all(is_ours(owner) or owner in users for owner in owners):
        problem = "these defaults belong to another user"
        return FileContent(faults=(Fault(shown, problem, "expected --no-defaults, or a file of your own"),))
    return read_defaults(node, faults, sections, folder)
