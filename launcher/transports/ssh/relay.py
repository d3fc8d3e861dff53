"""Ports on the hosts that lead to a Unix socket of this machine: ``ssh -R``.

::

    task ══ 127.0.0.1:PORT on its host ══ ssh server ══ connection ══ a thread here ══ Unix socket ══ program
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from paramiko import Channel, SSHException

from launcher.transports.base import for_each
from launcher.transports.ssh.connection import Connection
from launcher.transports.ssh.options import reason_of
from launcher.transports.ssh.program import close_channel, close_socket, receive_into, send_from, start_thread

#: Connections through one host at a time; others are closed at once.
MOST_CONNECTIONS = 64
#: Seconds in which the port of a lost connection is asked for again, and between two attempts: its old server
#: process may still hold the port.
_RENEW_LIMIT, _RETRY = 60.0, 0.25
#: Seconds for the program here to accept a connection.
_CONNECT_LIMIT = 10.0
_LOOPBACK = "127.0.0.1"


class Relay:
    """The ports of all hosts.

    Args:
        path: of the Unix socket here.
        notify: gets a line for the user; called by any thread.
    """

    def __init__(self, path: str, notify: Callable[[str], None]) -> None:
        self._path = path
        self._notify = notify
        self._lock = threading.Lock()
        self._ports: dict[str, int] = {}
        self._open: dict[str, set[socket.socket]] = {}
        self._notified: set[str] = set()
        self._closing = threading.Event()

    def open(self, connections: Mapping[str, Connection], notice: Callable[[str], None]) -> dict[str, int]:
        """Ask every host for a port, all at once; the user sees which ones give none.

        Args:
            connections: by host.
            notice: gets a line when that takes long.

        Returns:
            The ports, by host.
        """
        for_each(connections, lambda host: self._request(connections[host]), notice, "opening a port")
        return dict(self._ports)

    def renew(self, connection: Connection) -> None:
        """Ask a host that was connected to again for the same port. Does not wait."""
        if connection.host in self._ports:
            start_thread("ssh relay", self._request, connection)

    def _request(self, connection: Connection) -> None:
        """Ask for a port; for the one that was open before, again and again."""

        def arrived(channel: Channel, *_: object) -> None:
            start_thread("ssh relay", self._carry, host, channel)  # paramiko's thread must not wait

        host, deadline = connection.host, time.monotonic() + _RENEW_LIMIT
        port = self._ports.get(host, 0)
        while connection.alive and not self._closing.is_set():
            try:
                self._ports[host] = connection.transport.request_port_forward(_LOOPBACK, port, arrived)
                return
            except (SSHException, EOFError, OSError) as error:
                if not port:
                    why = "it does not forward them (AllowTcpForwarding, PermitListen)"
                    why = why if isinstance(error, SSHException) else reason_of(error)
                    self._notify_once(f"{host}: its ssh server opens no port for its tasks: {why}")
                    return
            if time.monotonic() > deadline:
                text = f"port {port} there, which leads its tasks to this machine, can't be opened again"
                self._notify_once(f"{host}: {text}")
                return
            self._closing.wait(_RETRY)

    def _carry(self, host: str, channel: Channel) -> None:
        """Serve one connection to the port."""
        here = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with self._lock:
            carried = self._open.setdefault(host, set())
            full = len(carried) >= MOST_CONNECTIONS
            if not full:
                carried.add(here)
        try:
            if full:
                text = f"more than {MOST_CONNECTIONS} connections at a time to this machine: refused"
                self._notify_once(f"{host}: {text}")
            elif self._is_connected(here, host):
                sender = start_thread("ssh relay", send_from, here, channel)
                if receive_into(channel, here, sender):
                    here.shutdown(socket.SHUT_WR)
                    channel.recv_exit_status()  # waits until both directions have ended
        except OSError:  # the program here has closed the connection
            pass
        finally:
            with self._lock:
                carried.discard(here)
            close_channel(channel)
            close_socket(here)

    def _is_connected(self, here: socket.socket, host: str) -> bool:
        here.settimeout(_CONNECT_LIMIT)
        try:
            here.connect(self._path)
        except OSError as error:
            self._notify_once(f"{host}: its tasks can't be led to {self._path}: {reason_of(error)}")
            return False
        here.settimeout(None)
        return not self._closing.is_set()

    def _notify_once(self, text: str) -> None:
        with self._lock:
            is_new = text not in self._notified and not self._closing.is_set()
            self._notified.add(text)
        if is_new:
            self._notify(text)

    def close(self) -> None:
        """End all connections; the ports go with the connections to the hosts."""
        self._closing.set()
        with self._lock:
            carried = [here for open_here in self._open.values() for here in open_here]
        for here in carried:
            with suppress(OSError):  # not connected yet
                here.shutdown(socket.SHUT_RDWR)
