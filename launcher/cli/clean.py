"""``launch clean``: remove what launches that have ended have left at Docker engines."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from launcher.config.hostfile import read_hosts
from launcher.errors import HostsError
from launcher.job_run.notices import print_notice
from launcher.transports import ssh
from launcher.transports.docker.containers import HERE, each_engine
from launcher.transports.docker.engine import Engine, Thing
from launcher.transports.machines import Programs, is_here

SUMMARY = "remove containers and networks that killed launches, or --keep, have left"

EXAMPLES = """\
launch clean                  remove them, and say which
launch clean --dry-run        only say which
launch clean --hosts lab.yaml the same at the engines of these hosts

Only what carries the labels of a launch of yours, on this machine, whose process is over."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``launch clean``."""
    parser.add_argument("--dry-run", action="store_true", help="list what would be removed, remove nothing")
    parser.add_argument(
        "--hosts", metavar="X", help="at the engines of these hosts: a hostfile, or host,... (default: here)"
    )
    ssh.add_connecting(parser)


def run(args: argparse.Namespace) -> int:
    """Remove them, and print which.

    Raises:
        LaunchError: a host or an engine can't be reached, or does not remove them.
    """
    engines = {HERE: Engine(print_notice)}
    with ExitStack() as stack:
        if args.hosts is not None:
            from launcher.transports.ssh import SshHosts

            hosts = read_hosts(args.hosts)
            remote = [host for host in hosts if not is_here(host)]
            fleet = stack.enter_context(SshHosts(remote, ssh.ssh_settings(args), print_notice))
            fleet.connect()
            programs = Programs(filter(is_here, hosts), fleet)
            engines = {host.name: Engine(print_notice, host, programs) for host in hosts}

        def clean(name: str) -> tuple[list[Thing], list[str]]:
            engines[name].is_rootless()
            found = engines[name].dead()
            return found, [] if args.dry_run else engines[name].remove(found)

        results = each_engine(engines, clean, print_notice, "its Docker engine")
    faults = []
    for name, (found, left) in results.items():
        where = "" if name == HERE else f" on {name}"
        faults += [f"{name}: {fault}" if where else fault for fault in left]
        for thing in found:
            if not any(fault.startswith(f"{thing.kind} {thing.name}:") for fault in left):
                print(f"{'would remove' if args.dry_run else 'removed'} {thing.kind} {thing.name}{where}")
    if faults:
        raise HostsError(faults)
    if not any(found for found, _ in results.values()):
        print("nothing is left")
    return 0
