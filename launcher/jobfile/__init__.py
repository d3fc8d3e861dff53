"""Job files: YAML text -> what to run, and perhaps where.

Paths are left as written; whoever opened the file knows what they are relative to.
"""

from __future__ import annotations

from launcher.errors import JobError
from launcher.jobfile.durations import parse_duration
from launcher.marked.faults import Faults
from launcher.model.host import Host
from launcher.model.job import JobSpec
from launcher.model.records import NamedTuple

__all__ = ["JobFile", "parse", "parse_duration"]


class JobFile(NamedTuple):
    """What a job file says. ``None`` means "not said"."""

    job: JobSpec
    #: Hosts written out in the file.
    hosts: tuple[Host, ...] | None = None
    #: Or what ``--hosts`` would take: a hostfile's path or an inline list, unread.
    hosts_ref: str | None = None
    #: ``file:line`` of ``hosts:``, for messages about ``hosts_ref``.
    hosts_source: str = ""
    run_dir: str | None = None
    #: The file's name.
    source: str = ""


def parse(text: str, source: str) -> JobFile:
    """Read a job file.

    Args:
        text: what it holds.
        source: its name, for messages.

    Raises:
        JobError: with every fault of the file, those of its hosts included.
    """
    from launcher.jobfile.reading import read  # PyYAML comes with it, only when a file is read

    faults = Faults(source)
    found = read(text.removeprefix("\ufeff"), faults)
    faults.raise_any(JobError)
    return found
