"""Ports on the hosts that lead to a socket of this machine: the way for tasks where no direct one is open.

::

    task ══ 127.0.0.1:PORT on its host ══ ssh server ══ connection ══ pumps (here) ══ unix socket ══ program

What is on its way is bounded: each direction of each way has a thread that reads the next piece when the last
one was taken, by a channel's window (2 MiB) and by the connection's own queue.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from paramiko import Channel, SSHException

from launcher.transport.ssh.line import Line

#: Ways through one host at a time; more are closed at once.
MOST_WAYS = 64
#: Seconds that hosts may take to open the port.
OPEN_LIMIT = 10.0
#: Seconds in which the port of a lost connection is asked for again, and between two tries: the server there
#: may have to notice first that the old connection is gone.
RENEW_LIMIT, _RETRY = 60.0, 0.25
#: Seconds for threads to end.
_LAST_WAIT = 2.0
_LOOPBACK = "127.0.0.1"
_PIECE = 128 * 1024


class Relays:
    """The ports of all hosts.

    Args:
        path: the unix socket here.
        tell: gets a line for the user; called by any thread.
    """

    def __init__(self, path: str, tell: Callable[[str], None]) -> None:
        self._path = path
        self._tell = tell
        self._lock = threading.Lock()
        self._ports: dict[str, int] = {}
        self._ways: dict[str, set[_Way]] = {}
        self._told: set[tuple[str, str]] = set()
        self._closing = threading.Event()

    def open(self, lines: Mapping[str, Line]) -> dict[str, int]:
        """Have a port opened on every host, all at once; what can't be had is told.

        Returns:
            The ports, by host.
        """
        self._ways.update((host, set()) for host in lines)
        asking = [
            _thread(partial(self._first, host, line), f"ssh-{host}-relay") for host, line in lines.items()
        ]
        deadline = time.monotonic() + OPEN_LIMIT
        for thread in asking:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            found = dict(self._ports)
        for host in lines:
            if host not in found:
                self._tell_once(host, "no port there leads to this machine: its tasks need another way here")
        return found

    def _first(self, host: str, line: Line) -> None:
        try:
            port = self._ask(host, line, 0)
        except (SSHException, EOFError, OSError) as error:
            self._tell_once(host, f"its ssh server opens no port for its tasks: {_why(error)}")
            return
        with self._lock:
            self._ports[host] = port

    def _ask(self, host: str, line: Line, port: int) -> int:
        opened: int = line.request_port_forward(_LOOPBACK, port, partial(self._arrived, host, line))
        return opened

    def renew(self, host: str, line: Line) -> None:
        """The host was connected to anew: have the same port opened over this connection. Does not wait."""
        with self._lock:
            port = self._ports.get(host)
        if port is not None:
            _thread(partial(self._again, host, line, port), f"ssh-{host}-relay")

    def _again(self, host: str, line: Line, port: int) -> None:
        deadline = time.monotonic() + RENEW_LIMIT
        while line.is_active() and not self._closing.is_set():
            try:
                self._ask(host, line, port)
                return
            except (SSHException, EOFError, OSError):
                if time.monotonic() > deadline:
                    what = f"port {port} there, which leads its tasks to this machine, can't be opened again"
                    self._tell_once(host, what)
                    return
            self._closing.wait(_RETRY)

    def _arrived(self, host: str, line: Line, channel: Channel, *_: object) -> None:
        """Somebody has connected to the port; called by the connection's thread, which must not wait."""
        way = _Way(line, channel)
        with self._lock:
            ways = self._ways[host]
            crowded = len(ways) >= MOST_WAYS or self._closing.is_set()
            if not crowded:
                ways.add(way)
        try:
            _thread(partial(self._refuse if crowded else self._carry, host, way), f"ssh-{host}-way")
        except RuntimeError:  # no thread is to be had
            way.close()
            with self._lock:
                ways.discard(way)

    def _refuse(self, host: str, way: _Way) -> None:
        way.close()
        self._tell_once(host, f"more than {MOST_WAYS} connections at a time to this machine: refused")

    def _carry(self, host: str, way: _Way) -> None:
        try:
            way.carry(self._path)
        except OSError as error:
            self._tell_once(host, f"its tasks can't be led to {self._path}: {_why(error)}")
        finally:
            way.close()
            with self._lock:
                self._ways[host].discard(way)

    def _tell_once(self, host: str, text: str) -> None:
        with self._lock:
            news = (host, text) not in self._told and not self._closing.is_set()
            self._told.add((host, text))
        if news:
            self._tell(f"{host}: {text}")

    def close(self) -> None:
        """End all ways; the ports go with the connections."""
        self._closing.set()
        with self._lock:
            ways = [way for of_host in self._ways.values() for way in of_host]
        for way in ways:
            way.close()
        deadline = time.monotonic() + _LAST_WAIT
        for way in ways:
            way.over.wait(max(0.0, deadline - time.monotonic()))


class _Way:
    """One connection from a host to the socket here."""

    def __init__(self, line: Line, channel: Channel) -> None:
        self._line = line
        self._channel = channel
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
            self._here = here = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            here.connect(path)
            self._channel.settimeout(None)
            out = _thread(partial(self._out, here), "ssh-way-out")
            self._in(here)
            out.join()
        finally:
            self.over.set()

    def _in(self, here: socket.socket) -> None:
        """From the host to the socket here."""
        try:
            while data := self._channel.recv(_PIECE):
                here.sendall(data)
            here.shutdown(socket.SHUT_WR)
        except (SSHException, EOFError, OSError):  # one end is gone: the other is not to wait for it
            self.close()

    def _out(self, here: socket.socket) -> None:
        """From the socket here to the host."""
        piece = bytearray(_PIECE)
        view = memoryview(piece)
        try:
            while size := here.recv_into(piece):
                self._send(view[:size])
            self._channel.shutdown_write()
        except (SSHException, EOFError, OSError):
            self.close()

    def _send(self, data: memoryview) -> None:
        while data:
            self._line.await_room()
            sent = self._channel.send(data)  # type: ignore[arg-type]  # anything with bytes
            if not sent:
                raise EOFError
            data = data[sent:]

    def close(self) -> None:
        """Close both ends, and so end whoever waits for one. Any thread may, more than once."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._channel.close()
        if self._here is None:
            return
        try:
            self._here.shutdown(socket.SHUT_RDWR)
        except OSError:  # it was not connected
            pass
        self._here.close()


def _thread(work: Callable[[], object], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _why(error: Exception) -> str:
    if isinstance(error, SSHException):
        return "it does not forward them (AllowTcpForwarding, PermitListen)"
    return getattr(error, "strerror", None) or str(error)
