"""Makes the options of the Docker backend from the settings of a launch, and checks them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.backends.backend import Backend, LaunchRequest
from launcher.backends.containers import ContainerOptions, container_options
from launcher.backends.docker.rows import DOCKER, ENGINE_OPTIONS, KEEP, MOUNTS, NO_MOUNT, READ_ONLY
from launcher.common.errors import Fault
from launcher.config.settings import Settings
from launcher.job import JobSpec


class DockerOptions(ContainerOptions):
    """The settings of containers of Docker, from command line and job file."""

    #: Mounts as ``SRC[:DST][:ro]``. Of two with the same target the last one counts.
    mounts: tuple[str, ...] = ()
    no_mount: bool = False
    read_only: bool = False
    keep: bool = False
    #: The ``options:`` of the job file: options of ``docker run``, with underscores for dashes, and their
    #: values.
    engine_options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: Whether nothing but the images of roles asks for Docker.
    implied: bool = False


def parse(settings: Settings, spec: JobSpec) -> DockerOptions | None:
    """Return the options that the settings contain, or None if the user does not ask for containers.

    The user asks for them by the setting ``docker``, or by an image of a role.
    """
    implied = not settings.is_given(DOCKER)
    if implied and not any(role.image for role in spec.roles):
        return None
    return DockerOptions(
        mounts=settings[MOUNTS],
        no_mount=settings[NO_MOUNT],
        read_only=settings[READ_ONLY],
        keep=settings[KEEP],
        engine_options=settings[ENGINE_OPTIONS],
        implied=implied,
        **container_options(settings, DOCKER),
    )


def faults(options: DockerOptions | None, request: LaunchRequest, chosen: Backend[Any]) -> Iterator[Fault]:
    """Yield the faults of the options about containers, or of roles that need containers without any.

    Args:
        options: The options. None if the user does not ask for containers of Docker.
        request: The launch.
        chosen: The backend that is used.
    """
    if options is not None:
        if options.no_mount and options.read_only:
            source = request.settings.source(READ_ONLY)
            yield Fault(source, "the working folder is not mounted", "expected one of no_mount and read_only")
        return
    for role in request.spec.roles if not chosen.runs_in_containers else ():
        has_limits = role.cpus is not None or role.memory is not None
        if has_limits or role.image:
            field = "limits of CPUs or memory" if has_limits else "an image"
            problem = f"{role.name} has {field}, which only containers have"
            yield Fault(role.source, problem, "expected image: in it, docker: IMAGE or --docker IMAGE")
