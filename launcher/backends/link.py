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
from launcher.backends.link_pipe import LinkPipe
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
from launcher.common.events import AgentClosed, AgentCommand, CloseAgent, TaskStarted
from launcher.common.protocol import (
    WINDOW_BYTES,
    CloseCommand,
    CommandCredit,
    CommandData,
    CommandEnded,
    Decoder,
    Message,
    MessageChannel,
    Refused,
    RunCommand,
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
_LAST_ACK_SECONDS = 1.0
#: After this time without a connection, the host will hardly answer soon.
_LONG_LOST_SECONDS = 3.0
#: The bytes of messages that may wait for the reader. An honest agent sends less.
_MAX_WAITING_BYTES = 2 * WINDOW_BYTES
#: How much longer than the first connection took an agent waits for the next one, which needs a login, too.
_LONGER_FACTOR = 5.0
_READ_BYTES = 128 * 1024
#: The reads in one turn of the loop.
_MAX_READS = 4
#: The pause before more is sent to a connection that did not accept all. Some connections do not show when
#: they accept more.
_SEND_PAUSE_SECONDS = 0.05
_COMMAND_RECORDS = (CommandData, CommandCredit, CommandEnded)


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
        stays: See `AgentLink`.
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
        self.loop, self._connections, self._quiet = loop, connections, quiet
        self.host = host = arguments.host
        self._lease = arguments.lease
        self._arguments = replace(arguments, lease=lease_there(self._lease))
        self.stays = stays
        self.tasks: set[str] = set()
        #: Guards the channel and the pipes of programs, which other threads use, too.
        self.lock = threading.RLock()
        self._channel = MessageChannel(lambda: Decoder(True, host, self.tasks), arguments.token, greets=True)
        self._inbox: list[Message] = []
        self._inbox_size = 0
        #: It is called when `receive` has something.
        self._ready: Callable[[], object] = lambda: None
        #: The pipes of the programs that run over this link, by their numbers.
        self._pipes: dict[int, LinkPipe] = {}
        self._last_number = 0
        self._program: RemoteProgram | None = None
        #: Whether another thread is connecting (``_connecting``), or finding out why the present connection
        #: has ended (``_ending``).
        self._connecting = self._ending = False
        #: How many bytes the connection accepted of more. None if it accepted all.
        self._accepted: int | None = None
        self._flush_asked = False
        self._timer: TimerHandle | None = None
        self._received_at = self._tried_at = time.monotonic()
        #: When connecting began (monotonic). For the first connection, the time of the login is subtracted.
        self._began = self._received_at - connections.login_seconds.get(host, 0.0)
        self._attempts = 0
        self._why_not = "the network to it or the host itself is down, or launch was suspended"
        #: Whether the agent has ever answered.
        self._answered = False
        #: When the connection was lost (monotonic). None while there is one.
        self._lost_at: float | None = None
        #: Whether the agent has closed (``_agent_closed``), or was asked to (``_was_shut_down``).
        self._agent_closed = self._was_shut_down = False
        #: When the link ends although its last acknowledgement was not sent (monotonic).
        self._end_at: float | None = None
        #: How the link ended, for messages. None while it has not ended.
        self.reason: str | None = None
        self._fault: ProtocolError | None = None
        self._connect()
        self._schedule()

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
        self._ready = ready
        if self._inbox or self.is_over:
            loop.call_soon(ready if self.is_over else lambda: self._step(ready))

    def unwatch(self) -> None:
        self._ready = lambda: None

    def receive(self) -> Sequence[Message] | None:
        """Return the messages that have arrived, and acknowledge them. None if the link has ended."""
        with self.lock:
            messages, self._inbox, self._inbox_size = self._inbox, [], 0
            # The TCP connection of srun (Nagle) delays a short message by 40 ms until the last is answered.
            at_once = self._agent_closed or any(isinstance(each, TaskStarted) for each in messages)
            self._channel.took(len(messages), time.monotonic(), at_once)
        if messages:
            if self.is_over:
                self.loop.call_soon(self._ready)
            return messages
        if self.is_over and self._fault is not None:
            raise self._fault
        return None if self.is_over else ()

    def send(self, command: AgentCommand | Message) -> None:
        """Queue a command for the agent. Any thread may call this."""
        if self.stays and isinstance(command, CloseAgent) and not self._was_shut_down:
            command = replace(command, stays=True)
        with self.lock:
            self._channel.send(command)
            if not self._flush_asked:
                self._flush_asked = True
                self.loop.call_soon(self._flush)

    def run(self, entry: str, arguments: object) -> RemoteProgram:
        """Run a program of ours as a child of the agent. The arguments are those of `ProgramRunner.run`."""
        with self.lock:
            self._last_number += 1
            number = self._last_number
            pipe = self._pipes[number] = LinkPipe(number, self.lock, self.send, self._close_pipe)
            if self.is_over:
                pipe.lost(f"{self.host}: {self.reason or 'its agent has exited'}")
            self.send(RunCommand(number, entry, arguments))
        return RemoteProgram(self.host, pipe, is_ready=True)

    def _close_pipe(self, number: int) -> None:
        with self.lock:
            if self._pipes.pop(number, None) is not None:
                self.send(CloseCommand(number))

    def shut_down(self) -> None:
        """Ask the agent to end all tasks, and then itself. Any thread may call this."""
        if not self._was_shut_down:
            self._was_shut_down = True
            self.send(CloseAgent(self.host))

    def wait(self, seconds: float) -> str | None:
        """Wait until the link has ended, but not for a host that was lost seconds ago.

        Returns:
            How the link ended, for messages. None if it has not ended.
        """
        self.loop.run_until(lambda: self.is_over or self._is_long_lost(), seconds)
        return self.reason

    def _is_long_lost(self) -> bool:
        """Return whether there has been no connection for so long that the host will hardly answer soon."""
        lost_at = self._lost_at
        return lost_at is not None and time.monotonic() >= lost_at + _LONG_LOST_SECONDS

    def kill(self, seconds: float) -> str | None:
        """Kill the agent and all that it started, by another program on the host.

        Returns:
            How the agent ended, for messages. None if the host does not answer, or something is left.
        """
        until = time.monotonic() + seconds
        self.shut_down()
        if self._is_long_lost() and not self.is_over:
            return None
        connections, agent_id = self._connections, self._arguments.agent_id
        with suppress(TransportError), closing(connections.kill_agent(self.host, agent_id)) as program:
            while (left := until - time.monotonic()) > 0:
                if program.recv(1) == b"":
                    return "it was killed" if program.wait(left) == 0 else None
                await_readable(program, left)
        return None

    def close(self) -> None:
        """Close the link. What an agent that still runs has not received is lost."""
        self.shut_down()
        self._flush()
        if not self.is_over:
            self._end("closed before its agent exited")

    # ------------------------------------------------------------------ turns

    def _step(self, step: Callable[[], object]) -> None:
        """Do one step of the state machine, then react to deadlines.

        This is the only place that turns errors into the end of the link or of its connection.
        """
        if self.is_over:
            return
        try:
            try:
                step()
            except TransportError as error:
                self._handle_break(error)
            if not self.is_over:
                self._check_deadlines(time.monotonic())
        except ProtocolError as error:
            self._fault = error
            self._end(str(error))
        except _LinkClosed as end:
            self._end(str(end))
        if not self.is_over:
            self._schedule()

    def _schedule(self) -> None:
        """Set the timer for the next moment at which something changes only because time passes."""
        now = time.monotonic()
        dues = [self._received_at + self._lease, self._end_at]
        if self._accepted is not None:
            dues.append(now + _SEND_PAUSE_SECONDS)
        else:
            with self.lock:
                dues.append(self._channel.next_due())
        if not self._connecting and not self._ending:
            dues.append(self._tried_at + _RECONNECT_PAUSE_SECONDS)
            if self._program is not None:
                dues[-1] = max(self._tried_at + _RECONNECT_PAUSE_SECONDS, self._silent_at())
        due = min(due for due in dues if due is not None)
        if math.isfinite(due) and (self._timer is None or due < self._timer.due):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(due, self._time_up)

    def _time_up(self) -> None:
        """React to the timer: send and receive, and react to deadlines."""
        self._timer = None
        self._step(self._send_and_receive)

    def _flush(self) -> None:
        self._flush_asked = False
        self._step(self._send_output)

    def _end(self, reason: str) -> None:
        """End the link: drop the connection, and tell the reader and the programs over this link."""
        self.reason = reason
        if self._timer is not None:
            self._timer.cancel()
        self._drop_program()
        with self.lock:
            for pipe in self._pipes.values():
                pipe.lost(f"{self.host}: {reason or 'its agent has exited'}")
        self._ready()

    # ------------------------------------------------------------------ messages

    def _readable(self) -> None:
        self._step(self._receive)

    def _receive(self) -> None:
        """Receive messages in a few reads, and deliver them."""
        for _ in range(_MAX_READS):
            program = self._program
            data = None if program is None else program.recv(_READ_BYTES)
            if program is None or data is None:
                if self._channel.has_part:
                    self.loop.await_rest()
                return
            if not data:
                if self._agent_closed:
                    raise _LinkClosed
                self._find_out_why(program)
                return
            self._received_at = time.monotonic()
            with self.lock:
                was_met = self._channel.met
                messages = self._channel.receive(data)
            if self._channel.met and not was_met:
                grace = _LONGER_FACTOR * (self._received_at - self._began)
                self._channel.grace = max(self._channel.grace if self._answered else 0.0, grace)
                self._answered = True
            # This is reported before the messages that come over the connection are shown.
            if self._channel.met and self._lost_at is not None:
                self._report(f"connected again after {time.monotonic() - self._lost_at:.0f}s")
                self._lost_at = None
            for message in messages:
                if isinstance(message, Refused):
                    self._handle_refusal(program, message.why)
                    return
            self._deliver(messages, len(data))

    def _deliver(self, messages: list[Message], size: int) -> None:
        """Pass messages about programs to their pipes, and keep all others for the reader.

        Raises:
            ProtocolError: The agent sends more than it may.
        """
        with self.lock:
            others = []
            for message in messages:
                if not isinstance(message, _COMMAND_RECORDS):
                    others.append(message)
                elif message.command in self._pipes:
                    self._pipes[message.command].handle_message(message)
            if self._was_shut_down or not self.stays:
                self._agent_closed = self._agent_closed or any(isinstance(m, AgentClosed) for m in others)
            if self._was_shut_down:
                others.clear()
            self._channel.took(len(messages) - len(others), time.monotonic(), at_once=self._agent_closed)
            self._inbox += others
            self._inbox_size += size if others else 0
            if self._inbox_size > _MAX_WAITING_BYTES:
                raise ProtocolError("its agent sends more than was acknowledged")
        if others:
            self._ready()

    def _send_and_receive(self) -> None:
        """Send and receive.

        A program that has just started may accept more bytes without any event that says so.
        """
        self._send_output()
        if not self._ending:
            self._receive()

    def _send_output(self) -> None:
        """Send what waits, and let the loop watch the connection."""
        program, self._accepted = self._program, None
        while program is not None:
            with self.lock:
                data = b"".join(self._channel.output(time.monotonic()))
            if not data:
                break
            count = program.send(data)
            with self.lock:
                self._channel.sent(count)
            if count < len(data):
                self._accepted = count
                break
        if program is not None and not self._ending:
            self.loop.watch(program.fileno(), self._readable, self._flush if self._accepted else None)

    # ------------------------------------------------------------------ time

    def _check_deadlines(self, now: float) -> None:
        """End the link, or give its connection up, if a time limit is over. Connect again when it is time.

        Raises:
            _LinkClosed: The lease is over, or the link may end.
        """
        if self._was_shut_down:
            with self.lock:
                self._channel.took(len(self._inbox), now, at_once=self._agent_closed)
                self._inbox.clear()
        if self._agent_closed and not self._inbox:
            self._end_at = self._end_at or now + _LAST_ACK_SECONDS
        if now >= self._received_at + self._lease:
            tasks = "; its agent stops the tasks there" if self._answered and self.tasks else ""
            raise _LinkClosed(f"no answer for {now - self._received_at:.0f}s: {self._why_not}{tasks}")
        if self._end_at is not None and (now >= self._end_at or self._lost_at is not None):
            raise _LinkClosed("" if self._agent_closed else "closed before its agent exited")
        if self._connecting or self._ending or (self._program is not None and now < self._silent_at()):
            return
        if self._program is not None and not self._answered:
            self._why_not = nothing_started(FIRST_ANSWER_SECONDS)
        self._note_loss(f"no answer for {now - self._received_at:.0f}s" if self._answered else self._why_not)
        if now >= self._tried_at + _RECONNECT_PAUSE_SECONDS:
            self._connect()

    def _silent_at(self) -> float:
        """Return when the present connection counts as lost if nothing comes (monotonic).

        A new connection has more time, because it must first start a program. With an infinite lease a
        connection is never lost by silence.
        """
        if math.isinf(self._lease):
            return math.inf
        if self._channel.met:
            return self._received_at + SILENCE_SECONDS
        return max(self._received_at, self._tried_at) + FIRST_ANSWER_SECONDS

    # ------------------------------------------------------------------ connections

    def _connect(self) -> None:
        """Let another thread start the agent, or connect to it again."""
        self._attempts += 1
        self._connecting = True
        if self._attempts > 1:
            self._began = time.monotonic()
        again, met = self._attempts > 1, self._answered

        def connect() -> RemoteProgram:
            if self.is_over:
                raise TransportError("the link has ended")
            if again:
                self._connections.reconnect(self.host)
            reach = self._connections.connect_agent if met else self._connections.start_agent
            return reach(self.host, self._arguments)

        def done(made: Future[RemoteProgram]) -> None:
            self._step(lambda: self._handle_connected(made))
            # The link has ended meanwhile, so nobody needs the new connection.
            if made.exception() is None and made.result() is not self._program:
                self.loop.run_in_thread(made.result().close, lambda closed: closed.result())

        self.loop.run_in_thread(connect, done)

    def _handle_connected(self, made: Future[RemoteProgram]) -> None:
        """React to the end of another thread's attempt to connect.

        Raises:
            TransportError: The first attempt failed, or the host is gone. Later failures only lead to new
                attempts.
        """
        self._connecting, self._tried_at = False, time.monotonic()
        try:
            program = made.result()
        except HostGoneError:
            raise
        except TransportError as error:
            self._why_not = self._without_name(error)
            if self._attempts == 1:
                raise
            return
        self._drop_program()
        self._program = program
        with self.lock:
            self._channel.connect(self._attempts, time.monotonic())
        self._send_and_receive()

    def _find_out_why(self, program: RemoteProgram) -> None:
        """Let another thread find out why a connection has ended, and react to that."""
        self._ending = True
        self.loop.watch(program.fileno())

        def known(why: Future[TransportError | None]) -> None:
            self._ending = False
            if self._program is program:
                raise why.result() or TransportError(self._why_ended(program))

        self.loop.run_in_thread(program.start_error, lambda why: self._step(lambda: known(why)))

    def _handle_refusal(self, program: RemoteProgram, why: str) -> None:
        """End the link because the agent exits without being asked to. Another thread finds out why."""
        if self._agent_closed:
            raise _LinkClosed
        self._ending = True
        self.loop.watch(program.fileno())

        def known(reason: Future[str]) -> None:
            raise _LinkClosed(reason.result())

        self.loop.run_in_thread(
            lambda: program.exit_reason(why), lambda found: self._step(lambda: known(found))
        )

    def _handle_break(self, error: TransportError) -> None:
        """React to a broken connection: end the link, or drop the connection and try again.

        Until the agent has answered once, only one other connection is tried. If the way to the host is down,
        more are tried, until the lease is over.
        """
        if self._agent_closed:
            raise _LinkClosed from error
        if isinstance(error, HostGoneError):
            self.all_gone = isinstance(error, AllocationEndedError)
            self.preempted = isinstance(error, HostPreemptedError)
            raise _LinkClosed(self._without_name(error)) from error
        once = isinstance(error, ConnectionLostError) and self._attempts == 1
        other = self._connecting or once or isinstance(error, RouteDownError)
        if not self._answered and not other:
            raise _LinkClosed(self._without_name(error)) from error
        self._drop_program()
        self._note_loss(self._without_name(error))

    def _drop_program(self) -> None:
        """Give the present connection up. Another thread closes it."""
        if self._program is not None:
            program, self._program = self._program, None
            self.loop.watch(program.fileno())
            self.loop.run_in_thread(program.close, lambda closed: closed.result())
            self._ending = False
            with self.lock:
                self._channel.disconnect()

    def _note_loss(self, why: str) -> None:
        """Note that the connection is lost, and tell the user once.

        A connection that is only silent may come back before a new one is made.
        """
        if self._lost_at is None and not self._agent_closed:
            self._lost_at = time.monotonic()
            left = self._received_at + self._lease - self._lost_at
            tasks = "its tasks go on, trying again" if self._answered and self.tasks else "trying again"
            self._report(f"connection lost ({why}); {tasks} for {left:.0f}s")

    def _why_ended(self, program: RemoteProgram) -> str:
        """Return why a connection ended, from the last line on the stderr of its program."""
        if self._answered:
            return last_line(program.stderr(), "it was closed")
        return f"the agent cannot be started: {last_line(program.stderr(), 'it was killed')}"

    def _report(self, text: str) -> None:
        if not (self._was_shut_down or self._quiet):
            say(f"{self.host}: {text}")

    def _without_name(self, error: object) -> str:
        """Return the text of an error about this host without the host's name."""
        return str(error).removeprefix(f"{self.host}: ")
