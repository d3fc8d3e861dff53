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
_NEW_CONNECTION_SECONDS = 4.0


class SshConnections(Connections, AbstractContextManager["SshConnections"]):
    """The connections of a launch, one for each host, as a context that closes all of them at its end.

    It is also the `launcher.backends.connections.Forwarding` through them.

    Args:
        hosts: Hosts with different names.
        settings: The settings of the launch.
        attempts: How often a host is tried at first. A permanent failure is not tried again.
    """

    def __init__(self, hosts: Iterable[Host], settings: Settings, attempts: int = 3) -> None:
        """Prepare to connect to these hosts. `connect` does so."""
        self._hosts = {host.name: host for host in hosts}
        self._settings, self._attempts = settings, attempts
        #: What asks ``ssh`` for the options of hosts.
        self._queries = Queries()
        #: What makes connections with paramiko. None until paramiko is imported, see `_get_connector`.
        self._connector: SshConnector | None = None
        #: It is set by `close`. Then all attempts to connect end.
        self._closed = threading.Event()
        #: The present connection to each host. It lacks hosts without one.
        self._connections: dict[str, SshConnection] = {}
        #: The ProxyCommands that may be running, which `close` ends.
        self._proxy_commands: weakref.WeakSet[ProxyCommand] = weakref.WeakSet()
        #: Guards the ProxyCommands and the gateways.
        self._lock = threading.Lock()
        #: Held while the connector is made, so that one thread imports paramiko.
        self._import_lock = threading.Lock()
        #: The connections to gateways, by the names of the gateways up to each. All hosts share them.
        self._gateways: dict[tuple[str, ...], Future[SshConnection]] = {}
        #: How many seconds connecting to each host took, including its gateways.
        self.login_seconds: dict[str, float] = {}
        #: What forwards ports, see `Connections.forwarding`.
        self.forwarding = self
        #: When the present connection to a host was made (monotonic). It lacks hosts that still have their
        #: first connection.
        self._reconnected_at: dict[str, float] = {}
        #: Held while a host is connected to again.
        self._reconnect_locks = {name: threading.Lock() for name in self._hosts}
        #: The ports of hosts that lead to this machine. None until `relay` is called.
        self._relay: Relay | None = None
        #: The port of this machine that leads to a host. None until `local_port` is called.
        self._forward: Forward | None = None

    def __exit__(self, *_: object) -> None:
        """Close all connections."""
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
            proxies = list(self._proxy_commands)
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
        account()  # This raises the error that every host would have.
        # While the servers answer, another thread imports paramiko and packs the modules of the agent, which
        # takes processor time and is needed for every host.
        preparing = threading.Thread(target=self._prepare)
        try:
            start(preparing)
        except TransportError as error:
            # If the system starts no thread, no host can be connected to: each needs a thread, too.
            self.failed = dict.fromkeys(self._hosts, str(error))
            return self.failed
        fanout, step = self._settings[FANOUT], "connecting over SSH"
        self._connections, self.failed = for_each(
            self._hosts, lambda name: self._connect_host(name, self._attempts), step, fanout
        )
        # The agents are started next. They need the packed modules, which would be packed a second time.
        preparing.join()
        for line in self._get_connector().known.added:  # The user is told about each host key that was added.
            say(line)
        return self.failed

    def _prepare(self) -> None:
        """Import paramiko and pack the modules of the agent, which every host needs, while servers answer."""
        with suppress(ImportError, OSError):  # The threads of the hosts report it.
            self._get_connector()
            bootstrap.packed(bootstrap.AGENT_MODULES)

    def _get_connector(self) -> SshConnector:
        """Return what makes connections with paramiko, and import paramiko first if nobody has."""
        with self._import_lock:
            if self._connector is None:
                from launcher.backends.ssh.connector import SshConnector  # noqa: PLC0415 - imports paramiko

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
                connection = self._try_to_connect(host, gateways=(), trail=(name,))
                self.login_seconds[name] = connection.login_seconds
                return connection
            except SshError as failure:
                if not failure.may_pass or attempt == attempts:
                    tried = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise TransportError(f"{name}: {failure}{tried}") from failure
            except Exception as error:  # noqa: BLE001 - the other hosts are reported, too
                raise TransportError(f"{name}: {unexpected(error)}") from error
            pauses = _ATTEMPT_PAUSES_SECONDS  # The last one precedes all later attempts.
            if self._closed.wait(pauses[min(attempt, len(pauses)) - 1]):
                break
        raise TransportError(f"{name}: connecting was stopped")

    def _try_to_connect(self, host: Host, gateways: tuple[str, ...], trail: tuple[str, ...]) -> SshConnection:
        """Connect to one host once, through its gateways if it has some.

        Args:
            host: The host, or a gateway, as the user wrote it.
            gateways: The gateways before it in a ``ProxyJump``. Empty means the gateways of its own
                ``ProxyJump``.
            trail: The names of the hosts that wait for this connection, by which a circle is noticed.

        Raises:
            SshError: The host cannot be connected to, or the gateways form a circle.
        """
        options = host_options(host, self._queries)
        gateways = gateways or options.gateways
        gateway = None
        if gateways:
            trail = (*trail, gateways[-1])
            if gateways[-1] in trail[:-1]:
                raise SshError(f"ProxyJump in ~/.ssh/config goes in a circle: {' -> '.join(trail)}")
            gateway = self._gateway_connection(gateways, trail)
        seconds = options.connect_timeout or self._settings[CONNECT_TIMEOUT]
        started_at = time.monotonic()
        # The time for the way to the server counts as a part of the login, too.
        way = gateway or self._open_socket(options, seconds)
        way_seconds = gateway.login_seconds if gateway else time.monotonic() - started_at
        # Messages about the connection name the gateways that it really uses.
        connection = self._get_connector().connect(replace(options, gateways=gateways), way, seconds)
        connection.login_seconds += way_seconds
        return connection

    def _open_socket(self, options: HostOptions, seconds: float) -> ProxyCommand | socket.socket:
        """Start the ProxyCommand of a host, or connect to its server by TCP if it has none.

        Raises:
            SshError: That fails.
        """
        if not options.proxy_command:
            return tcp_socket(options, seconds)
        with self._lock:
            if self._closed.is_set():  # `close` would not know the command.
                raise SshError("connecting was stopped")
            proxy = ProxyCommand(options.proxy_command)
            self._proxy_commands.add(proxy)
        return proxy

    def _gateway_connection(self, gateways: tuple[str, ...], trail: tuple[str, ...]) -> SshConnection:
        """Return the connection to the last of these gateways.

        The first thread that needs the connection makes it. Other threads wait for its result or failure. A
        connection that failed or is lost is made again.

        Args:
            gateways: The gateways, in the order in which they are connected to.
            trail: The names of the hosts that wait for this connection, see `_try_to_connect`.

        Raises:
            SshError: The gateway cannot be connected to.
        """
        with self._lock:
            future = self._gateways.get(gateways)
            # A connection that failed or broke is forgotten, so that this thread makes another one.
            if future is not None and future.done() and (future.exception() or not future.result().is_alive):
                future = None
            is_first_thread = future is None
            if future is None:
                future = self._gateways[gateways] = Future()
        if is_first_thread:
            try:
                gateway = parse_gateway(gateways[-1])
                future.set_result(self._try_to_connect(gateway, gateways[:-1], trail))
            except SshError as failure:
                future.set_exception(SshError(f"its gateway {gateways[-1]}: {failure}", failure.may_pass))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

    def reconnect(self, host: str) -> None:
        """Connect to a host again, and close the old connection. Any thread may call this, which blocks.

        A new connection that is alive stays, because another link to the host has just made it. Without the
        lock, two links that lose the same connection would close each other's new one.

        Raises:
            TransportError: No connection can be made now.
        """
        with self._reconnect_locks[host]:
            is_new = time.monotonic() < self._reconnected_at.get(host, 0.0) + _NEW_CONNECTION_SECONDS
            if is_new and self.is_alive(host):
                return
            old = self._connections.pop(host, None)
            if old is not None:
                old.abort()
            # One attempt is enough, because the caller itself tries again.
            connection = self._connect_host(host, attempts=1)
            try:
                # The ports that the host forwards to this machine ended with the old connection.
                if self._relay is not None:
                    self._relay.renew(connection)
            except TransportError:
                connection.abort()
                raise
            self._connections[host] = connection
            self._reconnected_at[host] = time.monotonic()

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
        """Start a program of ours on a host, in a channel of the connection to the host.

        ``entry`` names a function of ours, as ``module:function``, which is called there with the arguments.

        Raises:
            TransportError: There is no connection to the host, or the program cannot be started.
        """
        from launcher.backends.ssh.program import start_ssh_program  # noqa: PLC0415 - imports paramiko

        connection, python = self.connection(host), self.python(host)
        startup = bootstrap.startup(python, entry, arguments)
        return start_ssh_program(connection, python, startup)

    def python(self, host: str) -> str:
        """Return the Python that runs our programs on a host.

        It is the host's ``python`` if that is a name, an absolute path or a path below ``~/``. Otherwise it
        is ``python3``, because a path relative to the working folder of the tasks may not exist yet.
        """
        python = self._hosts[host].python or DEFAULT_PYTHON
        is_relative = "/" in python and not python.startswith(("/", "~/"))
        return DEFAULT_PYTHON if is_relative else python

    def relay(self, path: str) -> dict[str, int]:
        """Forward a port of each host to a Unix socket of this machine, until the connections end.

        Returns:
            The port of each host that offers one. The user is told about the others.
        """
        from launcher.backends.ssh.relay import Relay  # noqa: PLC0415 - imports paramiko

        self._relay = Relay(path)
        return self._relay.open(self._connections)

    def local_port(self, host: str, port: int, preferred: Sequence[int]) -> int:
        """Return a port of this machine that leads to a port of a host, until `close`.

        A later call returns the same port, and makes it lead to the host of that call. So the user's browser
        finds TensorBoard at the same URL after it has moved to another host.

        Args:
            host: The name of the host.
            port: The port on the loopback address of the host.
            preferred: The ports of this machine to try first.

        Raises:
            TransportError: This machine has no free port, or no thread is left.
        """
        from launcher.backends.ssh.forward import Forward  # noqa: PLC0415 - imports paramiko

        if self._forward is None:
            self._forward = Forward(self.connection, (host, port), preferred)
        # A port of an earlier call leads to this host from now on.
        self._forward.target = (host, port)
        return self._forward.port
