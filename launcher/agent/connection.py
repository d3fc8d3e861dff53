"""The agent's end of its connection to the launcher: one pipe, or one connection after another.

On the launcher's own machine, and in a container of its engine, the agent has a pipe: its end of file means
that the launcher is gone. On another host the agent listens on an abstract Unix socket. The program that
makes a connection there (`launcher.agent.main.connect`) passes its stdin and stdout to the agent, then waits:
the agent itself reads and writes them. If the launcher does not connect again in time, the agent gives up.
"""

from __future__ import annotations

import fcntl
import os
import select
import selectors
import socket
import time
from array import array
from contextlib import suppress
from functools import partial
from typing import Callable, List, Optional, Sequence, Tuple

from launcher.agent.processes import nothing_on
from launcher.common.errors import ProtocolError
from launcher.common.protocol import Decoder, Hello, Message, MessageChannel, Refused, encode, swap
from launcher.common.trusted_io import SOCKET_BACKLOG, accept_own, connect_unix, process_and_user

#: Seconds to wait, at least, for a new connection after one has closed; the load average per processor above
#: which they grow in proportion, as a login takes longer there.
MIN_OUTAGE_SECONDS = 1.5
_BUSY_LOAD_PER_PROCESSOR = 2.0
#: Seconds after a deadline. An agent that wakes later was suspended, and waits for a connection once more.
_SUSPENDED_SECONDS = 0.5
#: Seconds after its last byte for which a connection is live: the launcher pings every 2 s. The end of a
#: silent connection comes from the network, not from the launcher.
LIVE_SECONDS = 4.5
_READ_BYTES = 128 * 1024
#: The size of a pipe to the launcher, in bytes: a large one takes more output in one write. The command of
#: fcntl that sets this size; Python 3.8 does not define its name.
_PIPE_BYTES = 1024 * 1024
_F_SETPIPE_SZ = 1031
#: srun gives us a pseudo terminal, which takes 8 KiB at once. After a write of a part only, the agent
#: tries so many more writes before it does something else, and waits so many milliseconds before each.
_MAX_WRITES = 16
_ROOM_MILLISECONDS = 1
#: The byte that a program sends with its stdin and stdout: what the agent writes passes `swap`,
#: or does not.
_SWAPPED_MARK = b"s"
_PLAIN_MARK = b"."
#: The address of the socket that an agent listens on: its user, and `public_part` of its token.
ADDRESS_FORMAT = "\0tf-launcher-%d-%s"
#: The size of two descriptors, in bytes.
_TWO_DESCRIPTORS_BYTES = 2 * array("i").itemsize


class LauncherConnection:
    """Reads and writes messages without blocking: over our stdin and stdout, or those of one peer at a time.

    Args:
        selector: wakes the agent.
        host: its name in the plan.
        listener: see `listen`; ``None``: our stdin and stdout are the connection, which does not come back.
        token: what the greeting on each connection to the listener must contain.
        lease: seconds that the tasks outlive a silent launcher.
        first: seconds to wait for the first greeting.
        outage: seconds to wait, at least, for a new connection after one has closed.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        host: str,
        listener: Optional[socket.socket] = None,
        token: str = "",
        lease: float = float("inf"),
        first: float = 0.0,
        outage: float = MIN_OUTAGE_SECONDS,
    ) -> None:
        self._selector = selector
        self._listener, self._token, self._lease, self._outage = listener, token, lease, outage
        self.channel = MessageChannel(lambda: Decoder(False, host), token)
        #: Called with each message; called when the launcher will not come back. The agent sets both.
        self.take: Callable[[Message], None] = lambda message: None
        self.gone: Callable[[], None] = lambda: None
        self.is_pipe = listener is None
        #: The launcher is gone: messages are dropped.
        self.broken = False
        self._reading = self._writing = -1
        #: The connection takes no more bytes for the moment.
        self._full = False
        self._received_at = time.monotonic()
        #: When to give up without a connection.
        self._until = self._received_at + first
        #: The number of the present connection.
        self._attempt = -1
        #: A socket to the program whose stdin and stdout are the connection. The program exits when we close
        #: the socket, and the exit of the program ends the connection. ``None``: they are our own.
        self._program: Optional[socket.socket] = None
        #: A socket to a program whose launcher has not greeted yet; its stdin and stdout, once passed.
        self._peer: Optional[socket.socket] = None
        self._streams: Sequence[int] = ()
        if listener is None:
            self._attach(os.dup(0), os.dup(1))
            nothing_on(0, 1)
        else:
            selector.register(listener, selectors.EVENT_READ, self._accept)

    # ------------------------------------------------------------------ for the agent

    def send(self, message: Message, bulk: bool = False) -> None:
        """Queue a message (see `MessageChannel.send`), and write as much as the connection takes."""
        if not self.broken:
            self.channel.send(message, bulk)
            if not self._full:
                self._flush()

    def hold(self, on: bool) -> None:
        """Keep task output here, or send it again."""
        self.channel.held = on
        self._flush()

    def refuse(self, why: str) -> None:
        """Send the launcher the reason why the agent exits without closing, then close the connection."""
        self._flush()
        if self._writing >= 0 and not self._full:
            with suppress(OSError):  # it is broken
                frame = b"".join(encode(Refused(why)))
                os.write(self._writing, swap(frame) if self.channel.swapped else frame)
        self._give_up()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._reading >= 0

    @property
    def until(self) -> float:
        """When to give up without a message from the launcher (monotonic)."""
        return self._received_at + self._lease if self._reading >= 0 else self._until

    @property
    def pending(self) -> int:
        """Bytes that wait for the launcher."""
        return 0 if self.broken else self.channel.pending

    @property
    def is_done(self) -> bool:
        """Whether the launcher has all messages, or can't get them any more."""
        return self.broken or self.channel.is_idle

    def next_due(self) -> Optional[float]:
        """When `on_time` is due (monotonic); ``None``: never."""
        if self.broken:
            return None
        due = self.channel.next_due() if self._writing >= 0 and not self._full else None
        return self.until if due is None else min(due, self.until)

    def on_time(self, now: float) -> None:
        """Send what is due; give up if the launcher is gone."""
        due = self.next_due()
        if due is None or due > now:
            return
        if now < self.until:
            self._flush()
        elif self._reading < 0 and self._until + _SUSPENDED_SECONDS <= now < self._received_at + self._lease:
            self._until = now + self._grace()
        else:
            self._give_up()
            self.gone()

    # ------------------------------------------------------------------ the connection

    def _attach(self, reading: int, writing: int) -> None:
        for fd in (reading, writing):
            os.set_blocking(fd, False)
        with suppress(OSError):  # above this user's limit, or not a pipe: less works too
            fcntl.fcntl(writing, _F_SETPIPE_SZ, _PIPE_BYTES)
        self._reading, self._writing = reading, writing
        self._selector.register(reading, selectors.EVENT_READ, self._read)

    def _detach(self) -> None:
        if self._reading >= 0:
            self._wait_to_write(False)
            self._selector.unregister(self._reading)
            os.close(self._reading)
            os.close(self._writing)
            self._reading = self._writing = -1
        if self._program is not None:
            self._selector.unregister(self._program)
            self._program.close()
            self._program = None
        self.channel.disconnect()

    def _ended(self) -> None:
        """The connection has closed. If we listen, the launcher may connect again."""
        self._detach()
        now = time.monotonic()
        if self.is_pipe:
            self._until = now
        elif now - self._received_at < LIVE_SECONDS:
            self._until = now + min(self._grace(), self._lease)
        else:
            self._until = self._received_at + self._lease

    def _grace(self) -> float:
        """Seconds to wait for a new connection after one has closed."""
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / _BUSY_LOAD_PER_PROCESSOR)
        return max(self._outage * busy, self.channel.grace)

    def _give_up(self) -> None:
        """Drop queued messages and all later ones."""
        self.broken = True
        self._detach()
        self._drop_peer()
        if self._listener is not None and self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()

    def _flush(self) -> None:
        """Write as much as the connection takes now."""
        if self._writing < 0:
            return
        try:
            written = self.channel.write(self._writing, time.monotonic())
            for _ in range(_MAX_WRITES):
                if written or not _takes_bytes_soon(self._writing):
                    break
                written = self.channel.write(self._writing, time.monotonic())
            self._wait_to_write(not written)
        except OSError:
            self._ended()

    def _wait_to_write(self, full: bool) -> None:
        if full and not self._full:
            self._selector.register(self._writing, selectors.EVENT_WRITE, self._flush)
        elif self._full and not full:
            self._selector.unregister(self._writing)
        self._full = full

    def _read(self) -> None:
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._ended()
            return
        self._received_at = time.monotonic()
        messages = self.channel.receive(data)
        for message in messages:
            self.take(message)
        self.channel.took(len(messages), self._received_at)
        if not self._full:
            self._flush()

    # ------------------------------------------------------------------ new connections

    def _accept(self) -> None:
        """Accept peers; the last of them takes the place of any other whose launcher has not greeted yet."""
        assert self._listener is not None
        for peer in accept_own(self._listener):
            self._drop_peer()
            peer.setblocking(False)
            self._peer = peer
            self._selector.register(peer, selectors.EVENT_READ, partial(self._take_streams, peer))

    def _take_streams(self, peer: socket.socket) -> None:
        """Take the stdin and stdout that a peer passes, unless it has exited."""
        self._selector.unregister(peer)
        self._peer = None
        said, streams = _receive_streams(peer)
        if len(streams) == 2:
            self.take_peer(peer, streams, said == _SWAPPED_MARK)
        else:
            peer.close()
            for fd in streams:
                os.close(fd)

    def take_peer(self, peer: socket.socket, streams: Sequence[int], swapped: bool = False) -> None:
        """Wait for the greeting of a launcher on the stdin and stdout of a peer.

        Args:
            peer: a socket to the program.
            streams: descriptors of its stdin and stdout.
            swapped: what we write passes `swap`.
        """
        self._peer, self._streams, self._peer_swapped = peer, streams, swapped
        self._greeting = Decoder(False, only=(Hello,))
        self._selector.register(peer, selectors.EVENT_READ, self._drop_peer)
        self._selector.register(streams[0], selectors.EVENT_READ, partial(self._greet, peer))

    def _greet(self, peer: socket.socket) -> None:
        try:
            data = os.read(self._streams[0], _READ_BYTES)
            hellos: List[Hello] = self._greeting.feed(data)
        except (OSError, ProtocolError):
            data, hellos = b"", []
        if data and not hellos:
            return
        hello = hellos[0] if hellos else None
        if hello is None and self._attempt < 0:
            self._until = min(self._until, time.monotonic() + self._grace())
        if hello is None or hello.session != self._token or hello.attempt <= self._attempt:
            self._drop_peer()
            return
        self._detach()
        (reading, writing), self._streams = self._streams, ()
        self._selector.unregister(reading)
        self._program, self._peer, self.channel.swapped = peer, None, self._peer_swapped
        self._selector.modify(peer, selectors.EVENT_READ, self._ended)
        self._attempt = hello.attempt
        self._received_at = time.monotonic()
        self._attach(reading, writing)
        self.channel.connect(hello.attempt, self._received_at)
        try:
            self.channel.greeted(hello)
        except ProtocolError:
            self._ended()
        self._flush()

    def _drop_peer(self) -> None:
        if self._peer is not None:
            self._selector.unregister(self._peer)
            self._peer.close()
            self._peer = None
        if self._streams:
            self._selector.unregister(self._streams[0])
            for fd in self._streams:
                os.close(fd)
            self._streams = ()


def _takes_bytes_soon(fd: int) -> bool:
    """Whether a descriptor takes bytes within `_ROOM_MILLISECONDS`."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(_ROOM_MILLISECONDS))


def listen(token: str) -> socket.socket:
    """The socket that an agent listens on: in Linux's abstract namespace, so nothing of it is on disk.

    Raises:
        OSError: another agent has this token (EADDRINUSE).
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_address(token))
        listener.listen(SOCKET_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def connect_to(token: str, seconds: float) -> socket.socket:
    """A connection to the agent with this token; it blocks.

    Raises:
        ConnectionRefusedError: it does not listen; another user's process may have its address then.
        TimeoutError: its queue of connections was full all the time.
    """
    peer = socket.socket(socket.AF_UNIX)
    try:
        connect_unix(peer, _address(token), seconds)
        if process_and_user(peer)[1] != os.getuid():
            raise ConnectionRefusedError
        peer.settimeout(None)
        return peer
    except BaseException:
        peer.close()
        raise


def pass_streams(agent: socket.socket, swapped: bool) -> None:
    """Pass our stdin and stdout to an agent.

    Args:
        agent: a socket to it, from `connect_to`.
        swapped: what the agent writes passes `swap`.

    Raises:
        OSError: the agent has exited.
    """
    streams = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", (0, 1)))
    agent.sendmsg([_SWAPPED_MARK if swapped else _PLAIN_MARK], [streams])


def _receive_streams(peer: socket.socket) -> Tuple[bytes, Sequence[int]]:
    """Receive the byte and the descriptors that a peer sends: none if it has exited."""
    try:
        size, for_us_only = socket.CMSG_SPACE(_TWO_DESCRIPTORS_BYTES), socket.MSG_CMSG_CLOEXEC
        said, passed, _, _ = peer.recvmsg(len(_PLAIN_MARK), size, for_us_only)
    except OSError:
        return b"", ()
    return said, array("i", b"".join(data for *_, data in passed))


def _address(token: str) -> str:
    return ADDRESS_FORMAT % (os.getuid(), public_part(token))


def public_part(token: str) -> str:
    """Return the part of a token in the address of its agent, which every user of the host can see."""
    return token[: len(token) // 2]
