"""What a job file says, as a record."""

from __future__ import annotations

from typing import NamedTuple

from launcher.job import Host, JobSpec
from launcher.jobfile.docker_keys import DockerKeys


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
    #: ``file:line`` of ``workdir:``, ``python:``, ``run_dir:``, for messages; empty where nothing is said.
    workdir_source: str = ""
    python_source: str = ""
    run_dir_source: str = ""
    #: The same of ``sync:`` and ``collect:``.
    sync_source: str = ""
    collect_source: str = ""
    #: What it has at ``docker:``.
    docker: DockerKeys = DockerKeys()
    #: The file's name.
    source: str = ""
