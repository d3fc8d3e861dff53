"""``Listener``: where the tasks of a job connect to the program that drives it.

`launcher.api.tasks` makes one for each job. A connection is accepted only from a peer with the key of the
job. Each has a thread until its handshake is done, which `launcher.feed.remote.connect` describes. The
listener must never unpickle anything, and reads at most `MAX_HELLO_BYTES` of a peer's hello.

It listens on a Unix socket, which tasks on other machines reach through the connections of the launcher
(``--relay``). A port of the network is reserved as well. The listener listens on the port only if tasks have
no other way, and the user is told so, because rows are not encrypted.
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

from launcher.agent.ports import dual_stack_socket
from launcher.common.errors import TransportError
from launcher.common.record import Record
from launcher.common.trusted_io import SOCKET_BACKLOG
from launcher.feed.remote.connect import GREETING, NONCE_BYTES, PROOF_BYTES, keep_alive, read_exactly
from launcher.feed.remote.frames import hang_up
from launcher.messages import say
from launcher.threads import start_function

#: How many peers may be in their handshake. With one more, the oldest is rejected, because a task needs only
#: milliseconds.
MAX_PENDING = 64
HANDSHAKE_TIMEOUT_SECONDS = 10.0
MAX_HELLO_BYTES = 4096
# The path of a Unix socket may be 108 bytes long.
MAX_FOLDER_BYTES = 90
# The pause before the next attempt to accept if this process has no free file descriptor or thread.
_NO_DESCRIPTOR_PAUSE_SECONDS = 0.2
#: The fields that every hello must contain, and their types.
_HELLO_FIELDS = {"task": str, "attempt": int, "purpose": str, "python": list, "pid": int}


class FeedPeer(Record):
    """A task that has connected, and has proved that it has the key of the job."""

    #: The name of the task, such as ``worker/0``.
    task: str
    #: The number of the start of the task, from 1.
    attempt: int
    #: What the connection is for: ``member`` or ``feed``.
    purpose: str
    #: The name of the feed, or an empty text for another purpose.
    feed: str
    #: All fields of the task's hello.
    hello: Mapping[str, Any]
    #: The blocking socket of the connection. The callee of `OnPeer` closes it.
    sock: socket.socket


class RejectedError(OSError):
    """The handshake with a peer has failed. The text completes "rejected a connection ..."."""


#: Called with a task that has connected.
OnPeer = Callable[[FeedPeer], None]


class Listener:
    """Accepts the connections of a job's tasks on a Unix socket, and on the network once it is asked to.

    The network port refuses connections until `listen_on_network` is called, because rows are not encrypted.

    Args:
        key: The secret of the job, at least 16 bytes.
        folder: A folder for the Unix socket that only the user can enter.
        hosts: The addresses of this machine for tasks on other machines. If there are any, a port is
            reserved.

    Raises:
        OSError: A socket cannot be made.
    """

    def __init__(self, key: bytes, folder: str, hosts: Sequence[str] = ()) -> None:
        """Make the Unix socket, and reserve a port of the network. Nothing is accepted before `serve`."""
        self._key = key
        self._hosts = hosts
        #: Guards the attributes below, and is held while `on_peer` is called, so one call comes at a time.
        self._lock = threading.Lock()
        #: Whether the user was told about a rejected connection. Further ones are not told.
        self._has_rejected = False
        #: Set when the listener is to be closed. The threads that accept connections end then.
        self._closing = threading.Event()
        #: The connections in their handshake with their threads, the oldest first.
        self._pending: dict[socket.socket, threading.Thread] = {}
        #: The threads that accept connections, one for each listening socket.
        self._accepting: list[threading.Thread] = []
        #: The argument of `serve`, or None before that.
        self._on_peer: OnPeer | None = None
        #: The path of the Unix socket.
        self.path = os.path.join(folder, "feed.sock")
        if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
            raise OSError(f"the path of a socket in {folder!r} would be too long")
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(self.path)
        unix.listen(SOCKET_BACKLOG)
        #: The sockets that accept connections: the Unix socket, and that of the network once it is asked for.
        self._listening = [unix]
        #: The reserved port of the network, or 0 if there is none.
        self.port = 0
        #: The socket that reserves the port, or None. It is bound and does not listen yet.
        self._network: socket.socket | None = None
        if hosts:
            self._network = dual_stack_socket(0)
            self.port = self._network.getsockname()[1]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses for `DriverRoutes`: the Unix socket, then each address on the network."""
        hosts = [f"[{host}]" if ":" in host else host for host in self._hosts]
        return (f"unix:{self.path}", *(f"tcp:{host}:{self.port}" for host in hosts))

    def serve(self, on_peer: OnPeer) -> None:
        """Accept tasks from now on, in threads.

        Args:
            on_peer: Called with each task, one at a time, so it must be quick. If it raises a TransportError,
                the connection is closed.

        Raises:
            TransportError: The system has no thread left.
        """
        with self._lock:
            self._on_peer = on_peer
            for sock in self._listening:
                self._begin_to_accept(sock, on_peer)

    def listen_on_network(self) -> bool:
        """Accept connections on the network port from now on, too.

        Returns:
            Whether this is new. False if the port was open already or does not exist, or the listener is
            closed.
        """
        with self._lock:
            network = self._network
            if network is None or network in self._listening or self._closing.is_set():
                return False
            network.listen(SOCKET_BACKLOG)
            self._listening.append(network)
            # Before `serve` nothing is accepted. It will then accept on this socket, too.
            if self._on_peer is not None:
                self._begin_to_accept(network, self._on_peer)
            return True

    def _begin_to_accept(self, sock: socket.socket, on_peer: OnPeer) -> None:
        """Accept the connections of a listening socket, in a thread of its own."""
        self._accepting.append(start_function(self._accept, sock, on_peer, name="feed listener"))

    def close(self) -> None:
        """Accept no more connections. Those of accepted tasks stay open."""
        with self._lock:
            self._closing.set()
            pending = dict(self._pending)
        # This wakes the threads that accept connections, and those in a handshake.
        for sock in [*self._listening, *pending]:
            hang_up(sock)
        # They need the lock before they end, so it is not held here.
        for thread in [*self._accepting, *pending.values()]:
            thread.join()
        # While a thread used a socket, its number must not become that of another file.
        for sock in self._listening:
            sock.close()
        if self._network is not None:
            self._network.close()
        Path(self.path).unlink(missing_ok=True)

    def _accept(self, listening: socket.socket, on_peer: OnPeer) -> None:
        """Accept connections until the listener is closed. Each socket has a thread for this.

        Each connection gets a thread for its handshake. If too many are in their handshake, the oldest one is
        closed.

        Args:
            listening: The listening socket.
            on_peer: Called with each task that has done its handshake.
        """
        while not self._closing.is_set():
            try:
                sock, _ = listening.accept()
            except OSError:  # the socket is closed, or no file descriptor is free
                # Another connection may free one within this time.
                self._closing.wait(_NO_DESCRIPTOR_PAUSE_SECONDS)
                continue
            # `close` holds this lock while it collects the connections that it closes.
            with self._lock:
                if self._closing.is_set():
                    sock.close()
                    return
                oldest = None
                if len(self._pending) >= MAX_PENDING:
                    # A dict has the order in which its items were added. Its thread closes the socket.
                    oldest = next(iter(self._pending))
                    del self._pending[oldest]
                    hang_up(oldest)
                refusal = ""
                try:
                    name = "feed handshake"
                    self._pending[sock] = start_function(self._handshake, sock, on_peer, name=name)
                except TransportError as error:
                    sock.close()
                    refusal = f"because {error}"
            # `_report` takes the lock itself.
            if oldest is not None:
                self._report(f"because more than {MAX_PENDING} were without a handshake")
            if refusal:
                self._report(refusal)
                self._closing.wait(_NO_DESCRIPTOR_PAUSE_SECONDS)

    def _handshake(self, sock: socket.socket, on_peer: OnPeer) -> None:
        """Authenticate one peer, and pass it to `on_peer`. This runs in a thread of its own.

        A peer that fails the handshake is closed, and the user is told about the first one.

        Args:
            sock: The connection.
            on_peer: Called with the task that has connected, unless the handshake fails.
        """
        peer = None
        try:
            keep_alive(sock)
            peer = greet(sock, self._key, time.monotonic() + HANDSHAKE_TIMEOUT_SECONDS)
            sock.settimeout(None)
        except OSError as error:
            # A task that has connected by another route closes this connection. That is no fault.
            sock.close()
            if isinstance(error, RejectedError):
                self._report(str(error))
        # The lock lets `on_peer` be called with one task at a time. A connection that is no longer pending
        # belongs to the feeder, so `close` does not close it.
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
        """Tell the user why a connection was rejected. Only the first one is told."""
        with self._lock:
            is_first = not (self._has_rejected or self._closing.is_set())
            self._has_rejected |= is_first
        if is_first:
            say(f"rejected a connection {reason} (further ones are not reported)")


def greet(sock: socket.socket, key: bytes, deadline: float) -> FeedPeer:
    """Do the program's side of the handshake, and return the task that has connected.

    Args:
        sock: The connection.
        key: The secret of the job.
        deadline: When the handshake must be done, by `time.monotonic`.

    Raises:
        RejectedError: The peer does not have the key, or its hello is not valid.
        OSError: The connection has ended, or the time is over.
    """
    # Each end proves that it has the key by a checksum of random bytes that the other one has chosen.
    our_nonce = os.urandom(NONCE_BYTES)
    sock.sendall(GREETING + our_nonce)
    their_nonce = read_exactly(sock, NONCE_BYTES, deadline)
    proof = read_exactly(sock, PROOF_BYTES, deadline)
    if not hmac.compare_digest(proof, hmac.digest(key, b"task" + our_nonce + their_nonce, "sha256")):
        raise RejectedError("with a wrong key")
    sock.sendall(hmac.digest(key, b"driver" + their_nonce + our_nonce, "sha256"))
    length = int.from_bytes(read_exactly(sock, 4, deadline), "big")
    if not 0 < length <= MAX_HELLO_BYTES:
        raise RejectedError(f"with a hello of {length} bytes (at most {MAX_HELLO_BYTES})")
    try:
        hello = json.loads(read_exactly(sock, length, deadline))
    except (ValueError, RecursionError) as error:
        raise RejectedError("with a hello that is not JSON") from error
    is_complete = isinstance(hello, dict) and all(
        isinstance(hello.get(name), kind) for name, kind in _HELLO_FIELDS.items()
    )
    if not is_complete:
        raise RejectedError("with an incomplete hello")
    return FeedPeer(
        hello["task"],
        attempt=hello["attempt"],
        purpose=hello["purpose"],
        feed=str(hello.get("feed", "")),
        hello=hello,
        sock=sock,
    )
