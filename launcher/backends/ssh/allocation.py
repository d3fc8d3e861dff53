"""The hosts of a launch that the user names, reached over SSH, or else this machine.

Hosts that are this machine are not connected to: their agents are forks of the launcher.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from launcher.backends.backend import Allocation, LaunchRequest, with_default_python
from launcher.backends.connections import Connections
from launcher.backends.fleet import this_machine
from launcher.backends.here import is_here
from launcher.job import Host


class SshAllocation(Allocation):
    """The hosts that the user names, or else this machine. Nothing is acquired, and nothing given back.

    Args:
        request: The request of the launch, which contains the named hosts.
    """

    def __init__(self, request: LaunchRequest) -> None:
        """Find out which hosts are this machine. The others are not connected to yet."""
        hosts = request.named_hosts or (this_machine(os.environ),)
        super().__init__(request, hosts)
        # This machine accepts any number of tasks.
        self.may_exceed_slots = not request.named_hosts
        # Only hosts that are this machine see its files, as far as launch knows.
        self.local = self.sharing_files = frozenset(host.name for host in hosts if is_here(host))
        self.hosts = with_default_python(request, hosts, self.local)

    @contextmanager
    def connect(self, hosts: Sequence[Host]) -> Iterator[Connections]:
        """Connect to hosts over SSH, and close the connections at the end of the context."""
        from launcher.backends.ssh.connections import SshConnections  # noqa: PLC0415 - only when used

        with SshConnections(hosts, self.request.settings) as connections:
            connections.connect()
            yield connections
