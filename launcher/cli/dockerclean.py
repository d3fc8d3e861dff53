"""``launch clean --hosts``: remove what launches that are over have left at the engines of other machines."""

from __future__ import annotations

import argparse

from launcher.cli import travelling
from launcher.cli.clean import show
from launcher.cli.dockerhosts import Ways
from launcher.cli.dockyards import Dockyards
from launcher.cli.inventory import read_hosts
from launcher.cli.places import is_here
from launcher.cli.sshoptions import ssh_settings
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
    here = [host.name for host in hosts if is_here(host)]
    with Fleet([host for host in hosts if not is_here(host)], ssh_settings(args), travelling.tell) as fleet:
        fleet.connect()
        with Dockyards(hosts, Ways(here, fleet), travelling.tell) as yards:
            yards.look()
            dead = yards.dead()
            faults = [] if args.dry_run else yards.remove(dead)
    show(args.dry_run, [(f"container {left.name} on {left.host}", left.host) for left in dead], faults)
    if faults:
        raise HostsError(faults)
    return 0
