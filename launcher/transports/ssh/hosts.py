"""All hosts of a launch that are reached over SSH: connected to in parallel, then asked to run programs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable

from launcher.errors import ConnectionLost, HostsError, TransportError
from launcher.job import Host
from launcher.text import listed
from launcher.transports import bootstrap
from launcher.transports.ssh import SshSettings
from launcher.transports.ssh.connection import Connection, Stopped, Stopping, connect
from launcher.transports.ssh.failures import HostFailure, unexpected
from launcher.transports.ssh.known_hosts import KnownHosts
from launcher.transports.ssh.login import KeyFiles
from launcher.transports.ssh.options import Hop, host_options, parse_hop
from launcher.transports.ssh.program import SshProgram
from launcher.transports.ssh.relay import Relay

#: Seconds until the user sees which hosts are slow, and then between two such lines.
FIRST_NOTICE, NEXT_NOTICE = 2.0, 5.0
#: How many hosts such a line names at most.
_NAMED = 4
#: Seconds before the second attempt, the third ...; the last one counts for all that follow.
_PAUSES = (0.3, 1.0, 2.0)
#: How many gateways may stand before one host.
_MOST_GATEWAYS = 8
#: Seconds for which a gateway that failed is not tried again for the next host.
_GATEWAY_REST = 0.2
#: Seconds for the threads of closed connections to end.
_LAST_WAIT = 2.0
#: What runs our programs where the hostfile names no Python.
_PYTHON = "python3"


class SshHosts:
    """The connections of a launch, one a host. A context: at its end all are closed.

    Args:
        hosts: each with a name of its own.
        settings: how to connect.
        tell: gets a line for the user: which hosts are slow, which keys were added.
    """

    def __init__(self, hosts: Iterable[Host], settings: SshSettings, tell: Callable[[str], None]) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._settings = settings
        self._tell = tell
        self._dialer = _Dialer(settings)
        self._connections: dict[str, Connection] = {}
        #: By host: the connection, or why there is none; and what is being done about the others.
        self._found: dict[str, Connection | TransportError] = {}
        self._doing: dict[str, str] = {}
        self._changed = threading.Condition()
        self._relay: Relay | None = None
        self._reconnecting = {name: threading.Lock() for name in self._hosts}

    def __enter__(self) -> SshHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _dial_all(self, to_do: queue.SimpleQueue[Host]) -> None:
        while True:
            try:
                host = to_do.get_nowait()
            except queue.Empty:
                return
            found: Connection | TransportError
            try:
                found = self._dial(host, self._settings.attempts)
            except TransportError as error:
                found = error
            except Exception as error:  # noqa: BLE001 - the other hosts of this thread are still to be dialled
                found = TransportError(f"{host.name}: {unexpected(error)}")
            with self._changed:
                self._found[host.name] = found
                self._changed.notify()

    def connect(self) -> None:
        """Connect to all hosts.

        Raises:
            HostsError: some can't be connected to; it says why of each. The others stay connected.
        """
        self._doing = dict.fromkeys(self._hosts, "waiting for its turn")
        to_do: queue.SimpleQueue[Host] = queue.SimpleQueue()
        for host in self._hosts.values():
            to_do.put(host)
        for number in range(min(self._settings.fanout, len(self._hosts))):
            name = f"ssh dial {number}"
            threading.Thread(target=self._dial_all, args=(to_do,), name=name, daemon=True).start()
        bootstrap.zipped(bootstrap.AGENT_MODULES)  # once, and before all threads need it
        next_notice = time.monotonic() + FIRST_NOTICE
        while True:
            with self._changed:
                late = next_notice - time.monotonic()
                self._changed.wait_for(lambda: len(self._found) == len(self._hosts), max(0.0, late))
                slow = [f"{name} ({self._doing[name]})" for name in self._hosts if name not in self._found]
            if not slow:
                break
            self._tell(f"waiting for {listed(slow, _NAMED)}")
            next_notice += NEXT_NOTICE
        for line in self._dialer.known.added:
            self._tell(line)
        self._connections = {name: it for name, it in self._found.items() if isinstance(it, Connection)}
        if len(self._connections) < len(self._hosts):
            raise HostsError(str(self._found[name]) for name in self._hosts if name not in self._connections)

    def _dial(self, host: Host, attempts: int) -> Connection:
        def note(doing: str, number: int) -> None:
            again = "" if number == 1 else f", attempt {number}"
            self._doing[host.name] = f"{doing}{again}"

        return self._dialer.dial(host, attempts, note)

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

    def run(self, host: str, entry: str, arguments: object) -> SshProgram:
        """See `launcher.transports.base.Hosts.run`."""
        connection, python = self.connection(host), self.python(host)
        return connection.start(python, bootstrap.startup(python, entry, arguments))

    def python(self, host: str) -> str:
        """What runs our programs on a host.

        That is its ``python`` if it is a name, an absolute path or in the user's home (``~/``). One that is
        relative to the working folder of the tasks may not be there yet: then it is ``python3``.
        """
        python = self._hosts[host].python or _PYTHON
        return _PYTHON if "/" in python and not python.startswith(("/", "~/")) else python

    def is_alive(self, host: str) -> bool:
        """Whether the connection to a host is there, as far as this machine knows."""
        connection = self._connections.get(host)
        return connection is not None and connection.alive

    def reconnect(self, host: str) -> None:
        """Connect again, once; the old connection is closed. Any thread may.

        Two threads that miss the same connection get the same new one.

        Raises:
            TransportError: it can't be connected to now.
        """
        missed = self._connections.get(host)
        with self._reconnecting[host]:
            if self._connections.get(host) is not missed and self.is_alive(host):
                return
            old = self._connections.pop(host, None)
            if old is not None:
                old.close()
            self._connections[host] = connection = self._dial(self._hosts[host], attempts=1)
            if self._relay is not None:
                self._relay.renew(connection)

    def relay(self, path: str, tell: Callable[[str], None]) -> dict[str, int]:
        """Open a port on every host that leads to a Unix socket here, until the connections end.

        Args:
            path: of the socket.
            tell: gets a line where that fails; called by any thread.

        Returns:
            The ports, by host, each on its host's loopback address.
        """
        self._relay = Relay(path, tell)
        return self._relay.open(self._connections, self._tell)

    def close(self) -> None:
        """End all connections, and all attempts to connect."""
        if self._relay is not None:
            self._relay.close()
        self._dialer.close()
        deadline = time.monotonic() + _LAST_WAIT
        for connection in self._connections.values():
            connection.transport.join(max(0.0, deadline - time.monotonic()))
        self._connections.clear()


class _Gateway:
    """A host that others are reached through: connected to once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None
        self.failure: HostFailure | None = None
        self.failed_at = 0.0


class _Dialer:
    """Connects to hosts, through gateways where ssh_config says so; any thread may."""

    def __init__(self, settings: SshSettings) -> None:
        self.known = KnownHosts()
        self._settings = settings
        self._files = KeyFiles()
        self._stopping = Stopping()
        self._lock = threading.Lock()
        self._gateways: dict[tuple[str, ...], _Gateway] = {}

    def dial(self, host: Host, attempts: int, note: Callable[[str, int], None]) -> Connection:
        """Connect to a host, and try again what may pass.

        Args:
            host: the hostfile's user and port win over ssh_config.
            attempts: how often.
            note: called with what is being done, and the number of the attempt.

        Raises:
            TransportError: no connection; one line that begins with the host's name.
        """
        hop = Hop(host.name, host.user, host.port)
        for attempt in range(1, attempts + 1):
            try:
                return self._reach(hop, (), (host.name,), lambda doing: note(doing, attempt))  # noqa: B023
            except HostFailure as failure:
                if not failure.may_pass or attempt == attempts:
                    tried = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise TransportError(f"{host.name}: {failure}{tried}") from failure
            note("pausing before the next attempt", attempt)
            if self._stopping.wait(_PAUSES[min(attempt, len(_PAUSES)) - 1]):
                raise TransportError(f"{host.name}: {Stopped()}")
        raise AssertionError("there is at least one attempt")

    def _reach(
        self, hop: Hop, before: tuple[str, ...], trail: tuple[str, ...], note: Callable[[str], None]
    ) -> Connection:
        """Connect to one host.

        Args:
            hop: as the user wrote it.
            before: the gateways that lead to it, where a ``ProxyJump`` names several.
            trail: the hosts that wait for it.
            note: called with what is being done.
        """
        options = host_options(hop)
        before = before or options.gateways
        if before and (before[-1] in trail or len(trail) > _MOST_GATEWAYS):
            way = " -> ".join((*trail, before[-1]))
            raise HostFailure(f"ProxyJump in ~/.ssh/config goes in a circle: {way}")
        gateway = None
        if before:
            note(f"{options.place}: waiting for its gateway {before[-1]}")
            gateway = self._gateway(before, (*trail, before[-1]), note)
        return connect(
            options._replace(gateways=before),
            gateway,
            self.known,
            self._files,
            self._settings,
            self._stopping,
            lambda doing: note(f"{options.place}: {doing}"),
        )

    def _gateway(
        self, hops: tuple[str, ...], trail: tuple[str, ...], note: Callable[[str], None]
    ) -> Connection:
        """The connection to the last of these hosts; the first thread that needs it makes it."""
        with self._lock:
            gateway = self._gateways.setdefault(hops, _Gateway())
        with gateway.lock:
            if gateway.connection is not None and gateway.connection.alive:
                return gateway.connection
            if gateway.failure is not None and time.monotonic() < gateway.failed_at + _GATEWAY_REST:
                raise gateway.failure
            try:
                gateway.connection = self._reach(parse_hop(hops[-1]), hops[:-1], trail, note)
            except HostFailure as failure:
                text = f"its gateway {hops[-1]}: {failure}"
                gateway.failure, gateway.failed_at = HostFailure(text, failure.may_pass), time.monotonic()
                raise gateway.failure from failure
            return gateway.connection

    def close(self) -> None:
        """End all connections, and all attempts."""
        self._stopping.set()
