"""Makes authenticated connections, through a socket or a gateway.

`launcher.backends.ssh.connections` imports this module, and with it paramiko, while the first servers answer.
"""

from __future__ import annotations

import functools
import logging
import socket
import threading
import time
import weakref
from typing import cast

from paramiko import Channel, ChannelException, SSHException, Transport
from paramiko.ssh_exception import IncompatiblePeer

from launcher.backends.ssh.connection import PROHIBITED, ClosingSocket, Packets, SshConnection
from launcher.backends.ssh.keys import KnownHosts, load_key, log_in
from launcher.backends.ssh.options import HostOptions, SshError, reason_of
from launcher.backends.ssh.sockets import ProxyCommand

#: The key exchange that needs the least CPU: a tenth of the next one, at both ends.
_KEY_EXCHANGE = "curve25519-sha256@libssh.org"
#: The cipher that needs the least CPU, because it encrypts and signs in one pass.
_CIPHER = "aes128-gcm@openssh.com"
#: The name of paramiko's log, which nobody sees.
_PARAMIKO_LOG = "launcher.ssh"
logging.getLogger(_PARAMIKO_LOG).setLevel(logging.CRITICAL + 1)


class SshConnector:
    """Makes the connections of a launch. Any thread may use it.

    Args:
        closed: The event that `close` sets.
        accept_new: Whether the key of an unknown host is added to known_hosts.
    """

    def __init__(self, closed: threading.Event, *, accept_new: bool) -> None:
        self._closed, self._accept_new = closed, accept_new
        self.known = KnownHosts()
        self._load_key = functools.cache(load_key)
        self._lock = threading.Lock()
        self._socks: weakref.WeakSet[ClosingSocket] = weakref.WeakSet()

    def close(self) -> None:
        """End all connections, and attempts to connect, without waiting."""
        self._closed.set()
        with self._lock:
            socks = list(self._socks)
        for sock in socks:
            sock.close()

    def connect(
        self, options: HostOptions, way: SshConnection | ProxyCommand | socket.socket, seconds: float
    ) -> SshConnection:
        """Connect to a host, check its key and log in.

        Args:
            options: The options of the host.
            way: The connection to its gateway, its ProxyCommand, or a connected TCP socket.
            seconds: The time limit for each step.

        Raises:
            SshError: The connection cannot be made.
        """
        proxy, began = None, time.monotonic()
        if isinstance(way, SshConnection):
            sock = ClosingSocket(_gateway_channel(way, options, seconds))
        elif isinstance(way, ProxyCommand):
            proxy = way
            sock = ClosingSocket(proxy.socket, proxy.close)
        else:
            sock = ClosingSocket(way)
        try:
            with self._lock:
                self._socks.add(sock)
            if self._closed.is_set():
                sock.close()
            transport = self._handshake(options, sock, seconds)
            log_in(transport, options, self._load_key, seconds)
        except BaseException as error:
            sock.close()
            if self._closed.is_set():
                raise SshError("connecting was stopped") from error
            if isinstance(error, SshError):
                raise SshError(f"{error}{_route(options, proxy)}", error.may_pass) from error
            raise
        return SshConnection(options.name, transport, sock, time.monotonic() - began)

    def _handshake(self, options: HostOptions, sock: ClosingSocket, seconds: float) -> Transport:
        """Exchange keys with the server, and check its host key.

        Raises:
            SshError: The server does not answer as an ssh server, or its host key is wrong. The message says
                which.
        """
        transport = Transport(cast("socket.socket", sock), packetizer_class=Packets)
        transport.name = f"ssh {options.name}"
        transport.set_log_channel(_PARAMIKO_LOG)
        transport.banner_timeout = transport.auth_timeout = transport.channel_timeout = seconds
        algorithms = transport.get_security_options()
        algorithms.kex = sorted(algorithms.kex, key=lambda name: name != _KEY_EXCHANGE)
        algorithms.ciphers = sorted(algorithms.ciphers, key=lambda name: name != _CIPHER)
        algorithms.key_types = self.known.algorithms(options, tuple(algorithms.key_types))
        place, began = options.place, time.monotonic()
        try:
            transport.start_client(timeout=seconds)
            host_key = transport.get_remote_server_key()  # raises an exception after the timeout
        except (SSHException, EOFError, OSError) as error:
            answered = transport.remote_version
            ended = sock.ended or isinstance(error, (EOFError, ConnectionError))
            late = not ended and time.monotonic() - began >= seconds
            if isinstance(error, IncompatiblePeer):
                common = "has no cipher or key exchange in common"
                text = f"the ssh server at {place} {common}: {reason_of(error)}"
            elif ended:
                when = "during the key exchange" if answered else "before its ssh server sent anything"
                advice = "is it too busy (MaxStartups), or does it refuse this machine?"
                text = f"{place} closed the connection {when}; {advice}"
            elif late and not answered:
                silent = f"sent nothing for {seconds:g}s"
                text = f"{place} accepted the connection and {silent}; is that an ssh server?"
            elif late:
                text = f"the ssh server at {place} stopped answering for {seconds:g}s"
            elif not answered:
                text = f"{place} is not an ssh server: {reason_of(error)}"
            else:
                text = f"the ssh server at {place} failed: {reason_of(error)}"
            raise SshError(text, ended or late or isinstance(error, OSError)) from error
        self.known.check(options, host_key, self._accept_new)
        return transport


def _route(options: HostOptions, proxy: ProxyCommand | None) -> str:
    """Return which gateway or ProxyCommand leads to a host, for messages. Empty if the host needs neither."""
    if options.gateways:
        return f"; it is reached through its gateway {options.gateways[-1]} (ProxyJump in ~/.ssh/config)"
    if proxy is None:
        return ""
    printed = f"printed: {proxy.last_line}" if proxy.last_line else "printed no error"
    return f"; it is reached through its ProxyCommand {options.proxy_command!r}, which {printed}"


def _gateway_channel(gateway: SshConnection, options: HostOptions, seconds: float) -> Channel:
    """Let a gateway connect to a host, and return the channel that leads there.

    Raises:
        SshError: The gateway cannot or may not connect to the host.
    """
    place, target = options.place, (options.address, options.port)
    try:
        return gateway.transport.open_channel("direct-tcpip", target, ("", 0), timeout=seconds)
    except (SSHException, EOFError, OSError) as error:
        reason = reason_of(error)
        if isinstance(error, ChannelException):
            if error.code == PROHIBITED:
                text = f"its gateway {gateway.host} forbids connections to {place} (AllowTcpForwarding)"
                raise SshError(text) from error
            reason = error.text.lower()
        raise SshError(
            f"its gateway {gateway.host} cannot connect to {place} ({reason}); is it up, and is that its "
            "address as the gateway sees it?",
            True,
        ) from error
