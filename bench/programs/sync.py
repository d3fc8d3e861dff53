"""What ``launch --sync`` does before a job, and nothing else: look, connect, bring.

Usage: sync.py bring JOB FOLDER[:REMOTE] HOST...
       sync.py finish JOB HOST...       what it does after the job
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from launcher.files.copying import Copying
from launcher.files.requests import parse_syncs
from launcher.files.sync import finish, sync
from launcher.files.walk import read_trees
from launcher.job import Host
from launcher.transports.ssh import SshSettings
from launcher.transports.ssh.hosts import SshHosts


def bring(job: str, text: str, *hosts: str) -> None:
    """Bring a folder to hosts."""
    trees, _ = read_trees(parse_syncs([text]), os.getcwd())
    with _connected(hosts) as fleet:
        fleet.connect()
        sync(Copying(fleet, 32, print), hosts, trees, job)


def end(job: str, *hosts: str) -> None:
    """The run is over."""
    with _connected(hosts) as fleet:
        fleet.connect()
        finish(Copying(fleet, 32), hosts, job)


def _connected(hosts: Sequence[str]) -> SshHosts:
    return SshHosts([Host(name) for name in hosts], SshSettings(), print)


if __name__ == "__main__":
    if sys.argv[1] == "bring":
        bring(*sys.argv[2:])
    else:
        end(*sys.argv[2:])
