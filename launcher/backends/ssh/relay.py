"""Forwards ports of the hosts to a Unix socket of this machine, as ``ssh -R`` does.

::

    task ══ 127.0.0.1:PORT on its host ══ ssh server ══ connection ══ a thread here ══ Unix socket ══ program
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

from paramiko import Channel, SSHException

from launcher.backends.connections import for_each
from launcher.backends.ssh.connection import SshConnection
from launcher.backends.ssh.joined import JoinedSockets
from launcher.backends.ssh.options import reason_of
from launcher.backends.ssh.program import close_channel
from launcher.common.errors import TransportError
from launcher.common.trusted_io import connect_unix

#: Largest number of connections through one host; further ones are closed at once.
MAX_CONNECTIONS = 64
#: Seconds for which the port of a lost connection is requested again, and between two requests: the old
#: server process may still hold the port.
_RENEW_TIMEOUT_SECONDS = 60.0
_RETRY_PAUSE_SECONDS = 0.25
#: Seconds for the program here to accept a connection.
_CONNECT_TIMEOUT_SECONDS = 10.0
_LOOPBACK = "127.0.0.1"


class Relay:
    """The forwarded ports of all hosts.

    Args:
        path: of the Unix socket here.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._ports: dict[str, int] = {}
        self._joined = JoinedSockets("ssh relay", MAX_CONNECTIONS)

    def open(self, connections: Mapping[str, SshConnection]) -> dict[str, int]:
        """Request a port of every host, in parallel; a message names hosts without one.

        Args:
            connections: by host.

        Returns:
            The ports, by host.
        """
        for_each(connections, lambda host: self._request(connections[host]), "opening a port")
        return dict(self._ports)

    def renew(self, connection: SshConnection) -> None:
        """Request the same port again, on a new connection to its host, without waiting.

        Raises:
            TransportError: No thread is left.
        """
        if connection.host in self._ports:
            self._joined.begin(self._request, connection)

    def _request(self, connection: SshConnection) -> None:
        """Request a port; if it was open before, try again until the limit."""

        def arrived(channel: Channel, *_: object) -> None:
            try:
                self._joined.begin(self._forward, host, channel)  # paramiko's thread must not wait
            except TransportError as error:
                self._refused(host, error)
                close_channel(channel)

        host, deadline = connection.host, time.monotonic() + _RENEW_TIMEOUT_SECONDS
        port = self._ports.get(host, 0)
        while connection.is_alive and not self._joined.closing.is_set():
            try:
                self._ports[host] = connection.transport.request_port_forward(_LOOPBACK, port, arrived)
                return
            except (SSHException, EOFError, OSError) as error:
                if not port:
                    why = "it forwards no ports (AllowTcpForwarding, PermitListen)"
                    why = why if isinstance(error, SSHException) else reason_of(error)
                    self._joined.say_once(f"{host}: its ssh server opens no port for its tasks: {why}")
                    return
            if time.monotonic() > deadline:
                text = f"port {port} there, forwarded to this machine for its tasks, cannot be opened again"
                self._joined.say_once(f"{host}: {text}")
                return
            self._joined.closing.wait(_RETRY_PAUSE_SECONDS)

    def _forward(self, host: str, channel: Channel) -> None:
        """Serve one connection to the port."""
        here = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if not self._joined.add(host, here):
                text = f"more than {MAX_CONNECTIONS} connections at a time to this machine: refused"
                self._joined.say_once(f"{host}: {text}")
            elif self._is_connected(here, host):
                self._joined.join(here, channel)
        except OSError:  # the program here has closed the connection
            pass
        except TransportError as error:
            self._refused(host, error)
        finally:
            self._joined.end(host, here, channel)

    def _is_connected(self, here: socket.socket, host: str) -> bool:
        try:
            connect_unix(here, self._path, _CONNECT_TIMEOUT_SECONDS)
        except OSError as error:
            self._joined.say_once(f"{host}: cannot connect its tasks to {self._path}: {reason_of(error)}")
            return False
        here.settimeout(None)
        return not self._joined.closing.is_set()

    def _refused(self, host: str, why: TransportError) -> None:
        """Say that a connection to the port of a host was closed at once."""
        self._joined.say_once(f"{host}: a connection of its tasks to this machine was refused: {why}")

    def close(self) -> None:
        """End all connections; the ports go with the connections to the hosts."""
        self._joined.close()
