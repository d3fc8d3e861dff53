"""The options about containers, on the command line and in job files."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.backends.launch_request import Asked
from launcher.common.errors import Fault
from launcher.common.record import Record
from launcher.common.text import did_you_mean
from launcher.config import values
from launcher.job import JobSpec, Role
from launcher.scheduler.plan import DEFAULT_PYTHON

if TYPE_CHECKING:  # only a launch with a job file needs it
    from launcher.config.schema import ConfigNode, FaultList, Keys, KeySpec, MappingValues

_N = TypeVar("_N")
_T = TypeVar("_T", bound=Record)

#: Options of ``docker run`` that launch sets itself.
_RESERVED_OPTIONS = (
    "detach", "entrypoint", "interactive", "label", "log_driver", "name", "network", "rm", "sig_proxy",
)  # fmt: skip

#: When an image is pulled.
PULL_POLICIES = ("missing", "always", "never")
#: Settings of both command line and job file, where the command line's replaces the job file's; those about
#: containers wherever they run.
_OVERRIDING_OPTIONS = ("no_mount", "read_only", "user", "pull", "keep")
CONTAINER_OPTIONS = ("user", "pull")


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
    #: Nothing asks for Docker but the images of roles, or the command itself.
    implied: bool = False


def shared_keys() -> Sequence[KeySpec]:
    """The keys about containers wherever they run; `read_shared` reads them."""
    from launcher.config.schema import KeySpec, by_role, single

    gpus, memory = single(values.whole(0, values.MAX_GPUS)), by_role(single(values.memory))
    return (
        KeySpec("image", "The image of roles that have none of their own.", single(values.image)),
        KeySpec("memory", "The memory limit of each container: 512m, 2g.", memory),
        KeySpec("cpus", "The CPU limit of each container.", by_role(single(values.cpus))),
        KeySpec("user", "The user of the tasks, UID:GID. Default: you.", single(values.one_line)),
        KeySpec("pull", "When to pull it. Default: missing.", single(values.choice(*PULL_POLICIES))),
        KeySpec("gpus", "GPUs for each task of a role without its own number (ps tasks get none).", gpus),
    )


def read_shared(found: MappingValues, roles: Sequence[str]) -> dict[str, Any]:
    """The settings of `shared_keys`, for the fields of a record with these names and ``limited_roles``.

    Args:
        found: the values; new faults are added.
        roles: of the job file.
    """
    limited = tuple((key, role) for key in ("memory", "cpus") for role, _ in found.get(key, ()) if role)
    for key, role in limited:
        if roles and role not in roles:
            found.add(key, f"{key}: there is no role {role!r}", did_you_mean(role, roles))
    settings = found.some("image", "memory", "cpus", "gpus", *CONTAINER_OPTIONS)
    return {**settings, "limited_roles": tuple(role for _, role in limited)}


def read_engine(node: ConfigNode, name: str, keys: Keys, faults: FaultList) -> MappingValues:
    """Read ``docker:`` or ``kubernetes:`` of a job file, an image or a mapping.

    Args:
        node: its value.
        name: the key.
        keys: those of the mapping.
        faults: gets what is wrong.

    Returns:
        The values of the keys; an image alone is the value of ``image``.
    """
    from launcher.config.schema import read_mapping

    if isinstance(node.value, str):
        node = node._replace(value={"image": node})
    elif not isinstance(node.value, dict):
        faults.add_kind(node, name, "expected an image, or a mapping with image:")
        node = node._replace(value={})
    return read_mapping(node, keys, faults)


def keys() -> Keys:
    """The keys of ``docker:`` in a job file."""
    from launcher.config.schema import KeySpec, several, single, table

    flag, mounts = single(values.flag), several(values.one_line)
    return table(
        *shared_keys(),
        KeySpec("mounts", "Folders of the host in the container, SRC:DST or SRC:DST:ro.", mounts),
        KeySpec("no_mount", "Do not mount the working folder.", flag),
        KeySpec("read_only", "Mount the working folder read-only.", flag),
        KeySpec("keep", "Leave the containers when the job is over.", flag),
        KeySpec("options", "Other options of docker run, without dashes: shm_size: 1g.", _engine_options),
    )


def _engine_options(node: ConfigNode, label: str, faults: FaultList) -> Any:
    """``options:`` of a job file."""
    from launcher.config.schema import quoted, several

    if not isinstance(node.value, dict):
        return faults.add_kind(node, label, "expected a mapping, as in shm_size: 1g")
    for name, value in node.value.items():
        if name.replace("-", "_") in _RESERVED_OPTIONS:
            faults.add(value.key_line, f"option {quoted(name)}", "expected another: launch sets this one")
    read = several(values.one_line)
    return tuple((name, read(value, name, faults) or ()) for name, value in node.value.items())


def read_section(node: ConfigNode, roles: Sequence[str], faults: FaultList) -> DockerOptions:
    """``docker:`` of a job file, an image or a mapping; without an image each role must have one."""
    found = read_engine(node, "docker", keys(), faults)
    if found.get("no_mount") and found.get("read_only"):
        expected = "expected one of them: the working folder is not mounted"
        found.add("read_only", '"no_mount" and "read_only" both', expected)
    shared = read_shared(found, roles)
    return DockerOptions(
        engine_options=found.get("options", ()), **shared, **found.some("mounts", *_only_docker())
    )


def _only_docker() -> list[str]:
    return [name for name in _OVERRIDING_OPTIONS if name not in CONTAINER_OPTIONS]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about containers; `settings` reads them."""
    add = functools.partial(values.option, parser.add_argument_group("containers"))
    text = "run each task in a container of this image"
    add("--docker IMAGE", text, any_image, nargs="?", const="")
    text = "a further folder or file of containers; repeatable"
    add("--mount SRC[:DST][:ro]", text, **values.REPEATABLE)
    add("--no-mount", "do not mount the working folder")
    add("--read-only", "mount the working folder read-only")
    text = "limit of each container: 512m, 2g; repeatable"
    add("--memory [ROLE=]SIZE", text, _of_role(values.memory), **values.REPEATABLE)
    text = "limit of each container: 1.5; repeatable"
    add("--cpus [ROLE=]N", text, _of_role(values.cpus), **values.REPEATABLE)
    add("--user UID[:GID]", "user of the tasks (default: you)", values.one_line)
    text = "when to pull the image (default: missing)"
    add("--pull", text, choices=PULL_POLICIES)
    add("--keep", "keep the containers; `launch clean` removes them")


def any_image(text: str) -> str:
    """Read the image of all roles; empty: each has its own."""
    return values.image(text) if text else ""


def _of_role(read: Callable[[str], _N]) -> Callable[[str], tuple[str, _N]]:
    """A reader of ``worker=2g``, or ``2g`` for every role (an empty name)."""

    def role_and_limit(text: str) -> tuple[str, _N]:
        role, _, limit = text.rpartition("=")
        return role, read(limit)

    return role_and_limit


def settings(asked: Asked) -> DockerOptions | None:
    """The parsed options and ``docker:`` of a job file together; the command line has priority.

    Returns:
        ``None``: no containers.
    """
    args = asked.args
    implied = args.docker is None and asked.section is None
    if implied and not (asked.implied or any(role.image for role in asked.spec.roles)):
        return None
    file: DockerOptions = asked.section or DockerOptions()
    mounts = [text if text[:1] in ("~", ":") else os.path.join(asked.folder, text) for text in file.mounts]
    found = file._replace(
        image=args.docker or file.image,
        mounts=(*mounts, *args.mount),
        implied=implied,
        **{name: getattr(args, name) or getattr(file, name) for name in _only_docker()},
    )
    return with_shared(found, args)


def with_shared(file: _T, args: argparse.Namespace) -> _T:
    """Settings with the fields of `shared_keys`, replaced by options of the command line."""
    own: Any = file
    return file._replace(
        memory=_with_limits(own.memory, args.memory),
        cpus=_with_limits(own.cpus, args.cpus),
        **{name: getattr(args, name) or getattr(file, name) for name in CONTAINER_OPTIONS},
    )


def _with_limits(
    of_file: tuple[tuple[str, _N], ...], given: Sequence[tuple[str, _N]]
) -> tuple[tuple[str, _N], ...]:
    """Limits of both; one for every role on the command line replaces all of the file's."""
    return tuple(given) if any(not role for role, _ in given) else of_file + tuple(given)


def faults(asked: Asked, settings: DockerOptions | None) -> Iterator[Fault]:
    """Faults of the options about containers.

    Args:
        asked: the parsed options.
        settings: options and job file together.
    """
    if settings is None:
        if asked.in_containers:  # of another transport
            return
        for name in ("mount", "memory", "cpus", *_OVERRIDING_OPTIONS):
            if getattr(asked.args, name):
                option = f"--{name.replace('_', '-')}"
                other = " or --kubernetes IMAGE" if name in ("memory", "cpus", *CONTAINER_OPTIONS) else ""
                expected = f"expected --docker IMAGE{other}, too"
                yield Fault(option, "the option is about containers", expected)
        for role in asked.spec.roles:
            limited = role.cpus is not None or role.memory is not None
            if limited or role.image:
                what = "limits of CPUs or memory" if limited else "an image"
                problem = f"{role.name} has {what}, which only containers have"
                yield Fault(role.source, problem, "expected image: in it, docker: IMAGE or --docker IMAGE")
        return
    if settings.no_mount and settings.read_only:
        yield Fault("--no-mount", "--read-only is about the working folder, which is not mounted")


def image_faults(spec: JobSpec, settings: Any, name: str) -> Iterator[Fault]:
    """The faults of images and limits.

    Args:
        spec: the job.
        settings: with the fields of `shared_keys`.
        name: of the transport.
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
        roles.append(role._replace(gpus=role.gpus if own else settings.gpus, memory=memory, cpus=cpus))
    return spec._replace(
        roles=tuple(roles),
        python=spec.python if python else DEFAULT_PYTHON,
        workdir=spec.workdir if workdir else None,
    )
