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
        """Store a connection that is logged in."""
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
        # The end of the stream, or a channel that the server refused, is no better reason.
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
        inner: A connected socket, or a channel of a gateway.
        on_close: It is called by `close`, perhaps more than once.
    """

    def __init__(self, inner: socket.socket | Channel, on_close: Callable[[], None] = lambda: None) -> None:
        """Wrap a socket or a channel of a gateway. It never blocks from now on."""
        self._inner = inner
        self._on_close = on_close
        #: Whether a gateway carries the bytes. Its channel behaves unlike a socket of the kernel.
        self._is_channel = isinstance(inner, Channel)
        #: The socket if it is a TCP connection. None for a ProxyCommand (a Unix socket) and for a channel.
        self._tcp = inner if isinstance(inner, socket.socket) and inner.family != socket.AF_UNIX else None
        #: Whether the other side closed the connection, or it broke.
        self.ended = False
        #: The thread of paramiko that calls `recv`. None until its first call.
        self._reader: threading.Thread | None = None
        #: The bytes that were read, and not yet returned by `recv`.
        self._received = memoryview(b"")
        #: The bytes that wait to be sent.
        self._unsent = bytearray()
        #: Guards the unsent bytes. It is notified when some of them were sent.
        self._send_condition = threading.Condition()
        #: The descriptor by which other threads wake the reading one. It is -1 when it is closed.
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        inner.settimeout(0.0)
        #: The descriptor that becomes readable when bytes arrive.
        self._fd = inner.fileno()
        # Whether `close` was called. paramiko reads an attribute of this name.
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
                # After a timeout of `_read`, which has no number, paramiko calls this again. A timeout of the
                # kernel (ETIMEDOUT) is the end of the connection.
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
        deadline = time.monotonic() + _READ_TIMEOUT_SECONDS
        # The end of a closed socket shows by itself. That of a closed channel might not.
        while not (self._closed and self._is_channel):
            try:
                data = self._inner.recv(_READ_BYTES)
                # The server's Nagle algorithm would wait up to 40 ms for a delayed ACK.
                if self._tcp is not None:
                    self._tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
                return data
            except (BlockingIOError, TimeoutError) as error:
                if error.errno == errno.ETIMEDOUT:  # The kernel has given the connection up.
                    raise
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                raise TimeoutError
            self._await_event(seconds_left)
        return b""

    def _await_event(self, seconds: float) -> None:
        """Send what waits, and wait until something happens, at most for some seconds.

        The socket becomes readable or accepts more, there is more to send, or the socket is closed.
        """
        with self._send_condition:
            self._flush()
            has_unsent = bool(self._unsent)
        events = select.POLLIN
        if has_unsent and self._is_channel:
            # The descriptor of a channel does not show when the channel accepts more.
            seconds = min(seconds, _SEND_PAUSE_SECONDS)
        elif has_unsent:
            events |= select.POLLOUT
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        poll.register(self._fd, events)
        poll.poll(seconds * 1000 + 1)
        # Other threads wake this one by the descriptor, which must not stay readable.
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    def send(self, data: bytes) -> int:
        """Send some bytes now, and let the reading thread send the rest. All bytes count as sent."""
        with self._send_condition:
            if self._unsent:  # The reading thread sends these bytes after the others.
                self._unsent += data
                return len(data)
            sent = self._send_now(data)
            self._unsent += data[sent:]
            if self._unsent:
                self._wake_reader()
        return len(data)

    def _flush(self) -> None:
        """Send as much of what waits as the other side accepts now. The caller holds ``_send_condition``."""
        if self._unsent:
            sent = self._send_now(bytes(self._unsent))
            del self._unsent[:sent]
            self._send_condition.notify_all()

    def _send_now(self, data: bytes) -> int:
        """Send as many bytes as the other side accepts now, and return their number."""
        if isinstance(self._inner, Channel) and not self._inner.get_transport().clear_to_send.is_set():
            return 0  # The gateway is renewing keys, so sending would block.
        try:
            return self._inner.send(data)
        except (BlockingIOError, TimeoutError):
            return 0

    def _wake_reader(self) -> None:
        """Wake the thread that reads. This does nothing after `close`."""
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def wait_for_room(self) -> None:
        """Block while more than some megabytes are waiting to be sent, unless the connection ends."""
        with self._send_condition:
            while len(self._unsent) >= _MAX_UNSENT_BYTES and not (self.ended or self._closed):
                self._send_condition.wait()

    def getpeername(self) -> object:
        """Return the address of the other side, as `socket.socket.getpeername` does."""
        return self._inner.getpeername()

    def abort(self) -> None:
        """Close the socket, and drop data that was not sent.

        After a break of the network the agent would mistake such data for the end of the launcher.
        """
        if isinstance(self._inner, socket.socket):
            with suppress(OSError):  # It is closed already.
                # The kernel drops what it has not sent if it may not linger.
                self._inner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """End the connection without waiting. If a thread is reading, that thread closes the descriptor."""
        self._closed = True
        self._on_close()
        reader = self._reader
        # Without another thread that reads, this one closes the descriptors.
        no_reader = reader is None or reader is threading.current_thread() or not reader.is_alive()
        with self._send_condition:
            self._unsent.clear()
            self._wake_reader()
            if no_reader and self._wake_fd >= 0:
                os.close(self._wake_fd)
                self._wake_fd = -1
            self._send_condition.notify_all()
        with suppress(OSError, EOFError, SSHException):  # The connection or its gateway has ended.
            if no_reader:
                self._inner.close()
            elif not self._is_channel:
                # The reading thread sees the end (that of a channel by `_closed`), and paramiko then calls
                # `close` in it.
                self._inner.shutdown(socket.SHUT_RDWR)


class Packets(Packetizer):
    """paramiko's packetizer with three changes.

    * It starts no timer thread for a handshake, which would live for 15 s after a failure.
    * It renews keys after 64 GiB as OpenSSH does, at the request of the server. paramiko's own request after
      512 MiB can deadlock when the server closes a channel.
    * It sends nothing on a channel after the CLOSE of that channel. `Channel.send` checks and sends in two
      steps, and if the channel is closed between them, an OpenSSH server ends the connection.

    Args:
        sock: The connected socket of the transport.
    """

    REKEY_BYTES = 1 << 36

    def __init__(self, sock: socket.socket) -> None:
        """Wrap a socket as paramiko does, and remember which channels were closed."""
        super().__init__(sock)
        #: Held while a message is sent, so that none on a channel can follow the CLOSE of the channel.
        self._send_lock = threading.RLock()
        #: The channels that this end has closed, by the server's numbers.
        self._closed_channels: set[bytes] = set()

    def start_handshake(self, timeout: float) -> None:
        """Do nothing, because `SshConnector` limits the time of the handshake."""

    def send_message(self, data: Message) -> None:
        """Send a message, unless it belongs to a channel that this end has closed."""
        packet = data.asbytes()
        kind, channel = packet[0], packet[1:5]
        with self._send_lock:
            if _WINDOW_ADJUST <= kind <= _REQUEST:  # The message belongs to a channel.
                if channel in self._closed_channels:
                    return
                if kind == _CLOSE:
                    self._closed_channels.add(channel)
            elif kind == _OPEN_CONFIRMATION:  # The server uses the number for a new channel.
                self._closed_channels.discard(channel)
            super().send_message(data)

    def read_message(self) -> tuple[int, Message]:
        """Receive a message, and forget a closed channel if the server uses its number again."""
        kind, message = super().read_message()
        if kind == _OPEN_CONFIRMATION:
            server_number = message.asbytes()[4:8]  # Our number of the channel comes first.
            self._closed_channels.discard(server_number)
        return kind, message
