"""Job files: YAML text -> what to run, and perhaps where.

Paths are left as written; whoever opened the file knows what they are relative to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.errors import Fault, JobError
from launcher.jobfile.docker_keys import DockerKeys
from launcher.jobfile.durations import parse_duration
from launcher.jobfile.record import JobFile
from launcher.marked.faults import Faults

__all__ = ["DockerKeys", "JobFile", "examine", "parse", "parse_duration"]


def parse(text: str, source: str) -> JobFile:
    """Read a job file.

    Args:
        text: what it holds.
        source: its name, for messages.

    Raises:
        JobError: with every fault of the file, those of its hosts included.
    """
    found, faults = examine(text, source)
    if faults:
        raise JobError(faults)
    return found


def examine(text: str, source: str, roles: Mapping[str, Any] = {}) -> tuple[JobFile, tuple[Fault, ...]]:
    """Read a job file, right or wrong: who has more to check can tell of all faults at once.

    Args:
        text: what it holds; may be empty if there are ``roles``.
        source: its name, for messages.
        roles: laid over those of the file, see `launcher.jobfile.overlay`.

    Returns:
        What it says, not to be used if there are faults, but for its hosts; and the faults.
    """
    from launcher.jobfile.reading import read  # PyYAML comes with it, only when a file is read

    faults = Faults(source)
    found = read(text.removeprefix("\ufeff"), faults, roles)
    return found, faults.all()
