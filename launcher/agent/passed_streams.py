"""How a launcher on another machine reaches an agent: a program passes its stdin and stdout to the agent.

The agent listens on an abstract Unix socket, with `listen` and `PeerListener`. The program, which is
`launcher.agent.main.connect`, uses `connect_to` and `pass_streams`. The agent must never accept a process of
another user, nor a launcher that does not know its token.
"""

from __future__ import annotations

import os
import selectors
import socket
from array import array
from functools import partial
from typing import Callable, List, Optional, Sequence, Tuple

from launcher.common.errors import ProtocolError
from launcher.common.protocol import Decoder, Hello
from launcher.common.record import Record
from launcher.common.trusted_io import SOCKET_BACKLOG, accept_own, connect_unix, process_and_user

#: The address of the socket on which an agent listens. It contains the user id and the `public_part` of the
#: token.
ADDRESS_FORMAT = "\0tf-launcher-%d-%s"
# A program sends one of these bytes with its stdin and stdout. It says whether what the agent writes must
# pass `launcher.common.protocol.swap`.
_SWAPPED_MARK = b"s"
_PLAIN_MARK = b"."
_TWO_DESCRIPTORS_BYTES = 2 * array("i").itemsize
_READ_BYTES = 128 * 1024


class PassedStreams(Record):
    """The stdin and stdout of a program that has passed them to this agent."""

    #: A socket to the program. When the agent closes it, the program exits, which closes the connection of
    #: the launcher behind the program.
    program_socket: socket.socket
    #: The descriptor of the program's stdin.
    stdin: int
    #: The descriptor of the program's stdout.
    stdout: int
    #: Whether bytes for the stdout must pass `launcher.common.protocol.swap`.
    is_swapped: bool

    def close(self) -> None:
        """Close the streams, and the socket to the program, which exits because of that."""
        self.program_socket.close()
        os.close(self.stdin)
        os.close(self.stdout)


#: Called with the streams of a program, and with the greeting of the launcher behind it, or None if that has
#: sent something else or nothing. Returns whether the streams are used. Otherwise they are closed.
OnGreeting = Callable[[PassedStreams, Optional[Hello]], bool]


class PeerListener:
    """Accepts programs that pass their streams, and waits for the greeting of the launcher behind each.

    A new program replaces an earlier one whose launcher has not sent its greeting yet.

    Args:
        selector: Wakes the agent when something arrives.
        listener: A listening socket from `listen`.
        on_greeting: Called when a launcher has sent its greeting. It returns whether it uses the streams.
    """

    def __init__(
        self, selector: selectors.BaseSelector, listener: socket.socket, *, on_greeting: OnGreeting
    ) -> None:
        """Start to accept programs that pass their stdin and stdout to this agent."""
        self._selector = selector
        self._listener = listener
        self._on_greeting = on_greeting
        #: A socket to a program that has connected and has not passed its streams yet, or None.
        self._peer: Optional[socket.socket] = None
        #: Streams from which the greeting of the launcher has not arrived yet, or None.
        self._streams: Optional[PassedStreams] = None
        #: Decodes what arrives from `_streams`. Nothing but a greeting is allowed.
        self._greeting = Decoder(from_agent=False, only=(Hello,))
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def await_greeting(self, streams: PassedStreams) -> None:
        """Start to wait for the greeting of the launcher at the other end of these streams.

        Args:
            streams: The stdin and stdout that a program on this host has passed to the agent. They belong to
                a connection that the launcher has made, for which it has started the program.
        """
        self._streams = streams
        # A new decoder has no part of the greeting of an earlier launcher.
        self._greeting = Decoder(from_agent=False, only=(Hello,))
        # The program sends nothing more on its socket, which becomes readable when the program exits.
        self._selector.register(streams.program_socket, selectors.EVENT_READ, self._drop)
        self._selector.register(streams.stdin, selectors.EVENT_READ, self._read_greeting)

    def close(self) -> None:
        """Stop listening. It may be called more than once."""
        self._drop()  # The program and the streams that wait for a greeting.
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()

    def _accept(self) -> None:
        """Accept programs of this user. The newest one replaces those before it."""
        for peer in accept_own(self._listener):
            self._drop()
            peer.setblocking(False)
            self._peer = peer
            self._selector.register(peer, selectors.EVENT_READ, partial(self._receive_streams, peer))

    def _receive_streams(self, peer: socket.socket) -> None:
        """Receive the stdin and stdout of a program, then wait for the greeting of its launcher.

        Args:
            peer: The socket to the program, which can be read.
        """
        # It sends a single message. Its socket stays open, because it becomes part of the streams.
        self._selector.unregister(peer)
        self._peer = None
        mark, fds = _receive_descriptors(peer)
        if len(fds) == 2:
            self.await_greeting(PassedStreams(peer, fds[0], fds[1], is_swapped=mark == _SWAPPED_MARK))
            return
        # Without its two streams, the program has exited.
        peer.close()
        for fd in fds:
            os.close(fd)

    def _read_greeting(self) -> None:
        """Read what the launcher has sent, and pass on the streams when its greeting is complete.

        If the launcher has closed the stream or sent something else, the streams are passed on without a
        greeting.
        """
        assert self._streams is not None
        try:
            data = os.read(self._streams.stdin, _READ_BYTES)
            greetings: List[Hello] = self._greeting.feed(data)
        except (OSError, ProtocolError):
            data, greetings = b"", []
        # If only a part of the greeting has arrived, this is called again.
        if data and not greetings:
            return
        # From now on whoever gets the streams watches them.
        streams = self._release()
        if not self._on_greeting(streams, greetings[0] if greetings else None):
            streams.close()

    def _release(self) -> PassedStreams:
        """Stop watching the streams, and return them."""
        assert self._streams is not None
        streams, self._streams = self._streams, None
        self._selector.unregister(streams.program_socket)
        self._selector.unregister(streams.stdin)
        return streams

    def _drop(self) -> None:
        """Close the connection of a program whose launcher has not sent its greeting yet, if there is one."""
        if self._peer is not None:
            self._selector.unregister(self._peer)
            self._peer.close()
            self._peer = None
        if self._streams is not None:
            self._release().close()


def listen(token: str) -> socket.socket:
    """Return a new socket on which an agent listens.

    It is in the abstract namespace, so that nothing of it is on disk.

    Args:
        token: The token of the agent.

    Raises:
        OSError: An agent with this token runs already (EADDRINUSE).
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


def connect_to(token: str, timeout_seconds: float) -> socket.socket:
    """Connect to the agent with this token.

    Args:
        token: The token of the agent.
        timeout_seconds: How long to try while the queue of the agent's socket is full.

    Returns:
        A blocking socket to the agent.

    Raises:
        ConnectionRefusedError: No agent listens, or a process of another user listens at its address.
        TimeoutError: The queue was full all the time.
    """
    agent_socket = socket.socket(socket.AF_UNIX)
    try:
        connect_unix(agent_socket, _address(token), timeout_seconds)
        _, user = process_and_user(agent_socket)
        # Any user may listen at this address. To the caller that is as if nobody did.
        if user != os.getuid():
            raise ConnectionRefusedError
        agent_socket.settimeout(None)
        return agent_socket
    except BaseException:
        agent_socket.close()
        raise


def pass_streams(agent_socket: socket.socket, *, is_swapped: bool) -> None:
    """Pass our stdin and stdout to an agent.

    Args:
        agent_socket: A socket to the agent, from `connect_to`.
        is_swapped: Whether bytes for our stdout must pass `launcher.common.protocol.swap`.

    Raises:
        OSError: The agent has exited.
    """
    # The kernel gives the receiver descriptors of its own for these, see unix(7).
    streams = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", (0, 1)))
    agent_socket.sendmsg([_SWAPPED_MARK if is_swapped else _PLAIN_MARK], [streams])


def public_part(token: str) -> str:
    """Return the part of a token that every user of the host may see, in the address of the agent."""
    return token[: len(token) // 2]


def _receive_descriptors(peer: socket.socket) -> Tuple[bytes, Sequence[int]]:
    """Receive the byte and the descriptors that a program sends.

    Args:
        peer: The socket to the program.

    Returns:
        The byte, which is `_SWAPPED_MARK` or `_PLAIN_MARK`, and the descriptors of the program's stdin and
        stdout. No byte and no descriptors if the program has exited.
    """
    try:
        ancillary_bytes = socket.CMSG_SPACE(_TWO_DESCRIPTORS_BYTES)
        mark, passed, _, _ = peer.recvmsg(len(_PLAIN_MARK), ancillary_bytes, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return b"", ()
    return mark, array("i", b"".join(data for *_, data in passed))


def _address(token: str) -> str:
    """Return the address of the Unix socket on which the agent with this token listens."""
    return ADDRESS_FORMAT % (os.getuid(), public_part(token))
