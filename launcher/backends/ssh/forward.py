"""Forwards a port of this machine to a port of a host, as ``ssh -L`` does.

::

    browser ══ 127.0.0.1:PORT here ══ a thread ══ connection ══ ssh server ══ 127.0.0.1:PORT on the host
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from paramiko import Channel, ChannelException, SSHException

from launcher.agent.ports import first_free
from launcher.backends.ssh.connection import PROHIBITED, SshConnection
from launcher.backends.ssh.options import reason_of
from launcher.backends.ssh.program import close_channel, close_socket, join_both, start_thread
from launcher.common.errors import ConnectionLostError, TransportError
from launcher.messages import say

#: Largest number of connections at a time; further ones are closed at once.
MAX_CONNECTIONS = 32
#: Seconds for the host to open a connection; before the next one is accepted after a failure.
_OPEN_TIMEOUT_SECONDS = 10.0
_RETRY_PAUSE_SECONDS = 0.25
_LOOPBACK = "127.0.0.1"


class Forward:
    """A port of this machine, forwarded to a host.

    A lost connection to the host ends the connections to the port; later ones use the new connection.

    Args:
        connection: gives the connection to a host; raises ConnectionLostError.
        target: the host, and its port.
        preferred: ports to try first.

    Raises:
        TransportError: this machine has no port, or no thread left.
    """

    def __init__(
        self,
        connection: Callable[[str], SshConnection],
        target: tuple[str, int],
        preferred: Sequence[int],
    ) -> None:
        self._connection = connection
        self.target = target
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._said: set[str] = set()
        self._closing = threading.Event()
        try:
            self._listener = first_free(preferred, _listen) or _listen(0)
            self.port = int(self._listener.getsockname()[1])
            start_thread("ssh forward", self._accept)
        except OSError as error:
            raise TransportError(f"this machine has no port for it: {reason_of(error)}") from error
        except TransportError:
            self._listener.close()
            raise

    def close(self) -> None:
        """End all connections, and close the port."""
        self._closing.set()
        close_socket(self._listener)
        with self._lock:
            open_here = list(self._open)
        for sock in open_here:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:  # `close` was called, or no descriptor is left
                self._closing.wait(_RETRY_PAUSE_SECONDS)
                continue
            with self._lock:
                accepted = len(self._open) < MAX_CONNECTIONS and not self._closing.is_set()
                if accepted:
                    self._open.add(sock)
            try:
                if accepted:
                    start_thread("ssh forward", self._serve, sock)
                    continue
            except TransportError as error:
                self._refused(error)
                with self._lock:
                    self._open.discard(sock)
            sock.close()

    def _serve(self, sock: socket.socket) -> None:
        """Serve one connection to the port."""
        channel = None
        try:
            channel = self._channel()
            if channel is not None:
                join_both("ssh forward", sock, channel)
        except OSError:  # the browser has closed the connection
            pass
        except TransportError as error:
            self._refused(error)
        finally:
            with self._lock:
                self._open.discard(sock)
            if channel is not None:
                close_channel(channel)
            close_socket(sock)

    def _refused(self, why: TransportError) -> None:
        """Say that a connection to the port was closed at once."""
        self._say_once(f"a connection to port {self.port} of this machine was refused: {why}")

    def _say_once(self, text: str) -> None:
        with self._lock:
            is_new = text not in self._said
            self._said.add(text)
        if is_new:
            say(text)

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
                self._say_once(f"{host}: port {self.port} of this machine can't be forwarded to it: {why}")
        except (ConnectionLostError, SSHException, EOFError, OSError):
            pass
        return None


def _listen(port: int) -> socket.socket:
    return socket.create_server((_LOOPBACK, port))
