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
#: What to ask the user if a server closed a connection without a reason.
_CLOSED_ADVICE = "is it too busy (MaxStartups), or does it refuse this machine?"
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
        """Prepare to make connections, none of which exists yet."""
        self._closed, self._accept_new = closed, accept_new
        #: The known_hosts files, and the keys that are added to them.
        self.known = KnownHosts()
        #: `load_key` with a cache, because all hosts use the same key files.
        self._load_key = functools.cache(load_key)
        #: Guards the sockets.
        self._lock = threading.Lock()
        #: The sockets of all connections that exist or are being made.
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
        proxy, started_at = None, time.monotonic()
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
            if self._closed.is_set():  # `close` may have missed the socket. The handshake fails then.
                sock.close()
            transport = self._handshake(options, sock, seconds)
            log_in(transport, options, self._load_key, seconds)
        except BaseException as error:
            sock.close()
            if self._closed.is_set():  # The error comes only from the socket that `close` has closed.
                raise SshError("connecting was stopped") from error
            if isinstance(error, SshError):
                raise SshError(f"{error}{_route(options, proxy)}", error.may_pass) from error
            raise
        return SshConnection(options.name, transport, sock, time.monotonic() - started_at)

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
        # The ones that need the least CPU time come first, and the others keep their order.
        algorithms.kex = sorted(algorithms.kex, key=lambda name: name != _KEY_EXCHANGE)
        algorithms.ciphers = sorted(algorithms.ciphers, key=lambda name: name != _CIPHER)
        # By these the server chooses which of its host keys it shows.
        algorithms.key_types = self.known.algorithms(options, tuple(algorithms.key_types))
        started_at = time.monotonic()
        try:
            transport.start_client(timeout=seconds)
            host_key = transport.get_remote_server_key()  # This raises an exception after the timeout.
        except (SSHException, EOFError, OSError) as error:
            has_ended = sock.ended or isinstance(error, (EOFError, ConnectionError))
            is_late = not has_ended and time.monotonic() - started_at >= seconds
            server = f"the ssh server at {options.place}"
            if isinstance(error, IncompatiblePeer):
                text = f"{server} has no cipher or key exchange in common: {reason_of(error)}"
            elif not transport.remote_version:  # The server has sent nothing, or something else than SSH.
                text = _no_ssh_server(options.place, error, seconds, has_ended=has_ended, is_late=is_late)
            elif has_ended:
                text = f"{options.place} closed the connection during the key exchange; {_CLOSED_ADVICE}"
            elif is_late:
                text = f"{server} stopped answering for {seconds:g}s"
            else:
                text = f"{server} failed: {reason_of(error)}"
            may_pass = has_ended or is_late or isinstance(error, OSError)
            raise SshError(text, may_pass) from error
        self.known.check(options, host_key, self._accept_new)
        return transport


def _no_ssh_server(place: str, error: Exception, seconds: float, *, has_ended: bool, is_late: bool) -> str:
    """Return a message that a server has not answered as an ssh server.

    Args:
        place: The address and port of the server.
        error: The error of the handshake.
        seconds: The time limit of the handshake.
        has_ended: Whether the connection has ended.
        is_late: Whether the time limit is over.
    """
    if has_ended:
        return f"{place} closed the connection before its ssh server sent anything; {_CLOSED_ADVICE}"
    if is_late:
        return f"{place} accepted the connection and sent nothing for {seconds:g}s; is that an ssh server?"
    return f"{place} is not an ssh server: {reason_of(error)}"


def _route(options: HostOptions, proxy: ProxyCommand | None) -> str:
    """Return which gateway or ProxyCommand leads to a host, to append it to messages.

    Args:
        options: The options of the host.
        proxy: The ProxyCommand, which has ended. None if the host has none.

    Returns:
        The text. Empty if the host needs neither.
    """
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
    source = ("", 0)  # Where the connection comes from, which does not matter.
    try:
        return gateway.transport.open_channel("direct-tcpip", target, source, timeout=seconds)
    except (SSHException, EOFError, OSError) as error:
        if isinstance(error, ChannelException) and error.code == PROHIBITED:
            text = f"its gateway {gateway.host} forbids connections to {place} (AllowTcpForwarding)"
            raise SshError(text) from error
        reason = error.text.lower() if isinstance(error, ChannelException) else reason_of(error)
        advice = "is it up, and is that its address as the gateway sees it?"
        text = f"its gateway {gateway.host} cannot connect to {place} ({reason}); {advice}"
        raise SshError(text, may_pass=True) from error
