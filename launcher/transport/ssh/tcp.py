"""The first step to a host: a TCP connection, or the command that stands for one."""

from __future__ import annotations

import errno
import select
import shlex
import socket
import subprocess
import threading
import time
from typing import Any

from launcher.transport.ssh import failures
from launcher.transport.ssh.failures import HostFailure, Place

#: Seconds between looks at whether to stop.
_LOOK = 0.1
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
#: Seconds of silence until the kernel asks, between two questions, and how many without an answer end it.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}
#: Milliseconds that something sent may stay without an answer.
_USER_TIMEOUT = 30_000


class Stopped(HostFailure):
    """Nobody wants the connection any more."""

    def __init__(self) -> None:
        super().__init__("connecting was stopped")


def connect(place: Place, family: str, seconds: float, stopping: threading.Event) -> socket.socket:
    """A connection to the first of its addresses that takes one.

    Args:
        place: where.
        family: ``inet``, ``inet6``, or anything else for both.
        seconds: for all its addresses together.
        stopping: ends it early.

    Raises:
        HostFailure: there is none.
    """
    deadline = time.monotonic() + seconds
    found = _resolve(place, _FAMILIES.get(family.lower(), socket.AF_UNSPEC))
    failure: OSError = TimeoutError()
    for number, (kind, address) in enumerate(found):
        share = (deadline - time.monotonic()) / (len(found) - number)
        try:
            return _connect(kind, address, share, stopping)
        except OSError as error:
            failure = error
    raise failures.of_socket(place, failure, seconds) from failure


def _resolve(place: Place, family: int) -> list[tuple[int, Any]]:
    try:
        found = socket.getaddrinfo(place.address, place.port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter: no name could be that long
        raise failures.of_name(place, error) from error
    return [(kind, address) for kind, _, _, _, address in found]


def _connect(family: int, address: Any, seconds: float, stopping: threading.Event) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        _tune(connection)
        connection.setblocking(False)
        code = connection.connect_ex(address)
        if code == errno.EINPROGRESS:
            code = _outcome(connection, time.monotonic() + seconds, stopping)
        if code:
            raise OSError(code, errno.errorcode.get(code, str(code)).lower())
    except BaseException:
        connection.close()
        raise
    return connection


def _outcome(connection: socket.socket, deadline: float, stopping: threading.Event) -> int:
    """The error number of an attempt, once it is known; 0 if it is connected."""
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    while True:
        left = deadline - time.monotonic()
        if stopping.is_set():
            raise Stopped
        if poll.poll(max(0.0, min(left, _LOOK)) * 1000):
            return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if left <= 0.0:  # after a last look: it may be us who did nothing for so long
            raise TimeoutError


def _tune(connection: socket.socket) -> None:
    """Small packets go at once, and a dead connection is found out about."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT)


class Command:
    """A ``ProxyCommand``: its stdin and stdout are one end of a socket, the other is ours.

    Raises:
        HostFailure: it can't be started.
    """

    def __init__(self, command: str) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            try:
                argv = shlex.split(command.removeprefix("exec "))
                self._process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except (OSError, ValueError, IndexError) as error:
                self.socket.close()
                raise HostFailure(f"its ProxyCommand {command!r} can't be started: {error}") from error

    @property
    def ended(self) -> bool:
        """Whether it is over; one that is has been waited for."""
        return self._process.poll() is not None

    def close(self, seconds: float) -> None:
        """End it, by force if it is not over in time."""
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
