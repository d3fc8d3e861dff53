"""The options about containers, and what they mean."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.errors import Fault
from launcher.job import Host, is_loopback

if TYPE_CHECKING:
    from typing import TypeVar

    from launcher.jobfile.docker_keys import DockerKeys
    from launcher.transport.docker.settings import Mount

    _N = TypeVar("_N", int, float)

#: When to pull; as in `launcher.transport.docker.images`, which a plain launch does not import.
_PULL = ("missing", "always", "never")
#: Options of containers: what they are called, and their name in the parsed arguments.
_OURS = {
    "--mount": "mount", "--no-mount": "no_mount", "--read-only": "read_only", "--memory": "memory",
    "--cpus": "cpus", "--user": "user", "--pull": "pull", "--keep": "keep",
}  # fmt: skip
#: Options about connections to other machines. Not ``--relay``: programs always give it, they can't know
#: where a job file has its hosts.
_OF_OTHERS = {
    "--lease": "lease", "--fanout": "fanout", "--connect-timeout": "connect_timeout",
    "--accept-new-host-keys": "accept_new_host_keys", "--no-check": "no_check",
}  # fmt: skip
#: Files travel to other machines, and to another folder of this one, but not into containers of it.
_OF_FILES = {"--sync": "sync", "--collect": "collect"}


def add_docker_options(parser: argparse.ArgumentParser) -> None:
    """Options of containers."""
    group = parser.add_argument_group("containers")
    group.add_argument(
        "--docker", metavar="IMAGE",
        help="run each task in a container of its own; with a hostfile, a container on each host",
    )  # fmt: skip
    group.add_argument(
        "--mount", action="append", default=[], metavar="SRC[:DST][:ro]",
        help="what the containers see of this machine, besides the working folder; repeatable",
    )  # fmt: skip
    group.add_argument("--no-mount", action="store_true", help="do not mount the working folder")
    group.add_argument("--read-only", action="store_true", help="mount the working folder read-only")
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
    # What only a job file can say.
    parser.set_defaults(docker_options=(), limited_roles=(), mounts_of_file=0)


def on_machines(args: argparse.Namespace, hosts: Sequence[Host]) -> bool:
    """Whether the hosts are machines, with an engine each; else they are names for containers of this one.

    What a file says of hosts is about machines. A list on the command line is names, unless some of it
    can't be.
    """
    if args.hosts is None:
        return any(host.source for host in hosts)
    machines = any(host.user or host.port or is_loopback(host.name) for host in hosts)
    return machines or os.path.exists(args.hosts)


def conflicts(args: argparse.Namespace, hosts: Sequence[Host]) -> Iterator[Fault]:
    """Options that have nothing to act on: none is dropped in silence.

    Where hosts are named, what is said of connections holds for those that need one, though it be none: a
    script, or a list from a scheduler, must not become wrong because all of it is this machine once.

    Args:
        args: the options.
        hosts: where the job may run; none: they have faults of their own.
    """
    if args.docker is None:
        for option in _given(args, _OURS):
            yield Fault(option, "there is no container to use it for", "expected --docker IMAGE")
        if hosts and args.hosts is None and not any(host.source for host in hosts):
            for option in _given(args, _OF_OTHERS):
                yield Fault(option, "this is about other machines, and none is named", "expected --hosts")
        return
    if not args.docker or args.docker.startswith("-"):
        yield Fault("--docker", f"{args.docker!r} is no name of an image")
    if args.no_mount and args.read_only:
        yield Fault("--no-mount", "--read-only is about the working folder, which is not mounted")
    if not hosts or on_machines(args, hosts):
        return
    for option in _given(args, {**_OF_FILES, **_OF_OTHERS}):
        yield Fault(option, "this is about other machines, and --docker uses none")


def _given(args: argparse.Namespace, options: Mapping[str, str]) -> list[str]:
    """Those of the options that are set."""
    return [option for option, name in options.items() if getattr(args, name)]


def mounts(words: Sequence[str], here: bool = True) -> tuple[list[Mount], list[Fault]]:
    """What ``--mount`` says, and what is wrong with it; ``~`` is the home of ``here``, or of each host."""
    from launcher.transport.docker.settings import Mount

    found: list[Mount] = []
    faults: list[Fault] = []
    for word in words:
        source, *rest = word.split(":")
        mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw"
        source = _absolute(source, here) if source else ""
        target = rest[0] if rest else source
        at_home = target.startswith("~/") and not rest
        if not source or len(rest) > 1 or not (target.startswith("/") or at_home) or target == "/":
            faults.append(
                Fault(f"--mount {word}", "this is no mount", "expected SRC, SRC:/DST or SRC:/DST:ro")
            )
        else:
            found.append(Mount(source, os.path.normpath(target), mode == "ro"))
    return found, faults


def asked_mounts(args: argparse.Namespace, here: bool = True) -> tuple[list[Mount], list[Fault]]:
    """What a job file and ``--mount`` say together, and what is wrong with it; see `mounts`.

    An option may put something else where the file has a mount. Within either, two for one place are a
    mistake: one of them would be dropped in silence.
    """
    found: dict[str, Mount] = {}
    faults: list[Fault] = []
    for words in (args.mount[: args.mounts_of_file], args.mount[args.mounts_of_file :]):
        more, wrong = mounts(words, here)
        faults += [*wrong, *_clashes(more)]
        found.update({mount.target: mount for mount in more})
    return list(found.values()), faults


def _clashes(found: Sequence[Mount]) -> Iterator[Fault]:
    """Different ones with one target."""
    seen: dict[str, Mount] = {}
    for mount in found:
        first = seen.setdefault(mount.target, mount)
        if first.source != mount.source:
            what = f"{first.source} and {mount.source} can't both be mounted there"
            yield Fault(f"--mount {mount.source}:{mount.target}", what, "expected a place for each")
        elif first != mount:
            what = f"{mount.source} can't be mounted there both read-only and not"
            yield Fault(f"--mount {mount.source}:{mount.target}", what, "expected one of them")


def tmpfs_faults(args: argparse.Namespace, mounted: Mapping[str, Mount]) -> Iterator[Fault]:
    """Folders in memory where something else is: an engine would leave out one of them and not say so.

    Args:
        args: the options; a job file asks for such folders.
        mounted: what is mounted, by its place in the container.
    """
    seen = set()
    for value in dict(args.docker_options).get("tmpfs", ()):
        target = os.path.normpath(value.partition(":")[0])
        if target in mounted:
            what = f"{mounted[target].source} is to be mounted there, too"
            yield Fault(f"tmpfs: {value}", what, "expected one of them")
        elif target in seen:
            yield Fault(f"tmpfs: {value}", "there is one at this place already", "expected a place for each")
        seen.add(target)


def _absolute(path: str, here: bool) -> str:
    if path == "~" or path.startswith("~/"):
        return os.path.expanduser(path) if here else path
    return os.path.abspath(os.path.expanduser(path))


def role_memory(text: str) -> tuple[str, int]:
    """``worker=2g``, or ``2g`` for every role (whose name is empty then), in bytes."""
    from launcher.jobfile.containers import memory

    return _of_role(text, memory)


def role_cpus(text: str) -> tuple[str, float]:
    """``worker=1.5``, or ``1.5`` for every role, whose name is empty then."""
    from launcher.jobfile.containers import cpus

    return _of_role(text, cpus)


def _of_role(text: str, read: Callable[[str], _N]) -> tuple[str, _N]:
    role, _, word = text.rpartition("=")
    try:
        return role, read(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def add_from_file(args: argparse.Namespace, keys: DockerKeys, folder: str) -> None:
    """Let what a job file has at ``docker:`` count where the command line does not say otherwise.

    Args:
        args: the options, which win.
        keys: the file's.
        folder: where it lies: what it mounts is written as seen from there.
    """
    if not keys.image and args.docker is None:
        return
    args.docker = args.docker if args.docker is not None else keys.image
    args.user = args.user or keys.user
    args.pull = args.pull or keys.pull
    args.no_mount = args.no_mount or (keys.no_mount and not args.read_only)
    args.read_only = args.read_only or (keys.read_only and not args.no_mount)
    args.keep = args.keep or keys.keep
    args.mounts_of_file = len(keys.mounts)
    args.mount = [*(_beside(folder, mount) for mount in keys.mounts), *args.mount]
    args.memory = _stronger(keys.memory, args.memory)
    args.cpus = _stronger(keys.cpus, args.cpus)
    args.docker_options = keys.options
    args.limited_roles = tuple(role for role, _ in (*keys.memory, *keys.cpus))


def _beside(folder: str, mount: str) -> str:
    return mount if mount.startswith(("~", ":")) else os.path.join(folder, mount)


def _stronger(of_file: Sequence[tuple[str, _N]], said: Sequence[tuple[str, _N]]) -> list[tuple[str, _N]]:
    """Limits of both; one for every role leaves nothing of the file's."""
    if any(not role for role, _ in said):
        return list(said)
    return list(of_file) + list(said)
