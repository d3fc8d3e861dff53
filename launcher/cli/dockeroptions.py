"""The options about containers, and what they mean."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator

from launcher.errors import Fault
from launcher.model.records import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.transport.docker.settings import Mount

#: When to pull; as in `launcher.transport.docker.images`, which a plain launch does not import.
_PULL = ("missing", "always", "never")
#: The smallest limit an engine takes: 6 MiB.
_LEAST_MEMORY = 6 << 20
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}

#: Options of containers: what they are called, and their name in the parsed arguments.
_OURS = {
    "--mount": "mount", "--no-mount": "no_mount", "--memory": "memory", "--cpus": "cpus", "--user": "user",
    "--pull": "pull", "--keep": "keep",
}  # fmt: skip
#: Options of other machines: none of them means anything in a container.
_OF_OTHERS = {
    "--sync": "sync", "--collect": "collect", "--lease": "lease", "--fanout": "fanout",
    "--connect-timeout": "connect_timeout", "--accept-new-host-keys": "accept_new_host_keys",
}  # fmt: skip


def add_docker_options(parser: argparse.ArgumentParser) -> None:
    """Options of containers."""
    group = parser.add_argument_group("containers")
    group.add_argument("--docker", metavar="IMAGE", help="run each task in a container of its own")
    group.add_argument(
        "--mount", action="append", default=[], metavar="SRC[:DST][:ro]",
        help="what the containers see of this machine, besides the working folder; repeatable",
    )  # fmt: skip
    group.add_argument("--no-mount", action="store_true", help="do not mount the working folder")
    group.add_argument(
        "--memory", action="append", default=[], type=role_memory, metavar="[ROLE=]SIZE",
        help="a limit for each container: 512m, 2g; repeatable",
    )  # fmt: skip
    group.add_argument(
        "--cpus", action="append", default=[], type=role_cpus, metavar="[ROLE=]N",
        help="a limit for each container: 1.5; repeatable",
    )  # fmt: skip
    group.add_argument("--user", metavar="UID[:GID]", help="who the tasks run as (default: you)")
    group.add_argument("--pull", choices=_PULL, help="when to pull the image (default: missing)")
    group.add_argument(
        "--keep", action="store_true", help="leave the containers for a look; `launch clean` removes them"
    )


def conflicts(args: argparse.Namespace) -> Iterator[Fault]:
    """Options that have nothing to act on: none is dropped in silence."""
    if args.docker is None:
        for option, name in _OURS.items():
            if getattr(args, name):
                yield Fault(option, "there is no container to use it for", "expected --docker IMAGE")
        return
    if not args.docker or args.docker.startswith("-"):
        yield Fault("--docker", f"{args.docker!r} is no name of an image")
    for option, name in _OF_OTHERS.items():
        if getattr(args, name):
            yield Fault(option, "this is about other machines, and --docker uses none")


def mounts(words: list[str]) -> tuple[list[Mount], list[Fault]]:
    """What ``--mount`` says, and what is wrong with it."""
    from launcher.transport.docker.settings import Mount

    found: list[Mount] = []
    faults: list[Fault] = []
    for word in words:
        source, *rest = word.split(":")
        mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw"
        source = os.path.abspath(os.path.expanduser(source)) if source else ""
        target = rest[0] if rest else source
        if not source or len(rest) > 1 or not target.startswith("/") or target == "/":
            faults.append(
                Fault(f"--mount {word}", "this is no mount", "expected SRC, SRC:/DST or SRC:/DST:ro")
            )
        else:
            found.append(Mount(source, os.path.normpath(target), mode == "ro"))
    return found, faults


def role_memory(text: str) -> tuple[str, int]:
    """``worker=2g``, or ``2g`` for every role (whose name is empty then), in bytes."""
    role, _, word = text.rpartition("=")
    match = _SIZE.fullmatch(word)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a size such as 512m or 2g")
    count = int(float(match[1]) * (1 << _POWERS[match[2].lower()]))
    if count < _LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"{text!r}: no container can do with less than 6m")
    return role, count


def role_cpus(text: str) -> tuple[str, float]:
    """``worker=1.5``, or ``1.5`` for every role, whose name is empty then."""
    role, _, word = text.rpartition("=")
    try:
        count = float(word)
    except ValueError:
        count = 0.0
    if not 0.01 <= count <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of CPUs such as 2 or 0.5")
    return role, count
