"""Joins sockets of this machine to channels of connections over SSH, for ports that are forwarded.

`relay` and `forward` use it. Each pair of a socket and a channel needs two threads, one for each direction.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from paramiko import Channel, SSHException

from launcher.backends.ssh.connection import ClosingSocket
from launcher.backends.ssh.program import PACKET_BYTES, close_channel
from launcher.messages import say
from launcher.threads import start_function

_READ_BYTES = 128 * 1024
#: The time for the host to accept the last bytes after the socket of this machine was closed.
_LAST_BYTES_SECONDS = 5.0


class JoinedSockets:
    """The sockets that are joined to channels, and what the user was told about them. Any thread may use it.

    Args:
        name: The name of its threads.
        most: The largest number of sockets for one host.
    """

    def __init__(self, name: str, most: int) -> None:
        """Start without sockets. Each host may have ``most`` of them."""
        self._name = name
        self._most = most
        #: Guards the sockets, and what the user was told.
        self._lock = threading.Lock()
        #: The sockets that are in use, by the names of the hosts to which they lead.
        self._sockets: dict[str, set[socket.socket]] = {}
        #: The texts of `say_once`.
        self._told: set[str] = set()
        #: It is set when `close` begins. Then no socket is added.
        self.closing = threading.Event()

    def begin(self, function: Callable[..., object], *arguments: object) -> threading.Thread:
        """Call a function in a daemon thread.

        Raises:
            TransportError: No thread is left.
        """
        return start_function(function, *arguments, name=self._name)

    def add(self, host: str, sock: socket.socket) -> bool:
        """Remember a socket until `end`, unless its host has too many already, or `close` was called.

        Returns:
            Whether the socket may be used.
        """
        with self._lock:
            sockets = self._sockets.setdefault(host, set())
            has_room = len(sockets) < self._most and not self.closing.is_set()
            if has_room:
                sockets.add(sock)
        return has_room

    def join(self, sock: socket.socket, channel: Channel) -> None:
        """Move bytes between a socket and a channel until both directions have ended.

        Args:
            sock: A blocking socket.
            channel: An open channel, but not that of a program.

        Raises:
            OSError: The socket was closed.
            TransportError: No thread is left.
        """
        sender = self.begin(_send_from, sock, channel)
        if _receive_into(channel, sock, sender):
            sock.shutdown(socket.SHUT_WR)
            # Such a channel has no exit status, so this only waits until both directions have ended.
            channel.recv_exit_status()

    def end(self, host: str, sock: socket.socket, channel: Channel | None) -> None:
        """Close a socket and its channel, and forget the socket.

        Args:
            host: The name of the host to which the channel leads.
            sock: The socket.
            channel: The channel. None if none was opened.
        """
        with self._lock:
            self._sockets.get(host, set()).discard(sock)
        if channel is not None:
            close_channel(channel)
        close_socket(sock)

    def say_once(self, text: str) -> None:
        """Tell the user something, unless the user was told before, or `close` was called."""
        with self._lock:
            is_new = text not in self._told and not self.closing.is_set()
            self._told.add(text)
        if is_new:
            say(text)

    def close(self) -> None:
        """End all joined sockets, and refuse further ones."""
        self.closing.set()
        with self._lock:
            sockets = [sock for of_host in self._sockets.values() for sock in of_host]
        for sock in sockets:
            with suppress(OSError):  # It is not connected yet.
                sock.shutdown(socket.SHUT_RDWR)


def close_socket(sock: socket.socket) -> None:
    """Close a socket in such a way that a thread that reads it sees the end."""
    with suppress(OSError):  # It is not connected.
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _send_from(sock: socket.socket, channel: Channel) -> None:
    """Move bytes, and at last the end-of-file, from a socket to a channel.

    Args:
        sock: A blocking socket.
        channel: An open channel.
    """
    with suppress(SSHException, EOFError, OSError):  # The channel or the socket has ended.
        try:
            while data := sock.recv(PACKET_BYTES):
                # The connection keeps in memory what the server does not accept yet, which must not grow.
                cast("ClosingSocket", channel.get_transport().sock).wait_for_room()
                channel.sendall(data)
        finally:
            channel.shutdown_write()


def _receive_into(channel: Channel, sock: socket.socket, sender: threading.Thread) -> bool:
    """Move bytes from a channel to a socket.

    Only the calling thread may close the channel, because that frees the descriptor that this function polls.

    Args:
        channel: An open channel.
        sock: A blocking socket.
        sender: The thread of `_send_from`. If the socket is closed, this waits up to `_LAST_BYTES_SECONDS`
            for it.

    Returns:
        Whether the end-of-file was reached. False if the connection broke or the socket was closed.
    """
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    poll.register(sock, 0)
    with suppress(SSHException, EOFError, OSError):
        while True:
            # This is read before the last bytes are, which may arrive in between.
            has_ended = channel.eof_received or channel.closed
            if channel.recv_ready():
                sock.sendall(channel.recv(_READ_BYTES))
            elif has_ended:
                return bool(channel.eof_received)
            # The socket was registered for no event, so it shows only that it was closed.
            elif any(fd == sock.fileno() for fd, _ in poll.poll()):
                break
    if not channel.closed:
        sender.join(_LAST_BYTES_SECONDS)
    return False
