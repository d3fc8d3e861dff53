"""One connection from a host to a unix socket of this machine, carried over the connection of its host."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from functools import partial

from paramiko import Channel, SSHException

from launcher.transport.ssh.inflow import divert
from launcher.transport.ssh.line import Line
from launcher.transport.ssh.sending import send_all, send_end

_PIECE = 128 * 1024
#: Seconds for the program here to take a connection, and between looks at whether the host has closed one.
_CONNECT_LIMIT, _LOOK = 10.0, 0.5


def thread(work: Callable[[], object], name: str) -> threading.Thread:
    """One that is started, and keeps nobody alive."""
    made = threading.Thread(target=work, name=name, daemon=True)
    made.start()
    return made


class Way:
    """One connection from a host to the socket here. Made by the connection's thread."""

    def __init__(self, line: Line, channel: Channel) -> None:
        self._line = line
        self._channel = channel
        self._inflow = divert(line, channel)
        self._here: socket.socket | None = None
        self._closed = threading.Event()
        #: Both directions have ended.
        self.over = threading.Event()

    def carry(self, path: str) -> None:
        """Carry bytes both ways until both ends are through, or one breaks.

        Raises:
            OSError: nobody listens at ``path``.
        """
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as here:
                self._here = here  # from now on `close` ends whoever waits for it
                if not self._closed.is_set():
                    self._carry(here, path)
        finally:
            self.over.set()

    def _carry(self, here: socket.socket, path: str) -> None:
        here.settimeout(_CONNECT_LIMIT)
        here.connect(path)
        here.settimeout(None)
        self._channel.settimeout(None)
        out = thread(partial(self._out, here), "ssh-way-out")
        self._in(here)
        self._await_close(out)
        out.join()

    def _await_close(self, out: threading.Thread) -> None:
        """The host sends nothing more, but may still hear something: until it closes."""
        with self._channel.lock:
            while out.is_alive() and not self._channel.closed:
                self._channel.out_buffer_cv.wait(_LOOK)
        if out.is_alive():
            self.close()

    def _in(self, here: socket.socket) -> None:
        """From the host to the socket here."""
        try:
            self._inflow.pass_on(here)
            if not self._channel.eof_received:
                raise EOFError  # that was the connection's end
            here.shutdown(socket.SHUT_WR)
        except (SSHException, EOFError, OSError):  # one end is gone: the other is not to wait for it
            self.close()

    def _out(self, here: socket.socket) -> None:
        """From the socket here to the host."""
        piece = bytearray(_PIECE)
        view = memoryview(piece)
        try:
            while size := here.recv_into(piece):
                send_all(self._line, self._channel, view[:size])
            send_end(self._line, self._channel)
        except (SSHException, EOFError, OSError):
            self.close()

    def close(self) -> None:
        """Close both ends, and so end whoever waits for one. Any thread may, more than once."""
        if self._closed.is_set():
            return
        self._closed.set()
        for close in (self._channel.close, partial(_shut, self._here)):
            try:
                close()
            except (SSHException, EOFError, OSError):  # it broke, was not connected, or is closed already
                continue


def _shut(here: socket.socket | None) -> None:
    if here is not None:
        here.shutdown(socket.SHUT_RDWR)
