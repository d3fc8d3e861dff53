"""Forwards a port of this machine to a port of a host, as ``ssh -L`` does.

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

#: Largest number of connections at a time; further ones are closed at once.
MAX_CONNECTIONS = 32
#: Seconds for the host to open a connection; before the next one is accepted after a failure.
_OPEN_TIMEOUT_SECONDS = 10.0
_RETRY_PAUSE_SECONDS = 0.25
_LOOPBACK = "127.0.0.1"

#: Returns the connection to a host. Raises ConnectionLostError: there is none.
ConnectionOf = Callable[[str], SshConnection]


class Forward:
    """A port of this machine, forwarded to a host.

    A lost connection to the host ends the connections to the port; later ones use the new connection.

    Args:
        connection: Returns the present connection.
        target: The host, and its port.
        preferred: Ports to try first.

    Raises:
        TransportError: This machine has no port, or no thread left.
    """

    def __init__(self, connection: ConnectionOf, target: tuple[str, int], preferred: Sequence[int]) -> None:
        self._connection = connection
        self.target = target
        self._joined = JoinedSockets("ssh forward", MAX_CONNECTIONS)
        try:
            self._listener = first_free(preferred, _listen) or _listen(0)
            self.port = int(self._listener.getsockname()[1])
            self._joined.begin(self._accept)
        except OSError as error:
            raise TransportError(f"this machine has no port for it: {reason_of(error)}") from error
        except TransportError:
            self._listener.close()
            raise

    def close(self) -> None:
        """End all connections, and close the port."""
        self._joined.closing.set()  # before the thread sees that it cannot accept connections any more
        close_socket(self._listener)
        self._joined.close()

    def _accept(self) -> None:
        while not self._joined.closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:  # `close` was called, or no descriptor is left
                self._joined.closing.wait(_RETRY_PAUSE_SECONDS)
                continue
            host = self.target[0]
            if not self._joined.add(host, sock):
                sock.close()
                continue
            try:
                self._joined.begin(self._serve, sock, host)
            except TransportError as error:
                self._refused(error)
                self._joined.end(host, sock, None)

    def _serve(self, sock: socket.socket, host: str) -> None:
        """Serve one connection to the port."""
        channel = None
        try:
            channel = self._channel()
            if channel is not None:
                self._joined.join(sock, channel)
        except OSError:  # the browser has closed the connection
            pass
        except TransportError as error:
            self._refused(error)
        finally:
            self._joined.end(host, sock, channel)

    def _refused(self, why: TransportError) -> None:
        """Say that a connection to the port was closed at once."""
        self._joined.say_once(f"a connection to port {self.port} of this machine was refused: {why}")

    def _channel(self) -> Channel | None:
        """A connection from the host to its port; ``None``: there is none now."""
        host, port = self.target
        target = (_LOOPBACK, port)
        try:
            transport = self._connection(host).transport
            return transport.open_channel(
                "direct-tcpip", target, (_LOOPBACK, self.port), timeout=_OPEN_TIMEOUT_SECONDS
            )
        except ChannelException as error:  # nothing listens there yet, or the server forbids it
            if error.code == PROHIBITED:
                why = "its ssh server forbids connections to its own ports (AllowTcpForwarding, PermitOpen)"
                self._joined.say_once(
                    f"{host}: port {self.port} of this machine cannot be forwarded to it: {why}"
                )
        except (ConnectionLostError, SSHException, EOFError, OSError):
            pass
        return None


def _listen(port: int) -> socket.socket:
    return socket.create_server((_LOOPBACK, port))
