"""Job files: YAML text -> what to run, and perhaps where.

Paths are left as written; whoever opened the file knows what they are relative to.
"""

from __future__ import annotations

from launcher.errors import Fault, JobError
from launcher.jobfile.docker_keys import DockerKeys
from launcher.jobfile.durations import parse_duration
from launcher.marked.faults import Faults
from launcher.model.host import Host
from launcher.model.job import JobSpec
from launcher.model.records import NamedTuple

__all__ = ["DockerKeys", "JobFile", "examine", "parse", "parse_duration"]


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
    #: What ``--sync`` and ``--collect`` would take, unread.
    sync: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    #: ``file:line`` of ``workdir:`` and ``python:``, for messages; empty where they are not said.
    workdir_source: str = ""
    python_source: str = ""
    #: The same of ``sync:`` and ``collect:``.
    sync_source: str = ""
    collect_source: str = ""
    #: What it has at ``docker:``.
    docker: DockerKeys = DockerKeys()
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
    found, faults = examine(text, source)
    if faults:
        raise JobError(faults)
    return found


def examine(text: str, source: str) -> tuple[JobFile, tuple[Fault, ...]]:
    """Read a job file, right or wrong: who has more to check can tell of all faults at once.

    Returns:
        What it says, not to be used if there are faults, but for its hosts; and the faults.
    """
    from launcher.jobfile.reading import read  # PyYAML comes with it, only when a file is read

    faults = Faults(source)
    found = read(text.removeprefix("\ufeff"), faults)
    return found, faults.all()
