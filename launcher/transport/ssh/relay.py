"""Ports on the hosts that lead to a socket of this machine: the way for tasks where no direct one is open.

::

    task ══ 127.0.0.1:PORT on its host ══ ssh server ══ connection ══ pumps (here) ══ unix socket ══ program

What is on its way is bounded, by a channel's window (2 MiB) and by the connection's own queue: the host sends
more when the socket here has taken what came, and from the socket a thread reads the next piece when the last
one was taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from paramiko import Channel, SSHException

from launcher.text import listed
from launcher.transport.ssh.line import Line
from launcher.transport.ssh.way import Way, thread

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
#: Seconds until the user is told whom we wait for.
_PATIENCE = 2.0


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
        self._ways: dict[str, set[Way]] = {}
        self._told: set[tuple[str, str]] = set()
        self._closing = threading.Event()

    def open(self, lines: Mapping[str, Line], patience: Callable[[str], None]) -> dict[str, int]:
        """Have a port opened on every host, all at once; what can't be had is told.

        Args:
            lines: the connections, by host.
            patience: gets a line when that takes long.

        Returns:
            The ports, by host.
        """
        self._ways.update((host, set()) for host in lines)
        asked = [
            (host, thread(partial(self._first, host, line), f"ssh-{host}-relay"))
            for host, line in lines.items()
        ]
        began = time.monotonic()
        if late := _still(asked, began + _PATIENCE):
            patience(f"waiting for the ssh server of {listed(late)} to open a port")
        for host in _still(asked, began + OPEN_LIMIT):
            self._tell_once(host, f"its ssh server opened no port for its tasks in {OPEN_LIMIT:.0f} s")
        with self._lock:
            return dict(self._ports)

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
            thread(partial(self._again, host, line, port), f"ssh-{host}-relay")

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
        way = Way(line, channel)
        with self._lock:
            ways = self._ways[host]
            crowded = len(ways) >= MOST_WAYS or self._closing.is_set()
            if not crowded:
                ways.add(way)
        try:
            thread(partial(self._refuse if crowded else self._carry, host, way), f"ssh-{host}-way")
        except RuntimeError:  # no thread is to be had
            way.close()
            with self._lock:
                ways.discard(way)

    def _refuse(self, host: str, way: Way) -> None:
        way.close()
        self._tell_once(host, f"more than {MOST_WAYS} connections at a time to this machine: refused")

    def _carry(self, host: str, way: Way) -> None:
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


def _still(asked: Sequence[tuple[str, threading.Thread]], deadline: float) -> list[str]:
    """Those who have not answered by then."""
    for _, asking in asked:
        asking.join(max(0.0, deadline - time.monotonic()))
    return [host for host, asking in asked if asking.is_alive()]


def _why(error: Exception) -> str:
    if isinstance(error, SSHException):
        return "it does not forward them (AllowTcpForwarding, PermitListen)"
    return getattr(error, "strerror", None) or str(error)
