"""One host -> a live connection to it, or one line that says why there is none.

fabric reads ``~/.ssh/config`` and opens the connection. What it leaves to chance is decided here: host keys
are checked against the user's files, only keys prove who we are, and every step is bounded.
"""

from __future__ import annotations

import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

from fabric import Connection
from paramiko import Channel, SSHException

from launcher.errors import TransportError
from launcher.job import Host
from launcher.transport.ssh import failures, tcp
from launcher.transport.ssh.config import SshConfig
from launcher.transport.ssh.failures import HostFailure, Place
from launcher.transport.ssh.hostkey import HostKey
from launcher.transport.ssh.keys import Keyring, Login
from launcher.transport.ssh.known_hosts import KnownHosts
from launcher.transport.ssh.line import Line
from launcher.transport.ssh.progress import Progress
from launcher.transport.ssh.queued import QueuedSocket
from launcher.transport.ssh.settings import SshSettings

#: Seconds before the second attempt, the third ...; the last one counts for all that follow.
_PAUSES = (0.3, 1.0, 2.0)
#: How many gateways may stand before one host.
_MOST_GATEWAYS = 8
#: Seconds for which a gateway that failed is not tried again by the next host that wants it.
_GATEWAY_REST = 0.2
#: Seconds for threads and commands of connections to end.
_LAST_WAIT = 2.0


class Hop(NamedTuple):
    """A host on the way, or the one it leads to, as the user wrote it."""

    name: str
    user: str | None = None
    port: int | None = None


class _Gateway:
    """One that several hosts are reached through: connected to once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.line: Line | None = None
        self.failure: HostFailure | None = None
        self.failed_at = 0.0


class Dialer:
    """Connects to the hosts of one launch; from any number of threads.

    Raises:
        TransportError: the ssh configuration can't be read.
    """

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._config = SshConfig()
        self._keyring = Keyring()
        self._known = KnownHosts()
        self._lock = threading.Lock()
        self._gateways: dict[tuple[str, ...], _Gateway] = {}
        self._lines: set[Line] = set()
        self._commands: list[tcp.Command] = []
        self._stopping = threading.Event()
        #: What to tell the user about keys that were taken as known.
        self.accepted: list[str] = []

    def dial(self, host: Host, progress: Progress, attempts: int) -> Line:
        """Connect, and try again what may pass.

        Raises:
            TransportError: no connection; one line, beginning with the host's name.
        """
        for attempt in range(1, attempts + 1):
            progress.attempt = attempt
            try:
                return self._reach(Hop(host.name, host.user, host.port), (), (host.name,), progress)
            except HostFailure as failure:
                if not failure.may_pass or attempt == attempts:
                    tried = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise TransportError(f"{host.name}: {failure}{tried}") from failure
            except Exception as error:  # it is of this machine, or paramiko's own
                raise TransportError(f"{host.name}: {failures.unforeseen(error)}") from error
            progress.doing = "pausing before the next attempt"
            if self._stopping.wait(_PAUSES[min(attempt, len(_PAUSES)) - 1]):
                raise TransportError(f"{host.name}: {tcp.Stopped()}")
        raise AssertionError("there is at least one attempt")

    def drop(self, line: Line) -> None:
        """End a connection, however far it came, without waiting."""
        _drop(line)
        if line.ident is None:  # it never had a thread: there is nothing to wait for
            with self._lock:
                self._lines.discard(line)

    def stop(self) -> None:
        """End whatever is being dialled."""
        with self._lock:
            self._stopping.set()
            lines = list(self._lines)
        for line in lines:
            _drop(line)

    def close(self) -> None:
        """End all connections, and wait for their threads a little."""
        self.stop()
        deadline = time.monotonic() + _LAST_WAIT
        with self._lock:
            lines, commands = [line for line in self._lines if line.ident is not None], self._commands[:]
            self._lines.clear()
            self._commands.clear()
        for line in lines:
            line.join(max(0.0, deadline - time.monotonic()))
        for command in commands:
            command.close(max(0.0, deadline - time.monotonic()))

    def _reach(self, hop: Hop, before: tuple[str, ...], trail: tuple[str, ...], progress: Progress) -> Line:
        """Connect to one host, through others if the configuration says so.

        Args:
            hop: as the user wrote it.
            before: the gateways that lead to it, when somebody has named them.
            trail: who is waiting for it.
            progress: kept up to date.
        """
        connection = self._prepare(hop)
        before = before or _gateways_of(connection)
        if before and (before[-1] in trail or len(trail) > _MOST_GATEWAYS):
            raise HostFailure(
                f"ProxyJump in ~/.ssh/config goes in a circle: {' -> '.join((*trail, before[-1]))}"
            )
        progress.where = Place(connection.host, connection.port).where
        gateway = self._gateway(before, (*trail, before[-1]), progress) if before else None
        return self._connect(connection, hop.name, before, gateway, progress)

    def _prepare(self, hop: Hop) -> Connection:
        try:
            return Connection(hop.name, config=self._config.with_own(hop.user, hop.port), gateway=False)
        except ValueError as error:
            raise HostFailure(f"~/.ssh/config says something about it that can't be: {error}") from error
        except TransportError as error:
            raise HostFailure(str(error)) from error

    def _gateway(self, hops: tuple[str, ...], trail: tuple[str, ...], progress: Progress) -> Line:
        """The connection to the last of these, made by whoever needs it first."""
        with self._lock:
            gateway = self._gateways.setdefault(hops, _Gateway())
        progress.doing = f"waiting for its gateway {hops[-1]}"
        with gateway.lock:
            if gateway.line is not None and gateway.line.is_active():
                return gateway.line
            if gateway.failure is not None and time.monotonic() < gateway.failed_at + _GATEWAY_REST:
                raise gateway.failure
            try:
                gateway.line = self._reach(parse_hop(hops[-1]), hops[:-1], trail, progress)
            except HostFailure as failure:
                text = f"its gateway {hops[-1]}: {failure}"
                gateway.failure, gateway.failed_at = HostFailure(text, failure.may_pass), time.monotonic()
                raise gateway.failure from failure
            return gateway.line

    def _connect(
        self,
        connection: Connection,
        name: str,
        before: tuple[str, ...],
        gateway: Line | None,
        progress: Progress,
    ) -> Line:
        options, place = connection.ssh_config, Place(connection.host, connection.port)
        seconds = float(connection.connect_timeout or self._settings.connect_timeout)
        progress.where, progress.doing = place.where, "connecting"
        queued = _queued(self._socket(options, place, before, gateway, seconds))
        line = Line(queued, name)
        self._keep(line)
        try:
            self._shake_hands(connection, name, line, place, seconds, progress)
        except tcp.Stopped:
            self.drop(line)
            raise
        except HostFailure as failure:
            self.drop(line)
            raise failures.by_way_of(failure, _way(options, before)) from failure
        except BaseException:
            self.drop(line)
            raise
        line.settle()
        return line

    def _keep(self, line: Line) -> None:
        """Remember it, to end it at the end, and forget those that have ended since."""
        with self._lock:
            stopped = self._stopping.is_set()
            if not stopped:
                self._lines = {old for old in self._lines if old.ident is None or old.is_alive()} | {line}
        if stopped:
            _drop(line)
            raise tcp.Stopped

    def _socket(
        self,
        options: Mapping[str, Any],
        place: Place,
        before: tuple[str, ...],
        gateway: Line | None,
        seconds: float,
    ) -> socket.socket | Channel:
        """What the connection goes over."""
        if gateway is not None:
            try:
                return gateway.open_channel("direct-tcpip", place, ("", 0), timeout=seconds)
            except (SSHException, EOFError, OSError) as error:
                raise failures.of_gateway(place, before[-1], error) from error
        command = _proxy(options)
        if command:
            proxy = tcp.Command(command)
            with self._lock:
                self._commands = [old for old in self._commands if not old.ended] + [proxy]
            return proxy.socket
        return tcp.connect(place, options.get("addressfamily", ""), seconds, self._stopping)

    def _shake_hands(
        self, connection: Connection, name: str, line: Line, place: Place, seconds: float, progress: Progress
    ) -> None:
        options = connection.ssh_config
        judge = HostKey(self._known, place, name, options, self._settings.accept_new, self.accepted.append)
        offered = line.get_security_options()
        offered.key_types = judge.preferred(tuple(offered.key_types))
        connection.client.set_missing_host_key_policy(judge)
        connection.connect_timeout = seconds
        login = Login(place, connection.user, options, self._keyring, seconds)
        connection.connect_kwargs = {
            "compress": False,
            "sock": line.queued,
            "transport_factory": lambda sock, **_: line,
            "banner_timeout": seconds,
            "auth_timeout": seconds,
            "channel_timeout": seconds,
            "auth_strategy": login,
        }
        progress.doing = "waiting for its ssh server"
        began = time.monotonic()
        try:
            connection.open()
        except (SSHException, EOFError, OSError) as error:
            if self._stopping.is_set():
                raise tcp.Stopped from error
            late = time.monotonic() - began >= seconds
            raise failures.of_handshake(
                place, error, line.remote_version, line.queued.ended, late, seconds
            ) from error


def _proxy(options: Mapping[str, Any]) -> str:
    """The ``ProxyCommand`` of a host; empty: none."""
    command = str(options.get("proxycommand") or "none")
    return "" if command.lower() == "none" else command


def _way(options: Mapping[str, Any], before: tuple[str, ...]) -> str:
    """What is between us and a host, for messages; empty: nothing."""
    if before:
        return f"its gateway {before[-1]} (ProxyJump in ~/.ssh/config)"
    command = _proxy(options)
    return f"its ProxyCommand {command!r}: what does that say, run by hand?" if command else ""


def _queued(under: socket.socket | Channel) -> QueuedSocket:
    try:
        return QueuedSocket(under)
    except OSError:
        under.close()
        raise


def _drop(line: Line) -> None:
    line.close()
    line.queued.close()


def parse_hop(text: str) -> Hop:
    """A gateway as ``ProxyJump`` writes it: ``[user@]host[:port]``, also as ``ssh://...``.

    Raises:
        HostFailure: it is none.
    """
    try:
        parts = urllib.parse.urlsplit(text if "://" in text else f"ssh://{text}")
        name, port = parts.hostname, parts.port
    except ValueError as error:
        raise HostFailure(f"{text!r} is no gateway: {error}") from error
    if not name:
        raise HostFailure(f"{text!r} is no gateway: it names no host")
    at = text.lower().rfind(name)
    return Hop(text[at : at + len(name)], parts.username, port)


def _gateways_of(connection: Connection) -> tuple[str, ...]:
    """What ``ProxyJump`` says about a host, the first to be connected to first; nobody is his own gateway."""
    written = connection.ssh_config.get("proxyjump") or "none"
    hops = tuple(hop.strip() for hop in written.split(",") if hop.strip())
    if written.lower() == "none" or not hops:
        return ()
    name = parse_hop(hops[-1]).name
    return () if name in (connection.host, connection.original_host) else hops
