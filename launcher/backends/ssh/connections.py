"""The SSH connections of a launch: made in parallel, then used to run programs."""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from launcher.backends import bootstrap
from launcher.backends.connections import Connections, for_each
from launcher.backends.ssh.options import (
    HostOptions,
    Queries,
    SshError,
    account,
    host_options,
    parse_gateway,
    unexpected,
)
from launcher.backends.ssh.rows import ACCEPT_NEW_HOST_KEYS
from launcher.backends.ssh.sockets import ProxyCommand, tcp_socket
from launcher.common.errors import ConnectionLostError, TransportError
from launcher.common.record import replace
from launcher.config.settings import Settings
from launcher.config.table import CONNECT_TIMEOUT, FANOUT
from launcher.job import Host
from launcher.messages import say
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.threads import start

if TYPE_CHECKING:  # most of them import paramiko
    from launcher.backends.programs import RemoteProgram
    from launcher.backends.ssh.connection import SshConnection
    from launcher.backends.ssh.connector import SshConnector
    from launcher.backends.ssh.forward import Forward
    from launcher.backends.ssh.relay import Relay

#: Seconds before the second attempt, the third, and each later one.
_ATTEMPT_PAUSES_SECONDS = (0.3, 1.0, 2.0)
#: Seconds for the threads of closed connections to end.
_LAST_WAIT_SECONDS = 2.0
#: Seconds for which a connection counts as new: less than the time after which a silent one is lost.
_NEW_SECONDS = 4.0


class SshConnections(Connections, AbstractContextManager["SshConnections"]):
    """The connections of a launch, one for each host, as a context, at whose end all are closed.

    It forwards ports through them, see `launcher.backends.connections.Forwarding`.

    Args:
        hosts: with different names.
        settings: of the connections.
        attempts: for each host, the first time; a permanent failure is not tried again.
    """

    def __init__(self, hosts: Iterable[Host], settings: Settings, attempts: int = 3) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._settings, self._attempts = settings, attempts
        self._queries = Queries()
        self._connector: SshConnector | None = None
        self._closed = threading.Event()
        self._connections: dict[str, SshConnection] = {}
        self._proxies: weakref.WeakSet[ProxyCommand] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._importing = threading.Lock()
        #: Connections to gateways, by the names of the gateways up to each; made once, for all hosts.
        self._gateways: dict[tuple[str, ...], Future[SshConnection]] = {}
        #: A connection's seconds include those to its gateways.
        self.login_seconds: dict[str, float] = {}
        self.forwarding = self
        #: When the current connection of a host was made, if it is not the first one.
        self._made_at: dict[str, float] = {}
        self._reconnecting = {name: threading.Lock() for name in self._hosts}
        self._relay: Relay | None = None
        self._forward: Forward | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections, and all attempts to connect."""
        if self._relay is not None:
            self._relay.close()
        if self._forward is not None:
            self._forward.close()
        self._closed.set()
        if self._connector is not None:
            self._connector.close()
        with self._lock:
            proxies = list(self._proxies)
        for proxy in proxies:  # of which paramiko may have none yet
            proxy.close()
        deadline = time.monotonic() + _LAST_WAIT_SECONDS
        for connection in list(self._connections.values()):
            connection.transport.join(max(0.0, deadline - time.monotonic()))
        self._connections.clear()

    # ------------------------------------------------------------------ connecting

    def connect(self) -> Mapping[str, str]:
        """Connect to all hosts.

        Returns:
            `failed`. The others stay connected.

        Raises:
            SshError: No host can be connected to, because the user of this process has no account.
        """
        account()
        preparing = threading.Thread(target=self._prepare)
        try:
            start(preparing)
        except TransportError as error:
            self.failed = dict.fromkeys(self._hosts, str(error))
            return self.failed
        self._connections, self.failed = for_each(
            self._hosts,
            lambda name: self._connect_host(name, self._attempts),
            "connecting over SSH",
            self._settings[FANOUT],
        )
        preparing.join()
        for line in self._paramiko().known.added:
            say(line)
        return self.failed

    def _prepare(self) -> None:
        """Do what takes processor time and what all hosts need, while servers answer."""
        with suppress(ImportError, OSError):  # the threads of the hosts report it
            self._paramiko()
            bootstrap.packed(bootstrap.AGENT_MODULES)

    def _paramiko(self) -> SshConnector:
        """What makes connections with paramiko, which is imported while the first servers answer."""
        with self._importing:
            if self._connector is None:
                from launcher.backends.ssh.connector import SshConnector  # noqa: PLC0415 - with paramiko

                self._connector = SshConnector(self._closed, accept_new=self._settings[ACCEPT_NEW_HOST_KEYS])
            return self._connector

    def _connect_host(self, name: str, attempts: int) -> SshConnection:
        """Connect to a host, with several attempts; the hostfile's user and port override ssh_config.

        Args:
            name: of the host.
            attempts: the largest number.

        Raises:
            TransportError: no connection; a line that begins with the host's name.
        """
        host = self._hosts[name]
        for attempt in range(1, attempts + 1):
            try:
                connection = self._connect_once(host, (), (name,))
                self.login_seconds[name] = connection.login_seconds
                return connection
            except SshError as failure:
                if not failure.may_pass or attempt == attempts:
                    tried = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise TransportError(f"{name}: {failure}{tried}") from failure
            except Exception as error:  # noqa: BLE001 - the other hosts are reported too
                raise TransportError(f"{name}: {unexpected(error)}") from error
            if self._closed.wait(_ATTEMPT_PAUSES_SECONDS[min(attempt, len(_ATTEMPT_PAUSES_SECONDS)) - 1]):
                break
        raise TransportError(f"{name}: connecting was stopped")

    def _connect_once(self, host: Host, before: tuple[str, ...], trail: tuple[str, ...]) -> SshConnection:
        """Connect to one host.

        Args:
            host: the host, or a gateway, as the user wrote it.
            before: the gateways before it in a ``ProxyJump``; empty: those of its own ``ProxyJump``.
            trail: the hosts that wait for this connection.
        """
        options = host_options(host, self._queries)
        before = before or options.gateways
        if before and before[-1] in trail:
            way = " -> ".join((*trail, before[-1]))
            raise SshError(f"ProxyJump in ~/.ssh/config goes in a circle: {way}")
        gateway = self._gateway(before, (*trail, before[-1])) if before else None
        seconds = options.connect_timeout or self._settings[CONNECT_TIMEOUT]
        began = time.monotonic()
        opened = gateway or self._open_way(options, seconds)
        opening = time.monotonic() - began
        connection = self._paramiko().connect(replace(options, gateways=before), opened, seconds)
        connection.login_seconds += gateway.login_seconds if gateway else opening
        return connection

    def _open_way(self, options: HostOptions, seconds: float) -> ProxyCommand | socket.socket:
        """Start the ProxyCommand of a host, else connect to its server by TCP.

        Raises:
            SshError: that fails.
        """
        if not options.proxy_command:
            return tcp_socket(options, seconds)
        with self._lock:
            if self._closed.is_set():
                raise SshError("connecting was stopped")
            proxy = ProxyCommand(options.proxy_command)
            self._proxies.add(proxy)
        return proxy

    def _gateway(self, hops: tuple[str, ...], trail: tuple[str, ...]) -> SshConnection:
        """The connection to the last of these gateways.

        The first thread that needs the connection makes it; other threads wait for its result or failure.
        """
        with self._lock:
            future = self._gateways.get(hops)
            useless = future and future.done() and (future.exception() or not future.result().is_alive)
            if mine := future is None or bool(useless):
                future = self._gateways[hops] = Future()
        assert future is not None
        if mine:
            try:
                future.set_result(self._connect_once(parse_gateway(hops[-1]), hops[:-1], trail))
            except SshError as failure:
                future.set_exception(SshError(f"its gateway {hops[-1]}: {failure}", failure.may_pass))
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
            if self.is_alive(host) and time.monotonic() < self._made_at.get(host, 0.0) + _NEW_SECONDS:
                return
            old = self._connections.pop(host, None)
            if old is not None:
                old.abort()
            connection = self._connect_host(host, attempts=1)
            try:
                if self._relay is not None:
                    self._relay.renew(connection)
            except TransportError:
                connection.abort()
                raise
            self._connections[host] = connection
            self._made_at[host] = time.monotonic()

    # ------------------------------------------------------------------ connected

    def connection(self, host: str) -> SshConnection:
        """The connection to a host.

        Raises:
            ConnectionLostError: there is none.
        """
        connection = self._connections.get(host)
        if connection is None:
            raise ConnectionLostError(f"{host}: there is no connection to it")
        if not connection.is_alive:
            raise ConnectionLostError(connection.why_broken())
        return connection

    def is_alive(self, host: str) -> bool:
        """Whether the connection to a host exists, as far as this machine knows."""
        connection = self._connections.get(host)
        return connection is not None and connection.is_alive

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """See `launcher.backends.connections.ProgramRunner.run`."""
        from launcher.backends.ssh.program import start_ssh_program  # noqa: PLC0415 - with paramiko

        connection, python = self.connection(host), self.python(host)
        startup = bootstrap.startup(python, entry, arguments)
        return start_ssh_program(connection, python, startup)

    def python(self, host: str) -> str:
        """The Python that runs our programs on a host.

        It is the host's ``python`` if that is a name, an absolute path or a path below ``~/``; else it is
        ``python3``, as a path relative to the working folder of the tasks may not exist yet.
        """
        python = self._hosts[host].python or DEFAULT_PYTHON
        return DEFAULT_PYTHON if "/" in python and not python.startswith(("/", "~/")) else python

    def relay(self, path: str) -> dict[str, int]:
        """See `launcher.backends.connections.Forwarding.relay`: until the connections end."""
        from launcher.backends.ssh.relay import Relay  # noqa: PLC0415 - with paramiko

        self._relay = Relay(path)
        return self._relay.open(self._connections)

    def local_port(self, host: str, port: int, preferred: Sequence[int]) -> int:
        """See `launcher.backends.connections.Forwarding.local_port`: until `close`."""
        from launcher.backends.ssh.forward import Forward  # noqa: PLC0415 - with paramiko

        if self._forward is None:
            self._forward = Forward(self.connection, (host, port), preferred)
        self._forward.target = (host, port)
        return self._forward.port
