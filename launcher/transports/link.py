"""The link to an agent on another machine, over connections that may break.

A thread for each host sends and receives, notices silence, has the host connected to anew, and gives up
when the lease is over. A connection is a program on the host (`launcher.agent.main.start` or ``connect``)
with a byte pipe each way; what goes through it is a `launcher.protocol.Channel`.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any

from launcher.agent.processes import new_agent_number
from launcher.agent.watchdog import ENDING, MISSED
from launcher.errors import ConnectionLost, ProtocolError, TransportError
from launcher.events import AgentClosed, CloseAgent, Command
from launcher.job import Host
from launcher.protocol import (
    CREDIT,
    PING,
    WINDOW,
    Channel,
    CloseCommand,
    CommandCredit,
    CommandData,
    CommandEnded,
    Decoder,
    Message,
    Refused,
    RunCommand,
)
from launcher.text import last_line, nothing_started
from launcher.transports.base import Connections, RemoteCommand

#: Entries of programs on the host.
START, CONNECT, KILL = "launcher.agent.main:start", "launcher.agent.main:connect", "launcher.agent.sweep:kill"
#: Seconds without any answer until a connection counts as lost; and for a new one: the program must start
#: first.
SILENCE, FIRST_ANSWER = 5.0, 15.0
#: Seconds between two attempts to connect.
_PAUSE = 0.2
#: Seconds without an answer after which output may be delayed; pings are answered every 2 s.
_BROKEN = 3.0
#: Seconds for the last acknowledgement to be sent; for an agent to end after `ReconnectingLink.close`.
_LAST_ACK, _CLOSING = 1.0, 10.0
#: Seconds without a connection after which the host will hardly answer soon.
_LONG_LOST = 3.0
#: Bytes of messages that wait for the reader, at most: an honest agent sends less.
_MOST_WAITING = 2 * WINDOW
#: How much longer than for its first connection an agent waits for the next one, which takes a login too.
_GRACE = 5.0
_READ = 128 * 1024
#: Seconds between two looks where no event tells of a change; the longest wait of the thread; a longer time
#: between two of its turns means that this process was suspended.
_LOOK, _LONGEST_WAIT, _SUSPENDED = 0.05, 2.0, 4.0
_OF_COMMANDS = (CommandData, CommandCredit, CommandEnded)


class Wake:
    """A descriptor that one thread waits for and others make readable; safe to use after `close`."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.lock = threading.Lock()

    def fileno(self) -> int:
        """For select."""
        return self._fd

    def ring(self) -> None:
        """Make it readable."""
        with self.lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Make it unreadable; call it before reading queues, so that nothing is missed."""
        with self.lock, suppress(BlockingIOError):
            if self._fd >= 0:
                os.eventfd_read(self._fd)

    def close(self) -> None:
        """Close the descriptor."""
        with self.lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def lease_there(lease: float) -> float:
    """The host's own lease, seconds: shorter than ours, so that its tasks have ended when ours is over."""
    return max(lease - 2.0, lease * 0.7)


def tasks_end_after(lease: float) -> float:
    """Seconds from the loss of a host until none of its tasks is alive, whatever state its agent is in.

    When we give a host up, its agent may just have heard from us: a network may fail in one direction only.
    Then the agent's own lease begins. At its end the agent has `ENDING` seconds to end the tasks; the
    watchdog of an agent that is late by `MISSED` has killed the agent and its tasks. These times are of the
    clock of the host: a host that was suspended meanwhile (a virtual machine) is late by that time.
    """
    return lease_there(lease) + ENDING + MISSED


class _Ended(Exception):
    """The end of a link; its text is for the user, empty after an orderly end."""


class ReconnectingLink(threading.Thread):
    """See `launcher.transports.base.Link`.

    Args:
        host: its name.
        hosts: starts programs there.
        arguments: those of `launcher.agent.main`: ``host``, ``agent``, ``lease``, ``token`` and more.
        notify: gets a line for the user when the connection is lost, and when it is back; called by the
            thread.
        stays: see `Link`.
        grace: seconds, at least, that the agent waits for a new connection after a closed one.

    Raises:
        TransportError: no descriptor, or no thread, is left.
    """

    same_clock = False
    #: The thread writes, not the reader.
    writing = -1

    def __init__(
        self,
        host: str,
        hosts: Connections,
        arguments: dict[str, Any],
        notify: Callable[[str], None],
        stays: bool = False,
        grace: float = 0.0,
    ) -> None:
        super().__init__(name=f"link {host}", daemon=True)
        now = time.monotonic()
        self._host, self._hosts, self._notify = host, hosts, notify
        self._lease = float(arguments["lease"])
        self._arguments = {**arguments, "lease": lease_there(self._lease)}
        self.stays = stays
        self._grace = grace
        self.tasks: set[str] = set()
        #: Guards the channel, the inbox and the remote commands.
        self.lock = threading.Lock()
        self._channel = Channel(lambda: Decoder(True, host, self.tasks), str(arguments["token"]), greets=True)
        self._inbox: list[Message] = []
        self._inbox_size = 0
        self._commands: dict[int, LinkCommand] = {}
        self._numbers = 0
        self._program: RemoteCommand | None = None
        #: Bytes that the program took of more; ``None``: it took all.
        self._taken: int | None = None
        self._began = self._received_at = self._tried_at = now
        self._attempts = 0
        self._why_not = "the network to it, or the host itself, is down"
        #: The agent has answered at all; when the connection was lost (``None``: it is there).
        self._met = False
        self._lost_at: float | None = None
        #: The agent has closed; the reader needs no more; the deadline of the end.
        self._closed_there = self._hung_up = False
        self._leave_at: float | None = None
        #: A clock that also counts while the machine sleeps: to notice that this process was suspended.
        self._looked_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        #: Seconds of the last suspension, and when it ended (monotonic).
        self._suspended = self._resumed_at = 0.0
        #: Set at the end of the link; and how it ended.
        self.over = threading.Event()
        self.reason = "the thread of its link failed"
        self._fault: ProtocolError | None = None
        try:
            self._to_read, self._wake = Wake(), Wake()
            self.start()
        except (OSError, RuntimeError) as error:
            raise TransportError(f"{host}: no link to it can be made: {error}") from error

    # ------------------------------------------------------------------ for the thread that reads

    @property
    def broken(self) -> bool:
        """See `Link.broken`."""
        return time.monotonic() > self._received_at + _BROKEN

    def fileno(self) -> int:
        """See `Link.fileno`."""
        return self._to_read.fileno()

    def receive(self) -> Sequence[Message] | None:
        """See `Link.receive`."""
        self._to_read.clear()
        over = self.over.is_set()  # then all earlier messages are in the inbox
        with self.lock:
            messages, self._inbox, self._inbox_size = self._inbox, [], 0
            self._channel.took(len(messages), time.monotonic(), at_once=self._closed_there)
        if messages:
            self._wake.ring()
            if over:
                self._to_read.ring()
            return messages
        if over and self._fault is not None:
            raise self._fault
        return None if over else ()

    def send(self, command: Command | Message) -> None:
        """See `Link.send`."""
        if self.stays and isinstance(command, CloseAgent) and not self._hung_up:
            command = command._replace(stays=True)
        with self.lock:
            self._channel.send(command)
        self._wake.ring()

    def flush(self) -> None:
        """See `Link.flush`: the thread does it."""

    def command(self, entry: str, arguments: object) -> LinkCommand:
        """Start a remote command: a program of ours in a child of the agent; see `Hosts.run`."""
        with self.lock:
            self._numbers += 1
            command = self._commands[self._numbers] = LinkCommand(self, self._numbers)
            if self.over.is_set():
                command.lost(f"{self._host}: {self.reason or 'its agent has exited'}")
            self._channel.send(RunCommand(command.number, entry, arguments))
        self._wake.ring()
        return command

    def forget(self, number: int) -> None:
        """Close a remote command."""
        with self.lock:
            if self._commands.pop(number, None) is not None:
                self._channel.send(CloseCommand(number))
        self._wake.ring()

    def hang_up(self) -> None:
        """See `Link.hang_up`."""
        if not self._hung_up:
            self._hung_up = True
            self.send(CloseAgent(self._host))

    def wait(self, seconds: float) -> str | None:
        """See `Link.wait`."""
        until = time.monotonic() + seconds
        while not self.over.wait(max(0.0, min(2 * _LOOK, until - time.monotonic()))):
            if self._is_long_lost() or time.monotonic() >= until:
                return None
        return self.reason

    def _is_long_lost(self) -> bool:
        """Whether there has been no connection for so long that the host will hardly answer soon."""
        lost_at = self._lost_at
        return lost_at is not None and time.monotonic() >= lost_at + _LONG_LOST

    def kill(self, seconds: float) -> str | None:
        """See `Link.kill`: all that the agent started, it and its watchdog carry its tag."""
        until = time.monotonic() + seconds
        self.hang_up()
        if self._is_long_lost() and not self.over.is_set():
            return None
        agent = {"agent": self._arguments["agent"]}
        with suppress(TransportError), closing(self._hosts.run(self._host, KILL, agent)) as program:
            while (left := until - time.monotonic()) > 0:
                if program.recv(1) == b"":
                    return "it was killed" if program.wait(left) == 0 else None
                select.select([program], [], [], left)
        return None

    def close(self) -> None:
        """See `Link.close`. The thread sends the rest, and ends soon."""
        self.hang_up()
        self._leave_at = time.monotonic() + _CLOSING
        self._to_read.close()
        self._wake.ring()

    # ------------------------------------------------------------------ the thread

    def run(self) -> None:
        """See `threading.Thread.run`."""
        try:
            self._serve()
        except _Ended as end:
            self.reason = str(end)
        finally:
            if self._program is not None:
                self._program.close()
            self.over.set()
            with self.lock:
                for command in self._commands.values():
                    command.lost(f"{self._host}: {self.reason or 'its agent has exited'}")
            self._to_read.ring()
            self._wake.close()

    def _serve(self) -> None:
        """Move messages until the link ends.

        Raises:
            _Ended: always.
        """
        self._connect()
        while True:
            try:
                self._send_output()
                self._wait()
                self._notice_suspension()
                self._receive()
            except ProtocolError as error:
                self._fault = error
                raise _Ended(str(error)) from error
            except TransportError as error:
                self._notice_suspension()
                self._broke(error)
            self._look_at_time(time.monotonic())

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        now = time.monotonic()
        again = self._tried_at + _PAUSE
        if self._program is not None:
            poll.register(self._program, select.POLLIN | (select.POLLOUT if self._taken else 0))
            again = max(again, self._silent_at())
        with self.lock:
            dues = [again, now + _LONGEST_WAIT, self._received_at + self._lease, self._channel.next_due()]
        dues += [self._leave_at, now + _LOOK if self._taken == 0 else None]  # no event shows that it starts
        due = min(due for due in dues if due is not None)
        poll.poll(max(0.0, due - now) * 1000 + 1)
        self._wake.clear()

    # ------------------------------------------------------------------ messages

    def _receive(self) -> None:
        while self._program is not None and (data := self._program.recv(_READ)) is not None:
            if not data:
                raise TransportError(self._why_ended(self._program))
            self._received_at = time.monotonic()
            with self.lock:
                messages = self._channel.receive(data)
            if self._channel.met and self._received_at > self._resumed_at + SILENCE:
                self._suspended = 0.0  # the agent has outlived it
            if self._channel.met and not self._met:
                self._met = True
                self._channel.grace = max(self._grace, _GRACE * (self._received_at - self._began))
            if self._channel.met and self._lost_at is not None:  # reported before what comes over it is shown
                self._report(f"connected again after {time.monotonic() - self._lost_at:.0f}s")
                self._lost_at = None
            for message in messages:
                if isinstance(message, Refused):
                    raise _Ended("" if self._closed_there else self._with_suspension(message.why))
            self._deliver(messages, len(data))

    def _deliver(self, messages: list[Message], size: int) -> None:
        """Pass messages of remote commands to these, all others to the reader."""
        with self.lock:
            others = []
            for message in messages:
                if not isinstance(message, _OF_COMMANDS):
                    others.append(message)
                elif message.command in self._commands:
                    self._commands[message.command].take(message)
            if self._hung_up or not self.stays:
                self._closed_there = self._closed_there or any(isinstance(m, AgentClosed) for m in others)
            if self._hung_up:
                others.clear()
            self._channel.took(len(messages) - len(others), time.monotonic(), at_once=self._closed_there)
            self._inbox += others
            self._inbox_size += size if others else 0
            if self._inbox_size > _MOST_WAITING:
                raise ProtocolError("its agent sends more than was acknowledged")
        if others:
            self._to_read.ring()

    def _send_output(self) -> None:
        self._taken = None
        while self._program is not None:
            with self.lock:
                data = b"".join(self._channel.output(time.monotonic()))
            if not data:
                return
            count = self._program.send(data)
            with self.lock:
                self._channel.sent(count)
            if count < len(data):
                self._taken = count
                return

    # ------------------------------------------------------------------ time

    def _look_at_time(self, now: float) -> None:
        if self._hung_up:
            with self.lock:
                self._channel.took(len(self._inbox), now, at_once=self._closed_there)
                self._inbox.clear()
        if self._closed_there and not self._inbox:
            self._leave_at = self._leave_at or now + _LAST_ACK
        if now >= self._received_at + self._lease:
            tasks = "; its agent stops the tasks there" if self._met and self.tasks else ""
            raise _Ended(self._with_suspension(f"no answer for {self._lease:.0f}s: {self._why_not}{tasks}"))
        if self._leave_at is not None and (now >= self._leave_at or self._lost_at is not None):
            raise _Ended("" if self._closed_there else "closed before its agent exited")
        if self._program is not None and now < self._silent_at():
            return
        if self._program is not None and not self._met:
            self._why_not = nothing_started(FIRST_ANSWER)
        self._lose(f"no answer for {now - self._received_at:.0f}s" if self._met else self._why_not)
        if now >= self._tried_at + _PAUSE:
            self._connect()

    def _notice_suspension(self) -> None:
        """This process was suspended (SIGSTOP, a laptop's lid): the silence was not the network's."""
        looked_at, self._looked_at = self._looked_at, time.clock_gettime(time.CLOCK_BOOTTIME)
        if self._looked_at - looked_at > _SUSPENDED:
            self._suspended, self._resumed_at = self._looked_at - looked_at, time.monotonic()
            self._received_at = max(self._received_at, self._resumed_at - SILENCE)

    @property
    def _overslept(self) -> bool:
        """Whether a suspension was so long that the agent has ended its tasks."""
        return self._suspended + PING >= float(self._arguments["lease"])

    def _with_suspension(self, why: str) -> str:
        if not self._overslept:
            return why
        return (
            f"launch itself was suspended for {self._suspended:.0f}s, and the agent there stops its tasks "
            f"after {self._arguments['lease']:.0f}s; a longer --lease prevents that, or "
            "launch -d on a machine that stays up"
        )

    def _silent_at(self) -> float:
        """When the present connection counts as lost if nothing comes."""
        if self._channel.met:
            return self._received_at + SILENCE
        return max(self._received_at, self._tried_at) + FIRST_ANSWER

    # ------------------------------------------------------------------ connections

    def _connect(self) -> None:
        """Start the agent, or connect to it again; blocks for the time of a login."""
        self._attempts += 1
        try:
            if self._attempts > 1:
                self._hosts.reconnect(self._host)
            program = self._hosts.run(self._host, CONNECT if self._met else START, self._arguments)
        except TransportError as error:
            if self._attempts == 1:
                self._broke(error)
            self._why_not = self._bare(error)
        else:
            self._drop_program()
            self._program = program
            with self.lock:
                self._channel.connect(self._attempts, time.monotonic())
        self._tried_at = time.monotonic()
        self._looked_at = time.clock_gettime(time.CLOCK_BOOTTIME)

    def _broke(self, error: TransportError) -> None:
        """The connection broke. Before the agent has answered, only one other connection is tried."""
        if self._closed_there:
            raise _Ended from error
        if not self._met and not (isinstance(error, ConnectionLost) and self._attempts == 1):
            raise _Ended(self._bare(error)) from error
        self._drop_program()
        self._lose(self._bare(error))

    def _drop_program(self) -> None:
        if self._program is not None:
            self._program.close()
            self._program = None
            with self.lock:
                self._channel.disconnect()

    def _lose(self, why: str) -> None:
        """The connection broke, or is silent; a silent one may come back before a new one is made."""
        if self._lost_at is None and not self._closed_there:
            self._lost_at = time.monotonic()
            left = self._received_at + self._lease - self._lost_at
            tasks = "its tasks go on, trying again" if self._met and self.tasks else "trying again"
            if self._suspended:
                why = f"launch was suspended for {self._suspended:.0f}s"
                tasks = "trying again" if self._overslept else tasks
            self._report(f"connection lost ({why}); {tasks} for {left:.0f}s")

    def _why_ended(self, program: RemoteCommand) -> str:
        if self._met:
            return last_line(program.stderr(), "it was closed")
        return f"the agent can't be started: {last_line(program.stderr(), 'it was killed')}"

    def _report(self, text: str) -> None:
        if not self._hung_up:
            self._notify(f"{self._host}: {text}")

    def _bare(self, error: object) -> str:
        """An error of this host, without its name."""
        return str(error).removeprefix(f"{self._host}: ")


class LinkCommand:
    """A remote command over a link; see `launcher.transports.base.RemoteCommand`."""

    def __init__(self, link: ReconnectingLink, number: int) -> None:
        self._link = link
        self.number = number
        self._wake = Wake()
        self._output = bytearray()
        self._output_ended = False
        self._credit = CREDIT
        self._lost = ""
        self._stderr = ""
        self._status: int | None = None
        self._ended = threading.Event()

    def take(self, message: CommandData | CommandCredit | CommandEnded) -> None:
        """Called by the link, which holds its lock, with a message of this command."""
        if isinstance(message, CommandCredit):
            self._credit += message.size
        elif isinstance(message, CommandData):
            self._output += message.data
            self._output_ended = not message.data
        else:
            self._status, self._stderr, self._output_ended = message.status, message.stderr, True
            self._ended.set()
        if len(self._output) > CREDIT or self._credit > CREDIT:
            raise ProtocolError("a remote command sends or acknowledges more than there was")
        self._wake.ring()

    def lost(self, why: str) -> None:
        """Called by the link, which holds its lock: no message follows."""
        self._lost = self._lost or why
        self._ended.set()
        self._wake.ring()

    def fileno(self) -> int:
        """See `RemoteCommand.fileno`."""
        return self._wake.fileno()

    def recv(self, size: int) -> bytes | None:
        """See `RemoteCommand.recv`."""
        with self._link.lock:
            data = bytes(self._output[:size])
            del self._output[:size]
            if not data and not self._output_ended:
                if self._lost:
                    raise TransportError(self._lost)
                self._wake.clear()
                return None
        if data:
            self._link.send(CommandCredit(self.number, len(data)))
        return data

    def send(self, data: bytes | memoryview) -> int:
        """See `RemoteCommand.send`."""
        with self._link.lock:
            if self._lost:
                raise TransportError(self._lost)
            if self._status is not None:
                raise TransportError(f"the agent there exited: {last_line(self._stderr)}")
            count = min(len(data), self._credit)
            self._credit -= count
        if count:
            self._link.send(CommandData(self.number, bytes(data[:count])))
        return count

    def wait(self, seconds: float) -> int | None:
        """See `RemoteCommand.wait`. A program that was killed has no exit status."""
        self._ended.wait(seconds)
        status = self._status
        return status if status is not None and status >= 0 else None

    def stderr(self) -> str:
        """See `RemoteCommand.stderr`; known after its end."""
        return self._stderr

    def close(self) -> None:
        """See `RemoteCommand.close`."""
        self._link.forget(self.number)
        self._wake.close()


class ReconnectingTransport:
    """Opens links to agents on other machines; see `launcher.transports.base.Opener`.

    Args:
        hosts: starts programs there.
        notify: gets a line for the user when a connection is lost or back; called by other threads.
        lease: seconds that the tasks of a host outlive a lost connection.
        job: the run whose files are brought to the hosts; empty: none are.
        stays: see `Link`.
    """

    def __init__(
        self,
        hosts: Connections,
        notify: Callable[[str], None],
        lease: float = 60.0,
        job: str = "",
        stays: bool = False,
    ) -> None:
        self._hosts, self._notify, self._stays = hosts, notify, stays
        self._arguments = {"lease": lease, **({"job": job} if job else {})}

    def open(self, host: Host) -> ReconnectingLink:
        """Start the agent of ``host``; see `Opener.open`."""
        own = {"host": host.name, "agent": new_agent_number(), "token": os.urandom(16).hex()}
        return ReconnectingLink(host.name, self._hosts, {**own, **self._arguments}, self._notify, self._stays)
