"""Where the tasks of a job connect to its driving program.

A connection is accepted only with the key of the job. It has a thread until its handshake is done, which
`launcher.feed.remote.connect` describes. The listener unpickles nothing, and reads at most `MAX_HELLO_BYTES`
of a hello.

It is a Unix socket, which tasks on other machines reach through the connections of the launcher
(``--relay``). A port of the network is reserved as well. The listener listens on it only if tasks have no
other way, and says so, because rows are not encrypted.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.common.errors import TransportError
from launcher.common.record import Record
from launcher.feed.remote.connect import GREETING, NONCE_BYTES, PROOF_BYTES, keep_alive, read_exactly
from launcher.feed.remote.frames import hang_up
from launcher.messages import say
from launcher.threads import start_function

#: If one more peer is unauthenticated at a time, the oldest of them is rejected: a task needs milliseconds.
MAX_PENDING = 64
HANDSHAKE_TIMEOUT_SECONDS = 10.0
MAX_HELLO_BYTES = 4096
# The path of a unix socket has at most 108 bytes.
MAX_FOLDER_BYTES = 90
# How long to wait before the next attempt to accept, if this process has no free file descriptor or thread.
_NO_DESCRIPTOR_PAUSE_SECONDS = 0.2
_HELLO_FIELDS = {"task": str, "attempt": int, "purpose": str, "python": list, "pid": int}


class FeedPeer(Record):
    """A task that has connected."""

    #: ``worker/0``, and the number of its start, from 1.
    task: str
    attempt: int
    #: ``member`` or ``feed``; for ``feed`` the name of the feed.
    purpose: str
    feed: str
    #: All fields of its hello.
    hello: Mapping[str, Any]
    #: Blocking; it belongs to the caller.
    sock: socket.socket


class RejectedError(OSError):
    """The handshake failed; the text completes "rejected a connection ..."."""


#: Called with a task that has connected.
OnPeer = Callable[[FeedPeer], None]


class Listener:
    """Listens on a unix socket, and on the network once asked to.

    Args:
        key: The secret of the job, of at least 16 bytes.
        folder: A folder for the unix socket, which is private to the user.
        hosts: The addresses of this machine for tasks on others, for which a port is reserved. It refuses
            connections until `listen_on_network` is called: rows are not encrypted, so tasks use it only if
            they have no other way.

    Raises:
        OSError: A socket cannot be made.
    """

    def __init__(self, key: bytes, folder: str, hosts: Sequence[str] = ()) -> None:
        self._key = key
        self._hosts = hosts
        self._lock = threading.Lock()
        self._has_rejected = False
        self._closing = threading.Event()
        #: Connections in their handshake, oldest first, and the threads that accept.
        self._pending: dict[socket.socket, threading.Thread] = {}
        self._accepting: list[threading.Thread] = []
        self._on_peer: OnPeer | None = None
        self.path = os.path.join(folder, "feed.sock")
        if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
            raise OSError(f"the path of a socket in {folder!r} would be too long")
        self._listening = [socket.socket(socket.AF_UNIX)]
        self._listening[0].bind(self.path)
        self._listening[0].listen(128)
        self.port = 0
        self._network: socket.socket | None = None
        if hosts:
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            self._network = socket.socket(family)
            if dual:
                self._network.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._network.bind(("", 0))
            self.port = self._network.getsockname()[1]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses for `DriverRoutes`: on this machine, then over the network."""
        hosts = [f"[{host}]" if ":" in host else host for host in self._hosts]
        return (f"unix:{self.path}", *(f"tcp:{host}:{self.port}" for host in hosts))

    def serve(self, on_peer: OnPeer) -> None:
        """Accept tasks from now on, in threads.

        Args:
            on_peer: Called for one task at a time. It must be quick. If it raises a TransportError, the
                connection is closed.

        Raises:
            TransportError: No thread is left.
        """
        with self._lock:
            self._on_peer = on_peer
            for sock in self._listening:
                self._begin_to_accept(sock, on_peer)

    def listen_on_network(self) -> bool:
        """Accept connections to the port from now on, too.

        Returns:
            Whether it did not do so before, and there is a port.
        """
        with self._lock:
            network = self._network
            if network is None or network in self._listening or self._closing.is_set():
                return False
            network.listen(128)
            self._listening.append(network)
            if self._on_peer is not None:
                self._begin_to_accept(network, self._on_peer)
            return True

    def _begin_to_accept(self, sock: socket.socket, on_peer: OnPeer) -> None:
        self._accepting.append(start_function(self._accept, sock, on_peer, name="feed listener"))

    def close(self) -> None:
        """Accept no more connections. Those of accepted tasks stay open."""
        with self._lock:
            self._closing.set()
            pending = dict(self._pending)
        for sock in [*self._listening, *pending]:
            hang_up(sock)
        for thread in [*self._accepting, *pending.values()]:
            thread.join()
        for sock in self._listening:
            sock.close()
        if self._network is not None:
            self._network.close()
        Path(self.path).unlink(missing_ok=True)

    def _accept(self, listening: socket.socket, on_peer: OnPeer) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = listening.accept()
            except OSError:  # closed; or no file descriptor is free
                self._closing.wait(_NO_DESCRIPTOR_PAUSE_SECONDS)
                continue
            with self._lock:
                if self._closing.is_set():
                    sock.close()
                    return
                oldest = next(iter(self._pending)) if len(self._pending) >= MAX_PENDING else None
                if oldest is not None:
                    del self._pending[oldest]
                    hang_up(oldest)
                refusal = ""
                try:
                    name = "feed handshake"
                    self._pending[sock] = start_function(self._handshake, sock, on_peer, name=name)
                except TransportError as error:
                    sock.close()
                    refusal = f"because {error}"
            if oldest is not None:
                self._report(f"because more than {MAX_PENDING} were without a handshake")
            if refusal:
                self._report(refusal)
                self._closing.wait(_NO_DESCRIPTOR_PAUSE_SECONDS)

    def _handshake(self, sock: socket.socket, on_peer: OnPeer) -> None:
        peer = None
        try:
            keep_alive(sock)
            peer = greet(sock, self._key, time.monotonic() + HANDSHAKE_TIMEOUT_SECONDS)
            sock.settimeout(None)
        except OSError as error:  # a task that has connected by another route closes this one
            sock.close()
            if isinstance(error, RejectedError):
                self._report(str(error))
        with self._lock:
            self._pending.pop(sock, None)
            if peer is None:
                return
            try:
                on_peer(peer)
                return
            except TransportError as error:
                refusal = f"of {peer.task} because {error}"
        hang_up(sock)
        self._report(refusal)

    def _report(self, reason: str) -> None:
        with self._lock:
            first = not (self._has_rejected or self._closing.is_set())
            self._has_rejected |= first
        if first:
            say(f"rejected a connection {reason} (further ones are not reported)")


def greet(sock: socket.socket, key: bytes, deadline: float) -> FeedPeer:
    """Do the driver's side of the handshake, and return the task that has connected.

    Args:
        sock: The connection.
        key: The secret of the job.
        deadline: When to give up (monotonic).

    Raises:
        RejectedError: The peer does not have the key, or its hello is invalid.
        OSError: The connection has ended, or the time is over.
    """
    ours = os.urandom(NONCE_BYTES)
    sock.sendall(GREETING + ours)
    theirs, proof = read_exactly(sock, NONCE_BYTES, deadline), read_exactly(sock, PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, hmac.digest(key, b"task" + ours + theirs, "sha256")):
        raise RejectedError("with a wrong key")
    sock.sendall(hmac.digest(key, b"driver" + theirs + ours, "sha256"))
    length = int.from_bytes(read_exactly(sock, 4, deadline), "big")
    if not 0 < length <= MAX_HELLO_BYTES:
        raise RejectedError(f"with a hello of {length} bytes (at most {MAX_HELLO_BYTES})")
    try:
        hello = json.loads(read_exactly(sock, length, deadline))
    except (ValueError, RecursionError) as error:
        raise RejectedError("with a hello that is not JSON") from error
    if not isinstance(hello, dict) or not all(
        isinstance(hello.get(name), kind) for name, kind in _HELLO_FIELDS.items()
    ):
        raise RejectedError("with an incomplete hello")
    return FeedPeer(
        hello["task"],
        attempt=hello["attempt"],
        purpose=hello["purpose"],
        feed=str(hello.get("feed", "")),
        hello=hello,
        sock=sock,
    )
