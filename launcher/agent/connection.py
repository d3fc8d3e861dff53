"""The agent's end of its connection to the launcher: a pipe, or sockets that come and go.

On the launcher's own machine, and in a container of its engine, the agent has a pipe: its end of file means
that the launcher is gone. On another host the agent listens on an abstract Unix socket. Small processes
(`launcher.agent.main.connect`) pump bytes between it and a connection of the launcher. When the launcher
does not come back in time, the agent gives up.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from contextlib import suppress
from typing import Callable, Dict, List, Optional, Tuple

from launcher.agent.processes import nothing_on
from launcher.errors import ProtocolError
from launcher.protocol import Channel, Decoder, Hello, Message, Refused, encode

#: Seconds for a new connection after one closed that was alive, at least; and what counts as alive: the
#: launcher pings every 2 s. A connection that was silent before it closed was given up by the network, not
#: by the launcher.
CLOSED_GRACE = 1.0
ALIVE = 4.5
_READ = 128 * 1024
_MANY_BUFFERS = 512
#: Peers that may wait to greet.
_MOST_PEERS = 8
_CREDENTIALS = struct.Struct("3i")


class Connection:
    """Reads and writes messages without blocking.

    Args:
        selector: wakes the agent.
        host: its name in the plan.
        session: see `launcher.protocol.Channel`.
    """

    def __init__(self, selector: selectors.BaseSelector, host: str, session: str = "") -> None:
        self._selector = selector
        self.channel = Channel(lambda: Decoder(False, host), session)
        #: Called with each message, and when the launcher is gone for good; set by the agent.
        self.take: Callable[[Message], None] = lambda message: None
        self.gone: Callable[[], None] = lambda: None
        #: The launcher is gone: what is sent is dropped.
        self.broken = False
        self.reading = self.writing = -1
        self._full = False
        self._received_at = time.monotonic()

    def attach(self, reading: int, writing: int) -> None:
        """Use these descriptors, which do not block."""
        self.reading, self.writing = reading, writing
        self._selector.register(reading, selectors.EVENT_READ, self._read)

    def detach(self) -> None:
        """Close the descriptors."""
        if self.reading >= 0:
            self._wait_to_write(False)
            self._selector.unregister(self.reading)
            os.close(self.reading)
            os.close(self.writing)
            self.reading = self.writing = -1

    def give_up(self) -> None:
        """Drop what is there to send, and what will be."""
        self.broken = True
        self.detach()

    def send(self, message: Message, bulk: bool = False) -> None:
        """Queue a message (see `Channel.send`), and send what the connection takes."""
        if not self.broken:
            self.channel.send(message, bulk)
            if not self._full:
                self.flush()

    def hold(self, on: bool) -> None:
        """Keep task output here, or send it again."""
        self.channel.held = on
        self.flush()

    #: Whether it is a pipe, which does not come back.
    is_pipe = False

    @property
    def until(self) -> float:
        """When to give up if nothing comes from the launcher (monotonic)."""
        return float("inf")

    @property
    def pending(self) -> int:
        """Bytes that wait for the launcher."""
        return 0 if self.broken else self.channel.pending

    @property
    def done(self) -> bool:
        """Whether the launcher has all messages, or never will."""
        return self.broken or self.channel.idle

    def flush(self) -> None:
        """Send what the connection takes now."""
        try:
            while self.writing >= 0 and (buffers := self.channel.output(time.monotonic())):
                self.channel.sent(os.writev(self.writing, buffers[:_MANY_BUFFERS]))
            self._wait_to_write(False)
        except BlockingIOError:
            self._wait_to_write(True)
        except OSError:
            self.detach()
            self.ended()

    def _wait_to_write(self, full: bool) -> None:
        if full and not self._full:
            self._selector.register(self.writing, selectors.EVENT_WRITE, self.flush)
        elif self._full and not full:
            self._selector.unregister(self.writing)
        self._full = full

    def _read(self) -> None:
        try:
            data = os.read(self.reading, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.detach()
            self.ended()
            return
        self._received_at = time.monotonic()
        messages = self.channel.receive(data)
        for message in messages:
            self.take(message)
        self.channel.took(len(messages), self._received_at)
        if not self._full:
            self.flush()

    def refuse(self, why: str) -> None:
        """Send the launcher the reason why the agent ends without closing, then end the connection."""
        self.flush()
        if self.writing >= 0 and not self._full:
            with suppress(OSError):  # it is broken
                os.write(self.writing, b"".join(encode(Refused(why))))
        self.give_up()

    def ended(self) -> None:
        """The connection has closed."""
        raise NotImplementedError

    def next_due(self) -> Optional[float]:
        """When `on_time` is due (monotonic); ``None``: never."""
        return self.channel.next_due() if self.writing >= 0 and not self._full else None

    def on_time(self, now: float) -> None:
        """Send what is due."""
        due = self.next_due()
        if due is not None and due <= now:
            self.flush()


class PipeConnection(Connection):
    """A pipe: its end is the end of the launcher. It takes the place of stdin and stdout."""

    is_pipe = True

    def __init__(self, selector: selectors.BaseSelector, host: str) -> None:
        super().__init__(selector, host)
        reading, writing = os.dup(0), os.dup(1)
        nothing_on(0, 1)
        for fd in (reading, writing):
            os.set_blocking(fd, False)
        self.attach(reading, writing)

    def ended(self) -> None:
        """See `Connection.ended`."""
        self.give_up()
        self.gone()


class SocketConnection(Connection):
    """Connections to a listening socket, one at a time; a newer one replaces an older one.

    Args:
        selector, host: see `Connection`.
        listener: see `listen`.
        token: what each connection must show first.
        lease: seconds that the tasks outlive a silent launcher.
        first: seconds for the first connection.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        host: str,
        listener: socket.socket,
        token: str,
        lease: float,
        first: float,
    ) -> None:
        super().__init__(selector, host, token)
        self._listener = listener
        self._token = token
        self._lease = lease
        self._until = time.monotonic() + first
        self._attempt = -1
        #: Peers that have not greeted yet.
        self._peers: Dict[socket.socket, Decoder] = {}
        selector.register(listener, selectors.EVENT_READ, self._accept)

    @property
    def until(self) -> float:
        """See `Connection.until`."""
        return self._received_at + self._lease if self.reading >= 0 else self._until

    def _accept(self) -> None:
        peer = accept(self._listener)
        if peer is None:
            return
        if len(self._peers) == _MOST_PEERS:
            self._drop(next(iter(self._peers)))
        self._peers[peer] = Decoder(False, only=(Hello,))
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._greet(peer))

    def _greet(self, peer: socket.socket) -> None:
        try:
            data = peer.recv(_READ)
            hellos: List[Hello] = self._peers[peer].feed(data)
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            data, hellos = b"", []
        if data and not hellos:
            return
        hello = hellos[0] if hellos else None
        if hello is None or hello.session != self._token or hello.attempt <= self._attempt:
            self._drop(peer)
            return
        del self._peers[peer]
        self._selector.unregister(peer)
        self._replace(peer, hello)

    def _replace(self, peer: socket.socket, hello: Hello) -> None:
        self.detach()
        self._attempt = hello.attempt
        self._received_at = time.monotonic()
        self.channel.connect(hello.attempt, self._received_at)
        self.attach(os.dup(peer.fileno()), peer.detach())
        try:
            self.channel.greeted(hello)
        except ProtocolError:
            self.detach()
            self.ended()
            return
        self.flush()

    def _drop(self, peer: socket.socket) -> None:
        del self._peers[peer]
        self._selector.unregister(peer)
        peer.close()

    def detach(self) -> None:
        """See `Connection.detach`."""
        super().detach()
        self.channel.disconnect()

    def give_up(self) -> None:
        """See `Connection.give_up`; no launcher can connect any more."""
        super().give_up()
        for peer in list(self._peers):
            self._drop(peer)
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()

    def ended(self) -> None:
        """See `Connection.ended`: the launcher may come back."""
        now = time.monotonic()
        alive = now - self._received_at < ALIVE
        grace = min(max(CLOSED_GRACE, self.channel.grace), self._lease)
        self._until = now + grace if alive else self._received_at + self._lease

    def next_due(self) -> Optional[float]:
        """See `Connection.next_due`."""
        if self.broken:
            return None
        due = super().next_due()
        return self.until if due is None else min(due, self.until)

    def on_time(self, now: float) -> None:
        """See `Connection.on_time`."""
        if not self.broken and now >= self.until:
            self.give_up()
            self.gone()
        else:
            super().on_time(now)


def listen(token: str) -> socket.socket:
    """The socket that an agent listens on: in Linux's abstract namespace, so nothing of it is on disk.

    Raises:
        OSError: another agent has this token (EADDRINUSE).
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_address(token))
        listener.listen(_MOST_PEERS)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def accept(listener: socket.socket) -> Optional[socket.socket]:
    """A peer that runs as this user; ``None``: it does not, or has gone."""
    try:
        peer, _ = listener.accept()
    except OSError:
        return None
    if _peer_uid(peer) != os.getuid():
        peer.close()
        return None
    peer.setblocking(False)
    return peer


def connect_to(token: str, seconds: float) -> Optional[socket.socket]:
    """A connection to the agent with this token; ``None``: it does not listen."""
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.settimeout(seconds)
        peer.connect(_address(token))
        if _peer_uid(peer) == os.getuid():
            peer.settimeout(None)
            return peer
    except OSError:  # nothing listens, or it is ending
        pass
    peer.close()
    return None


def _address(token: str) -> str:
    """The first half of the token: addresses can be seen by every user of the host."""
    return f"\0tf-launcher-{os.getuid()}-{token[: len(token) // 2]}"


def _peer_uid(peer: socket.socket) -> int:
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    credentials: Tuple[int, int, int] = _CREDENTIALS.unpack(data)
    return credentials[1]
