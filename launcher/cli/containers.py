"""What the container of each host is to be like: image, mounts, limits."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.cli.dockeroptions import asked_mounts, tmpfs_faults
from launcher.cli.request import Request
from launcher.errors import Fault, JobError
from launcher.job import OUTPUT_DIR, Host, JobSpec, Placement, RunPaths
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.transport.docker.settings import Container, Mount

if TYPE_CHECKING:
    from typing import TypeVar

    _N = TypeVar("_N", int, float)


def job_in_image(wanted: Request, args: argparse.Namespace) -> JobSpec:
    """The job as a container sees it: the image's Python, and its folder unless ours is mounted or named."""
    job = wanted.job
    python = job.python if wanted.python_source else DEFAULT_PYTHON
    workdir = None if args.no_mount and not wanted.workdir_source else job.workdir
    return job._replace(python=python, workdir=workdir)


def containers(
    wanted: Request,
    args: argparse.Namespace,
    placement: Placement,
    gpus: Mapping[str, Sequence[str]],
    folders: Sequence[str],
    here: bool = True,
) -> list[Container]:
    """A container for each host in use.

    Args:
        wanted, args, placement: the launch.
        gpus: of each host, the ids of those that its container sees.
        folders: what is mounted at the place that it has.
        here: mounts are of this machine; else of the hosts, and ``~`` is whoever we are there.

    Raises:
        JobError: mounts or limits that can't be.
    """
    asked, faults = asked_mounts(args, here)
    faults += _limit_faults(wanted.job, args)
    faults += [
        Fault("--workdir", "the root folder can't be mounted", "expected another one, or --no-mount")
        for folder in folders
        if folder == "/"
    ]
    usual = (Mount(folder, folder, args.read_only) for folder in folders)
    by_target = {mount.target: mount for mount in (*usual, *asked)}
    faults += tmpfs_faults(args, by_target)
    if faults:
        raise JobError(faults)
    return [
        Container(
            host.name,
            args.docker,
            wanted.job.python or DEFAULT_PYTHON,
            tuple(by_target.values()),
            memory=_limit(args.memory, placement, host),
            cpus=_limit(args.cpus, placement, host),
            gpus=tuple(gpus.get(host.name, ())),
            options=args.docker_options,
        )
        for host in placement.hosts()
    ]


def with_outputs(
    placement: Placement, made: Sequence[Container], paths: RunPaths, for_all: bool
) -> tuple[Placement, list[Container]]:
    """The folders that tasks have for what they make, made in the run's folder and mounted at the same place.

    Args:
        for_all: tasks are somebody whom we do not know.

    Raises:
        LaunchError: they can't be made.
    """
    from launcher.cli.outputs import make_here

    placement = make_here(placement, paths)
    for placed in placement.tasks if for_all else ():
        os.chmod(
            paths.output(placed.task), 0o777
        )  # nobody else gets as far as that: the run's folder is ours
    return placement, [with_output_mounts(one, placement) for one in made]


def with_output_mounts(container: Container, placement: Placement) -> Container:
    """The container that sees the folders of its tasks."""
    mine = (dict(placed.env) for placed in placement.tasks if placed.host.name == container.host)
    more = tuple(Mount(env[OUTPUT_DIR], env[OUTPUT_DIR]) for env in mine if OUTPUT_DIR in env)
    return container._replace(mounts=container.mounts + more)


def _limit_faults(job: JobSpec, args: argparse.Namespace) -> Iterator[Fault]:
    """Roles that are not there; those of a job file may have no task this time."""
    roles = {role.name for role in job.roles}
    for option in ("memory", "cpus"):
        for role, _ in getattr(args, option):
            if role and role not in roles and role not in args.limited_roles:
                what = f"there is no role {role!r}"
                yield Fault(f"--{option} {role}=", what, f"expected one of {', '.join(sorted(roles))}")


def folders_of(job: JobSpec) -> list[str]:
    """Where tasks run on this machine; one that is not here may be the image's own."""
    said = [job.workdir, *(role.workdir for role in job.roles)]
    return list(dict.fromkeys(os.path.abspath(path) for path in said if path and os.path.isdir(path)))


def _limit(limits: Sequence[tuple[str, _N]], placement: Placement, host: Host) -> _N | None:
    """What a container may use: its tasks' limits together; a role's own is stronger than everybody's."""
    said = dict(limits)
    here = [placed.role.name for placed in placement.tasks if placed.host.name == host.name]
    each = [said.get(role, said.get("")) for role in here]
    found = [limit for limit in each if limit is not None]
    return sum(found[1:], found[0]) if found and len(found) == len(each) else None
