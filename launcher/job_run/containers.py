"""Containers of a launch: which of them runs which task."""

from __future__ import annotations

from launcher.job import Placement
from launcher.job_run.options import Options
from launcher.scheduler.placement import place
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.transports.docker.container import Container, containers, own_hosts, renumbered
from launcher.transports.docker.options import DockerOptions


def place_containers(options: Options, docker: DockerOptions) -> tuple[Options, Placement, list[Container]]:
    """Decide which container runs which task.

    Returns:
        The options as the containers see them, the placement, and the containers.

    Raises:
        InputError: options that can't be followed.
    """
    job = options.job
    python = job.python if options.sources.python else DEFAULT_PYTHON
    workdir = None if docker.no_mount and not options.sources.workdir else job.workdir
    given = (role.gpus is not None or role.name == "ps" or role.sidecar for role in job.roles)
    roles = (
        role if known else role._replace(gpus=docker.gpus)
        for role, known in zip(job.roles, given, strict=True)
    )
    job = job._replace(python=python, workdir=workdir, roles=tuple(roles))
    if options.hosts_named:
        hosts = tuple(map(renumbered, options.hosts))
        placement = place(job, hosts)
        users = {placed.host.name for placed in placement.tasks if placed.gpus}
        gpus = {host.name: host.gpus or () for host in options.hosts if host.name in users}
        made = containers(docker, job, placement, gpus, here=False)
        return options._replace(job=job, hosts=hosts), placement, made
    hosts, gpus = own_hosts(job, options.hosts[0].gpus or ())
    placement = place(job, hosts)
    made = containers(docker, job, placement, gpus, here=True)
    return options._replace(job=job), placement, made
