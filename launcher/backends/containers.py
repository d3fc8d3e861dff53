"""What all containers share: the settings, limits and hosts that Docker, Kubernetes and exports use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from launcher.common.errors import Fault, JobError, PlacementError
from launcher.common.record import Record, replace
from launcher.common.text import plural
from launcher.config import values
from launcher.config.settings import COMMAND_LINE, FILES, Need, Setting, Settings
from launcher.config.table import PYTHON, WORKDIR
from launcher.job import Host, JobSpec, Role
from launcher.scheduler.plan import DEFAULT_PYTHON

T = TypeVar("T")
RoleValues = tuple[tuple[str, T], ...]

#: The values of the setting that says when an image is pulled.
PULL_CHOICES = ("missing", "always", "never")
#: The need of settings that only apply if tasks run in containers.
ANY_CONTAINERS = Need("the option is about containers", "expected --docker IMAGE or --kubernetes IMAGE, too")
#: Where the settings below can be given: as an option, and as a key below ``docker:`` and ``kubernetes:``.
_ENGINES = COMMAND_LINE | FILES


def _join_limits(weaker: RoleValues[T], stronger: RoleValues[T]) -> RoleValues[T]:
    """Join the limits of two levels, such as a file and the command line. The stronger one comes last.

    A limit without a role is for every role, so it replaces all limits of the weaker level.

    Args:
        weaker: Pairs of a role and its limit. An empty role stands for every role.
        stronger: Such pairs of the stronger level.
    """
    has_limit_for_all = any(not role for role, _ in stronger)
    return stronger if has_limit_for_all else weaker + stronger


def keep_image(weaker: str | None, stronger: str | None) -> str | None:
    """Return the image of the stronger level (the command line), or else that of the weaker one (a file)."""
    return stronger or weaker


MEMORY: Setting[RoleValues[int]] = Setting(
    "memory", values.memory, "limit of each container: 512m, 2g; repeatable", metavar="[ROLE=]SIZE",
    default=(), by_role=True, given_in=_ENGINES, join=_join_limits, needs=ANY_CONTAINERS,
)  # fmt: skip
CPUS: Setting[RoleValues[float]] = Setting(
    "cpus", values.cpus, "limit of each container: 1.5; repeatable", metavar="[ROLE=]N", default=(),
    by_role=True, given_in=_ENGINES, join=_join_limits, needs=ANY_CONTAINERS,
)  # fmt: skip
USER: Setting[str | None] = Setting(
    "user", values.one_line, "user of the tasks (default: you)", metavar="UID[:GID]", default=None,
    given_in=_ENGINES, needs=ANY_CONTAINERS,
)  # fmt: skip
PULL = Setting(
    "pull", values.OneOf(*PULL_CHOICES), "when to pull the image (default: missing)",
    default="missing", given_in=_ENGINES, needs=ANY_CONTAINERS,
)  # fmt: skip
CONTAINER_GPUS: Setting[int | None] = Setting(
    "container_gpus", values.whole(0, values.MAX_GPUS),
    "GPUs for each task of a role without its own number (ps tasks get none)", key="gpus", default=None,
    given_in=FILES,
)  # fmt: skip
CONTAINER_ROWS = (MEMORY, CPUS, USER, PULL, CONTAINER_GPUS)


class ContainerOptions(Record):
    """The settings of containers wherever they run, from command line and job file."""

    #: The image of roles without their own.
    image: str = ""
    #: The limits of each role: bytes of memory, and CPUs. The empty role stands for every role.
    memory: RoleValues[int] = ()
    cpus: RoleValues[float] = ()
    user: str | None = None
    #: ``missing``, ``always`` or ``never``.
    pull: str = "missing"
    #: The number of GPUs for each task of a role without its own number. Tasks of ps and sidecars get none.
    gpus: int | None = None


def container_options(settings: Settings, image: Setting[str | None]) -> dict[str, Any]:
    """Return the fields of `ContainerOptions`, by name, from the settings.

    Args:
        settings: The settings of the launch.
        image: The setting that contains the image, which each backend has under a name of its own.
    """
    # Each of the other fields has the name that its setting has in files.
    return {"image": settings[image] or "", **{setting.key: settings[setting] for setting in CONTAINER_ROWS}}


def image_faults(
    spec: JobSpec, options: ContainerOptions, settings: Settings, backend: str
) -> Iterator[Fault]:
    """Yield the faults of images and limits.

    Args:
        spec: The job.
        options: The options, made from the settings.
        settings: The settings of the launch.
        backend: The name of the backend.
    """
    for role in spec.roles:
        if not (role.image or options.image):
            expected = f"expected image: in it, {backend}: IMAGE at the top of the file, or --{backend} IMAGE"
            yield Fault(role.source, f"{role.name} has no image", expected)
    role_names = {role.name for role in spec.roles}
    # A file may contain limits for a role that runs no task in this launch. The empty name is for all roles.
    # A part is what one source (a file, the command line) sets.
    parts = (part for row in (MEMORY, CPUS) for part in settings.parts(row) if part.kind in FILES)
    allowed_names = role_names.union(["", *(name for part in parts for name, _ in part.value)])
    for option, limits in (("memory", options.memory), ("cpus", options.cpus)):
        for name, _ in limits:
            if name not in allowed_names:
                expected = f"expected one of {', '.join(sorted(role_names))}"
                yield Fault(f"--{option} {name}=", f"there is no role {name!r}", expected)


def _limit(limits: Sequence[tuple[str, T]], role: Role, field: str) -> T | None:
    """Return the limit of each task of a role, or None if there is no limit.

    A limit that an option sets for this role comes first, then the role's own field in the job file, then the
    limit that an option sets for every role.

    Args:
        limits: Pairs of a role and its limit, from the options. An empty role stands for every role.
        role: The role.
        field: The name of the role's own field: ``memory`` or ``cpus``.
    """
    limit_by_role, own_limit = dict(limits), getattr(role, field)
    default: T | None = limit_by_role.get("") if own_limit is None else own_limit
    return limit_by_role.get(role.name, default)


def with_limits(
    spec: JobSpec, options: ContainerOptions, settings: Settings, *, mounts_folder: bool = False
) -> JobSpec:
    """Return the job as containers need it: each role with its limits and GPUs, and a Python of the image.

    Args:
        spec: The job.
        options: The options of the containers. Their number of GPUs is for roles without their own, but not
            for tasks of ps and sidecars (TensorBoard), which rarely need one.
        settings: The settings of the launch. What the user does not give there comes from the image, which
            has a Python and a working folder of its own.
        mounts_folder: Whether containers see the working folder of this machine.
    """
    roles = []
    for role in spec.roles:
        keeps_gpus = role.gpus is not None or role.name == "ps" or role.sidecar
        gpus = role.gpus if keeps_gpus else options.gpus
        memory, cpus = _limit(options.memory, role, "memory"), _limit(options.cpus, role, "cpus")
        roles.append(replace(role, gpus=gpus, memory=memory, cpus=cpus))
    python = spec.python if settings.is_given(PYTHON) else DEFAULT_PYTHON
    workdir = spec.workdir if mounts_folder or settings.is_given(WORKDIR) else None
    return replace(spec, roles=tuple(roles), python=python, workdir=workdir)


def task_hosts(
    spec: JobSpec, free: Sequence[str] | None = None
) -> tuple[tuple[Host, ...], dict[str, tuple[str, ...]]]:
    """Make a host for each task, because each task gets a container of its own.

    Args:
        spec: The job.
        free: The ids of this machine's GPUs. None if other machines provide enough.

    Returns:
        The hosts, with names like ``worker-0``, and by host name the ids of the GPUs that its container gets.

    Raises:
        JobError: Containers of two roles would have the same name.
        PlacementError: There are not enough GPUs.
    """
    names = [_host_name(role, 0) for role in spec.roles]
    problem = "its containers would have the same names as those of another role"
    twins = [role for role, name in zip(spec.roles, names, strict=True) if names.count(name) > 1]
    if twins:
        raise JobError(Fault(role.source, f"role {role.name!r}: {problem}") for role in twins)
    needed = sum((role.gpus or 0) * role.count for role in spec.roles)
    # GPUs of other machines are chosen there, so their ids here are only stand-ins.
    unused_gpus = [*map(str, range(needed))] if free is None else list(free)
    if needed > len(unused_gpus):
        problem = f"the tasks ask for {plural(needed, 'GPU')}, this machine has {len(unused_gpus)}"
        expected = "use fewer with --gpus, or name them as in CUDA_VISIBLE_DEVICES=0,1"
        raise PlacementError([Fault("", problem, expected)])
    hosts: list[Host] = []
    gpus_by_host: dict[str, tuple[str, ...]] = {}
    for role in spec.roles:
        gpu_count = role.gpus or 0
        # Whatever GPUs a container gets, they are numbered from 0 inside. None means that launch does not set
        # ``CUDA_VISIBLE_DEVICES`` for its task.
        gpus_inside = tuple(map(str, range(gpu_count))) or None
        for index in range(role.count):
            name = _host_name(role, index)
            gpus_by_host[name], unused_gpus = tuple(unused_gpus[:gpu_count]), unused_gpus[gpu_count:]
            hosts.append(Host(name, slots=1, roles=(role.name,), gpus=gpus_inside, source=role.source))
    return tuple(hosts), gpus_by_host


def _host_name(role: Role, index: int) -> str:
    """Return the name of the host of a role's task, as in ``worker-0``. Host names contain no underscores."""
    return f"{role.name.lower().replace('_', '-')}-{index}"
