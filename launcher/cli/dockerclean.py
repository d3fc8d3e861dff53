"""``launch clean --hosts``: remove what launches that are over have left at the engines of other machines."""

from __future__ import annotations

import argparse

from launcher.cli.dockyards import Dockyards
from launcher.cli.everywhere import Everywhere
from launcher.cli.inventory import read_hosts
from launcher.cli.places import is_here
from launcher.cli.removed import show
from launcher.cli.sshoptions import ssh_settings
from launcher.cli.telling import tell
from launcher.errors import HostsError


def run(args: argparse.Namespace) -> int:
    """Remove them, and say which.

    Raises:
        LaunchError: a host or its engine can't be reached, or does not remove them.
    """
    from launcher.transport.ssh import lean

    lean.fetch()
    from launcher.transport.ssh.fleet import Fleet

    hosts = read_hosts(args.hosts)
    with Fleet([host for host in hosts if not is_here(host)], ssh_settings(args), tell) as fleet:
        fleet.connect()
        with Dockyards(hosts, Everywhere(hosts, fleet), tell) as yards:
            yards.look()
            dead = yards.dead()
            faults = [] if args.dry_run else yards.remove(dead)
    show(args.dry_run, [(f"container {left.name} on {left.host}", left.host) for left in dead], faults)
    if faults:
        raise HostsError(faults)
    return 0
