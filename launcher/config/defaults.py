"""Finds the project file with the defaults of launches beside a program.

It is ``launch.toml``, or ``pyproject.toml`` with a table ``[tool.launch]``. ``launch`` calls this before it
merges settings. A file that another user wrote must not be used.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from launcher.common.errors import Fault, JobError
from launcher.common.text import escape_controls
from launcher.common.trusted_io import is_ours
from launcher.config.documents import FaultList, parse_toml, read_text
from launcher.config.jobfile import read_defaults
from launcher.config.settings import FileContent, FileSection

#: The names of project files, with the keys that lead to their table of defaults.
_TABLES_BY_FILE = {"launch.toml": (), "pyproject.toml": ("tool", "launch")}


def find_defaults(script: str, sections: Sequence[FileSection]) -> FileContent:
    """Return the defaults of a launch from the project file beside its program.

    If the folder of the program has no project file, that of the current folder is read.

    Args:
        script: The path of a ``.py`` program on this machine. It is empty for any other program.
        sections: The sections of the backends that a project file may contain.

    Returns:
        The content of the file, which is empty if there is none. It has a fault if a file cannot be read or
        belongs to another user, or if both files of a folder contain defaults.
    """
    # The owner of the program is trusted, too, because the program runs anyway. In a container root runs
    # the files of a user.
    users = {os.stat(script).st_uid} if script else set()
    for folder in dict.fromkeys([os.path.dirname(script), ""]):
        paths = [os.path.join(folder, name) for name in _TABLES_BY_FILE]
        read = [_read(path, sections, users) for path in paths if os.path.isfile(path)]
        contents = [content for content in read if content is not None]
        faulty = [content for content in contents if content.faults]
        if len(contents) > 1 and not faulty:
            names = " and ".join(_TABLES_BY_FILE)
            problem = f"{names} of {os.path.abspath(folder)!r} both have defaults"
            return FileContent(faults=(Fault("", problem, "expected one of them"),))
        if contents:
            return (faulty or contents)[0]
    return FileContent()


def _read(path: str, sections: Sequence[FileSection], users: Collection[int]) -> FileContent | None:
    """Return the defaults in one project file, or None if it contains none.

    Args:
        path: The path of the file.
        sections: The sections of the backends that it may contain.
        users: The ids of users who may own the file, besides this user and root.
    """
    table, shown = _TABLES_BY_FILE[os.path.basename(path)], escape_controls(path)
    folder = os.path.dirname(os.path.abspath(path))
    try:
        text, faults = read_text(path, "file of defaults", JobError), FaultList(shown)
    except JobError as error:
        return FileContent(faults=error.faults)
    # The last name of the table of launch must be in the text. Without it the file contains no defaults, and
    # faults in the tables of other programs do not matter.
    if table and table[-1] not in text:
        return None
    node = parse_toml(text, table, faults)
    if node is None:
        return FileContent(faults=faults.all()) if faults else None
    # These are the owner of the file and that of a link to it.
    owners = (os.stat(path).st_uid, os.lstat(path).st_uid)
    if not all(is_ours(owner) or owner in users for owner in owners):
        problem = "these defaults belong to another user"
        return FileContent(faults=(Fault(shown, problem, "expected --no-defaults, or a file of your own"),))
    return read_defaults(node, faults, sections, folder)
