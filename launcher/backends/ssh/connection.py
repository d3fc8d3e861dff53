"""An authenticated connection to a host, and what paramiko uses for it: its socket and its packets."""

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


class Packets(Packetizer):
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
