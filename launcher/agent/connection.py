"""The agent's end of its connection to the launcher: one pipe, or one connection after another.

On the launcher's own machine the agent has a pipe, and its end-of-file means that the launcher is gone. On
other machines a program passes its stdin and stdout to the agent (`launcher.agent.passed_streams`), which
reads and writes them itself. If the launcher does not connect again in time, the agent gives up. Without a
lease it gives up at once, as in a container of the launcher's own engine. Nothing here may block.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import selectors
import socket
import time
from contextlib import suppress
from typing import Callable, Optional

from launcher.agent.passed_streams import PassedStreams, PeerListener
from launcher.agent.processes import nothing_on
from launcher.common.errors import ProtocolError
from launcher.common.protocol import Decoder, Hello, Message, MessageChannel, Refused, encode, swap
from launcher.common.record import Record

#: An agent waits at least this long for a new connection after one has closed.
MIN_OUTAGE_SECONDS = 1.5
# Above this load average per processor the agent waits longer in proportion, because a login takes longer.
_BUSY_LOAD_PER_PROCESSOR = 2.0
# An agent that wakes this long after a deadline was suspended. It waits for a connection once more.
_SUSPENDED_SECONDS = 0.5
#: The launcher pings every 2 s. If a connection that was silent for longer than this closes, the network has
#: closed it and not the launcher.
LIVE_SECONDS = 4.5
_READ_BYTES = 128 * 1024
# A large pipe to the launcher accepts more output in one write.
_PIPE_BYTES = 1024 * 1024
# The constant of fcntl, which Python 3.8 does not define.
_F_SETPIPE_SZ = 1031
# Under srun our stdout is a pseudo terminal, which accepts 8 KiB at once. So after an incomplete write the
# agent tries some more, and waits a moment before each, before it does something else.
_MAX_WRITES = 16
_ROOM_MILLISECONDS = 1

OnMessage = Callable[[Message], None]
OnDisconnect = Callable[[], None]


class Patience(Record):
    """How long an agent waits for its launcher, in seconds."""

    #: How long the tasks outlive a launcher that is silent. It is infinite for an agent without a lease.
    lease: float = math.inf
    #: How long the agent waits for the first greeting. This machine or that of the launcher may be busy.
    first_greeting: float = 30.0
    #: How long the agent waits at least for a new connection after one has closed.
    outage: float = MIN_OUTAGE_SECONDS

    @property
    def has_no_lease(self) -> bool:
        """Whether tasks outlive any silence of the launcher, but not the end of its connection."""
        # An infinite lease stands for none.
        return math.isinf(self.lease)


class LauncherConnection:
    """The agent's connection to its launcher: it sends and receives messages, and decides when to give up.

    The connection is the agent's own stdin and stdout, or those of a program that has passed them to the
    agent. Only one such program is connected at a time.
    Messages that are not acknowledged are sent again over the next connection.

    Args:
        selector: Wakes the agent when bytes can be read or written.
        host: The name of the host in the plan.
        listener: The socket on which programs reach the agent. If it is None, our stdin and stdout are the
            only connection.
        token: What the greeting on each connection to the listener must contain.
        patience: How long to wait for a launcher.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        host: str,
        listener: Optional[socket.socket],
        token: str,
        patience: Patience,
    ) -> None:
        """Prepare the connection to the launcher: use the only pipe, or wait on the listener."""
        self._selector = selector
        self._token = token
        self._patience = patience
        #: What the agent does with a message and at the end. Nothing until `set_callbacks` sets both.
        self._on_message: OnMessage = lambda message: None
        self._on_disconnect: OnDisconnect = lambda: None
        #: Encodes, numbers and queues the messages, and keeps those that the launcher has not acknowledged.
        self.channel = MessageChannel(lambda: Decoder(from_agent=False, host=host), token)
        #: Whether the network can break the connection, so the launcher may connect again. Otherwise
        #: the end of the first connection means that the launcher is gone.
        self.can_break = listener is not None and not patience.has_no_lease
        #: Whether the launcher is gone for good, so messages are dropped.
        self.has_given_up = False
        #: The descriptors of the present connection, or -1 if there is none.
        self._reading = self._writing = -1
        #: Whether the connection accepts no more bytes for the moment.
        self._is_full = False
        #: When the last bytes arrived (monotonic).
        self._received_at = time.monotonic()
        #: When to give up if there is no connection (monotonic).
        self._reconnect_until = self._received_at + patience.first_greeting
        #: The launcher's number of the present connection, or -1 before the first one.
        self._attempt = -1
        #: A socket to the program whose stdin and stdout are the connection, or None if they are our own.
        self._program_socket: Optional[socket.socket] = None
        #: Accepts the programs that pass their streams to the agent. None if it has only a pipe.
        self._peers: Optional[PeerListener] = None
        if listener is None:
            self._attach(os.dup(0), os.dup(1))
            # Nothing that code prints here may get into the messages, and no child may inherit the pipes.
            nothing_on(0, 1)
        else:
            self._peers = PeerListener(selector, listener, on_greeting=self._on_greeting)

    # ------------------------------------------------------------------ for the agent

    def set_callbacks(self, *, on_message: OnMessage, on_disconnect: OnDisconnect) -> None:
        """Set what is called when a message arrives, and when the launcher is gone.

        Args:
            on_message: Called with each message of the launcher.
            on_disconnect: Called once, when the launcher is gone for good.
        """
        self._on_message, self._on_disconnect = on_message, on_disconnect

    def use(self, streams: PassedStreams) -> None:
        """Wait for the greeting of the launcher on streams that were passed before there was an agent.

        Args:
            streams: The stdin and stdout of a program, and a socket to it.
        """
        # Only an agent with a listener is passed streams.
        assert self._peers is not None
        self._peers.await_greeting(streams)

    def send(self, message: Message, *, bulk: bool = False) -> None:
        """Queue a message, and write as much as the connection accepts now.

        Args:
            message: The message. It is dropped if the launcher is gone for good.
            bulk: Whether other messages may overtake it.
        """
        if not self.has_given_up:
            self.channel.send(message, bulk)
            if not self._is_full:
                self._flush()

    def send_with_next(self, message: Message) -> None:
        """Queue a message that is sent together with the next one, a ping at the latest.

        Then a launcher with many hosts is not woken for this message alone. On a pipe, which has no pings,
        the message is sent at once.

        Args:
            message: The message. It is dropped if the launcher is gone for good.
        """
        if not self.can_break:
            self.send(message)
        elif not self.has_given_up:
            self.channel.send(message)

    def hold_output(self, *, is_held: bool) -> None:
        """Keep the output of tasks here, or send it.

        Args:
            is_held: Whether to keep it. All other messages are sent nevertheless.
        """
        self.channel.held = is_held
        self._flush()

    def refuse(self, why: str) -> None:
        """Tell the launcher why the agent exits unasked, then close the connection for good."""
        # What waits to be sent comes before the reason. A connection that does not accept it all ends in the
        # middle of a message, where another one would be of no use.
        self._flush()
        if self._writing >= 0 and not self._is_full:
            # The connection may be broken.
            with suppress(OSError):
                # Some programs that carry the bytes are faster if newlines are exchanged for another byte.
                frame = b"".join(encode(Refused(why)))
                os.write(self._writing, swap(frame) if self.channel.swapped else frame)
        self._give_up()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self._reading >= 0

    @property
    def gives_up_at(self) -> float:
        """When to give up unless something arrives from the launcher before (monotonic)."""
        return self._received_at + self._patience.lease if self.is_open else self._reconnect_until

    @property
    def pending(self) -> int:
        """The number of bytes that wait for the launcher."""
        return 0 if self.has_given_up else self.channel.pending

    @property
    def is_done(self) -> bool:
        """Whether the launcher has received all messages, or can no longer receive them."""
        return self.has_given_up or self.channel.is_idle

    def next_due(self) -> Optional[float]:
        """Return when `on_time` is due (monotonic), or None if it never is."""
        if self.has_given_up:
            return None
        # A ping cannot be sent without a connection that accepts bytes.
        can_write = self._writing >= 0 and not self._is_full
        ping_due = self.channel.next_due() if can_write else None
        return self.gives_up_at if ping_due is None else min(ping_due, self.gives_up_at)

    def on_time(self, now: float) -> None:
        """Send pings and acknowledgements that are due, and give up if the launcher is gone.

        - The time to give up has not come: what is due is sent.
        - It has passed while this process was suspended, and the lease (the time for which tasks outlive a
          silent launcher) has not ended: the launcher has some time to connect again.
        - Otherwise the launcher is gone, and the agent is told so.

        Args:
            now: The time (monotonic).
        """
        due = self.next_due()
        if due is None or due > now:
            return
        lease_end = self._received_at + self._patience.lease
        # What is due before the time to give up is something that the channel has to send.
        if now < self.gives_up_at:
            self._flush()
        elif not self.is_open and self._reconnect_until + _SUSPENDED_SECONDS <= now < lease_end:
            # This process was suspended, and could not have noticed that the launcher connects again.
            self._reconnect_until = now + self._outage_seconds()
        else:
            self._give_up()
            self._on_disconnect()

    # ------------------------------------------------------------------ the connection

    def _on_greeting(self, streams: PassedStreams, hello: Optional[Hello]) -> bool:
        """Use the streams of a program from now on, if the launcher behind them is ours.

        The launcher runs the program on this host to reach the agent, by ssh for example, and the program
        passes its stdin and stdout to the agent.

        Args:
            streams: The stdin and stdout of the program.
            hello: The greeting of the launcher, or None if it has not sent one in time.

        Returns:
            Whether the streams are used. Their connection must be newer than the present one.
        """
        if hello is None:
            # If no launcher has greeted yet, the one that started this agent was cut off before its first
            # greeting. So the agent waits only as long as after the end of a connection.
            if self._attempt < 0:
                self._reconnect_until = min(self._reconnect_until, time.monotonic() + self._outage_seconds())
            return False
        # This refuses another launcher, and an old connection whose greeting comes late.
        if hello.session != self._token or hello.attempt <= self._attempt:
            return False
        # Only one program is connected at a time. The launcher has given the other connection up.
        self._detach()
        self._attempt = hello.attempt
        self._received_at = time.monotonic()
        self._program_socket = streams.program_socket
        # The program sends nothing on its socket, so this becomes readable only when it exits.
        self._selector.register(streams.program_socket, selectors.EVENT_READ, self._on_end)
        # Whether newlines are exchanged for another byte in what the agent writes, as for srun.
        self.channel.swapped = streams.is_swapped
        self._attach(streams.stdin, streams.stdout)
        # The channel starts anew for this connection, and then learns from the greeting which messages have
        # arrived over earlier ones. It sends the others again.
        self.channel.connect(hello.attempt, self._received_at)
        try:
            self.channel.handle_greeting(hello)
        except ProtocolError:
            # The launcher claims to have received messages that were never sent.
            self._on_end()
        self._flush()
        return True

    def _attach(self, reading: int, writing: int) -> None:
        """Make two descriptors the present connection.

        Args:
            reading: The descriptor on which messages of the launcher arrive.
            writing: The descriptor on which messages to the launcher are written.
        """
        for fd in (reading, writing):
            os.set_blocking(fd, False)
        # A larger pipe wakes us less often. If the connection is a socket, or the size is above this user's
        # limit, this fails.
        with suppress(OSError):
            fcntl.fcntl(writing, _F_SETPIPE_SZ, _PIPE_BYTES)
        self._reading, self._writing = reading, writing
        self._selector.register(reading, selectors.EVENT_READ, self._read)

    def _detach(self) -> None:
        """Close the present connection, if there is one. Messages wait for the next one."""
        if self.is_open:
            # The selector must not watch descriptors that are closed.
            self._wait_to_write(is_full=False)
            self._selector.unregister(self._reading)
            os.close(self._reading)
            os.close(self._writing)
            self._reading = self._writing = -1
        if self._program_socket is not None:
            self._selector.unregister(self._program_socket)
            self._program_socket.close()
            self._program_socket = None
        self.channel.disconnect()

    def _on_end(self) -> None:
        """React to the end of the present connection, and decide how long to wait for the next one."""
        self._detach()
        now = time.monotonic()
        if not self.can_break:
            # No other connection can follow, so `on_time` gives up when it is called next.
            self._reconnect_until = now
        elif now - self._received_at < LIVE_SECONDS:
            # The launcher was heard just now, so it has closed the connection itself: it comes back soon or
            # never.
            self._reconnect_until = now + min(self._outage_seconds(), self._patience.lease)
        else:
            # It was silent before, so the network has failed. The launcher may come back within its lease,
            # the time for which tasks outlive a silent launcher.
            self._reconnect_until = self._received_at + self._patience.lease

    def _outage_seconds(self) -> float:
        """Return how long to wait for a new connection after one has closed, on a machine with this load."""
        load_per_processor = os.getloadavg()[0] / (os.cpu_count() or 1)
        slowdown = max(1.0, load_per_processor / _BUSY_LOAD_PER_PROCESSOR)
        # The last ping of the launcher has said how long the launcher itself may need to connect again.
        return max(self._patience.outage * slowdown, self.channel.reconnect_seconds)

    def _give_up(self) -> None:
        """Close the connection for good, and drop queued messages and all later ones."""
        self.has_given_up = True
        self._detach()
        if self._peers is not None:
            self._peers.close()

    def _flush(self) -> None:
        """Write as much as the connection accepts now, or in a moment."""
        # Without a connection, messages wait for the next one.
        if self._writing < 0:
            return
        # Each attempt to write says whether the connection accepted everything.
        is_full = True
        try:
            # A pseudo terminal accepts little at once, and has room again after a moment.
            for _ in range(_MAX_WRITES):
                is_full = not self.channel.write(self._writing, time.monotonic())
                if not is_full or not _accepts_bytes_soon(self._writing):
                    break
            self._wait_to_write(is_full=is_full)
        except OSError:
            self._on_end()

    def _wait_to_write(self, *, is_full: bool) -> None:
        """Note whether the connection is full. While it is, the selector wakes us when it accepts bytes.

        Args:
            is_full: Whether the connection accepts no more bytes for the moment.
        """
        if is_full and not self._is_full:
            self._selector.register(self._writing, selectors.EVENT_WRITE, self._flush)
        elif self._is_full and not is_full:
            self._selector.unregister(self._writing)
        self._is_full = is_full

    def _read(self) -> None:
        """Read what has arrived and pass on its messages, or react to the end of the connection."""
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_end()
            return
        self._received_at = time.monotonic()
        messages = self.channel.receive(data)
        # They are acknowledged only when all of them are handled.
        for message in messages:
            self._on_message(message)
        # The channel sends the acknowledgement now or soon.
        self.channel.note_handled(len(messages), self._received_at)
        # What the messages have caused is sent at once. A full connection wakes us when it has room.
        if not self._is_full:
            self._flush()


def _accepts_bytes_soon(fd: int) -> bool:
    """Return whether a descriptor accepts bytes within `_ROOM_MILLISECONDS`."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(_ROOM_MILLISECONDS))
