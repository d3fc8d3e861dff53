"""The link to an agent on another machine, over connections that may break.

A link is a state machine that the loop of the launch drives: it sends and receives, notices silence, has the
host connected to again, and gives up when the lease is over. A connection is a program on the host
(`launcher.agent.main.start` or ``connect``) with a byte pipe each way; what goes through it is a
`launcher.common.protocol.MessageChannel`. To connect blocks, so other threads do it.
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

#: Seconds without any answer until a connection counts as lost; and for a new one: the program must start
#: first.
SILENCE_SECONDS = 5.0
FIRST_ANSWER_SECONDS = 15.0
#: Seconds between two attempts to connect.
_RECONNECT_PAUSE_SECONDS = 0.2
#: Seconds without an answer after which output may be delayed; pings are answered every 2 s.
_BROKEN_SECONDS = 3.0
#: Seconds for the last acknowledgement to be sent.
_LAST_ACK_SECONDS = 1.0
#: Seconds without a connection after which the host will hardly answer soon.
_LONG_LOST_SECONDS = 3.0
#: Bytes of messages that wait for the reader, at most: an honest agent sends less.
_MAX_WAITING_BYTES = 2 * WINDOW_BYTES
#: How much longer than for its first connection an agent waits for the next one, which takes a login too.
_LONGER_FACTOR = 5.0
#: Bytes of a read, and reads in a turn of the loop.
_READ_BYTES = 128 * 1024
_MAX_READS = 4
#: Seconds until more is sent to a connection that took less than all: not all show that they take more.
_SEND_PAUSE_SECONDS = 0.05
_COMMAND_RECORDS = (CommandData, CommandCredit, CommandEnded)


class _LinkClosed(Exception):
    """The end of a link; its text is for the user, empty after an orderly end."""


class ReconnectingLink:
    """See `launcher.backends.connections.AgentLink`.

    Args:
        loop: Drives it.
        connections: Reach the host.
        arguments: Those of its agent, which is started now. The link never waits for the host: it reports
            success or failure. With an infinite lease, it waits for the end of the connection, silent or not.
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
        #: Guards the channel and the pipes of programs: other threads use these, too.
        self.lock = threading.RLock()
        self._channel = MessageChannel(lambda: Decoder(True, host, self.tasks), arguments.token, greets=True)
        self._inbox: list[Message] = []
        self._inbox_size = 0
        #: Called when `receive` has something.
        self._ready: Callable[[], object] = lambda: None
        #: The pipes of the programs that run over it, by their numbers, which count up.
        self._pipes: dict[int, LinkPipe] = {}
        self._last_number = 0
        self._program: RemoteProgram | None = None
        #: Another thread makes a connection; or finds out why the present one has ended.
        self._connecting = self._ending = False
        #: Bytes that the program took of more; ``None``: it took all.
        self._taken: int | None = None
        self._flush_asked = False
        self._timer: TimerHandle | None = None
        self._received_at = self._tried_at = time.monotonic()
        #: When the making of the present connection began (monotonic), as if it included the first login.
        self._began = self._received_at - connections.login_seconds.get(host, 0.0)
        self._attempts = 0
        self._why_not = "the network to it or the host itself is down, or launch was suspended"
        #: The agent has answered at all; when the connection was lost (``None``: it is there).
        self._met = False
        self._lost_at: float | None = None
        #: The agent has closed; the reader needs no more; the deadline of the end.
        self._closed_there = self._hung_up = False
        self._leave_at: float | None = None
        #: How the link ended; ``None``: it has not.
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
        """See `AgentLink.is_broken`."""
        return math.isfinite(self._lease) and time.monotonic() > self._received_at + _BROKEN_SECONDS

    def watch(self, loop: EventLoop, ready: Callable[[], object]) -> None:
        """See `AgentLink.watch`."""
        self._ready = ready
        if self._inbox or self.is_over:
            loop.call_soon(ready if self.is_over else lambda: self._step(ready))

    def unwatch(self) -> None:
        """See `AgentLink.unwatch`."""
        self._ready = lambda: None

    def receive(self) -> Sequence[Message] | None:
        """See `AgentLink.receive`."""
        with self.lock:
            messages, self._inbox, self._inbox_size = self._inbox, [], 0
            # The TCP connection of srun (Nagle) delays a short message by 40 ms until the last is answered.
            at_once = self._closed_there or any(isinstance(each, TaskStarted) for each in messages)
            self._channel.took(len(messages), time.monotonic(), at_once)
        if messages:
            if self.is_over:
                self.loop.call_soon(self._ready)
            return messages
        if self.is_over and self._fault is not None:
            raise self._fault
        return None if self.is_over else ()

    def send(self, command: AgentCommand | Message) -> None:
        """See `AgentLink.send`; any thread may call it."""
        if self.stays and isinstance(command, CloseAgent) and not self._hung_up:
            command = replace(command, stays=True)
        with self.lock:
            self._channel.send(command)
            if not self._flush_asked:
                self._flush_asked = True
                self.loop.call_soon(self._flush)

    def run(self, entry: str, arguments: object) -> RemoteProgram:
        """Run a program of ours in a child of the agent; see `ProgramRunner.run`."""
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
        """See `AgentLink.shut_down`; any thread may call it."""
        if not self._hung_up:
            self._hung_up = True
            self.send(CloseAgent(self.host))

    def wait(self, seconds: float) -> str | None:
        """See `AgentLink.wait`."""
        self.loop.run_until(lambda: self.is_over or self._is_long_lost(), seconds)
        return self.reason

    def _is_long_lost(self) -> bool:
        """Whether there has been no connection for so long that the host will hardly answer soon."""
        lost_at = self._lost_at
        return lost_at is not None and time.monotonic() >= lost_at + _LONG_LOST_SECONDS

    def kill(self, seconds: float) -> str | None:
        """See `AgentLink.kill`: all that the agent started, it and its watchdog carry its tag."""
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
        """See `AgentLink.close`: what an agent that still runs has not taken is lost."""
        self.shut_down()
        self._flush()
        if not self.is_over:
            self._end("closed before its agent exited")

    # ------------------------------------------------------------------ turns

    def _step(self, step: Callable[[], object]) -> None:
        """Do something, then look at the time."""
        if self.is_over:
            return
        try:
            try:
                step()
            except TransportError as error:
                self._broke(error)
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
        """Look again when time alone changes something."""
        now = time.monotonic()
        dues = [self._received_at + self._lease, self._leave_at]
        if self._taken is not None:
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
        self._timer = None
        self._step(self._move)

    def _flush(self) -> None:
        self._flush_asked = False
        self._step(self._send_output)

    def _end(self, reason: str) -> None:
        """The link has ended."""
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
        for _ in range(_MAX_READS):
            program = self._program
            data = None if program is None else program.recv(_READ_BYTES)
            if program is None or data is None:
                if self._channel.has_part:
                    self.loop.await_rest()
                return
            if not data:
                if self._closed_there:
                    raise _LinkClosed
                self._find_out_why(program)
                return
            self._received_at = time.monotonic()
            with self.lock:
                was_met = self._channel.met
                messages = self._channel.receive(data)
            if self._channel.met and not was_met:
                took = self._received_at - self._began
                self._channel.grace = max(self._channel.grace if self._met else 0.0, _LONGER_FACTOR * took)
                self._met = True
            if self._channel.met and self._lost_at is not None:  # reported before what comes over it is shown
                self._report(f"connected again after {time.monotonic() - self._lost_at:.0f}s")
                self._lost_at = None
            for message in messages:
                if isinstance(message, Refused):
                    self._refused(program, message.why)
                    return
            self._deliver(messages, len(data))

    def _deliver(self, messages: list[Message], size: int) -> None:
        """Pass messages about programs to their pipes, all others to the reader."""
        with self.lock:
            others = []
            for message in messages:
                if not isinstance(message, _COMMAND_RECORDS):
                    others.append(message)
                elif message.command in self._pipes:
                    self._pipes[message.command].handle_message(message)
            if self._hung_up or not self.stays:
                self._closed_there = self._closed_there or any(isinstance(m, AgentClosed) for m in others)
            if self._hung_up:
                others.clear()
            self._channel.took(len(messages) - len(others), time.monotonic(), at_once=self._closed_there)
            self._inbox += others
            self._inbox_size += size if others else 0
            if self._inbox_size > _MAX_WAITING_BYTES:
                raise ProtocolError("its agent sends more than was acknowledged")
        if others:
            self._ready()

    def _move(self) -> None:
        """Send and receive: a program that is just starting may take more without an event that says so."""
        self._send_output()
        if not self._ending:
            self._receive()

    def _send_output(self) -> None:
        program, self._taken = self._program, None
        while program is not None:
            with self.lock:
                data = b"".join(self._channel.output(time.monotonic()))
            if not data:
                break
            count = program.send(data)
            with self.lock:
                self._channel.sent(count)
            if count < len(data):
                self._taken = count
                break
        if program is not None and not self._ending:
            self.loop.watch(program.fileno(), self._readable, self._flush if self._taken else None)

    # ------------------------------------------------------------------ time

    def _check_deadlines(self, now: float) -> None:
        if self._hung_up:
            with self.lock:
                self._channel.took(len(self._inbox), now, at_once=self._closed_there)
                self._inbox.clear()
        if self._closed_there and not self._inbox:
            self._leave_at = self._leave_at or now + _LAST_ACK_SECONDS
        if now >= self._received_at + self._lease:
            tasks = "; its agent stops the tasks there" if self._met and self.tasks else ""
            raise _LinkClosed(f"no answer for {now - self._received_at:.0f}s: {self._why_not}{tasks}")
        if self._leave_at is not None and (now >= self._leave_at or self._lost_at is not None):
            raise _LinkClosed("" if self._closed_there else "closed before its agent exited")
        if self._connecting or self._ending or (self._program is not None and now < self._silent_at()):
            return
        if self._program is not None and not self._met:
            self._why_not = nothing_started(FIRST_ANSWER_SECONDS)
        self._lose(f"no answer for {now - self._received_at:.0f}s" if self._met else self._why_not)
        if now >= self._tried_at + _RECONNECT_PAUSE_SECONDS:
            self._connect()

    def _silent_at(self) -> float:
        """When the present connection counts as lost if nothing comes: never, if the lease is infinite."""
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
        again, met = self._attempts > 1, self._met

        def connect() -> RemoteProgram:
            if self.is_over:
                raise TransportError("the link has ended")
            if again:
                self._connections.reconnect(self.host)
            reach = self._connections.connect_agent if met else self._connections.start_agent
            return reach(self.host, self._arguments)

        def done(made: Future[RemoteProgram]) -> None:
            self._step(lambda: self._connected(made))
            if made.exception() is None and made.result() is not self._program:  # the link has ended
                self.loop.run_in_thread(made.result().close, lambda closed: closed.result())

        self.loop.run_in_thread(connect, done)

    def _connected(self, made: Future[RemoteProgram]) -> None:
        """Another thread has connected, or has failed to."""
        self._connecting, self._tried_at = False, time.monotonic()
        try:
            program = made.result()
        except HostGoneError:
            raise
        except TransportError as error:
            self._why_not = self._bare(error)
            if self._attempts == 1:
                raise
            return
        self._drop_program()
        self._program = program
        with self.lock:
            self._channel.connect(self._attempts, time.monotonic())
        self._move()

    def _find_out_why(self, program: RemoteProgram) -> None:
        """A connection has ended: let another thread wait for the reason."""
        self._ending = True
        self.loop.watch(program.fileno())

        def known(why: Future[TransportError | None]) -> None:
            self._ending = False
            if self._program is program:
                raise why.result() or TransportError(self._why_ended(program))

        self.loop.run_in_thread(program.start_error, lambda why: self._step(lambda: known(why)))

    def _refused(self, program: RemoteProgram, why: str) -> None:
        """The agent exits without being asked to: let another thread look for the reason."""
        if self._closed_there:
            raise _LinkClosed
        self._ending = True
        self.loop.watch(program.fileno())

        def known(reason: Future[str]) -> None:
            raise _LinkClosed(reason.result())

        self.loop.run_in_thread(
            lambda: program.exit_reason(why), lambda found: self._step(lambda: known(found))
        )

    def _broke(self, error: TransportError) -> None:
        """The connection broke. Before the agent has answered, only one other connection is tried.

        If the way to the host is down, more of them are tried, until the lease is over.
        """
        if self._closed_there:
            raise _LinkClosed from error
        if isinstance(error, HostGoneError):
            self.all_gone = isinstance(error, AllocationEndedError)
            self.preempted = isinstance(error, HostPreemptedError)
            raise _LinkClosed(self._bare(error)) from error
        once = isinstance(error, ConnectionLostError) and self._attempts == 1
        other = self._connecting or once or isinstance(error, RouteDownError)
        if not self._met and not other:
            raise _LinkClosed(self._bare(error)) from error
        self._drop_program()
        self._lose(self._bare(error))

    def _drop_program(self) -> None:
        if self._program is not None:
            program, self._program = self._program, None
            self.loop.watch(program.fileno())
            self.loop.run_in_thread(program.close, lambda closed: closed.result())
            self._ending = False
            with self.lock:
                self._channel.disconnect()

    def _lose(self, why: str) -> None:
        """The connection broke, or is silent; a silent one may come back before a new one is made."""
        if self._lost_at is None and not self._closed_there:
            self._lost_at = time.monotonic()
            left = self._received_at + self._lease - self._lost_at
            tasks = "its tasks go on, trying again" if self._met and self.tasks else "trying again"
            self._report(f"connection lost ({why}); {tasks} for {left:.0f}s")

    def _why_ended(self, program: RemoteProgram) -> str:
        if self._met:
            return last_line(program.stderr(), "it was closed")
        return f"the agent cannot be started: {last_line(program.stderr(), 'it was killed')}"

    def _report(self, text: str) -> None:
        if not (self._hung_up or self._quiet):
            say(f"{self.host}: {text}")

    def _bare(self, error: object) -> str:
        """An error of this host, without its name."""
        return str(error).removeprefix(f"{self.host}: ")
