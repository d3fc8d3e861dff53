"""The SSH connections of a launch: made in parallel, then used to run programs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager

from launcher.errors import ConnectionLost, HostsError, TransportError
from launcher.job import Host
from launcher.transports import bootstrap
from launcher.transports.base import for_each
from launcher.transports.ssh import SshSettings
from launcher.transports.ssh.connection import Connection, Connector
from launcher.transports.ssh.options import Hop, HostFailure, host_options, parse_hop, unexpected
from launcher.transports.ssh.program import SshProgram
from launcher.transports.ssh.relay import Relay

#: Seconds before the second attempt, the third, and each later one.
_PAUSES = (0.3, 1.0, 2.0)
#: Seconds for the threads of closed connections to end.
_LAST_WAIT = 2.0
#: Seconds for which a connection counts as new: less than the time after which a silent one is lost.
_NEW = 4.0
#: The Python of our programs on a host for which the user names none.
_PYTHON = "python3"


class SshHosts(AbstractContextManager["SshHosts"]):
    """The connections of a launch, one for each host, as a context, at whose end all are closed.

    Args:
        hosts: with different names.
        settings: of the connections.
        notice: gets lines for the user: hosts that are slow, keys that were added.
    """

    def __init__(self, hosts: Iterable[Host], settings: SshSettings, notice: Callable[[str], None]) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._settings = settings
        self._notice = notice
        self._connector = Connector(settings)
        self._connections: dict[str, Connection] = {}
        self._lock = threading.Lock()
        #: Connections to gateways, by the names of the gateways up to each; made once, for all hosts.
        self._gateways: dict[tuple[str, ...], Future[Connection]] = {}
        #: When the current connection of a host was made, if it is not the first one.
        self._made_at: dict[str, float] = {}
        self._reconnecting = {name: threading.Lock() for name in self._hosts}
        self._relay: Relay | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections, and all attempts to connect."""
        if self._relay is not None:
            self._relay.close()
        self._connector.close()
        deadline = time.monotonic() + _LAST_WAIT
        for connection in self._connections.values():
            connection.transport.join(max(0.0, deadline - time.monotonic()))
        self._connections.clear()

    # ------------------------------------------------------------------ connecting

    def connect(self) -> None:
        """Connect to all hosts.

        Raises:
            HostsError: hosts can't be connected to; it has the reason for each. The others stay connected.
        """
        step, fanout = "connecting over SSH", self._settings.fanout
        zipping = threading.Thread(target=bootstrap.zipped, args=(bootstrap.AGENT_MODULES,))
        zipping.start()  # once, before the programs need it
        self._connections, failed = for_each(self._hosts, self._connect_host, self._notice, step, fanout)
        zipping.join()
        for line in self._connector.known.added:
            self._notice(line)
        if failed:
            raise HostsError([f"{name}: {failure}" for name, failure in failed.items()])

    def _connect_host(self, name: str, attempts: int = 0) -> Connection:
        """Connect to a host, with several attempts; the hostfile's user and port override ssh_config.

        Args:
            name: of the host.
            attempts: the largest number; 0: that of the settings.

        Raises:
            TransportError: no connection; a line that begins with the host's name.
        """
        host = self._hosts[name]
        attempts = attempts or self._settings.attempts
        for attempt in range(1, attempts + 1):
            try:
                return self._connect_once(Hop(name, host.user, host.port), (), (name,))
            except HostFailure as failure:
                if not failure.may_pass or attempt == attempts:
                    tried = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise TransportError(f"{name}: {failure}{tried}") from failure
            except Exception as error:  # noqa: BLE001 - the other hosts are reported too
                raise TransportError(f"{name}: {unexpected(error)}") from error
            if self._connector.closed.wait(_PAUSES[min(attempt, len(_PAUSES)) - 1]):
                break
        raise TransportError(f"{name}: connecting was stopped")

    def _connect_once(self, hop: Hop, before: tuple[str, ...], trail: tuple[str, ...]) -> Connection:
        """Connect to one host.

        Args:
            hop: the host, as the user wrote it.
            before: the gateways before it in a ``ProxyJump``; empty: those of its own ``ProxyJump``.
            trail: the hosts that wait for this connection.
        """
        options = host_options(hop)
        before = before or options.gateways
        if before and before[-1] in trail:
            way = " -> ".join((*trail, before[-1]))
            raise HostFailure(f"ProxyJump in ~/.ssh/config goes in a circle: {way}")
        gateway = self._gateway(before, (*trail, before[-1])) if before else None
        return self._connector.connect(options._replace(gateways=before), gateway)

    def _gateway(self, hops: tuple[str, ...], trail: tuple[str, ...]) -> Connection:
        """The connection to the last of these gateways.

        The first thread that needs the connection makes it; other threads wait for its result or failure.
        """
        with self._lock:
            future = self._gateways.get(hops)
            useless = future and future.done() and (future.exception() or not future.result().alive)
            if mine := future is None or bool(useless):
                future = self._gateways[hops] = Future()
        assert future is not None
        if mine:
            try:
                future.set_result(self._connect_once(parse_hop(hops[-1]), hops[:-1], trail))
            except HostFailure as failure:
                future.set_exception(HostFailure(f"its gateway {hops[-1]}: {failure}", failure.may_pass))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

    def reconnect(self, host: str) -> None:
        """Connect to a host again, and close the old connection. Any thread may call it.

        A new connection that is alive stays: another link to the host has just made it.

        Raises:
            TransportError: no connection can be made now.
        """
        with self._reconnecting[host]:
            if self.is_alive(host) and time.monotonic() < self._made_at.get(host, 0.0) + _NEW:
                return
            old = self._connections.pop(host, None)
            if old is not None:
                old.abort()
            self._connections[host] = connection = self._connect_host(host, attempts=1)
            self._made_at[host] = time.monotonic()
            if self._relay is not None:
                self._relay.renew(connection)

    # ------------------------------------------------------------------ connected

    def connection(self, host: str) -> Connection:
        """The connection to a host.

        Raises:
            ConnectionLost: there is none.
        """
        connection = self._connections.get(host)
        if connection is None:
            raise ConnectionLost(f"{host}: there is no connection to it")
        if not connection.alive:
            raise ConnectionLost(connection.why_broken())
        return connection

    def is_alive(self, host: str) -> bool:
        """Whether the connection to a host exists, as far as this machine knows."""
        connection = self._connections.get(host)
        return connection is not None and connection.alive

    def run(self, host: str, entry: str, arguments: object) -> SshProgram:
        """See `launcher.transports.base.Hosts.run`."""
        connection, python = self.connection(host), self.python(host)
        return SshProgram(connection, python, bootstrap.startup(python, entry, arguments))

    def python(self, host: str) -> str:
        """The Python that runs our programs on a host.

        It is the host's ``python`` if that is a name, an absolute path or a path below ``~/``; else it is
        ``python3``, as a path relative to the working folder of the tasks may not exist yet.
        """
        python = self._hosts[host].python or _PYTHON
        return _PYTHON if "/" in python and not python.startswith(("/", "~/")) else python

    def relay(self, path: str, notice: Callable[[str], None]) -> dict[str, int]:
        """Forward a port of every host to a Unix socket here, until the connections end.

        Args:
            path: of the socket.
            notice: gets a line if that fails; called by any thread.

        Returns:
            The ports, by host, each on its host's loopback address.
        """
        self._relay = Relay(path, notice)
        return self._relay.open(self._connections, self._notice)
