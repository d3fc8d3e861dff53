"""A program of ours on a host: its input and output by a socketpair, its stderr, its exit status.

Two threads move the bytes of a channel, one in each direction; each blocks while its reader is slow. Bytes
wait in the channel's window (2 MiB) and in the socket.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from paramiko import Channel, ChannelException, SSHException

from launcher.errors import ConnectionLost, TransportError
from launcher.transports import bootstrap
from launcher.transports.command import STDERR_LIMIT, PipedProgram
from launcher.transports.ssh.connection import Connection
from launcher.transports.ssh.options import unexpected

#: Bytes of a read, of a packet, and of paramiko's window.
_PIECE, _PACKET, _WINDOW = 128 * 1024, 32 * 1024 - 64, 2 * 1024 * 1024
#: Seconds for the host to take the last bytes after the caller has closed its end.
_LAST_BYTES = 5.0


class SshProgram(PipedProgram):
    """A program that runs on a host. Reading its output raises the error if it could not be started.

    Args:
        connection: to the host.
        python: the Python that runs the program, for messages.
        startup: see `bootstrap.startup`.

    Raises:
        TransportError: this machine has no descriptor or thread left.
    """

    def __init__(self, connection: Connection, python: str, startup: bytes) -> None:
        self._connection = connection
        self._status: int | None = None
        self._stderr = b""
        self._over = threading.Event()
        try:
            ours, theirs = socket.socketpair()
            super().__init__(connection.host, python, "its login shell", ours)
            ours.setblocking(False)
            start_thread(f"ssh {connection.host} program", self._run, theirs, startup)
        except (OSError, RuntimeError) as error:
            raise TransportError(f"{connection.host}: {unexpected(error)}") from error

    def _run(self, sock: socket.socket, startup: bytes) -> None:
        """Start the program, then move its output to the end."""
        try:
            channel = self._connection.transport.open_session()
            try:
                channel.exec_command(bootstrap.COMMAND)
                name = f"ssh {self._connection.host} input"
                sender = start_thread(name, send_from, sock, channel, startup)
                if receive_into(channel, sock, sender, self._keep_stderr):
                    sock.shutdown(socket.SHUT_WR)
                    status = channel.recv_exit_status()
                    self._status = status if status >= 0 else None
                else:
                    self._failure = ConnectionLost(self._connection.why_broken())
            finally:
                close_channel(channel)
        except ChannelException:
            self._failure = self._fault(
                "its ssh server gives no further session on this connection "
                "(is MaxSessions very low, or does it only forward?)"
            )
        except (SSHException, EOFError, OSError, RuntimeError):
            self._failure = ConnectionLost(self._connection.why_broken())
        finally:
            self._over.set()
            close_socket(sock)

    def _keep_stderr(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-STDERR_LIMIT:]

    def wait(self, seconds: float) -> int | None:
        """See `RemoteCommand.wait`. A program that was killed has no exit status."""
        return self._status if self._over.wait(seconds) else None

    def stderr(self) -> str:
        """See `RemoteCommand.stderr`."""
        return self._stderr.decode("utf-8", "replace")

    def close(self) -> None:
        """See `RemoteCommand.close`."""
        self._socket.close()


def send_from(sock: socket.socket, channel: Channel, first: bytes = b"") -> None:
    """Move bytes and the end-of-file from a socket to a channel.

    Args:
        sock: blocking.
        channel: open.
        first: bytes to send before those of the socket.
    """
    with suppress(SSHException, EOFError, OSError):  # the channel or the socket has ended
        try:
            channel.sendall(first)
            while data := sock.recv(_PACKET):
                channel.sendall(data)
        finally:
            channel.shutdown_write()


def receive_into(
    channel: Channel,
    sock: socket.socket,
    sender: threading.Thread,
    stderr: Callable[[bytes], None] = lambda _: None,
) -> bool:
    """Move bytes from a channel to a socket.

    Only the calling thread closes the channel: that frees the descriptor that this function polls.

    Args:
        channel: open.
        sock: blocking.
        sender: the thread of `send_from`; it has `_LAST_BYTES` to end when the socket is closed.
        stderr: gets bytes of the command's stderr.

    Returns:
        Whether the end-of-file was reached; ``False``: the connection broke, or the socket was closed.
    """
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    poll.register(sock, 0)
    try:
        while True:
            ended = channel.eof_received or channel.closed  # read before the last bytes are
            if channel.recv_stderr_ready():
                stderr(channel.recv_stderr(_WINDOW))
            if channel.recv_ready():
                sock.sendall(channel.recv(_PIECE))
            elif ended:
                return bool(channel.eof_received)
            elif any(fd == sock.fileno() for fd, _ in poll.poll()):  # it was closed
                break
    except (SSHException, EOFError, OSError):
        pass
    if not channel.closed:
        sender.join(_LAST_BYTES)
    return False


def join_both(name: str, sock: socket.socket, channel: Channel) -> None:
    """Move bytes between a socket and a channel, until both directions have ended.

    Args:
        name: of the second thread.
        sock: blocking.
        channel: open; not of a program.

    Raises:
        OSError: the socket was closed.
    """
    sender = start_thread(name, send_from, sock, channel)
    if receive_into(channel, sock, sender):
        sock.shutdown(socket.SHUT_WR)
        channel.recv_exit_status()  # waits until both directions have ended


def start_thread(name: str, function: Callable[..., object], *arguments: object) -> threading.Thread:
    """Start a daemon thread."""
    thread = threading.Thread(target=function, args=arguments, name=name, daemon=True)
    thread.start()
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
