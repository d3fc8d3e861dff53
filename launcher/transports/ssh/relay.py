"""Ports on the hosts that lead to a Unix socket of this machine: ``ssh -R``.

::

    task ══ 127.0.0.1:PORT on its host ══ ssh server ══ connection ══ a thread here ══ Unix socket ══ program

A connection keeps one piece in each direction; the rest waits in the window of its channel and in the socket.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from paramiko import Channel, SSHException

from launcher.text import listed
from launcher.transports.ssh.connection import Connection
from launcher.transports.ssh.options import reason_of
from launcher.transports.ssh.program import Pump, close_channel

#: Connections through one host at a time; others are closed at once.
MOST_CONNECTIONS = 64
#: Seconds that hosts may take to open the port, and until the user sees which ones do.
OPEN_LIMIT, _NOTICE = 10.0, 2.0
#: Seconds in which the port of a lost connection is asked for again, and between two attempts: its old server
#: process may still hold the port.
RENEW_LIMIT, _RETRY = 60.0, 0.25
#: Seconds for the program here to accept a connection, and for threads to end.
_CONNECT_LIMIT, _LAST_WAIT = 10.0, 2.0
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
        threads = {
            host: _thread(partial(self._request, connection, 0)) for host, connection in connections.items()
        }
        began = time.monotonic()
        for limit in (_NOTICE, OPEN_LIMIT):
            for thread in threads.values():
                thread.join(max(0.0, began + limit - time.monotonic()))
            late = [host for host, thread in threads.items() if thread.is_alive()]
            if late and limit == _NOTICE:
                notice(f"waiting for the ssh server of {listed(late)} to open a port")
        for host in late:
            self._notify_once(f"{host}: its ssh server opened no port for its tasks in {OPEN_LIMIT:.0f} s")
        with self._lock:
            return dict(self._ports)

    def renew(self, connection: Connection) -> None:
        """Ask a host that was connected to again for the same port. Does not wait."""
        with self._lock:
            port = self._ports.get(connection.host)
        if port is not None:
            _thread(partial(self._request, connection, port))

    def _request(self, connection: Connection, port: int) -> None:
        """Ask for a port, 0: any; for one that was open before, again and again."""

        def arrived(channel: Channel, *_: object) -> None:
            _thread(partial(self._carry, host, channel))  # paramiko's thread must not wait

        host, deadline = connection.host, time.monotonic() + RENEW_LIMIT
        while connection.alive and not self._closing.is_set():
            try:
                opened = connection.transport.request_port_forward(_LOOPBACK, port, arrived)
            except (SSHException, EOFError, OSError) as error:
                if not port:
                    self._notify_once(f"{host}: its ssh server opens no port for its tasks: {_why(error)}")
                    return
                if time.monotonic() > deadline:
                    text = f"port {port} there, which leads its tasks to this machine, can't be opened again"
                    self._notify_once(f"{host}: {text}")
                    return
                self._closing.wait(_RETRY)
                continue
            with self._lock:
                self._ports[host] = opened
            return

    def _carry(self, host: str, channel: Channel) -> None:
        """One connection to the port, from its begin to its end."""
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
                Pump(channel, here, lambda _: None, self._closing).run()
        except (SSHException, EOFError, OSError):  # the connection to the host broke
            pass
        finally:
            with self._lock:
                carried.discard(here)
            here.close()
            close_channel(channel)

    def _is_connected(self, here: socket.socket, host: str) -> bool:
        here.settimeout(_CONNECT_LIMIT)
        try:
            here.connect(self._path)
        except OSError as error:
            self._notify_once(f"{host}: its tasks can't be led to {self._path}: {_why(error)}")
            return False
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
            for carried in self._open.values():
                for here in carried:
                    try:
                        here.shutdown(socket.SHUT_RDWR)
                    except OSError:  # not connected yet
                        pass


def _thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, name="ssh relay", daemon=True)
    thread.start()
    return thread


def _why(error: Exception) -> str:
    if isinstance(error, SSHException):
        return "it does not forward them (AllowTcpForwarding, PermitListen)"
    return reason_of(error)
