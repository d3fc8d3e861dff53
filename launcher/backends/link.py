"""The link to an agent on another machine, over connections that may break.

`launcher.backends.fleet.AgentFleet` opens one for each remote host. A link is a state machine that the loop
of the launch drives: it sends and receives, notices silence, has the host connected to again, and gives up
when the lease is over. A connection is a program on the host (`launcher.agent.main.start` or ``connect``)
with a byte pipe each way, which carries a `launcher.common.protocol.MessageChannel`. Connecting blocks, so
other threads do it, and the loop's thread must never wait for a host.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from launcher.backends.connections import AgentArguments, Connections, lease_there
from launcher.backends.link_pipe import LinkPrograms
from launcher.backends.programs import RemoteProgram
from launcher.common.errors import (
    AllocationEndedError,
    ConnectionLostError,
    HostGoneError,
    HostPreemptedError,
    ProtocolError,
    RouteDownError,
    TransportError,
)
from launcher.common.events import AgentClosed, AgentCommand, CloseAgent, Measured, TaskStarted
from launcher.common.protocol import (
    PROGRAM_RECORDS,
    WINDOW_BYTES,
    Decoder,
    Message,
    MessageChannel,
    Refused,
)
from launcher.common.record import replace
from launcher.common.text import last_line, nothing_started
from launcher.event_loop import EventLoop, TimerHandle, await_readable
from launcher.messages import say

if TYPE_CHECKING:
    from concurrent.futures import Future

#: A connection counts as lost after this time without any answer.
SILENCE_SECONDS = 5.0
#: The same for a new connection, which must first start a program.
FIRST_ANSWER_SECONDS = 15.0
_RECONNECT_PAUSE_SECONDS = 0.2
#: After this time without an answer, output may be late. Pings are answered every 2 s.
_BROKEN_SECONDS = 3.0
#: The time for the last acknowledgement to be sent.
_LAST_ACK_TIMEOUT_SECONDS = 1.0
#: After this time without a connection, the host will hardly answer soon.
_LONG_LOST_SECONDS = 3.0
#: The bytes of messages that may wait for the reader. An honest agent sends less.
_MAX_WAITING_BYTES = 2 * WINDOW_BYTES
#: How much longer than the first connection took an agent waits for the next one, which needs a login, too.
_RECONNECT_FACTOR = 5.0
_READ_BYTES = 128 * 1024
#: The reads in one turn of the loop.
_MAX_READS = 4
#: The pause before more is sent to a connection that did not accept all. Some connections do not show when
#: they accept more.
_SEND_PAUSE_SECONDS = 0.05


class _LinkClosed(Exception):
    """The end of a link. Its text is for messages, and empty if the link ended as it should."""


class ReconnectingLink:
    """A `launcher.backends.connections.AgentLink` that makes a new connection when one is lost.

    It starts the agent at once, and never waits for the host: it reports success or failure later. With an
    infinite lease it does not care about silence, and waits until the connection ends.

    Args:
        loop: The loop that drives the link.
        connections: The connections that reach the host.
        arguments: The arguments of the agent.
        stays: Whether the agent stays after the job, to run our programs, until `shut_down`.
        quiet: Whether the user is not told when the connection is lost, and when it is back.
    """

    same_clock = all_gone = preempted = False

    def __init__(
        self,
        loop: EventLoop,
        connections: Connections,
        arguments: AgentArguments,
        *,
        stays: bool = False,
        quiet: bool = False,
    ) -> None:
        """Let another thread start the agent of a host. The link reports success or failure later."""
        #: The loop drives the link, and the connections reach the host.
        self.loop, self._connections, self._is_quiet = loop, connections, quiet
        self.host = host = arguments.host
        #: The seconds after which this link gives a silent host up.
        self._lease = arguments.lease
        #: What the agent is started with. Its own lease is shorter, so that its tasks have ended by then.
        self._arguments = replace(arguments, lease=lease_there(self._lease))
        self.stays = stays
        #: The tasks of the host. Messages of its agent may name no others. The link's user fills the set.
        self.tasks: set[str] = set()
        #: Guards the channel and the pipes of programs, which other threads use, too.
        self.lock = threading.RLock()
        #: Numbers, keeps and repeats messages, so that none is lost when a connection is.
        self._channel = MessageChannel(
            lambda: Decoder(from_agent=True, host=host, tasks=self.tasks), arguments.token, greets=True
        )
        #: The messages that `receive` returns next, and the number of their bytes.
        self._inbox: list[Message] = []
        self._inbox_bytes = 0
        #: It is called when `receive` has something.
        self._on_ready: Callable[[], object] = lambda: None
        #: The programs of ours that run over this link.
        self._programs = LinkPrograms(host, self.lock, self.send)
        #: The present connection: a program on the host that passes bytes to and from the agent. None while
        #: there is no connection.
        self._program: RemoteProgram | None = None
        #: Whether another thread is connecting just now.
        self._is_connecting = False
        #: Whether another thread is finding out just now why the connection has ended.
        self._is_finding_reason = False
        #: How many bytes the connection accepted when it did not accept all. None if it accepted all.
        self._accepted_bytes: int | None = None
        #: Whether the loop will call `_flush` soon.
        self._is_flush_queued = False
        #: The timer of the next deadline, see `_schedule`. None if none is set.
        self._timer: TimerHandle | None = None
        #: When bytes of the agent came last, and when connecting succeeded or failed last (monotonic). Both
        #: begin with the time at which the link was made.
        self._received_at = self._attempt_ended_at = time.monotonic()
        #: When connecting began (monotonic). For the first connection, the time of the login is subtracted.
        self._attempt_started_at = self._received_at - connections.login_seconds.get(host, 0.0)
        #: How often connecting has begun.
        self._attempt_count = 0
        #: Why the host cannot be reached, for messages. Until an attempt has failed, this is a guess.
        self._connect_error = "the network to it or the host itself is down, or launch was suspended"
        #: Whether the agent has ever answered.
        self._has_answered = False
        #: When the connection was lost (monotonic). None while there is one.
        self._lost_at: float | None = None
        #: Whether the agent has said that it exits, because it was asked to.
        self._agent_closed = False
        #: Whether `shut_down` was called.
        self._was_shut_down = False
        #: When the link ends although its last acknowledgement was not sent (monotonic). None until the agent
        #: has closed.
        self._forced_end_at: float | None = None
        #: How the link ended, for messages. None while it has not ended.
        self.reason: str | None = None
        #: The error of the agent that ended the link, which `receive` raises. None if none did.
        self._protocol_error: ProtocolError | None = None
        self._connect()
        self._schedule()  # This sets the timer, because no step has done so.

    # ------------------------------------------------------------------ for its reader

    @property
    def is_over(self) -> bool:
        """Whether the link has ended."""
        return self.reason is not None

    @property
    def is_broken(self) -> bool:
        """Whether nothing has come for seconds. A link with an infinite lease is never broken."""
        return math.isfinite(self._lease) and time.monotonic() > self._received_at + _BROKEN_SECONDS

    def watch(self, loop: EventLoop, ready: Callable[[], object]) -> None:
        """Let the loop call ``ready`` when `receive` has something, or when the link has ended."""
        self._on_ready = ready
        if self.is_over:
            loop.call_soon(ready)
        elif self._inbox:  # What `ready` does is a step of this state machine.
            loop.call_soon(lambda: self._step(ready))

    def unwatch(self) -> None:
        """Stop calling the ``ready`` of `watch`. The link itself goes on."""
        self._on_ready = lambda: None

    def receive(self) -> Sequence[Message] | None:
        """Return the messages that have arrived, and acknowledge them.

        Returns:
            The messages, perhaps none. None if the link has ended, and all messages were returned before.

        Raises:
            ProtocolError: The link has ended because the agent sent something that it may not send.
        """
        with self.lock:
            messages, self._inbox, self._inbox_bytes = self._inbox, [], 0
            # An acknowledgement usually waits for others. But the TCP connection of srun (Nagle) delays the
            # agent's next short message by 40 ms until the last one is answered, and after TaskStarted there
            # is such a message at once.
            at_once = self._agent_closed or any(isinstance(message, TaskStarted) for message in messages)
            # Measurements come often, and their acknowledgement can wait for the next ping.
            lazily = all(isinstance(message, Measured) for message in messages)
            self._channel.note_handled(len(messages), time.monotonic(), at_once, lazily)
        if messages:
            if self.is_over:  # The reader must call again, to see the end.
                self.loop.call_soon(self._on_ready)
            return messages
        if self.is_over and self._protocol_error is not None:
            raise self._protocol_error
        return None if self.is_over else ()

    def send(self, command: AgentCommand | Message) -> None:
        """Queue a command for the agent. The loop sends it soon. Any thread may call this."""
        if self.stays and isinstance(command, CloseAgent) and not self._was_shut_down:
            # The job is over, but the agent must still run our programs, until `shut_down`.
            command = replace(command, stays=True)
        with self.lock:
            self._channel.send(command)
            if not self._is_flush_queued:
                self._is_flush_queued = True
                self.loop.call_soon(self._flush)

    def run(self, entry: str, arguments: object) -> RemoteProgram:
        """Run a program of ours as a child of the agent, see `LinkPrograms.run`."""
        return self._programs.run(entry, arguments)

    def shut_down(self) -> None:
        """Ask the agent to end all tasks, and then itself. Any thread may call this, more than once."""
        if not self._was_shut_down:
            self._was_shut_down = True
            self.send(CloseAgent(self.host))

    def wait(self, seconds: float) -> str | None:
        """Run the loop until the link has ended.

        It does not wait for a host to which there has been no connection for `_LONG_LOST_SECONDS`, because
        that will hardly answer soon.

        Args:
            seconds: How long to wait at most.

        Returns:
            How the link ended, for messages. None if it has not ended.
        """
        self.loop.run_until(lambda: self.is_over or self._is_long_lost(), seconds)
        return self.reason

    def _is_long_lost(self) -> bool:
        """Return whether there has been no connection for so long that the host will hardly answer soon."""
        lost_at = self._lost_at  # The loop's thread may change it meanwhile.
        return lost_at is not None and time.monotonic() >= lost_at + _LONG_LOST_SECONDS

    def kill(self, seconds: float) -> str | None:
        """Kill the agent and all that it started, by another program on the host. This blocks.

        Returns:
            How the agent ended, for messages. None if the host does not answer, or something is left.
        """
        deadline = time.monotonic() + seconds
        self.shut_down()  # From now on the user is told nothing about the connection.
        if self._is_long_lost() and not self.is_over:
            return None
        killer = self._connections.kill_agent
        with suppress(TransportError), closing(killer(self.host, self._arguments.agent_id)) as program:
            while (seconds_left := deadline - time.monotonic()) > 0:
                if program.recv(1) == b"":  # The program has finished, and its status says with what success.
                    return "it was killed" if program.wait(seconds_left) == 0 else None
                await_readable(program, seconds_left)
        return None

    def close(self) -> None:
        """Close the link. What an agent that still runs has not received is lost."""
        self.shut_down()
        self._flush()
        if not self.is_over:
            self._end("closed before its agent exited")

    # ------------------------------------------------------------------ turns

    def _step(self, step: Callable[[], object]) -> None:
        """Do one step of the state machine, then react to deadlines, and set the timer for the next one.

        This is the only place that turns errors into the end of the link or of its connection.

        Args:
            step: What to do. It may raise a `TransportError` if the connection is broken, a `ProtocolError`,
                or `_LinkClosed` to end the link.
        """
        if self.is_over:
            return
        try:
            try:
                step()
            except TransportError as error:
                self._handle_break(error)  # It may raise `_LinkClosed`, which is caught below.
            if not self.is_over:
                self._check_deadlines(time.monotonic())
        except ProtocolError as error:
            self._protocol_error = error
            self._end(str(error))
        except _LinkClosed as end:
            self._end(str(end))
        if not self.is_over:
            self._schedule()

    def _schedule(self) -> None:
        """Set the timer for the next moment at which something changes only because time passes.

        With an infinite lease it may be that nothing is due. Then no timer is set.
        """
        # When the lease is over, and when the link ends without its last acknowledgement.
        moments = [self._received_at + self._lease, self._forced_end_at]
        if self._accepted_bytes is not None:  # The rest is sent then.
            moments.append(time.monotonic() + _SEND_PAUSE_SECONDS)
        else:
            with self.lock:
                moments.append(self._channel.next_due())
        if not self._is_connecting and not self._is_finding_reason:
            # Another attempt is due some time after the last one. If there is a connection, it is not due
            # before that counts as lost because it is silent.
            silent_at = -math.inf if self._program is None else self._silent_at()
            moments.append(max(self._attempt_ended_at + _RECONNECT_PAUSE_SECONDS, silent_at))
        due = min(moment for moment in moments if moment is not None)
        # A timer that is set for an earlier moment comes here again, so it may stay.
        if math.isfinite(due) and (self._timer is None or due < self._timer.due):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        """React to the timer: send and receive, and react to deadlines."""
        self._timer = None
        self._step(self._send_and_receive)

    def _flush(self) -> None:
        """Send what waits, as one step of the state machine. `send` lets the loop call this soon."""
        self._is_flush_queued = False
        self._step(self._send_output)

    def _end(self, reason: str) -> None:
        """End the link: drop the connection, and tell the reader and the programs over this link.

        Args:
            reason: How the link ended, for messages. Empty if it ended as it should.
        """
        self.reason = reason  # From now on the link has ended, see `is_over`.
        if self._timer is not None:
            self._timer.cancel()
        self._drop_connection()
        with self.lock:
            self._programs.lose(reason)
        self._on_ready()

    # ------------------------------------------------------------------ messages

    def _on_readable(self) -> None:
        """Receive, as one step of the state machine. The loop calls this when bytes have arrived."""
        self._step(self._receive_and_deliver)

    def _receive_and_deliver(self) -> None:
        """Receive messages in a few reads, and deliver them.

        The number of reads is limited, so that one host that sends much does not keep the loop from the
        others. What is left makes the loop call this again.

        Raises:
            _LinkClosed: The connection has ended after the agent has closed.
            TransportError: The connection is broken.
        """
        for _ in range(_MAX_READS):
            program = self._program
            data = None if program is None else program.recv(_READ_BYTES)
            if program is None or data is None:  # There is nothing more now.
                if self._channel.has_part:  # The next turn waits a moment for the rest of the message.
                    self.loop.delay_next_turn()
                return
            if not data:  # The connection has ended.
                if self._agent_closed:
                    raise _LinkClosed
                self._find_out_why(program)
                return
            self._received_at = time.monotonic()
            with self.lock:
                had_met = self._channel.met
                messages = self._channel.receive(data)
            # The channel "has met" the agent once the agent has answered over the present connection.
            if self._channel.met and not had_met:
                # The next connection may need a login, too, so the agent should wait for it for several times
                # as long as this one took.
                seconds = _RECONNECT_FACTOR * (self._received_at - self._attempt_started_at)
                if self._has_answered:  # A later connection that was faster does not shorten that time.
                    seconds = max(seconds, self._channel.reconnect_seconds)
                self._channel.reconnect_seconds, self._has_answered = seconds, True
            # The user is told before the messages that come over the connection are shown.
            if self._channel.met and self._lost_at is not None:
                self._report(f"connected again after {time.monotonic() - self._lost_at:.0f}s")
                self._lost_at = None
            for message in messages:
                if isinstance(message, Refused):  # The agent exits, so what else it sent does not matter.
                    self._handle_refusal(program, message.why)
                    return
            self._deliver(messages, len(data))

    def _deliver(self, messages: list[Message], size: int) -> None:
        """Pass messages about programs to their pipes, and keep all others for the caller of `receive`.

        Each message is acknowledged exactly once, so that the agent drops it: here if it is handled here, or
        by `receive` when the reader gets it.

        Args:
            messages: The messages that have arrived.
            size: The number of their bytes.

        Raises:
            ProtocolError: The agent sends more than it may.
        """
        with self.lock:
            for_reader = []
            for message in messages:
                if not isinstance(message, PROGRAM_RECORDS):
                    for_reader.append(message)
                else:
                    self._programs.deliver(message)
            # From an agent that stays after the job, AgentClosed means only that the job is over.
            if self._was_shut_down or not self.stays:
                self._agent_closed |= any(isinstance(message, AgentClosed) for message in for_reader)
            if self._was_shut_down:  # Nobody reads them any longer.
                for_reader.clear()
            # What the reader does not get is acknowledged here. `receive` acknowledges the rest.
            self._channel.note_handled(
                len(messages) - len(for_reader), time.monotonic(), at_once=self._agent_closed
            )
            self._inbox += for_reader
            self._inbox_bytes += size if for_reader else 0
            if self._inbox_bytes > _MAX_WAITING_BYTES:
                raise ProtocolError("its agent sends more than was acknowledged")
        if for_reader:
            self._on_ready()

    def _send_and_receive(self) -> None:
        """Send what waits, as far as the connection accepts it, and receive what has come.

        Both are tried at every step, because a program that has just started may accept more bytes without
        any event that says so.
        """
        self._send_output()
        # While another thread finds out why the connection has ended, there is nothing more to receive.
        if not self._is_finding_reason:
            self._receive_and_deliver()

    def _send_output(self) -> None:
        """Send what waits, as much as the connection accepts now, and let the loop watch the connection.

        Raises:
            TransportError: The connection is broken.
        """
        program, self._accepted_bytes = self._program, None
        if program is None:
            return
        while True:
            with self.lock:
                data = b"".join(self._channel.output(time.monotonic()))
            if not data:
                break
            count = program.send(data)
            with self.lock:
                self._channel.sent(count)
            if count < len(data):
                self._accepted_bytes = count
                break
        if not self._is_finding_reason:
            # If nothing waits, nobody needs to know when it accepts more. And a connection that accepted
            # nothing may not show when it does, so a timer tries again.
            on_writable = self._flush if self._accepted_bytes else None
            self.loop.watch(program.fileno(), self._on_readable, on_writable)

    # ------------------------------------------------------------------ time

    def _check_deadlines(self, now: float) -> None:
        """End the link, or give its connection up, if a time limit is over. Connect again when it is time.

        The time limits, in this order:

        - The lease: after so long without an answer, the agent itself stops its tasks, so the link ends.
        - The end: the agent has said that it exits, and its last messages were read. The link stays a moment
          longer to acknowledge them.
        - The silence: a connection over which nothing comes counts as lost, and another one is made.

        Args:
            now: The time (monotonic).

        Raises:
            _LinkClosed: The lease is over, or the link may end.
        """
        if self._was_shut_down:  # Nobody reads messages any longer, so they only have to be acknowledged.
            with self.lock:
                self._channel.note_handled(len(self._inbox), now, at_once=self._agent_closed)
                self._inbox.clear()
        # The agent exits when its last messages are acknowledged, and that ends the connection and the link.
        if self._agent_closed and not self._inbox and self._forced_end_at is None:
            self._forced_end_at = now + _LAST_ACK_TIMEOUT_SECONDS
        silence = f"no answer for {now - self._received_at:.0f}s"
        if now >= self._received_at + self._lease:
            tasks = "; its agent stops the tasks there" if self._has_answered and self.tasks else ""
            raise _LinkClosed(f"{silence}: {self._connect_error}{tasks}")
        # For a last acknowledgement alone no new connection is made.
        if self._forced_end_at is not None and (now >= self._forced_end_at or self._lost_at is not None):
            raise _LinkClosed
        if self._is_connecting or self._is_finding_reason:  # Another thread reports soon.
            return
        if self._program is not None and now < self._silent_at():  # The connection is alive.
            return
        # By now there is no connection, or it counts as lost because it is silent.
        if self._program is not None and not self._has_answered:
            self._connect_error = nothing_started(FIRST_ANSWER_SECONDS)
        self._note_loss(silence if self._has_answered else self._connect_error)
        # Otherwise the timer comes back here after the pause between two attempts. A connection that is only
        # silent is kept until the new one is there, because it may come back.
        if now >= self._attempt_ended_at + _RECONNECT_PAUSE_SECONDS:
            self._connect()

    def _silent_at(self) -> float:
        """Return when the present connection counts as lost if nothing comes (monotonic).

        A new connection has more time, because it must first start a program. With an infinite lease a
        connection is never lost by silence.
        """
        if math.isinf(self._lease):
            return math.inf
        if self._channel.met:  # The agent has answered over this connection.
            return self._received_at + SILENCE_SECONDS
        return max(self._received_at, self._attempt_ended_at) + FIRST_ANSWER_SECONDS

    # ------------------------------------------------------------------ connections

    def _connect(self) -> None:
        """Let another thread start the agent, or connect to it again. `_handle_connected` gets the result.

        If the link has ended by then, the new connection is closed at once.
        """
        self._attempt_count += 1
        self._is_connecting = True
        is_first, has_answered = self._attempt_count == 1, self._has_answered
        if not is_first:
            self._attempt_started_at = time.monotonic()

        def connect() -> RemoteProgram:
            """Return a program on the host whose bytes are the messages of the agent. This blocks."""
            if self.is_over:  # It ended while this call waited for a thread. Nobody reads the error.
                raise TransportError("the link has ended")
            if not is_first:
                self._connections.reconnect(self.host)
            # An agent that has never answered may not run.
            reach = self._connections.connect_agent if has_answered else self._connections.start_agent
            return reach(self.host, self._arguments)

        def on_done(attempt: Future[RemoteProgram]) -> None:
            """Use the new connection, or close it if the link has ended meanwhile."""
            self._step(lambda: self._handle_connected(attempt))  # It does nothing if the link has ended.
            if attempt.exception() is None and attempt.result() is not self._program:
                # `closed.result` raises the error of `close`, if there is one.
                self.loop.run_in_thread(attempt.result().close, lambda closed: closed.result())

        self.loop.run_in_thread(connect, on_done)

    def _handle_connected(self, attempt: Future[RemoteProgram]) -> None:
        """React to the end of another thread's attempt to connect.

        Args:
            attempt: The result of the attempt: a program on the host, or an error.

        Raises:
            TransportError: The first attempt failed, or the host is gone. Later failures only lead to new
                attempts.
        """
        self._is_connecting, self._attempt_ended_at = False, time.monotonic()
        try:
            program = attempt.result()
        except HostGoneError:
            raise
        except TransportError as error:
            self._connect_error = self._without_name(error)
            if self._attempt_count == 1:
                raise
            return
        # The old connection, which was silent, is dropped only now that there is a new one.
        self._drop_connection()
        self._program = program
        with self.lock:
            # By this number the agent knows which of its connections is the newest.
            self._channel.connect(self._attempt_count, time.monotonic())
        self._send_and_receive()

    def _find_out_why(self, program: RemoteProgram) -> None:
        """Let another thread find out why a connection has ended, and react to that.

        Args:
            program: The program on the host that was the connection.
        """
        # While the thread works, no timer connects again, and the loop must not report the ended connection
        # all the time.
        self._is_finding_reason = True
        self.loop.watch(program.fileno())  # Without callbacks this stops the watching.

        def on_found(error: Future[TransportError | None]) -> None:
            """Raise the reason as the error of this step, which `_handle_break` handles."""
            self._is_finding_reason = False
            if self._program is program:  # Otherwise the connection was dropped meanwhile.
                raise error.result() or TransportError(self._why_ended(program))

        self.loop.run_in_thread(program.start_error, lambda error: self._step(lambda: on_found(error)))

    def _handle_refusal(self, program: RemoteProgram, why: str) -> None:
        """End the link because the agent exits without being asked to. Another thread finds out why.

        Args:
            program: The program on the host that is the connection.
            why: The reason that the agent sent.

        Raises:
            _LinkClosed: The agent has closed already, so it was asked to.
        """
        if self._agent_closed:
            raise _LinkClosed
        # While the thread works, no timer connects again, and the loop must not report the ended connection
        # all the time.
        self._is_finding_reason = True
        self.loop.watch(program.fileno())  # Without callbacks this stops the watching.

        def on_found(reason: Future[str]) -> None:
            """End the link, with this reason or with the error of the other thread."""
            raise _LinkClosed(reason.result())

        # The reason may have to be asked of a queue or a cluster, for which the loop must not wait.
        self.loop.run_in_thread(
            lambda: program.exit_reason(why), lambda reason: self._step(lambda: on_found(reason))
        )

    def _handle_break(self, error: TransportError) -> None:
        """React to a broken connection: end the link, or drop the connection and try again.

        - The agent has said that it exits: the link ends as it should.
        - The host or its allocation is gone: the link ends, and `all_gone` and `preempted` say more.
        - The agent has answered before: another connection is tried until the lease is over.
        - It has never answered, so perhaps it cannot start: the link ends. But if only the connection was
          lost, one other is tried, and if the way to the host is down, more are, until the lease is over.

        Args:
            error: What is wrong with the connection.

        Raises:
            _LinkClosed: No other connection is tried.
        """
        if self._agent_closed:
            raise _LinkClosed from error
        reason = self._without_name(error)
        if isinstance(error, HostGoneError):
            self.all_gone = isinstance(error, AllocationEndedError)
            self.preempted = isinstance(error, HostPreemptedError)
            raise _LinkClosed(reason) from error
        is_first_loss = isinstance(error, ConnectionLostError) and self._attempt_count == 1
        # If another thread is connecting already, its result decides.
        tries_again = self._is_connecting or is_first_loss or isinstance(error, RouteDownError)
        if not self._has_answered and not tries_again:
            raise _LinkClosed(reason) from error
        self._drop_connection()
        self._note_loss(reason)

    def _drop_connection(self) -> None:
        """Give the present connection up. Another thread closes it."""
        if self._program is not None:
            program, self._program = self._program, None
            # The watching stops before another thread closes the descriptor, whose number may be reused.
            self.loop.watch(program.fileno())
            self.loop.run_in_thread(program.close, lambda closed: closed.result())  # This raises its error.
            self._is_finding_reason = False  # The reason of a dropped connection does not matter.
            with self.lock:
                self._channel.disconnect()

    def _note_loss(self, why: str) -> None:
        """Note that the connection is lost, and tell the user once.

        A connection that is only silent may come back before a new one is made.

        Args:
            why: Why it is lost, for the user.
        """
        if self._lost_at is None and not self._agent_closed:
            self._lost_at = time.monotonic()
            seconds_left = self._received_at + self._lease - self._lost_at
            tasks = "its tasks go on, trying again" if self._has_answered and self.tasks else "trying again"
            self._report(f"connection lost ({why}); {tasks} for {seconds_left:.0f}s")

    def _why_ended(self, program: RemoteProgram) -> str:
        """Return why a connection ended, from the last line on the stderr of its program on the host."""
        if self._has_answered:
            return last_line(program.stderr(), "it was closed")
        return f"the agent cannot be started: {last_line(program.stderr(), 'it was killed')}"

    def _report(self, text: str) -> None:
        """Tell the user something about the host, unless the link is quiet or its end was asked for."""
        if not (self._was_shut_down or self._is_quiet):
            say(f"{self.host}: {text}")

    def _without_name(self, error: object) -> str:
        """Return the text of an error about this host without the host's name."""
        return str(error).removeprefix(f"{self.host}: ")
