"""``launch clean``: remove what launches that have ended have left at Docker engines."""

from __future__ import annotations

import argparse

from launcher.cli.everywhere import Everywhere
from launcher.cli.inventory import read_hosts
from launcher.cli.places import is_here
from launcher.cli.removed import show
from launcher.cli.sshoptions import ssh_settings
from launcher.cli.telling import tell
from launcher.errors import HostsError
from launcher.transports.docker.hosts import Engines


def run(args: argparse.Namespace) -> int:
    """Remove them from the engines of hosts, and say which.

    Raises:
        LaunchError: a host or its engine can't be reached, or does not remove them.
    """
    from launcher.transport.ssh import lean

    lean.fetch()
    from launcher.transport.ssh.fleet import Fleet

    hosts = read_hosts(args.hosts)
    with Fleet([host for host in hosts if not is_here(host)], ssh_settings(args), tell) as fleet:
        fleet.connect()
        engines = Engines(hosts, Everywhere(hosts, fleet), tell)
        dead = engines.dead()
        faults = [] if args.dry_run else engines.remove(dead)
    found = [
        (f"{thing.kind} {thing.name} on {host}", host) for host, things in dead.items() for thing in things
    ]
    show(args.dry_run, found, faults)
    if faults:
        raise HostsError(faults)
    return 0
