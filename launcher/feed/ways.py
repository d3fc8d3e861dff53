"""Connections from a task to places where the program that drives its job may listen.

Part of what a task runs before anything of ours is there: see `launcher.feed.arriving`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Place = tuple[str, int]

#: Seconds: for a door to say all of its part; and for a connection over the network to be made, after which
#: the way through the launcher's own connection is tried.
ANSWER, CONNECT = 10.0, 1.5


class Closed(OSError):
    """This is no way in."""


def place_of(text: str) -> Place:
    """Of ``host:port``, IPv6 in brackets."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def unix(path: str) -> Callable[[], Iterator[socket.socket]]:
    """Makes a connection to a socket of this machine."""

    def connected() -> Iterator[socket.socket]:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.settimeout(ANSWER)
            line.connect(path)
        except BaseException:
            line.close()
            raise
        yield line

    return connected


def answering(places: Iterable[Place]) -> Iterator[socket.socket]:
    """Connections to those of these at which somebody speaks, as a door does, in the order in which they do.

    Raises:
        OSError: there are no more; says why of each.
    """
    calls = _Calls()
    try:
        for place in places:
            calls.begin(place)
        yield from calls.answered(time.monotonic() + CONNECT)
        raise Closed(calls.faults or "what answers there is no door of ours")
    finally:
        calls.close()


class _Calls:
    """Connections that are made all at once: a machine has addresses that not all can reach, and some that
    others have too."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[socket.socket, Place]] = {}
        self._faults: list[str] = []
        self._poll = select.poll()

    @property
    def faults(self) -> str:
        """Why those that did not answer did not."""
        late = [f"{host} port {port}: no answer" for _, (host, port) in self._lines.values()]
        return ", ".join(self._faults + late)

    def begin(self, place: Place) -> None:
        """Call there."""
        try:
            line = socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET)
        except OSError as error:  # no IPv6 here, say: the others are tried
            self._faults.append(f"{place[0]} port {place[1]}: {error.strerror}")
            return
        self._lines[line.fileno()] = (line, place)
        line.setblocking(False)
        fault = line.connect_ex(place)
        if fault in (0, errno.EINPROGRESS):
            self._poll.register(line, select.POLLIN)
        else:
            self._refused(*self._lines.pop(line.fileno()), fault)

    def answered(self, until: float) -> Iterator[socket.socket]:
        """Those at which somebody speaks; they are the caller's then."""
        while self._lines and time.monotonic() < until:
            for number, _ in self._poll.poll(max(0.0, until - time.monotonic()) * 1000):
                line, place = self._lines.pop(number)
                self._poll.unregister(line)
                fault = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if fault:
                    self._refused(line, place, fault)
                else:
                    yield line

    def close(self) -> None:
        """Nobody else is waited for."""
        for line, _ in self._lines.values():
            line.close()

    def _refused(self, line: socket.socket, place: Place, fault: int) -> None:
        line.close()
        self._faults.append(f"{place[0]} port {place[1]}: {os.strerror(fault)}")
