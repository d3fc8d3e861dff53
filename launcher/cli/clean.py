"""``launch clean``: remove what launches that have ended have left at Docker engines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from launcher.config.hostfile import read_hosts
from launcher.errors import HostsError, LaunchError
from launcher.job_run.hosts import Programs, is_here
from launcher.job_run.notices import print_notice
from launcher.transports import ssh
from launcher.transports.docker import engine
from launcher.transports.docker.here import reminder
from launcher.transports.docker.hosts import Engines

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
    if args.hosts is not None:
        return _clean_hosts(args)
    with reminder(print_notice, "waiting for the Docker engine to respond"):
        engine.inspect(engine.run_here)
        found = engine.dead(engine.run_here, kept=True)
        faults = [] if args.dry_run else engine.remove(engine.run_here, found)
    _show(args.dry_run, [(f"{thing.kind} {thing.name}",) * 2 for thing in found], faults)
    if faults:
        raise LaunchError("; ".join(faults))
    return 0


def _clean_hosts(args: argparse.Namespace) -> int:
    from launcher.transports.ssh import SshHosts

    hosts = read_hosts(args.hosts)
    remote = [host for host in hosts if not is_here(host)]
    with SshHosts(remote, ssh.settings(args), print_notice) as fleet:
        fleet.connect()
        engines = Engines(hosts, Programs(hosts, fleet), print_notice)
        dead = engines.dead()
        faults = [] if args.dry_run else engines.remove(dead)
    found = [(f"{it.kind} {it.name} on {host}", host) for host, things in dead.items() for it in things]
    _show(args.dry_run, found, faults)
    if faults:
        raise HostsError(faults)
    return 0


def _show(dry_run: bool, found: Sequence[tuple[str, str]], faults: Sequence[str]) -> None:
    """Print what is removed.

    Args:
        dry_run: nothing was removed.
        found: each thing, and the beginning of a fault that kept it.
        faults: what went wrong.
    """
    for thing, prefix in found:
        if not any(fault.startswith(f"{prefix}:") for fault in faults):
            print(f"{'would remove' if dry_run else 'removed'} {thing}")
    if not found:
        print("nothing is left")
