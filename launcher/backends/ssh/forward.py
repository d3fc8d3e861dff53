"""Forwards a port of this machine to a port of a host, as ``ssh -L`` does, for TensorBoard on a host.

::

    browser ══ 127.0.0.1:PORT here ══ a thread ══ connection ══ ssh server ══ 127.0.0.1:PORT on the host
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from paramiko import Channel, ChannelException, SSHException

from launcher.agent.ports import first_free
from launcher.backends.ssh.connection import PROHIBITED, SshConnection
from launcher.backends.ssh.joined import JoinedSockets, close_socket
from launcher.backends.ssh.options import reason_of
from launcher.common.errors import ConnectionLostError, TransportError

#: The largest number of connections at a time. Further ones are closed at once.
MAX_CONNECTIONS = 32
#: The time for the host to open a connection.
_OPEN_TIMEOUT_SECONDS = 10.0
#: The pause before the next connection is accepted after a failure.
_RETRY_PAUSE_SECONDS = 0.25
_LOOPBACK = "127.0.0.1"

#: A function that returns the connection to a host, or raises a ConnectionLostError if there is none.
GetConnection = Callable[[str], SshConnection]


class Forward:
    """A port of this machine that is forwarded to a port of a host.

    If the connection to the host is lost, the connections to the port end. Later ones use the new connection.

    Args:
        connection: Returns the present connection to a host.
        target: The name of the host, and its port. It may be changed later.
        preferred: The ports of this machine to try first.

    Raises:
        TransportError: This machine has no free port, or no thread is left.
    """

    def __init__(self, connection: GetConnection, target: tuple[str, int], preferred: Sequence[int]) -> None:
        """Listen on a port of this machine, and serve its connections in threads."""
        self._get_connection = connection
        #: The name of the host to which new connections lead, and its port.
        self.target = target
        #: The connections to the port, each joined to a channel that leads to the host.
        self._joined = JoinedSockets("ssh forward", MAX_CONNECTIONS)
        try:
            self._listener = first_free(preferred, _listen) or _listen(0)  # 0 means any free port.
            self.port = int(self._listener.getsockname()[1])
            self._joined.begin(self._accept)
        except OSError as error:
            raise TransportError(f"this machine has no port for it: {reason_of(error)}") from error
        except TransportError:
            self._listener.close()
            raise

    def close(self) -> None:
        """End all connections, and close the port."""
        # This comes first, so that the thread does not mistake the closed listener for a failure.
        self._joined.closing.set()
        close_socket(self._listener)
        self._joined.close()

    def _accept(self) -> None:
        """Accept connections to the port, and serve each in a thread, until `close`."""
        while not self._joined.closing.is_set():
            try:
                sock, _ = self._listener.accept()  # Which client of this machine it is does not matter.
            except OSError:  # `close` was called, or no descriptor is left.
                self._joined.closing.wait(_RETRY_PAUSE_SECONDS)
                continue
            host, _ = self.target
            if not self._joined.add(host, sock):  # The host has too many connections.
                sock.close()
                continue
            try:
                self._joined.begin(self._serve, sock, host)
            except TransportError as error:
                self._say_refused(error)
                self._joined.end(host, sock, None)

    def _serve(self, sock: socket.socket, host: str) -> None:
        """Serve one connection to the port, until it ends.

        Args:
            sock: The socket of the connection.
            host: The name of the host to which it leads.
        """
        channel = None
        try:
            channel = self._open_channel()
            if channel is not None:
                self._joined.join(sock, channel)
        except OSError:  # The browser has closed the connection.
            pass
        except TransportError as error:
            self._say_refused(error)
        finally:
            self._joined.end(host, sock, channel)

    def _say_refused(self, why: TransportError) -> None:
        """Tell the user that a connection to the port was closed at once."""
        self._joined.say_once(f"a connection to port {self.port} of this machine was refused: {why}")

    def _open_channel(self) -> Channel | None:
        """Return a new channel that leads to the port of the host, or None if there is none now.

        Nothing may listen on that port yet, so only a server that forbids forwarding is reported.
        """
        host, port = self.target
        target, source = (_LOOPBACK, port), (_LOOPBACK, self.port)
        try:
            transport = self._get_connection(host).transport
            return transport.open_channel("direct-tcpip", target, source, timeout=_OPEN_TIMEOUT_SECONDS)
        except ChannelException as error:
            if error.code == PROHIBITED:
                text = f"{host}: port {self.port} of this machine cannot be forwarded to it: its ssh server"
                options = "(AllowTcpForwarding, PermitOpen)"
                self._joined.say_once(f"{text} forbids connections to its own ports {options}")
        except (ConnectionLostError, SSHException, EOFError, OSError):  # There is no connection now.
            pass
        return None


def _listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of the loopback address."""
    return socket.create_server((_LOOPBACK, port))
