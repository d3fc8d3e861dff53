"""Starts the program of `launcher.environments.remote` on hosts: over fabric, or as a child process here.

fabric accepts any host key and logs in with any key, so its connections get the checks of a launch: options
from `launcher.transports.ssh.options`, host keys and logins from `launcher.transports.ssh.keys`.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from concurrent.futures import Future
from typing import Any

import fabric
from paramiko import MissingHostKeyPolicy, PKey, SSHClient, SSHConfig, SSHException, Transport

from launcher.errors import TransportError
from launcher.job import Host
from launcher.regular_file import read_regular
from launcher.transports import bootstrap
from launcher.transports.base import RemoteCommand
from launcher.transports.command import CommandPipe
from launcher.transports.machines import is_here
from launcher.transports.ssh import SshSettings
from launcher.transports.ssh.connection import Connection
from launcher.transports.ssh.keys import KnownHosts, load_key, log_in
from launcher.transports.ssh.options import (
    Hop,
    HostFailure,
    HostOptions,
    Queries,
    host_options,
    parse_hop,
    reason_of,
    unexpected,
)
from launcher.transports.ssh.program import SshProgram
from launcher.transports.ssh.sockets import ProxyCommand, tcp_socket

#: The Python that runs our program on a host for which the user names none.
_PYTHON = "python3"


class _Checks(MissingHostKeyPolicy):
    """What paramiko asks about one host: its key, its login, the algorithms of its key."""

    def __init__(
        self, known: KnownHosts, options: HostOptions, settings: SshSettings, seconds: float
    ) -> None:
        self._known, self._options, self._settings, self._seconds = known, options, settings, seconds

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        """Refuse a host whose key is not known."""
        self._known.check(self._options, key, self._settings.accept_new)

    def authenticate(self, transport: Transport) -> None:
        """Log in, as a strategy of paramiko."""
        log_in(transport, self._options, load_key, self._seconds)

    def transport(self, sock: Any, **settings: Any) -> Transport:
        """Make a transport that asks for a host key that is known."""
        transport = Transport(sock, **settings)
        algorithms = transport.get_security_options()
        algorithms.key_types = self._known.algorithms(self._options, tuple(algorithms.key_types))
        return transport


class _Connected(Connection):
    """A connection that fabric made, as `SshProgram` uses one."""

    def __init__(self, host: str, made: fabric.Connection) -> None:
        self.host, self.transport = host, made.transport


class Programs:
    """Starts the program on hosts; any thread may use it. A context: its end closes all connections.

    Args:
        settings: of the connections.
    """

    def __init__(self, settings: SshSettings) -> None:
        self._settings, self._queries, self._known = settings, Queries(), KnownHosts()
        self._lock = threading.Lock()
        self._open: list[fabric.Connection | ProxyCommand] = []
        self._gateways: dict[tuple[str, ...], Future[fabric.Connection]] = {}

    @property
    def added(self) -> list[str]:
        """A line for each host key that was added to known_hosts."""
        return self._known.added

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        for made in reversed(self._open):
            made.close()

    def start(self, host: Host) -> RemoteCommand:
        """Start the program on a host.

        Raises:
            TransportError: the host can't be reached.
        """
        sent = bootstrap.frame(_source())
        if is_here(host):
            return CommandPipe(host.name, bootstrap.loader(sys.executable), sent, sys.executable)
        python = python_of(host) or _PYTHON
        try:
            made = self._connect(Hop(host.name, host.user, host.port), (), (host.name,))
            startup = bootstrap.python_line(python) + sent
            return SshProgram(_Connected(host.name, made), python, startup)
        except TransportError:
            raise
        except Exception as error:  # noqa: BLE001 - the other hosts go on
            raise TransportError(unexpected(error)) from error

    def _connect(self, hop: Hop, before: tuple[str, ...], trail: tuple[str, ...]) -> fabric.Connection:
        """Connect to a host through its gateways; see `SshConnections._connect_once`."""
        options = host_options(hop, self._queries)
        before = before or options.gateways
        if before and before[-1] in trail:
            way = " -> ".join((*trail, before[-1]))
            raise HostFailure(f"ProxyJump in ~/.ssh/config goes in a circle: {way}")
        gateway = self._gateway(before, (*trail, before[-1])) if before else None
        seconds = options.connect_timeout or self._settings.connect_timeout
        checks = _Checks(self._known, options, self._settings, seconds)
        how: dict[str, Any] = {
            "auth_strategy": checks,
            "transport_factory": checks.transport,
            "timeout": seconds,
        }
        how.update(banner_timeout=seconds, auth_timeout=seconds, channel_timeout=seconds)
        if gateway is None and options.proxy_command:
            proxy = ProxyCommand(options.proxy_command)
            self._open.append(proxy)
            how["sock"] = proxy.socket
        elif gateway is None:
            how["sock"] = tcp_socket(options.place, options.address_family, seconds)
        config = fabric.Config(ssh_config=SSHConfig(), lazy=True)
        made = fabric.Connection(
            options.address, options.user, options.port, config, gateway or False, False, connect_kwargs=how
        )
        made.client.set_missing_host_key_policy(checks)
        self._open.append(made)
        try:
            made.open()
        except (SSHException, EOFError, OSError) as error:
            way_there = f" through its gateway {before[-1]}" if before else ""
            raise HostFailure(f"no connection to {options.place}{way_there}: {reason_of(error)}") from error
        return made

    def _gateway(self, hops: tuple[str, ...], trail: tuple[str, ...]) -> fabric.Connection:
        """The connection to the last of these gateways, which the first host that needs it makes."""
        with self._lock:
            future = self._gateways.get(hops)
            if mine := future is None:
                future = self._gateways[hops] = Future()
        assert future is not None
        if mine:
            try:
                future.set_result(self._connect(parse_hop(hops[-1]), hops[:-1], trail))
            except Exception as error:  # noqa: BLE001 - each host that waits for it gets the error
                future.set_exception(HostFailure(f"its gateway {hops[-1]}: {error}"))
        return future.result()


def python_of(host: Host) -> str:
    """The Python that the hostfile names for a host; empty: none, or one relative to the working folder."""
    python = host.python or ""
    return "" if "/" in python and not python.startswith(("/", "~/")) else python


@functools.cache
def _source() -> bytes:
    return read_regular(os.path.join(os.path.dirname(__file__), "remote.py"))
