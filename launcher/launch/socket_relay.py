"""``--relay``: tasks on other machines connect to a unix socket of this machine.

The session makes a `SocketRelay` before the tasks start. It is also asked whether a task may move to a host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from launcher.backends.backend import Allocation
from launcher.backends.connections import Fleet
from launcher.common.errors import TransportError
from launcher.job import RELAY_VARIABLE


class SocketRelay:
    """The relay of one launch: a port of each other machine is forwarded to a unix socket here.

    Args:
        fleet: The hosts of the job.
        socket: The path of the socket. None without ``--relay``.

    Raises:
        TransportError: The backend forwards no ports.
    """

    def __init__(self, fleet: Fleet, socket: str | None) -> None:
        """Forward a port of each other machine to the socket, if there is a socket and another machine."""
        #: Whether tasks on other machines are to reach the socket.
        self._is_needed = socket is not None and fleet.has_remote_hosts
        #: The port of each other machine that is forwarded to the socket.
        self._ports: Mapping[str, int] = {}
        if socket is not None and fleet.has_remote_hosts:
            if fleet.forwarding is None:
                raise TransportError("--relay: this backend forwards no ports")
            self._ports = fleet.forwarding.relay(os.path.abspath(socket))

    def env(self, host: str) -> Mapping[str, str]:
        """Return the variables by which the tasks on a host find the socket. Empty if they need none."""
        return {RELAY_VARIABLE: f"127.0.0.1:{self._ports[host]}"} if host in self._ports else {}

    def hosts_without(self, allocation: Allocation) -> tuple[str, ...]:
        """Return the names of other machines from which tasks cannot reach the socket."""
        if not self._is_needed:
            return ()
        reached = {*self._ports, *allocation.local}
        return tuple(host.name for host in allocation.hosts if host.name not in reached)

    def check(self, host: str) -> None:
        """Check that the tasks of lost hosts can move to this host.

        Raises:
            TransportError: The socket is needed, and no port of this host is forwarded to it.
        """
        if self._ports and host not in self._ports:
            raise TransportError(f"{host}: none of its ports is forwarded")
