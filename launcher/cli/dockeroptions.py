"""The options about containers in the parsed arguments of a launch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from launcher.errors import Fault
from launcher.job import Host
from launcher.jobfile.docker_keys import DockerKeys
from launcher.transports.docker import options

if TYPE_CHECKING:
    from launcher.transports.docker.options import DockerOptions

#: Options about connections to other machines. Not ``--relay``: programs always give it, they can't know
#: where a job file has its hosts.
_OF_OTHERS = {
    "--lease": "lease", "--fanout": "fanout", "--connect-timeout": "connect_timeout",
    "--accept-new-host-keys": "accept_new_host_keys", "--no-check": "no_check",
}  # fmt: skip


def on_machines(args: argparse.Namespace, hosts: Sequence[Host]) -> bool:
    """Whether the containers run on machines that are named; else at the engine of this one."""
    return args.hosts is not None or any(host.source for host in hosts)


def settle(args: argparse.Namespace, keys: DockerKeys, folder: str) -> DockerOptions | None:
    """What arguments and a job file say of containers, also as ``args.containers``."""
    docker = options.docker_options(args, keys, folder)
    args.containers = docker
    if docker is not None:
        args.docker, args.user = docker.image, docker.user
    return docker


def conflicts(args: argparse.Namespace, hosts: Sequence[Host]) -> Iterator[Fault]:
    """Options that have nothing to act on: none is dropped in silence.

    Args:
        args: the options.
        hosts: where the job may run; none: they have faults of their own.
    """
    if args.docker is None and hosts and not on_machines(args, hosts):
        for option, name in _OF_OTHERS.items():
            if getattr(args, name):
                yield Fault(option, "this is about other machines, and none is named", "expected --hosts")
    yield from options.faults(args, args.containers, not hosts or on_machines(args, hosts))
