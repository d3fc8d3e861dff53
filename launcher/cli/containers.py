"""The job as its containers see it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.cli.request import Request
from launcher.job import JobSpec, Placement, RunPaths
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.transports.docker.container import Container
from launcher.transports.docker.options import DockerOptions, with_output_mounts


def job_in_image(wanted: Request, docker: DockerOptions) -> JobSpec:
    """The job with the image's Python, and the image's folder unless one is mounted or named."""
    job = wanted.job
    python = job.python if wanted.python_source else DEFAULT_PYTHON
    workdir = None if docker.no_mount and not wanted.workdir_source else job.workdir
    return job._replace(python=python, workdir=workdir)


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
