"""The connections of a job to the agents of its hosts.

The orchestrator sends commands by them, and receives what agents say as events with times by this machine's
clock. They notice that an agent is lost, and make sure at the end that none runs on. What a loss means for
the job is decided by the supervisor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from launcher.backends.connections import AgentLink, Fleet
from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import ProtocolError, TransportError
from launcher.common.record import from_attributes, replace
from launcher.common.text import sanitize_host_text
from launcher.event_loop import EventLoop
from launcher.job import Host

if TYPE_CHECKING:
    from concurrent.futures import Future

    from launcher.backends.programs import RemoteProgram

#: How long a closed agent may take to exit, and then again to be killed.
_LAST_WAIT_SECONDS = 10.0
#: How long it may take to exit if the user is in a hurry or the agent counts as lost.
_IMMEDIATE_WAIT_SECONDS = 0.5
#: How long it may take to be killed if the user is in a hurry.
_IMMEDIATE_KILL_SECONDS = 3.0
#: How much longer than it was told a thread may take that kills an agent.
_KILL_MARGIN_SECONDS = 10.0
#: How long the reason of an agent's exit may take to become known.
_REASON_WAIT_SECONDS = 2.0

#: Receives what an agent says. It raises ProtocolError for what the host may not say.
OnMessage: TypeAlias = Callable[[events.AgentEvent], None]
#: Receives the loss of a host.
OnLoss: TypeAlias = Callable[[events.AgentLost], None]


class HostConnection:
    """The connection to the agent of one host, with the difference between the clocks.

    Args:
        host: The name of the host.
        link: The link to its agent.
    """

    def __init__(self, host: str, link: AgentLink) -> None:
        self.host = host
        self.link = link
        #: Whether no more is sent to the agent, and nothing that it says is read.
        self.closed = False
        #: Whether the agent has sent something, so it has run.
        self.answered = False
        #: Whether the agent runs on after the job, and the link stays open.
        self.stays = False
        #: Whether the supervisor has given the agent up, because it does not answer or does not obey.
        self.given_up = False
        #: When the link ended without AgentClosed, in seconds since the epoch. 0 if it has not.
        self.lost_at = 0.0
        #: Until when to wait for the reason of that end, by the monotonic clock.
        self.ask_until = 0.0
        #: Whether an attempt to kill the agent is over.
        self.kill_is_over = False
        #: How the agent that was killed has ended, from `AgentLink.kill`. None if no kill has succeeded.
        self.kill_result: str | None = None
        #: How many seconds the host's clock is behind that of this machine, by the event that was quickest so
        #: far. Infinite before the first one.
        self._clock_behind = float("inf")

    def with_our_time(self, event: events.AgentEvent) -> events.AgentEvent:
        """Return the event with a time by this machine's clock, so that times of all hosts can be compared.

        An event arrives later by our clock than it happened by that of the host: by the true difference of
        the clocks and the network delay. The smallest such difference so far has the least delay in it, so it
        is used for all events.
        """
        if self.link.same_clock or isinstance(event, events.TaskOutput):  # Output carries no time.
            return event
        self._clock_behind = min(self._clock_behind, events.now() - event.at)
        return replace(event, at=event.at + self._clock_behind)

    def close(self, *, stays: bool = False) -> None:
        """Close the connection, and let the agent exit.

        Args:
            stays: Whether the agent runs on instead, for programs that run on its host after the job.
        """
        if not self.closed:
            self.closed, self.stays = True, stays
            self.link.unwatch()
            if stays:  # No task runs there any longer, so the agent may not send events about one.
                self.link.tasks.clear()
            else:
                self.link.shut_down()

    def handle_kill(self, kill: Future[str | None]) -> None:
        """Note the result of an attempt to kill the agent.

        Args:
            kill: The call of `AgentLink.kill`, which is over. It has raised TransportError if the host could
                not be reached.
        """
        self.kill_is_over = True
        if not isinstance(kill.exception(), TransportError):
            self.kill_result = kill.result()

    def why_not_ended(self) -> str:
        """Return a message about an agent that did not exit and was to be killed.

        An agent that loses its connection stops its tasks after a time, its lease. An agent in a container of
        this machine has an infinite lease. If the Docker engine hangs, such an agent stops its tasks as soon
        as the engine goes on, and passes on the end of its input.

        Returns:
            The message. Empty if no agent has started there, or if it exits by itself because nobody greets
            it.
        """
        if self.kill_result is not None:
            result = "so it and all processes that it started were killed"
        elif not self.answered:
            return ""
        elif self.link.same_clock:  # The agent is on this machine.
            result = "and SIGKILL did not stop it"
        else:
            result = "and it cannot be reached: it stops its tasks when its lease expires"
        return f"the agent of {self.host} did not exit, {result}"


class HostConnections:
    """The connections to the agents of all hosts of a job.

    Args:
        fleet: Returns the link to the agent of a host.
        loop: Drives the links.
        on_message: Receives what agents say, with times by this machine's clock.
        on_loss: Is told that a host is lost.
    """

    def __init__(self, fleet: Fleet, loop: EventLoop, *, on_message: OnMessage, on_loss: OnLoss) -> None:
        self._fleet, self._loop = fleet, loop
        self._on_message, self._on_loss = on_message, on_loss
        #: The present connection to each host, by its name.
        self._connections: dict[str, HostConnection] = {}
        #: The connections whose agents have exited unasked, for reasons that may still become known.
        self._unexplained: list[HostConnection] = []

    @property
    def has_unexplained_losses(self) -> bool:
        """Whether `report_losses` may soon have something to report."""
        return bool(self._unexplained)

    @property
    def may_delay_output(self) -> bool:
        """Whether output may be on its way, because a connection is broken and may be made again."""
        return any(connection.link.is_broken for connection in self._open_connections())

    def _open_connections(self) -> list[HostConnection]:
        """Return the connections that are not closed."""
        return [connection for connection in self._connections.values() if not connection.closed]

    # ------------------------------------------------------------------ messages

    def open(self, host: Host, tasks: Iterable[TaskId]) -> None:
        """Open the connection to the agent of a host. It replaces an earlier one that was lost.

        Args:
            host: The host.
            tasks: The tasks that the agent is to run.
        """
        if lost_connection := self._connections.pop(host.name, None):  # The host is used again.
            lost_connection.link.close()
        try:
            link = self._fleet.link_to(host)
        except TransportError as error:
            self._lose(host.name, str(error))
            return
        connection = self._connections[host.name] = HostConnection(host.name, link)
        link.tasks.update(tasks)
        link.watch(self._loop, partial(self._receive, connection))

    def add_task(self, host: str, task: TaskId) -> None:
        """Accept events about one more task from the agent of a host."""
        self._connections[host].link.tasks.add(task)

    def send(self, command: events.AgentCommand) -> None:
        """Send a command to its host, unless the connection is closed."""
        connection = self._connections.get(command.host)
        if connection is not None and not connection.closed:
            connection.link.send(command)

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Run a program of ours as a child of the agent of a host, as `AgentLink.run` does.

        Raises:
            TransportError: The connection to the agent is closed.
        """
        connection = self._connections.get(host)
        if connection is None or connection.closed:
            raise TransportError("its host is lost")
        return connection.link.run(entry, arguments)

    def send_to_all(self, command: events.AgentCommand) -> None:
        """Send the same command, which names no host, to all hosts. It is encoded only once."""
        for connection in self._open_connections():
            connection.link.send(command)

    def _receive(self, connection: HostConnection) -> None:
        """Pass on what an agent has said. If it may not say that, its host is lost. The loop calls this."""
        try:
            self._take_messages(connection)
        except ProtocolError as error:
            connection.close()
            self._lose(connection.host, f"its agent failed: {error}")

    def _take_messages(self, connection: HostConnection) -> None:
        """Pass on what an agent has said since the last call, or note that its link has ended.

        After the last message of an agent (AgentClosed) its connection is closed. The link of an agent that
        stays, for programs that run on its host after the job, is left open.

        Raises:
            ProtocolError: The host sent what it may not send.
        """
        # An event of another host may have closed the connection in the same turn of the loop.
        messages = () if connection.closed else connection.link.receive()
        if messages is None:  # The link has ended. `report_losses` says so when the reason is known.
            connection.close()
            connection.lost_at, connection.ask_until = events.now(), time.monotonic() + _REASON_WAIT_SECONDS
            self._unexplained.append(connection)
            return
        connection.answered = connection.answered or bool(messages)
        for message in join_output(messages):
            self._on_message(connection.with_our_time(message))
            if isinstance(message, events.AgentClosed):
                connection.close(stays=connection.link.stays)
            # The agent has exited, or the message led to the loss of its host: what follows no longer counts.
            if connection.closed:
                return

    # ------------------------------------------------------------------ losses

    def _lose(self, host: str, why: str) -> None:
        """Report that a host is lost. A reason that comes from the host is made harmless for a terminal."""
        self._on_loss(events.AgentLost(host, events.now(), sanitize_host_text(why)))

    def report_losses(self) -> None:
        """Report agents that have exited unasked, once the reason is known or will not become known."""
        for connection in tuple(self._unexplained):
            # The link says why the agent exited, or None while that is not known. It does not wait here.
            link, reason = connection.link, connection.link.wait(0.0)
            if reason is None and time.monotonic() < connection.ask_until:
                continue
            self._unexplained.remove(connection)
            why = sanitize_host_text(reason or "its agent exited")
            at, host = connection.lost_at, connection.host
            # Whether all hosts are gone, or this one was preempted, are attributes of the link.
            self._on_loss(from_attributes(events.AgentLost, link, host=host, at=at, why=why))

    def give_up(self, host: str) -> None:
        """Close the connection to an agent whose host counts as lost. `report_losses` then leaves it out."""
        connection = self._connections.get(host)
        if connection is not None:
            connection.given_up = True
            connection.close()
            self._unexplained = [each for each in self._unexplained if each is not connection]

    # ------------------------------------------------------------------ the end

    def close(self, is_immediate: Callable[[], bool]) -> list[str]:
        """Close all connections, and wait for the agents to exit. Kill those that do not.

        All are told to exit first, then all are waited for within one limit, so that many hosts take no
        longer than one. A link is closed last, because it shows whether its agent has exited.

        Args:
            is_immediate: Returns whether the user has asked to end the job at once.

        Returns:
            Messages for the user about agents that did not exit.
        """
        for connection in self._connections.values():
            connection.close()
        # An agent that stays runs our programs after the job, which copy files. The fleet ends it later.
        connections = [connection for connection in self._connections.values() if not connection.stays]
        # Agents on this machine are last: while the others are waited for, the loop turns for all of them.
        connections.sort(key=lambda each: each.link.same_clock)
        began, late = time.monotonic(), []
        for connection in connections:
            is_hurried = is_immediate() or connection.given_up
            deadline = began + (_IMMEDIATE_WAIT_SECONDS if is_hurried else _LAST_WAIT_SECONDS)
            # It waits at least a moment, so that each agent is asked once. None means that it has not exited.
            if connection.link.wait(max(0.1, deadline - time.monotonic())) is None:
                late.append(connection)
        if late:
            # An agent that has never answered runs no task, and exits by itself if nobody greets it.
            is_short = is_immediate() or not any(connection.answered for connection in late)
            self._kill(late, _IMMEDIATE_KILL_SECONDS if is_short else _LAST_WAIT_SECONDS)
        for connection in connections:
            connection.link.close()
        return [line for connection in late if (line := connection.why_not_ended())]

    def _kill(self, late: Collection[HostConnection], seconds: float) -> None:
        """Kill agents that do not exit: they are suspended, or stuck in the kernel.

        Threads wait for that while this loop turns. A program that kills a container on another host talks to
        it over the link to that host's agent, which the loop drives.

        Args:
            late: The connections to these agents.
            seconds: How long the attempt to kill them may take.
        """
        for connection in late:
            self._loop.run_in_thread(partial(connection.link.kill, seconds), connection.handle_kill)
        limit = seconds + _KILL_MARGIN_SECONDS
        self._loop.run_until(lambda: all(connection.kill_is_over for connection in late), limit)


def join_output(messages: Iterable[events.AgentEvent]) -> Iterator[events.AgentEvent]:
    """Yield the messages of a host. What a task has printed between two other events is one message."""
    printed: dict[tuple[str, TaskId, int], list[bytes]] = {}
    for message in (*messages, None):  # None stands for the end, at which output may still wait.
        if isinstance(message, events.TaskOutput):
            key = (message.host, message.task, message.attempt)
            printed.setdefault(key, []).append(message.data)
            continue
        for key, pieces in printed.items():
            yield events.TaskOutput(*key, b"".join(pieces))
        printed.clear()
        if message is not None:
            yield message
