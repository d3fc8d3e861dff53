"""A program of ours on a host: a channel of the connection to it."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from paramiko import Channel, ChannelException, SSHException

from launcher.backends import bootstrap
from launcher.backends.programs import STDERR_LIMIT_BYTES, RemoteProgram
from launcher.backends.ssh.connection import ClosingSocket, SshConnection
from launcher.backends.ssh.options import unexpected
from launcher.common.errors import ConnectionLostError, TransportError
from launcher.threads import start

#: Bytes of a read, of a packet, and of paramiko's window.
_READ_BYTES = 128 * 1024
_PACKET_BYTES = 32 * 1024 - 64
_WINDOW_BYTES = 2 * 1024 * 1024
#: Seconds for the host to take our program; to take the last bytes after the caller has closed its end.
_ARRIVAL_SECONDS = 60.0
_LAST_BYTES_SECONDS = 5.0
#: Seconds for a login shell to start our program. A link looks earlier, and tries again.
_START_TIMEOUT_SECONDS = 30.0


def start_ssh_program(connection: SshConnection, python: str, startup: bytes) -> RemoteProgram:
    """Run a program of ours on a host, in a channel of its own. Blocks until the host has taken the program.

    Args:
        connection: To the host.
        python: The Python that runs the program, for messages.
        startup: See `bootstrap.startup`.

    Raises:
        TransportError: It can't be started, or this machine has no descriptor left.
    """
    return RemoteProgram(
        connection.host,
        SshChannelPipe(connection, startup),
        python=python,
        starter="its login shell",
        patience=_START_TIMEOUT_SECONDS,
    )


class SshChannelPipe:
    """A channel whose shell runs a program of ours; see `launcher.backends.programs.Pipe`.

    Args:
        connection: To the host.
        startup: See `bootstrap.startup`.

    Raises:
        TransportError: No channel can be opened.
    """

    def __init__(self, connection: SshConnection, startup: bytes) -> None:
        self._connection = connection
        self._stderr = b""
        try:
            self._channel = connection.transport.open_session()
        except ChannelException as error:
            raise TransportError(
                f"{connection.host}: its ssh server gives no further session on this connection "
                "(is MaxSessions very low, or does it only forward?)"
            ) from error
        except (SSHException, EOFError, OSError) as error:
            raise ConnectionLostError(connection.why_broken()) from error
        try:
            self._fd = self._channel.fileno()
            self._channel.settimeout(_ARRIVAL_SECONDS)
            self._channel.exec_command(bootstrap.COMMAND)
            with suppress(OSError):  # it has ended: `recv` reports why
                self._channel.sendall(startup)
            self._channel.settimeout(0.0)
        except BaseException as error:
            close_channel(self._channel)
            if isinstance(error, OSError):
                raise TransportError(f"{connection.host}: {unexpected(error)}") from error
            if isinstance(error, (SSHException, EOFError)):
                raise ConnectionLostError(connection.why_broken()) from error
            raise

    def fileno(self) -> int:
        """See `Pipe.fileno`. It never becomes writable."""
        return self._fd

    def recv(self, size: int) -> bytes | None:
        """See `Pipe.recv`."""
        channel = self._channel
        ended = channel.eof_received or channel.closed  # read before the last bytes are
        if channel.recv_stderr_ready():
            self._stderr = (self._stderr + channel.recv_stderr(_WINDOW_BYTES))[-STDERR_LIMIT_BYTES:]
        if channel.recv_ready():
            if not self._connection.transport.clear_to_send.is_set():
                return None  # keys are renewed: `recv` would wait to send that it took something
            with suppress(SSHException, EOFError, OSError):
                return channel.recv(size)
        elif not ended:
            return None
        elif channel.eof_received:
            return b""
        raise ConnectionLostError(self._connection.why_broken())

    def send(self, data: bytes | memoryview) -> int:
        """See `Pipe.send`."""
        return send_now(self._channel, data)

    def wait(self, seconds: float) -> int | None:
        """See `Pipe.wait`. Of a program that was killed, the status is not known."""
        if not self._channel.status_event.wait(seconds):
            return None
        status = self._channel.recv_exit_status()
        return status if status >= 0 else None

    def stderr(self) -> str:
        """See `Pipe.stderr`."""
        return self._stderr.decode("utf-8", "replace")

    def close(self) -> None:
        """See `Pipe.close`."""
        close_channel(self._channel)


def send_now(channel: Channel, data: bytes | memoryview) -> int:
    """Send as many bytes as the channel takes now, and return their number. Never blocks.

    Args:
        channel: with a timeout of 0.
        data: the bytes.
    """
    view, transport = memoryview(data), channel.get_transport()
    sent = 0
    with suppress(SSHException, EOFError, OSError):  # it takes nothing now, or has ended: reading shows which
        # While keys are renewed, paramiko waits in `send`.
        while sent < len(view) and transport.clear_to_send.is_set():
            count = channel.send(bytes(view[sent : sent + _PACKET_BYTES]))
            if not count:
                break
            sent += count
    return sent


def send_from(sock: socket.socket, channel: Channel) -> None:
    """Move bytes and the end-of-file from a socket to a channel.

    Args:
        sock: blocking.
        channel: open.
    """
    with suppress(SSHException, EOFError, OSError):  # the channel or the socket has ended
        try:
            while data := sock.recv(_PACKET_BYTES):
                cast("ClosingSocket", channel.get_transport().sock).wait_for_room()
                channel.sendall(data)
        finally:
            channel.shutdown_write()


def receive_into(channel: Channel, sock: socket.socket, sender: threading.Thread) -> bool:
    """Move bytes from a channel to a socket.

    Only the calling thread closes the channel: that frees the descriptor that this function polls.

    Args:
        channel: open.
        sock: blocking.
        sender: the thread of `send_from`; it has `_LAST_BYTES_SECONDS` to end when the socket is closed.

    Returns:
        Whether the end-of-file was reached; ``False``: the connection broke, or the socket was closed.
    """
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    poll.register(sock, 0)
    with suppress(SSHException, EOFError, OSError):
        while True:
            ended = channel.eof_received or channel.closed  # read before the last bytes are
            if channel.recv_ready():
                sock.sendall(channel.recv(_READ_BYTES))
            elif ended:
                return bool(channel.eof_received)
            elif any(fd == sock.fileno() for fd, _ in poll.poll()):  # it was closed
                break
    if not channel.closed:
        sender.join(_LAST_BYTES_SECONDS)
    return False


def join_both(name: str, sock: socket.socket, channel: Channel) -> None:
    """Move bytes between a socket and a channel, until both directions have ended.

    Args:
        name: of the second thread.
        sock: blocking.
        channel: open; not of a program.

    Raises:
        OSError: the socket was closed.
        TransportError: no thread is left.
    """
    sender = start_thread(name, send_from, sock, channel)
    if receive_into(channel, sock, sender):
        sock.shutdown(socket.SHUT_WR)
        channel.recv_exit_status()  # waits until both directions have ended


def start_thread(name: str, function: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        TransportError: No thread is left.
    """
    thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
    start(thread)
    return thread


def close_channel(channel: Channel) -> None:
    """Close a channel and its descriptor, even if the connection is broken."""
    with suppress(SSHException, EOFError, OSError):
        channel.close()


def close_socket(sock: socket.socket) -> None:
    """Close a socket; a thread that reads it gets its end-of-file."""
    with suppress(OSError):  # it is not connected
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
