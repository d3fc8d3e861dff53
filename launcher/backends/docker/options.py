"""The options about containers, from the settings of a launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from launcher.backends.backend import Backend, LaunchRequest
from launcher.backends.container_rows import CONTAINER_GPUS, CPUS, MEMORY, PULL, USER
from launcher.backends.docker.rows import DOCKER, ENGINE_OPTIONS, KEEP, MOUNTS, NO_MOUNT, READ_ONLY
from launcher.common.errors import Fault
from launcher.common.record import Record, replace
from launcher.config.settings import FILES, Setting, Settings
from launcher.job import JobSpec, Role
from launcher.scheduler.plan import DEFAULT_PYTHON

_N = TypeVar("_N")


class DockerOptions(Record):
    """The settings of containers, of command line and job file."""

    #: Of roles without their own.
    image: str = ""
    #: ``SRC[:DST][:ro]`` each; of two with the same target the last one counts.
    mounts: tuple[str, ...] = ()
    no_mount: bool = False
    read_only: bool = False
    #: Limits: role -> bytes of memory; role -> CPUs; an empty role is every role.
    memory: tuple[tuple[str, int], ...] = ()
    cpus: tuple[tuple[str, float], ...] = ()
    user: str | None = None
    #: ``missing``, ``always`` or ``never``.
    pull: str = "missing"
    #: For each task of a role without its own number; ps and sidecars get none.
    gpus: int | None = None
    keep: bool = False
    #: ``options:`` of the job file: an option of ``docker run``, with underscores for dashes -> values.
    engine_options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: Roles that the job file has limits for; they may have no task this time.
    limited_roles: tuple[str, ...] = ()
    #: Nothing asks for Docker but the images of roles.
    implied: bool = False


def parse(settings: Settings, spec: JobSpec) -> DockerOptions | None:
    """Make the options from the settings. None: no containers."""
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
        **shared_options(settings, DOCKER),
    )


def shared_options(settings: Settings, image: Setting[str | None]) -> dict[str, Any]:
    """The options about containers wherever they run, by the names of fields.

    Args:
        settings: of the launch.
        image: the setting that has the image.
    """
    limited = [
        role
        for row in (MEMORY, CPUS)
        for part in settings.parts(row)
        for role, _ in part.value
        if role and part.kind in FILES
    ]
    return {
        "image": settings[image] or "",
        "memory": settings[MEMORY],
        "cpus": settings[CPUS],
        "user": settings[USER],
        "pull": settings[PULL],
        "gpus": settings[CONTAINER_GPUS],
        "limited_roles": tuple(limited),
    }


def faults(options: DockerOptions | None, request: LaunchRequest, chosen: Backend[Any]) -> Iterator[Fault]:
    """Yield the faults of the options about containers, see `Backend.check`."""
    if options is not None:
        if options.no_mount and options.read_only:
            source = request.settings.source(READ_ONLY)
            yield Fault(source, "the working folder is not mounted", "expected one of no_mount and read_only")
        return
    for role in request.spec.roles if not chosen.runs_in_containers else ():
        limited = role.cpus is not None or role.memory is not None
        if limited or role.image:
            what = "limits of CPUs or memory" if limited else "an image"
            problem = f"{role.name} has {what}, which only containers have"
            yield Fault(role.source, problem, "expected image: in it, docker: IMAGE or --docker IMAGE")


def image_faults(spec: JobSpec, settings: Any, name: str) -> Iterator[Fault]:
    """The faults of images and limits.

    Args:
        spec: the job.
        settings: with the fields of `shared_keys`.
        name: of the backend.
    """
    for role in spec.roles:
        if not (role.image or settings.image):
            expected = f"expected image: in it, {name}: IMAGE at the top of the file, or --{name} IMAGE"
            yield Fault(role.source, f"{role.name} has no image", expected)
    roles = {role.name for role in spec.roles}
    for option, limits in (("memory", settings.memory), ("cpus", settings.cpus)):
        for role, _ in limits:
            # A role of the job file may have no task in this launch.
            if role and role not in roles and role not in settings.limited_roles:
                expected = f"expected one of {', '.join(sorted(roles))}"
                yield Fault(f"--{option} {role}=", f"there is no role {role!r}", expected)


def _limit(limits: Sequence[tuple[str, _N]], role: Role, field: str) -> _N | None:
    """The limit of a task; ``None``: it has none.

    A limit for a role, then that in the role's field, comes before the limit for every role.
    """
    by_role, own = dict(limits), getattr(role, field)
    found: _N | None = by_role.get(role.name, by_role.get("") if own is None else own)
    return found


def in_images(spec: JobSpec, settings: Any, python: bool, workdir: bool) -> JobSpec:
    """The job for containers: each role gets its limits; without a number of GPUs it gets that of `--gpus`.

    Args:
        spec: the job; ps and sidecars get no GPUs.
        settings: with the fields of `shared_keys`.
        python: whether the user names the Python of the images.
        workdir: whether the images have the working folder.
    """
    roles = []
    for role in spec.roles:
        own = role.gpus is not None or role.name == "ps" or role.sidecar
        memory, cpus = _limit(settings.memory, role, "memory"), _limit(settings.cpus, role, "cpus")
        roles.append(replace(role, gpus=role.gpus if own else settings.gpus, memory=memory, cpus=cpus))
    return replace(
        spec,
        roles=tuple(roles),
        python=spec.python if python else DEFAULT_PYTHON,
        workdir=spec.workdir if workdir else None,
    )
