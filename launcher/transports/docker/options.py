"""The options about containers, on the command line and in job files."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.config import values
from launcher.errors import Fault
from launcher.record import Record
from launcher.text import did_you_mean
from launcher.transports.transport import Asked

if TYPE_CHECKING:  # only a launch with a job file needs it
    from launcher.config.schema import Faults, Keys, Node

_N = TypeVar("_N", int, float)

#: Options of ``docker run`` that launch sets itself.
_RESERVED = (
    "detach", "entrypoint", "interactive", "label", "log_driver", "name", "network", "rm", "sig_proxy",
)  # fmt: skip


#: Settings of both command line and job file, where the command line's replaces the job file's.
_SIMPLE = ("no_mount", "read_only", "user", "pull", "keep")


class DockerOptions(Record):
    """The settings of containers, of command line and job file."""

    #: Of roles without their own.
    image: str = ""
    #: ``SRC[:DST][:ro]`` each; of two with the same target the last one counts.
    mounts: tuple[str, ...] = ()
    no_mount: bool = False
    read_only: bool = False
    #: Limits: role -> bytes, role -> CPUs; an empty role is every role.
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


def keys() -> Keys:
    """The keys of ``docker:`` in a job file."""
    from launcher.config.schema import Key, by_role, several, single, table

    flag, text = single(values.flag), single(values.one_line)
    pull = single(values.choice("missing", "always", "never"))
    gpus = single(values.whole(0, values.MOST_GPUS))
    mounts = several(values.one_line)
    return table(
        Key("image", "The image of roles that have none of their own.", single(values.image)),
        Key("mounts", "Folders of the host in the container, SRC:DST or SRC:DST:ro.", mounts),
        Key("no_mount", "Do not mount the working folder.", flag),
        Key("read_only", "Mount the working folder read-only.", flag),
        Key("memory", "The memory limit of each container: 512m, 2g.", by_role(values.memory)),
        Key("cpus", "The CPU limit of each container.", by_role(values.cpus)),
        Key("user", "The user of the tasks, UID:GID. Default: you.", text),
        Key("pull", "When to pull it. Default: missing.", pull),
        Key("gpus", "GPUs for each task of a role without its own number (ps tasks get none).", gpus),
        Key("keep", "Leave the containers when the job is over.", flag),
        Key("options", "Other options of docker run, without dashes: shm_size: 1g.", _engine_options),
    )


def _engine_options(node: Node, label: str, faults: Faults) -> Any:
    """``options:`` of a job file."""
    from launcher.config.schema import quoted, several

    if not isinstance(node.value, dict):
        return faults.add_kind(node, label, "expected a mapping, as in shm_size: 1g")
    for name, value in node.value.items():
        if name.replace("-", "_") in _RESERVED:
            faults.add(value.key_line, f"option {quoted(name)}", "expected another: launch sets this one")
    read = several(values.one_line)
    return tuple((name, read(value, name, faults) or ()) for name, value in node.value.items())


def read_section(node: Node, roles: Sequence[str], faults: Faults) -> DockerOptions:
    """``docker:`` of a job file, an image or a mapping; without an image each role must have one."""
    from launcher.config.schema import read_mapping

    if isinstance(node.value, str):
        return DockerOptions(faults.check(node.line, "docker", node.value, values.image) or "")
    if not isinstance(node.value, dict):
        faults.add_kind(node, "docker", "expected an image, or a mapping with image:")
        return DockerOptions()
    found = read_mapping(node, keys(), faults)
    if found.get("no_mount") and found.get("read_only"):
        expected = "expected one of them: the working folder is not mounted"
        found.add("read_only", '"no_mount" and "read_only" both', expected)
    limited = tuple((key, role) for key in ("memory", "cpus") for role, _ in found.get(key, ()) if role)
    for key, role in limited:
        if roles and role not in roles:
            found.add(key, f"{key}: there is no role {role!r}", did_you_mean(role, roles))
    return DockerOptions(
        engine_options=found.get("options", ()),
        limited_roles=tuple(role for _, role in limited),
        **found.some("image", "mounts", "memory", "cpus", "gpus", *_SIMPLE),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about containers; `settings` reads them."""
    add = functools.partial(values.option, parser.add_argument_group("containers"))
    add("--docker IMAGE", "run each task in a container of this image", values.image)
    text = "a further folder or file of containers; repeatable"
    add("--mount SRC[:DST][:ro]", text, **values.REPEATABLE)
    add("--no-mount", "do not mount the working folder")
    add("--read-only", "mount the working folder read-only")
    text = "limit for each container: 512m, 2g; repeatable"
    add("--memory [ROLE=]SIZE", text, _of_role(values.memory), **values.REPEATABLE)
    text = "limit for each container: 1.5; repeatable"
    add("--cpus [ROLE=]N", text, _of_role(values.cpus), **values.REPEATABLE)
    add("--user UID[:GID]", "user of the tasks (default: you)", values.one_line)
    text = "when to pull the image (default: missing)"
    add("--pull", text, choices=("missing", "always", "never"))
    add("--keep", "keep the containers; `launch clean` removes them")


def _of_role(read: Callable[[str], _N]) -> Callable[[str], tuple[str, _N]]:
    """A reader of ``worker=2g``, or ``2g`` for every role (an empty name)."""

    def role_and_limit(text: str) -> tuple[str, _N]:
        role, _, limit = text.rpartition("=")
        return role, read(limit)

    return role_and_limit


def settings(asked: Asked) -> DockerOptions | None:
    """The parsed options and ``docker:`` of a job file together; the command line wins.

    Returns:
        ``None``: no containers.
    """
    args = asked.args
    if args.docker is None and asked.section is None and not any(role.image for role in asked.job.roles):
        return None
    file: DockerOptions = asked.section or DockerOptions()
    mounts = [text if text[:1] in ("~", ":") else os.path.join(asked.folder, text) for text in file.mounts]
    return file._replace(
        image=file.image if args.docker is None else args.docker,
        mounts=(*mounts, *args.mount),
        memory=_with_limits(file.memory, args.memory),
        cpus=_with_limits(file.cpus, args.cpus),
        **{name: getattr(args, name) or getattr(file, name) for name in _SIMPLE},
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
        for name in ("mount", "memory", "cpus", *_SIMPLE):
            if getattr(asked.args, name):
                option = f"--{name.replace('_', '-')}"
                yield Fault(option, "the option is about containers", "expected --docker IMAGE, too")
        for role in asked.job.roles:
            if role.cpus is not None or role.memory is not None:
                problem = f"{role.name} has limits of CPUs or memory, which only containers have"
                yield Fault(role.source, problem, "expected image: in it, docker: IMAGE or --docker IMAGE")
        return
    if settings.no_mount and settings.read_only:
        yield Fault("--no-mount", "--read-only is about the working folder, which is not mounted")
