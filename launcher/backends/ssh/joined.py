"""Joins sockets of this machine to channels of connections over SSH, for ports that are forwarded.

Each pair of a socket and a channel takes two threads, one for each direction.
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

#: Bytes of a read.
_READ_BYTES = 128 * 1024
#: Seconds for the host to take the last bytes after the socket here was closed.
_LAST_BYTES_SECONDS = 5.0


class JoinedSockets:
    """The sockets that are joined to channels, and what the user was told about them. Any thread may use it.

    Args:
        name: Of the threads.
        most: How many sockets there are for one host at most.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._sockets: dict[str, set[socket.socket]] = {}
        self._said: set[str] = set()
        self.closing = threading.Event()

    def begin(self, function: Callable[..., object], *arguments: object) -> threading.Thread:
        """Call a function in a daemon thread.

        Raises:
            TransportError: No thread is left.
        """
        return start_function(function, *arguments, name=self._name)

    def add(self, host: str, sock: socket.socket) -> bool:
        """Keep a socket until `end`. Returns whether there was room for it."""
        with self._lock:
            sockets = self._sockets.setdefault(host, set())
            has_room = len(sockets) < self._most and not self.closing.is_set()
            if has_room:
                sockets.add(sock)
        return has_room

    def join(self, sock: socket.socket, channel: Channel) -> None:
        """Move bytes between a socket and a channel, until both directions have ended.

        Args:
            sock: It blocks.
            channel: An open one, not that of a program.

        Raises:
            OSError: The socket was closed.
            TransportError: No thread is left.
        """
        sender = self.begin(_send_from, sock, channel)
        if _receive_into(channel, sock, sender):
            sock.shutdown(socket.SHUT_WR)
            channel.recv_exit_status()  # waits until both directions have ended

    def end(self, host: str, sock: socket.socket, channel: Channel | None) -> None:
        """Close a socket and its channel."""
        with self._lock:
            self._sockets.get(host, set()).discard(sock)
        if channel is not None:
            close_channel(channel)
        close_socket(sock)

    def say_once(self, text: str) -> None:
        """Tell the user something, unless it was said before."""
        with self._lock:
            is_new = text not in self._said and not self.closing.is_set()
            self._said.add(text)
        if is_new:
            say(text)

    def close(self) -> None:
        """End what is joined; nothing is joined any more."""
        self.closing.set()
        with self._lock:
            sockets = [sock for of_host in self._sockets.values() for sock in of_host]
        for sock in sockets:
            with suppress(OSError):  # it is not connected yet
                sock.shutdown(socket.SHUT_RDWR)


def close_socket(sock: socket.socket) -> None:
    """Close a socket; a thread that reads it gets its end-of-file."""
    with suppress(OSError):  # it is not connected
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _send_from(sock: socket.socket, channel: Channel) -> None:
    """Move bytes and the end-of-file from a socket to a channel.

    Args:
        sock: blocking.
        channel: open.
    """
    with suppress(SSHException, EOFError, OSError):  # the channel or the socket has ended
        try:
            while data := sock.recv(PACKET_BYTES):
                cast("ClosingSocket", channel.get_transport().sock).wait_for_room()
                channel.sendall(data)
        finally:
            channel.shutdown_write()


def _receive_into(channel: Channel, sock: socket.socket, sender: threading.Thread) -> bool:
    """Move bytes from a channel to a socket.

    Only the calling thread closes the channel: that frees the descriptor that this function polls.

    Args:
        channel: open.
        sock: blocking.
        sender: the thread of `_send_from`; it has `_LAST_BYTES_SECONDS` to end when the socket is closed.

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
