"""Defaults of launches: ``launch.toml``, or the table ``[tool.launch]`` of ``pyproject.toml``."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from launcher.common.errors import Fault, JobError
from launcher.common.record import Record
from launcher.common.trusted_io import is_ours
from launcher.config.options import JobFile

if TYPE_CHECKING:  # most launches have no such file
    from launcher.config.schema import ConfigNode, Section

#: The files, and the keys that lead to their tables of defaults.
_TABLES_BY_FILE = {"launch.toml": (), "pyproject.toml": ("tool", "launch")}


class Defaults(Record):
    """The defaults of a launch."""

    #: The settings, with those that only the command line has: see `launcher.config.jobfile.COUNTS`.
    file: JobFile = JobFile()
    #: Key -> ``workers=2 (pyproject.toml:14)``.
    shown: Mapping[str, str] = {}
    #: The folder that paths are relative to.
    folder: str = ""


def find_defaults(script: str, sections: Callable[[], Mapping[str, Section]]) -> Defaults:
    """The defaults beside a program; without any, those of the current folder.

    Args:
        script: the path of a ``.py`` program on this machine; empty: it is another program.
        sections: returns those of `launcher.config.jobfile.parse_job`.

    Raises:
        JobError: a file can't be read, or is another user's; both files of a folder have defaults.
    """
    # The owner of the program may as well choose its hosts: in a container root runs the user's files.
    users = {os.stat(script).st_uid} if script else set()
    for folder in dict.fromkeys([os.path.dirname(script), ""]):
        paths = [path for name in _TABLES_BY_FILE if os.path.isfile(path := os.path.join(folder, name))]
        found = [defaults for path in paths if (defaults := _read(path, sections(), users)) is not None]
        faulty = [defaults for defaults in found if defaults.file.faults]
        if len(found) > 1 and not faulty:
            names = " and ".join(_TABLES_BY_FILE)
            problem = f"{names} of {os.path.abspath(folder)!r} both have defaults"
            raise JobError([Fault("", problem, "expected one of them")])
        if found:
            return (faulty or found)[0]
    return Defaults()


def _read(path: str, sections: Mapping[str, Section], users: Collection[int]) -> Defaults | None:
    """The defaults of one file, which these users may have written, too; ``None``: there are none."""
    from launcher.config.jobfile import read_defaults
    from launcher.config.schema import FaultList, parse_toml, read_text, shown_path

    table, shown = _TABLES_BY_FILE[os.path.basename(path)], shown_path(path)
    folder = os.path.dirname(os.path.abspath(path))
    text, faults = read_text(path, "file of defaults", JobError), FaultList(shown)
    if table and table[-1] not in text:  # faults of other programs' tables do not matter
        return None
    node = parse_toml(text, table, faults)
    if node is None:
        return Defaults(JobFile(faults=faults.all())) if faults else None
    owners = (os.stat(path).st_uid, os.lstat(path).st_uid)  # of the file, and of a link to it
    if not all(is_ours(owner) or owner in users for owner in owners):
        problem = "these defaults belong to another user"
        raise JobError([Fault(shown, problem, "expected --no-defaults, or a file of your own")])
    file = read_defaults(node, faults, sections, folder)
    return Defaults(file, dict(_shown(node, file)), folder)


def _shown(node: ConfigNode, file: JobFile) -> Iterator[tuple[str, str]]:
    """Each key with its value as it is written, and its source; of a table only the keys."""
    for key, value in node.value.items():
        if key in file.sources:
            yield key, f"{key}={_text(value)} ({file.sources[key]})"


def _text(node: ConfigNode) -> str:
    if isinstance(node.value, (dict, list)):
        return ",".join(item if isinstance(item, str) else _text(item) for item in node.value)
    return str(node.value)
