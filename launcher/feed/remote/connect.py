"""Connections from a task to the program that drives its job. Each end proves that it has the job's key.

`launcher.api.remote.start` connects first, and feeds and messages follow. The source of this module is part
of the text that starts a task, so it imports as little as possible. Nothing from the other end may be
unpickled before it has proved that it has the key.

The handshake (`launcher.feed.listener` is the other side)::

    driver:  GREETING, 32 random bytes
    task:    32 random bytes, HMAC-SHA256(key, "task" + driver's bytes + task's bytes)
    driver:  HMAC-SHA256(key, "driver" + task's bytes + driver's bytes)
    task:    length (four bytes), then a JSON object that describes the task
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import sys
import time

from launcher.common.trusted_io import connect_unix

TYPE_CHECKING = False  # typing is not imported: this module's source starts a task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

GREETING = b"tf-launcher feed 1\n"
NONCE_BYTES = PROOF_BYTES = 32
#: How long the handshake may take.
HANDSHAKE_TIMEOUT_SECONDS = 10.0
#: How long a connection over the network may take, and again its greeting.
CONNECT_TIMEOUT_SECONDS = 1.5
#: The pause before all routes are tried again.
RETRY_PAUSE_SECONDS = 0.2
#: How long a task waits for a connection before it says so on stderr.
SILENCE_SECONDS = 2.0
#: Socket options that break a TCP connection some time after its network did: seconds of silence before a
#: probe, seconds between probes, number of probes, milliseconds that sent bytes may stay unacknowledged.
_TCP_OPTIONS = (
    ("TCP_KEEPIDLE", 10),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 4),
    ("TCP_USER_TIMEOUT", 120000),
    ("TCP_NODELAY", 1),
)


class ConnectError(OSError):
    """The driving program cannot be reached, or another program answers in its place."""


class DriverRoutes:
    """The routes from a task to the program that drives its job.

    Args:
        addresses: The addresses of the program, ``unix:/path`` or ``tcp:host:port``, in the order in which
            they are tried.
        relay: A ``host:port`` on this machine that leads there through the launcher's own connection, or an
            empty text. It is tried before the network, where others may listen.
        key: The secret of the job.
        hello: Describes this task: ``task``, ``attempt``, ``python``, ``pid``.
    """

    def __init__(self, addresses: Iterable[str], relay: str, key: bytes, hello: Mapping[str, Any]) -> None:
        """Order the routes to the program: Unix sockets, the relay, then the network."""
        self.hello = dict(hello)
        self._key = key
        open_to_all = [address for address in addresses if address.startswith("tcp:")]
        private = [address for address in addresses if address not in open_to_all]
        #: Each route is its kind and its address. The one that has worked last comes first, see `connect`.
        self._routes = private + (["relay:" + relay] if relay else []) + open_to_all

    def connect(self, purpose: str, timeout: float = 30.0, **more: Any) -> socket.socket:
        """Return a connection to the program, after both ends have proved that they have the key.

        The socket blocks, and has no time limit.

        Args:
            purpose: What the connection is for: ``member`` or ``feed``.
            timeout: For how many seconds all routes are tried again.
            more: Further fields of the hello.

        Raises:
            ConnectError: No route worked within the time limit. The message names each route with its error.
        """
        hello = dict(self.hello, purpose=purpose, **more)
        started = time.monotonic()
        has_explained = False
        while True:
            errors = []
            for route in self._routes:
                try:
                    sock = _open(route, self._key, hello)
                except OSError as error:
                    errors.append("{}: {}".format(route.partition(":")[2], error))
                    continue
                # The next call tries this route first. The loop over the list does not continue.
                self._routes.remove(route)
                self._routes.insert(0, route)
                return sock
            message = "the program that drives the job cannot be reached: " + "; ".join(errors)
            waited = time.monotonic() - started
            if waited >= timeout:
                raise ConnectError(message)
            if waited > SILENCE_SECONDS and not has_explained:
                has_explained = True
                print(f"{message}; trying again for {timeout:.0f}s", file=sys.stderr, flush=True)
            time.sleep(RETRY_PAUSE_SECONDS)

    def connect_feed(self, feed: str) -> socket.socket:
        """Return a connection for the feed with this name, see `connect`."""
        return self.connect("feed", feed=feed)


def keep_alive(sock: socket.socket) -> None:
    """Set the options of a socket so that a TCP connection breaks some time after its network did."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS:
        # Not every system has all of them.
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def read_exactly(sock: socket.socket, size: int, deadline: float | None = None) -> bytes:
    """Read exactly ``size`` bytes from a socket.

    Args:
        sock: The socket.
        size: The number of bytes.
        deadline: When to give up, by `time.monotonic`. If this is None, the time limit of the socket holds
            for each part that comes.

    Raises:
        OSError: The connection has ended or broken, or the time is over.
    """
    received = bytearray(size)
    view = memoryview(received)
    while view:
        if deadline is not None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
        count = sock.recv_into(view)
        if not count:
            raise ConnectionResetError("the other end closed the connection")
        view = view[count:]
    return bytes(received)


def _open(route: str, key: bytes, hello: Mapping[str, Any]) -> socket.socket:
    """Connect to the program by one route, and do the task's side of the handshake.

    Args:
        route: The kind of the route (``unix``, ``relay`` or ``tcp``) and its address.
        key: The secret of the job.
        hello: Describes this task.

    Returns:
        The connection, which blocks and has no time limit.

    Raises:
        OSError: The route does not work, or another program answers.
    """
    kind, _, address = route.partition(":")
    # Of a Unix socket the address is a path, and these two are not used.
    host, _, port = address.rpartition(":")
    if kind == "unix":
        sock = socket.socket(socket.AF_UNIX)
    else:
        sock = socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_SECONDS)
    try:
        if kind == "unix":
            connect_unix(sock, address, HANDSHAKE_TIMEOUT_SECONDS)
        keep_alive(sock)
        # Another machine may have the same private address, and accept the connection without an answer.
        sock.settimeout(CONNECT_TIMEOUT_SECONDS if kind == "tcp" else HANDSHAKE_TIMEOUT_SECONDS)
        if read_exactly(sock, len(GREETING)) != GREETING:
            raise ConnectError("another program answers there")
        sock.settimeout(HANDSHAKE_TIMEOUT_SECONDS)
        # Each end proves that it has the key by a checksum of random bytes that the other one has chosen.
        their_nonce, our_nonce = read_exactly(sock, NONCE_BYTES), os.urandom(NONCE_BYTES)
        sock.sendall(our_nonce + hmac.digest(key, b"task" + their_nonce + our_nonce, "sha256"))
        proof = read_exactly(sock, PROOF_BYTES)
        if not hmac.compare_digest(proof, hmac.digest(key, b"driver" + our_nonce + their_nonce, "sha256")):
            raise ConnectError("the program that answers there does not have the key of this job")
        text = json.dumps(hello).encode()
        sock.sendall(len(text).to_bytes(4, "big") + text)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock
