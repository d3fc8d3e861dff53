"""What a job file says, as records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from launcher.job import Host, JobSpec


class DockerKeys(NamedTuple):
    """What ``docker:`` says. ``None``, an empty text or tuple means "not written"."""

    image: str = ""
    #: As ``--mount`` takes them.
    mounts: tuple[str, ...] = ()
    no_mount: bool = False
    read_only: bool = False
    #: Role -> bytes, and role -> CPUs; an empty name is every role.
    memory: tuple[tuple[str, int], ...] = ()
    cpus: tuple[tuple[str, float], ...] = ()
    user: str | None = None
    pull: str | None = None
    #: For each task of a role that does not say, ps excepted.
    gpus: int | None = None
    keep: bool = False
    #: Other options of ``docker run``: name -> values, as they were written.
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: ``file:line`` of ``docker:``.
    source: str = ""


class JobFile(NamedTuple):
    """What a job file says. ``None`` means "not written"."""

    job: JobSpec
    #: Hosts that are written out in the file.
    hosts: tuple[Host, ...] | None = None
    #: Or what ``--hosts`` takes: a hostfile's path or an inline list.
    hosts_ref: str | None = None
    run_dir: str | None = None
    #: What ``--sync`` and ``--collect`` take.
    sync: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    docker: DockerKeys = DockerKeys()
    #: Key -> ``file:line`` where it is written, for messages.
    sources: Mapping[str, str] = {}
    #: Notes for the user.
    notes: tuple[str, ...] = ()

    def beside(self, folder: str) -> JobFile:
        """The same with its paths taken as relative to a folder: that of the file.

        Programs stay as they are: they are relative to the folder that they run in.
        """
        job, docker = self.job, self.docker

        def here(path: str) -> str:
            """A path of this machine: ``~`` is the home here. Others may be paths of other machines."""
            return os.path.join(folder, os.path.expanduser(path))

        roles = tuple(role._replace(workdir=_below(folder, role.workdir)) for role in job.roles)
        python = _below(folder, job.python) if job.python and "/" in job.python else job.python
        hosts_ref = self.hosts_ref
        if hosts_ref is not None and os.path.exists(here(hosts_ref)):
            hosts_ref = here(hosts_ref)
        mounts = (mount if mount.startswith(":") else _below(folder, mount) or "" for mount in docker.mounts)
        return self._replace(
            job=job._replace(roles=roles, workdir=_below(folder, job.workdir), python=python),
            hosts_ref=hosts_ref,
            run_dir=None if self.run_dir is None else here(self.run_dir),
            sync=tuple(map(here, self.sync)),
            docker=docker._replace(mounts=tuple(mounts)),
        )


def _below(folder: str, path: str | None) -> str | None:
    return path if path is None or path.startswith("~") else os.path.join(folder, path)
