"""Forwards a port of each host to a Unix socket of this machine, as ``ssh -R`` does.

Through it, tasks on hosts reach the program that uses the Python API.

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

#: The largest number of connections through one host. Further ones are closed at once.
MAX_CONNECTIONS = 64
#: The time for which the port of a lost connection is requested again. The old server process may still hold
#: it.
_RENEW_TIMEOUT_SECONDS = 60.0
_RETRY_PAUSE_SECONDS = 0.25
#: The time for the program on this machine to accept a connection.
_CONNECT_TIMEOUT_SECONDS = 10.0
_LOOPBACK = "127.0.0.1"


class Relay:
    """The forwarded ports of all hosts.

    Args:
        path: The path of the Unix socket of this machine.
    """

    def __init__(self, path: str) -> None:
        """Store the path of the Unix socket. `open` requests the ports."""
        self._path = path
        #: The port of each host that has opened one. It stays the same over all connections to the host.
        self._ports: dict[str, int] = {}
        #: The connections to these ports, each joined to a connection to the Unix socket.
        self._joined = JoinedSockets("ssh relay", MAX_CONNECTIONS)

    def open(self, connections: Mapping[str, SshConnection]) -> dict[str, int]:
        """Request a port of every host, in parallel. The user is told about hosts that offer none.

        Args:
            connections: The connections to the hosts, by the names of the hosts.

        Returns:
            The port of each host that offers one, by the name of the host.
        """
        for_each(connections, lambda host: self._request(connections[host]), "opening a port")
        return dict(self._ports)

    def renew(self, connection: SshConnection) -> None:
        """Request the same port again on a new connection to its host, without waiting.

        Raises:
            TransportError: No thread is left.
        """
        if connection.host in self._ports:
            self._joined.begin(self._request, connection)

    def _request(self, connection: SshConnection) -> None:
        """Request a port of a host, and serve connections to it from then on.

        If a port was open on an earlier connection to the host, it is requested again, for a minute. The user
        is told if no port can be opened.

        Args:
            connection: The connection to the host.
        """

        def on_connection(channel: Channel, *_: object) -> None:
            """Serve a connection to the port in a thread, because paramiko's thread must not wait."""
            try:
                self._joined.begin(self._forward, host, channel)
            except TransportError as error:
                self._say_refused(host, error)
                close_channel(channel)

        host, deadline = connection.host, time.monotonic() + _RENEW_TIMEOUT_SECONDS
        port = self._ports.get(host, 0)  # With 0 the server chooses one.
        while connection.is_alive and not self._joined.closing.is_set():
            try:
                transport = connection.transport
                self._ports[host] = transport.request_port_forward(_LOOPBACK, port, on_connection)
                return
            except (SSHException, EOFError, OSError) as error:
                # The first request is not repeated, because the server refuses it for good. A port of an
                # earlier connection may still be in use until the server notices the end of that one.
                if not port:
                    reason = reason_of(error)
                    if isinstance(error, SSHException):  # The server refuses, without a reason.
                        reason = "it forwards no ports (AllowTcpForwarding, PermitListen)"
                    self._joined.say_once(f"{host}: its ssh server opens no port for its tasks: {reason}")
                    return
            if time.monotonic() > deadline:
                text = f"port {port} there, forwarded to this machine for its tasks, cannot be opened again"
                self._joined.say_once(f"{host}: {text}")
                return
            self._joined.closing.wait(_RETRY_PAUSE_SECONDS)

    def _forward(self, host: str, channel: Channel) -> None:
        """Serve one connection to the port of a host, until it ends.

        Args:
            host: The name of the host.
            channel: The channel of the connection.
        """
        local_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if not self._joined.add(host, local_socket):
                text = f"more than {MAX_CONNECTIONS} connections at a time to this machine: refused"
                self._joined.say_once(f"{host}: {text}")
            elif self._connect_local(local_socket, host):
                self._joined.join(local_socket, channel)
        except OSError:  # The program on this machine has closed the connection.
            pass
        except TransportError as error:
            self._say_refused(host, error)
        finally:
            self._joined.end(host, local_socket, channel)

    def _connect_local(self, local_socket: socket.socket, host: str) -> bool:
        """Connect a socket to the program on this machine, and return whether that succeeded.

        If not, tell the user. If `close` was called meanwhile, the socket is not to be used, either.

        Args:
            local_socket: The socket.
            host: The name of the host whose task wants the connection, for messages.
        """
        try:
            connect_unix(local_socket, self._path, _CONNECT_TIMEOUT_SECONDS)
        except OSError as error:
            self._joined.say_once(f"{host}: cannot connect its tasks to {self._path}: {reason_of(error)}")
            return False
        local_socket.settimeout(None)
        return not self._joined.closing.is_set()

    def _say_refused(self, host: str, why: TransportError) -> None:
        """Tell the user that a connection to the port of a host was closed at once."""
        self._joined.say_once(f"{host}: a connection of its tasks to this machine was refused: {why}")

    def close(self) -> None:
        """End all connections. The ports go with the connections to the hosts."""
        self._joined.close()
