"""Makes authenticated connections, through a socket or a gateway: the handshake, the login."""

from __future__ import annotations

import errno
import functools
import logging
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from paramiko import Channel, ChannelException, Message, SSHException, Transport
from paramiko.packet import Packetizer
from paramiko.ssh_exception import IncompatiblePeer

from launcher.backends.ssh import SshOptions
from launcher.backends.ssh.keys import KnownHosts, load_key, log_in
from launcher.backends.ssh.options import HostOptions, SshAddress, SshError, reason_of
from launcher.backends.ssh.sockets import ProxyCommand

#: The key exchange that takes least CPU: a tenth of the next one, at both ends.
_KEY_EXCHANGE = "curve25519-sha256@libssh.org"
#: The cipher that takes least CPU: it encrypts and signs in one pass.
_CIPHER = "aes128-gcm@openssh.com"
#: The name of paramiko's log, which is not shown.
_PARAMIKO_LOG = "launcher.ssh"
logging.getLogger(_PARAMIKO_LOG).setLevel(logging.CRITICAL + 1)
#: Seconds that a read of paramiko's thread blocks; until it tries again to send through a gateway.
_READ_TIMEOUT_SECONDS = 5.0
_SEND_PAUSE_SECONDS = 0.05
#: Bytes of a read; bytes to be sent, above which forwarded connections wait.
_READ_BYTES = 64 * 1024
_MAX_UNSENT_BYTES = 4 * 1024 * 1024
#: The reason code of a server that forbids forwarding (RFC 4254, 5.1).
PROHIBITED = 1
#: Message numbers of RFC 4254: the confirmation of a channel, and messages on a channel.
_OPEN_CONFIRMATION = 91
_WINDOW_ADJUST = 93
_CLOSE = 97
_REQUEST = 98


class SshConnection:
    """An authenticated connection to one host; any thread may use it.

    Args:
        host: its name.
        transport: logged in.
        sock: the socket of the transport.
        login_seconds: how long the handshake and the login took; whoever made the socket adds its time.
    """

    def __init__(self, host: str, transport: Transport, sock: ClosingSocket, login_seconds: float) -> None:
        self.host = host
        self.transport = transport
        self.login_seconds = login_seconds
        self._sock = sock

    @property
    def is_alive(self) -> bool:
        """Whether the connection exists, as far as this machine knows."""
        return self.transport.is_active() and not self._sock.ended

    def why_broken(self) -> str:
        """A message that the connection broke, with the reason if paramiko knows it."""
        error = self.transport.saved_exception
        reason = "the other side closed it"
        if error is not None and not isinstance(error, (EOFError, ChannelException)):
            reason = reason_of(error)
        return f"{self.host}: the connection broke ({reason})"

    def abort(self) -> None:
        """End the connection without waiting, and without sending queued data."""
        self._sock.abort()
        self.transport.close()


class SshConnector:
    """Makes the connections of a launch; any thread may use it.

    Args:
        settings: of the connections.
        closed: `close` sets it.
    """

    def __init__(self, settings: SshOptions, closed: threading.Event) -> None:
        self._settings = settings
        self._closed = closed
        self.known = KnownHosts()
        self._load_key = functools.cache(load_key)
        self._lock = threading.Lock()
        self._socks: weakref.WeakSet[ClosingSocket] = weakref.WeakSet()

    def close(self) -> None:
        """End all connections, also attempts to connect, without waiting."""
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
            options: of the host.
            way: the connection to its gateway, its ProxyCommand, or a connected TCP socket.
            seconds: the limit for each step.

        Raises:
            SshError: the connection can't be made.
        """
        proxy, began = None, time.monotonic()
        if isinstance(way, SshConnection):
            sock = ClosingSocket(_gateway_channel(way, options.place, seconds))
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
        """Exchange keys with the server, and check its host key."""
        transport = Transport(cast("socket.socket", sock), packetizer_class=_Packets)
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
        self.known.check(options, host_key, self._settings.accept_new)
        return transport


def _route(options: HostOptions, proxy: ProxyCommand | None) -> str:
    """The gateway or ProxyCommand of a host, for messages; empty: there is none."""
    if options.gateways:
        return f"; it is reached through its gateway {options.gateways[-1]} (ProxyJump in ~/.ssh/config)"
    if proxy is None:
        return ""
    printed = f"printed: {proxy.last_line}" if proxy.last_line else "printed no error"
    return f"; it is reached through its ProxyCommand {options.proxy_command!r}, which {printed}"


# ---------------------------------------------------------------------- sockets


class ClosingSocket:
    """The socket that paramiko uses, read by one thread.

    `send` never blocks: what the other side does not take at once, that thread sends. `close` wakes it, so
    that it need not poll.

    Args:
        under: a connected socket, or a channel of a gateway.
        on_close: called by `close`, perhaps more than once.
    """

    def __init__(self, under: socket.socket | Channel, on_close: Callable[[], None] = lambda: None) -> None:
        self._under = under
        self._on_close = on_close
        self._is_channel = isinstance(under, Channel)
        self._tcp = under if isinstance(under, socket.socket) and under.family != socket.AF_UNIX else None
        #: The other side closed the connection, or it broke.
        self.ended = False
        self._reader: threading.Thread | None = None
        #: Bytes that were read, and are not taken yet; bytes that are to be sent; guards these.
        self._received = memoryview(b"")
        self._unsent = bytearray()
        self._room = threading.Condition()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        under.settimeout(0.0)
        self._fd = under.fileno()
        #: An attribute that paramiko reads.
        self._closed = False

    def settimeout(self, seconds: float) -> None:
        """Do nothing: paramiko would poll for `close` each 0.1 s."""

    def recv(self, size: int) -> bytes:
        """See `socket.socket.recv`."""
        self._reader = threading.current_thread()
        if not self._received:
            try:
                self._received = memoryview(self._read())
            except (OSError, SSHException, EOFError) as error:
                if isinstance(error, TimeoutError) and error.errno is None:
                    raise
                self.ended = True
                number, text = getattr(error, "errno", None), getattr(error, "strerror", None)
                raise ConnectionAbortedError(number, text) from error  # paramiko retries others
            self.ended = self.ended or not self._received
        data, self._received = self._received[:size], self._received[size:]
        return bytes(data)

    def _read(self) -> bytes:
        """Wait for bytes; send what is to be sent meanwhile.

        Raises:
            TimeoutError: nothing has come for `_READ_TIMEOUT_SECONDS` seconds.
        """
        until = time.monotonic() + _READ_TIMEOUT_SECONDS
        while not (self._closed and self._is_channel):
            try:
                data = self._under.recv(_READ_BYTES)
                if self._tcp is not None:  # the server's Nagle algorithm waits for a delayed ACK, up to 40 ms
                    self._tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
                return data
            except (BlockingIOError, TimeoutError) as error:
                if error.errno == errno.ETIMEDOUT:
                    raise
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._await(left)
        return b""

    def _await(self, seconds: float) -> None:
        """Wait until the socket is readable, or takes more, or there is more to send, or it is closed."""
        with self._room:
            self._flush()
            waits = bool(self._unsent)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._fd, select.POLLIN | (select.POLLOUT if waits and not self._is_channel else 0))
        poll.poll((min(seconds, _SEND_PAUSE_SECONDS) if waits and self._is_channel else seconds) * 1000 + 1)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def send(self, data: bytes) -> int:
        """See `socket.socket.send`; takes all."""
        with self._room:
            if self._unsent:
                self._unsent += data
                return len(data)
            self._unsent += data[self._send(data) :]
            if self._unsent:
                self._ring()
        return len(data)

    def _flush(self) -> None:
        if self._unsent:
            del self._unsent[: self._send(bytes(self._unsent))]
            self._room.notify_all()

    def _send(self, data: bytes) -> int:
        if isinstance(self._under, Channel) and not self._under.get_transport().clear_to_send.is_set():
            return 0  # its gateway renews keys, which would block
        try:
            return self._under.send(data)
        except (BlockingIOError, TimeoutError):
            return 0

    def _ring(self) -> None:
        """Wake the thread that reads."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def wait_for_room(self) -> None:
        """Wait while much is to be sent."""
        with self._room:
            self._room.wait_for(lambda: len(self._unsent) < _MAX_UNSENT_BYTES or self.ended or self._closed)

    def getpeername(self) -> object:
        """See `socket.socket.getpeername`."""
        return self._under.getpeername()

    def abort(self) -> None:
        """Close the socket, and drop data that was not sent.

        After a break of the network the agent would take such data for the end of the launcher.
        """
        if isinstance(self._under, socket.socket):
            with suppress(OSError):  # it is closed
                self._under.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """End the connection without waiting. A thread that reads it closes the descriptor."""
        self._closed = True
        self._on_close()
        reader = self._reader
        unread = reader is None or reader is threading.current_thread() or not reader.is_alive()
        with self._room:
            self._unsent.clear()
            self._ring()
            if unread and self._wake >= 0:
                os.close(self._wake)
                self._wake = -1
            self._room.notify_all()
        with suppress(OSError, EOFError, SSHException):  # it has ended, or its gateway has
            if unread:
                self._under.close()
            elif not self._is_channel:
                self._under.shutdown(socket.SHUT_RDWR)


class _Packets(Packetizer):
    """paramiko's packetizer with three changes.

    * It starts no timer thread for a handshake, which would live for 15 s after a failure.
    * It renews keys after 64 GiB as OpenSSH does, at the request of the server. paramiko's own request after
      512 MiB can deadlock when the server closes a channel.
    * It sends nothing on a channel after its CLOSE. `Channel.send` checks and sends in two steps; if the
      channel is closed between them, an OpenSSH server ends the connection.
    """

    REKEY_BYTES = 1 << 36

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._sending = threading.RLock()
        #: Channels that this end has closed, by the server's numbers.
        self._closed_channels: set[bytes] = set()

    def start_handshake(self, timeout: float) -> None:
        """Do nothing: `SshConnector` limits the time of the handshake."""

    def send_message(self, data: Message) -> None:
        """See `Packetizer.send_message`."""
        packet = data.asbytes()
        kind, channel = packet[0], packet[1:5]
        with self._sending:
            if _WINDOW_ADJUST <= kind <= _REQUEST:
                if channel in self._closed_channels:
                    return
                if kind == _CLOSE:
                    self._closed_channels.add(channel)
            elif kind == _OPEN_CONFIRMATION:
                self._closed_channels.discard(channel)
            super().send_message(data)

    def read_message(self) -> tuple[int, Message]:
        """See `Packetizer.read_message`; the server may use the number of a closed channel again."""
        kind, message = super().read_message()
        if kind == _OPEN_CONFIRMATION:
            self._closed_channels.discard(message.asbytes()[4:8])
        return kind, message


def _gateway_channel(gateway: SshConnection, place: SshAddress, seconds: float) -> Channel:
    target = (place.address, place.port)
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
            f"its gateway {gateway.host} can't connect to {place} ({reason}); is it up, and is that its "
            "address as the gateway sees it?",
            True,
        ) from error
