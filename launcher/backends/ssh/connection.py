"""An authenticated connection to a host, and the socket and the packets that paramiko uses for it.

`launcher.backends.ssh.connector` makes these objects. Nothing that the loop of a launch calls here may block.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from paramiko import Channel, ChannelException, Message, SSHException, Transport
from paramiko.packet import Packetizer

from launcher.backends.ssh.options import reason_of

#: The time for which a read by paramiko's thread blocks.
_READ_TIMEOUT_SECONDS = 5.0
#: The pause before that thread tries again to send through a gateway.
_SEND_PAUSE_SECONDS = 0.05
_READ_BYTES = 64 * 1024
#: While more bytes than this wait to be sent, forwarded connections wait, too.
_MAX_UNSENT_BYTES = 4 * 1024 * 1024
#: The reason code of a server that forbids forwarding (RFC 4254, 5.1).
PROHIBITED = 1
#: Message numbers of RFC 4254: the confirmation of a channel, and the messages on a channel.
_OPEN_CONFIRMATION = 91
_WINDOW_ADJUST = 93
_CLOSE = 97
_REQUEST = 98


class SshConnection:
    """An authenticated connection to one host. Any thread may use it.

    Args:
        host: The name of the host.
        transport: The transport of paramiko, logged in.
        sock: The socket of the transport.
        login_seconds: How long the handshake and the login took. Whoever made the socket adds its time.
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
        """Return a message that the connection broke, with the reason if paramiko knows it."""
        error = self.transport.saved_exception
        reason = "the other side closed it"
        if error is not None and not isinstance(error, (EOFError, ChannelException)):
            reason = reason_of(error)
        return f"{self.host}: the connection broke ({reason})"

    def abort(self) -> None:
        """End the connection without waiting, and without sending queued data."""
        self._sock.abort()
        self.transport.close()


class ClosingSocket:
    """The socket that paramiko uses, read by one thread.

    `send` never blocks: what the other side does not accept at once, the reading thread sends. `close` wakes
    that thread, so that it need not poll.

    Args:
        under: A connected socket, or a channel of a gateway.
        on_close: It is called by `close`, perhaps more than once.
    """

    def __init__(self, under: socket.socket | Channel, on_close: Callable[[], None] = lambda: None) -> None:
        self._under = under
        self._on_close = on_close
        self._is_channel = isinstance(under, Channel)
        self._tcp = under if isinstance(under, socket.socket) and under.family != socket.AF_UNIX else None
        #: Whether the other side closed the connection, or it broke.
        self.ended = False
        self._reader: threading.Thread | None = None
        #: The bytes that were read, and not yet returned by `recv`.
        self._received = memoryview(b"")
        #: The bytes that wait to be sent.
        self._unsent = bytearray()
        #: Guards the unsent bytes. It is notified when some of them were sent.
        self._room = threading.Condition()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        under.settimeout(0.0)
        self._fd = under.fileno()
        # paramiko reads an attribute of this name.
        self._closed = False

    def settimeout(self, seconds: float) -> None:
        """Do nothing. With a timeout, paramiko would poll for `close` each 0.1 s."""

    def recv(self, size: int) -> bytes:
        """Return bytes from the other side, empty at the end, as `socket.socket.recv` does.

        It turns every error into a `ConnectionAbortedError`, because paramiko retries after others.
        """
        self._reader = threading.current_thread()
        if not self._received:
            try:
                self._received = memoryview(self._read())
            except (OSError, SSHException, EOFError) as error:
                if isinstance(error, TimeoutError) and error.errno is None:
                    raise
                self.ended = True
                number, text = getattr(error, "errno", None), getattr(error, "strerror", None)
                raise ConnectionAbortedError(number, text) from error
            self.ended = self.ended or not self._received
        data, self._received = self._received[:size], self._received[size:]
        return bytes(data)

    def _read(self) -> bytes:
        """Wait for bytes, and meanwhile send what waits to be sent.

        Raises:
            TimeoutError: Nothing has come for `_READ_TIMEOUT_SECONDS`.
        """
        until = time.monotonic() + _READ_TIMEOUT_SECONDS
        while not (self._closed and self._is_channel):
            try:
                data = self._under.recv(_READ_BYTES)
                # The server's Nagle algorithm would wait up to 40 ms for a delayed ACK.
                if self._tcp is not None:
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
        """Wait until the socket is readable or accepts more, there is more to send, or it is closed."""
        with self._room:
            self._flush()
            waits = bool(self._unsent)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        # The descriptor of a channel does not show when the channel accepts more, so sending is tried again.
        poll.register(self._fd, select.POLLIN | (select.POLLOUT if waits and not self._is_channel else 0))
        poll.poll((min(seconds, _SEND_PAUSE_SECONDS) if waits and self._is_channel else seconds) * 1000 + 1)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def send(self, data: bytes) -> int:
        """Send some bytes now, and let the reading thread send the rest. All bytes count as sent."""
        with self._room:
            if self._unsent:
                self._unsent += data
                return len(data)
            self._unsent += data[self._send(data) :]
            if self._unsent:
                self._ring()
        return len(data)

    def _flush(self) -> None:
        """Send what waits. The caller holds ``_room``."""
        if self._unsent:
            del self._unsent[: self._send(bytes(self._unsent))]
            self._room.notify_all()

    def _send(self, data: bytes) -> int:
        """Send as many bytes as the other side accepts now, and return their number."""
        if isinstance(self._under, Channel) and not self._under.get_transport().clear_to_send.is_set():
            return 0  # The gateway is renewing keys, so sending would block.
        try:
            return self._under.send(data)
        except (BlockingIOError, TimeoutError):
            return 0

    def _ring(self) -> None:
        """Wake the thread that reads."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def wait_for_room(self) -> None:
        """Wait while much is waiting to be sent."""
        with self._room:
            self._room.wait_for(lambda: len(self._unsent) < _MAX_UNSENT_BYTES or self.ended or self._closed)

    def getpeername(self) -> object:
        """Return the address of the other side, as `socket.socket.getpeername` does."""
        return self._under.getpeername()

    def abort(self) -> None:
        """Close the socket, and drop data that was not sent.

        After a break of the network the agent would mistake such data for the end of the launcher.
        """
        if isinstance(self._under, socket.socket):
            with suppress(OSError):  # It is closed already.
                self._under.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """End the connection without waiting. If a thread is reading, that thread closes the descriptor."""
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
        with suppress(OSError, EOFError, SSHException):  # The connection or its gateway has ended.
            if unread:
                self._under.close()
            elif not self._is_channel:
                self._under.shutdown(socket.SHUT_RDWR)


class Packets(Packetizer):
    """paramiko's packetizer with three changes.

    * It starts no timer thread for a handshake, which would live for 15 s after a failure.
    * It renews keys after 64 GiB as OpenSSH does, at the request of the server. paramiko's own request after
      512 MiB can deadlock when the server closes a channel.
    * It sends nothing on a channel after the CLOSE of that channel. `Channel.send` checks and sends in two
      steps, and if the channel is closed between them, an OpenSSH server ends the connection.
    """

    REKEY_BYTES = 1 << 36

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._sending = threading.RLock()
        #: The channels that this end has closed, by the server's numbers.
        self._closed_channels: set[bytes] = set()

    def start_handshake(self, timeout: float) -> None:
        """Do nothing, because `SshConnector` limits the time of the handshake."""

    def send_message(self, data: Message) -> None:
        """Send a message, unless it belongs to a channel that this end has closed."""
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
        """Receive a message, and forget a closed channel if the server uses its number again."""
        kind, message = super().read_message()
        if kind == _OPEN_CONFIRMATION:
            self._closed_channels.discard(message.asbytes()[4:8])
        return kind, message
