"""The SSH connections of a launch: they are made in parallel, and then run programs and forward ports.

`launcher.backends.ssh.allocation` opens them. While the first servers answer, this module imports paramiko,
so it must not import it itself.
"""

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

if TYPE_CHECKING:  # Most of these modules import paramiko.
    from launcher.backends.programs import RemoteProgram
    from launcher.backends.ssh.connection import SshConnection
    from launcher.backends.ssh.connector import SshConnector
    from launcher.backends.ssh.forward import Forward
    from launcher.backends.ssh.relay import Relay

#: The pauses before the second attempt, the third, and each later one.
_ATTEMPT_PAUSES_SECONDS = (0.3, 1.0, 2.0)
#: The time for the threads of closed connections to end.
_LAST_WAIT_SECONDS = 2.0
#: The time for which a connection counts as new. It is less than the time after which a silent one is lost.
_NEW_SECONDS = 4.0


class SshConnections(Connections, AbstractContextManager["SshConnections"]):
    """The connections of a launch, one for each host, as a context that closes all of them at its end.

    It is also the `launcher.backends.connections.Forwarding` through them.

    Args:
        hosts: Hosts with different names.
        settings: The settings of the launch.
        attempts: How often a host is tried at first. A permanent failure is not tried again.
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
        #: The connections to gateways, by the names of the gateways up to each. All hosts share them.
        self._gateways: dict[tuple[str, ...], Future[SshConnection]] = {}
        # These times include those of the connections to gateways.
        self.login_seconds: dict[str, float] = {}
        self.forwarding = self
        #: When the present connection to a host was made (monotonic). It lacks hosts with their first one.
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
        # This closes the sockets of all connections, also of those that are being made, without waiting.
        if self._connector is not None:
            self._connector.close()
        with self._lock:
            proxies = list(self._proxies)
        for proxy in proxies:  # The connector knows a ProxyCommand only from the beginning of its handshake.
            proxy.close()
        # Without its socket, the thread of a connection ends by itself.
        deadline = time.monotonic() + _LAST_WAIT_SECONDS
        for connection in list(self._connections.values()):
            connection.transport.join(max(0.0, deadline - time.monotonic()))
        self._connections.clear()

    # ------------------------------------------------------------------ connecting

    def connect(self) -> Mapping[str, str]:
        """Connect to all hosts, as many as possible.

        Returns:
            `failed`: the reason for each host that could not be connected to.

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
        for line in self._get_connector().known.added:
            say(line)
        return self.failed

    def _prepare(self) -> None:
        """Do what needs processor time and what all hosts need, while servers answer."""
        with suppress(ImportError, OSError):  # The threads of the hosts report it.
            self._get_connector()
            bootstrap.packed(bootstrap.AGENT_MODULES)

    def _get_connector(self) -> SshConnector:
        """Return what makes connections with paramiko, and import paramiko first if nobody has."""
        with self._importing:
            if self._connector is None:
                from launcher.backends.ssh.connector import SshConnector  # noqa: PLC0415 - with paramiko

                self._connector = SshConnector(self._closed, accept_new=self._settings[ACCEPT_NEW_HOST_KEYS])
            return self._connector

    def _connect_host(self, name: str, attempts: int) -> SshConnection:
        """Connect to a host, in several attempts. The hostfile's user and port override ssh_config.

        Args:
            name: The name of the host.
            attempts: The largest number of attempts.

        Raises:
            TransportError: No attempt succeeds. The message begins with the name of the host.
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
            except Exception as error:  # noqa: BLE001 - the other hosts are reported, too
                raise TransportError(f"{name}: {unexpected(error)}") from error
            if self._closed.wait(_ATTEMPT_PAUSES_SECONDS[min(attempt, len(_ATTEMPT_PAUSES_SECONDS)) - 1]):
                break
        raise TransportError(f"{name}: connecting was stopped")

    def _connect_once(self, host: Host, before: tuple[str, ...], trail: tuple[str, ...]) -> SshConnection:
        """Connect to one host, through its gateways if it has some.

        Args:
            host: The host, or a gateway, as the user wrote it.
            before: The gateways before it in a ``ProxyJump``. Empty means the gateways of its own
                ``ProxyJump``.
            trail: The names of the hosts that wait for this connection.

        Raises:
            SshError: The host cannot be connected to, or the gateways form a circle.
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
        opening_seconds = time.monotonic() - began
        connection = self._get_connector().connect(replace(options, gateways=before), opened, seconds)
        connection.login_seconds += gateway.login_seconds if gateway else opening_seconds
        return connection

    def _open_way(self, options: HostOptions, seconds: float) -> ProxyCommand | socket.socket:
        """Start the ProxyCommand of a host, or connect to its server by TCP if it has none.

        Raises:
            SshError: That fails.
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
        """Return the connection to the last of these gateways.

        The first thread that needs the connection makes it. Other threads wait for its result or failure.
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
        """Connect to a host again, and close the old connection. Any thread may call this.

        A new connection that is alive stays, because another link to the host has just made it.

        Raises:
            TransportError: No connection can be made now.
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
        """Return the live connection to a host.

        Raises:
            ConnectionLostError: There is none.
        """
        connection = self._connections.get(host)
        if connection is None:
            raise ConnectionLostError(f"{host}: there is no connection to it")
        if not connection.is_alive:
            raise ConnectionLostError(connection.why_broken())
        return connection

    def is_alive(self, host: str) -> bool:
        """Return whether the connection to a host exists, as far as this machine knows."""
        connection = self._connections.get(host)
        return connection is not None and connection.is_alive

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Start a program on a host, in a channel of the connection to the host."""
        from launcher.backends.ssh.program import start_ssh_program  # noqa: PLC0415 - with paramiko

        connection, python = self.connection(host), self.python(host)
        startup = bootstrap.startup(python, entry, arguments)
        return start_ssh_program(connection, python, startup)

    def python(self, host: str) -> str:
        """Return the Python that runs our programs on a host.

        It is the host's ``python`` if that is a name, an absolute path or a path below ``~/``. Otherwise it
        is ``python3``, because a path relative to the working folder of the tasks may not exist yet.
        """
        python = self._hosts[host].python or DEFAULT_PYTHON
        return DEFAULT_PYTHON if "/" in python and not python.startswith(("/", "~/")) else python

    def relay(self, path: str) -> dict[str, int]:
        """Forward a port of each host to a Unix socket of this machine, until the connections end."""
        from launcher.backends.ssh.relay import Relay  # noqa: PLC0415 - with paramiko

        self._relay = Relay(path)
        return self._relay.open(self._connections)

    def local_port(self, host: str, port: int, preferred: Sequence[int]) -> int:
        """Return a port of this machine that leads to a port of a host, until `close`."""
        from launcher.backends.ssh.forward import Forward  # noqa: PLC0415 - with paramiko

        if self._forward is None:
            self._forward = Forward(self.connection, (host, port), preferred)
        self._forward.target = (host, port)
        return self._forward.port
