"""The control socket: ``launch ps``, ``attach``, ``restart`` and ``stop`` ask the launcher of a running job.

It is an abstract Unix socket: it is no file, and vanishes with the launcher, however that ends. Other users
can connect to any abstract socket, and make one of any name. So the launcher accepts only connections of its
own user, and `launcher.runs.client.ask` sends nothing unless the other end is the process that the run's
record names (SO_PEERCRED).

A connection carries one request, a packet, and one answer, a file in memory whose descriptor is passed, so
that the launcher never waits for a client. Both are JSON::

    {"request": "restart", "tasks": ["worker/0"]}  {}
    {"request": "stop", "tasks": ["worker/0"]}     {}
    {"request": "tasks", "measure": true}          {"report": {...}, "memory": {"worker/0": 104857600},
                                                    "measuring": ["node2"]}
    {"request": "stacks", "tasks": ["worker"],     {"groups": [{"tasks": [...], "threads": [...]}],
     "take": true}                                  "taking": ["worker/1"]}
    {"request": "follow", "from": 12}              {"next": 12, "output": false}

``{"error": TEXT}`` is the answer to a request that cannot be fulfilled. With ``measure`` the launcher asks
the hosts that have not told the memory of their tasks lately; those that have not answered are ``measuring``.
With ``take`` the hosts take Python stacks; the tasks whose stacks are not known yet are in ``taking``.

After the answer to ``follow`` the connection carries the events from this number on, or else the events to
come, until the job ends: the lines of ``events.jsonl`` with their numbers, ``{"number": 12, "event": ...}``.
A packet may end within a line. The launcher keeps only the last events; a follower that is slower than that
gets ``{"event": "Dropped", "why": TEXT}`` as its last line. With ``"output": true`` it gets
``{"event": "Printed"}`` when logs have grown, at most ten times a second.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.errors import LaunchError, ProtocolError
from launcher.common.record import Record
from launcher.common.report import Report
from launcher.common.text import join_names
from launcher.common.trusted_io import (
    PACKET_BYTES,
    SOCKET_BACKLOG,
    accept_own,
    control_address,
    memory_file,
)
from launcher.common.validation import FieldReader
from launcher.event_loop import EventLoop, TimerHandle
from launcher.output.renderers import record_as_dict
from launcher.output.run_files import EventBuffer
from launcher.runs.run import selected
from launcher.supervisor import Machine, Phase

if TYPE_CHECKING:
    from launcher.launch.stacks import StackTaker

_MAX_CLIENTS = 16
_MAX_FOLLOWERS = 16
#: The shortest time between two of `PRINTED_LINE`.
_PRINTED_PAUSE_SECONDS = 0.1
#: Tells a follower that tasks have printed something.
PRINTED_LINE = b'{"event": "Printed"}\n'
#: The last line for a follower that is too slow.
TOO_SLOW_LINE = b'{"event": "Dropped", "why": "too slow: later events are in events.jsonl"}\n'


class TasksRequest(Record):
    """A request for the report of the job as it is now."""

    #: Whether the hosts shall measure the memory of their tasks, for later answers.
    measure: bool = False


class RestartRequest(Record):
    """A request to stop tasks and to start them again."""

    #: Names of tasks, roles and ranges, as `selected` reads them.
    tasks: tuple[str, ...]


class TaskStopRequest(Record):
    """A request to stop tasks for good, while the job goes on."""

    #: Names of tasks, roles and ranges, as `selected` reads them.
    tasks: tuple[str, ...]


class StacksRequest(Record):
    """A request for the Python stacks of tasks."""

    #: Names of tasks, roles and ranges, as `selected` reads them. Empty: all tasks.
    tasks: tuple[str, ...] = ()
    #: Whether the hosts shall take them now, for later answers.
    take: bool = False


class FollowRequest(Record):
    """A request for the events of the job."""

    #: The number of the first event, in JSON ``from``. None stands for the next event.
    first: int | None = None
    #: Whether the follower wants to be told that logs have grown.
    output: bool = False


_REQUESTS: Mapping[
    str, type[TasksRequest | RestartRequest | TaskStopRequest | StacksRequest | FollowRequest]
] = {
    "tasks": TasksRequest,
    "restart": RestartRequest,
    "stop": TaskStopRequest,
    "stacks": StacksRequest,
    "follow": FollowRequest,
}


def read_request(packet: bytes) -> Any:
    """Read the request that a client has sent.

    Args:
        packet: A JSON object. Its key ``request`` names the kind, and the other keys are the fields of the
            record of that kind.

    Returns:
        A record of one of these classes, whose values have the types of its fields.

    Raises:
        ProtocolError: The packet is not a request.
    """
    try:
        fields = json.loads(packet)
        kind = fields.pop("request")
        if "from" in fields:  # No field of a record can have this name, because it is a keyword of Python.
            fields["first"] = fields.pop("from")
        record = _REQUESTS[kind]
        return record(*FieldReader().read(record, fields))
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        expected = f"expected a JSON object whose request is one of {', '.join(_REQUESTS)}"
        raise ProtocolError(f"{expected} ({error!r:.100})") from error


class ControlledJob(Record):
    """The parts of a running job that the control socket uses."""

    machine: Machine
    #: Returns the report of the job as it is now.
    report: Callable[[], Report]
    #: Sends a command to the agent of a host.
    send: Callable[[events.Measure], None]
    #: Passes an event to the supervisor, and executes its commands.
    handle: Callable[[events.RestartAsked | events.TaskStopAsked], None]
    #: Returns what takes the stacks of tasks. It is made when it is first needed.
    stacks: Callable[[], StackTaker]


class Control:
    """The control socket of a job, which answers ``launch ps``, ``attach``, ``restart`` and ``stop``.

    Args:
        loop: Watches the socket.
        event_buffer: Contains the last events, for followers.
        job: The job.
        every: How often hosts measure what their tasks use, in seconds. 0: only when they are asked.
    """

    def __init__(
        self, loop: EventLoop, event_buffer: EventBuffer, job: ControlledJob, every: float = 0.0
    ) -> None:
        self._loop, self._job = loop, job
        #: For how long a measurement is recent enough for an answer: until one more has failed to come.
        self._recent_seconds = 2 * every
        #: The clients that have asked to follow the job. They are no longer among ``_clients``.
        self.followers = EventFollowers(loop, event_buffer)
        #: The socket that accepts clients.
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        #: The connections without an answer yet, the oldest first.
        self._clients: list[socket.socket] = []
        #: Hosts that were asked for the memory of their tasks, and have not answered yet.
        self._measuring: set[str] = set()
        #: The memory of tasks in bytes, as their hosts have measured it last.
        self._memory: dict[TaskId, int] = {}
        #: When each host has measured it, by the monotonic clock.
        self._measured_at: dict[str, float] = {}

    def open(self, run_name: str) -> None:
        """Listen for clients from now on.

        Args:
            run_name: The name of the run, after which the socket is named.

        Raises:
            OSError: Another process has a socket of this name.
        """
        self._listener.bind(control_address(run_name))
        self._listener.listen(SOCKET_BACKLOG)
        self._loop.watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Close the socket and all connections, those of followers after their last events."""
        self.followers.close()
        for client in tuple(self._clients):
            self._disconnect(client)
        if self._listener.fileno() >= 0:  # It is negative if the socket is closed already.
            self._loop.watch(self._listener.fileno())  # Without a function it is no longer watched.
        self._listener.close()

    def measured(self, event: events.Measured) -> None:
        """Note the memory that a host has measured, for the next answer."""
        self._memory.update(event.memory)
        self._measured_at[event.host] = time.monotonic()
        self._measuring.discard(event.host)

    # ------------------------------------------------------------------ clients

    def _accept(self) -> None:
        """Accept the clients of this user that wait. Their requests are read when they arrive."""
        for client in accept_own(self._listener):
            if len(self._clients) == _MAX_CLIENTS:  # A client that sends nothing must not keep others out.
                self._disconnect(self._clients[0])
            client.setblocking(False)
            self._clients.append(client)
            self._loop.watch(client.fileno(), partial(self._read, client))

    def _read(self, client: socket.socket) -> None:
        """Read the request of a client, and send the answer.

        A client that follows the job stays connected.
        """
        if client not in self._clients:  # It was dropped in the same turn of the loop.
            return
        packet = b""
        with suppress(OSError):  # The client has exited.
            packet = client.recv(PACKET_BYTES)
        try:
            answer = self._answer(packet)
        except Exception as error:  # noqa: BLE001 - a fault of ours in answering must not end the job
            answer = {"error": f"launch failed to answer: {error!r}"}
        # It fails if the client has exited, or if no file descriptor is left.
        with suppress(OSError), open(memory_file("answer"), "wb", buffering=0) as file:
            file.write(json.dumps(answer).encode())
            socket.send_fds(client, [b"answer"], [file.fileno()])
            if "next" in answer:  # It has asked for the events of the job.
                self._forget(client)
                self.followers.add(client, answer["next"], answer["output"])
                return
        self._disconnect(client)

    def _disconnect(self, client: socket.socket) -> None:
        """Close the connection to a client that has got its answer, or that gets none."""
        self._forget(client)
        client.close()

    def _forget(self, client: socket.socket) -> None:
        """No longer wait for a request of a client. Its connection stays open for the answer.

        The caller closes it, or makes the client a follower.
        """
        self._loop.watch(client.fileno())  # Without a function, the loop no longer watches the connection.
        self._clients.remove(client)

    # ------------------------------------------------------------------ requests

    def _answer(self, packet: bytes) -> Mapping[str, Any]:
        """Return the answer to a request, which may be that it cannot be fulfilled.

        Args:
            packet: The request as the client has sent it, which may be anything.
        """
        try:
            request = read_request(packet)
            if isinstance(request, FollowRequest):
                return {"next": self.followers.first(request.first), "output": request.output}
            if isinstance(request, RestartRequest):
                tasks = self._named_tasks(request.tasks, Phase.RUNNING)
                if lost := self._job.machine.stranded(tasks):
                    raise LaunchError(f"the host of {join_names(lost)} is lost")
                self._job.handle(events.RestartAsked(events.now(), tasks))
                return {}
            if isinstance(request, TaskStopRequest):
                tasks = self._named_tasks(request.tasks, Phase.RUNNING, Phase.DRAINING)
                self._job.handle(events.TaskStopAsked(events.now(), tasks))
                return {}
            if isinstance(request, StacksRequest):
                return self._stacks(request)
        except ProtocolError as error:
            return {"error": f"not a request: {error}"}
        except LaunchError as error:
            return {"error": str(error)}
        if request.measure:  # It is a `TasksRequest`.
            self._measure()
        return {
            "report": record_as_dict(self._job.report()),
            "memory": self._memory,
            "measuring": [*self._measuring],
            "restarting": [*self._job.machine.state.tasks.restarting],
        }

    def _named_tasks(self, names: Collection[str], *phases: Phase) -> tuple[TaskId, ...]:
        """Return the tasks that a client names, if the job is in one of these phases.

        Args:
            names: The names of tasks, roles and ranges. There must be one: without a name `selected` would
                return all tasks, which nobody has asked for.
            phases: The phases in which the request is possible.

        Raises:
            LaunchError: The names select no task, or the job is in another phase.
        """
        if not names:
            raise LaunchError("the request names no task")
        machine = self._job.machine
        if machine.phase not in phases:
            raise LaunchError("its tasks have not been started yet, or the job is ending")
        return tuple(selected(machine.state.tasks.keys(), names))

    def _stacks(self, request: StacksRequest) -> Mapping[str, Any]:
        """Return the stacks of tasks that are known, after asking their hosts if the request wants that.

        Raises:
            LaunchError: The names select no task, or none of these tasks runs.
        """
        machine, taker = self._job.machine, self._job.stacks()
        tasks = selected(machine.state.tasks.keys(), request.tasks)
        if not (pids := machine.pids(tasks)):
            raise LaunchError("none of these tasks runs now")
        if request.take:
            taker.take(pids)
        running = [task for on_host in pids.values() for task in on_host]
        groups = [record_as_dict(group) for group in taker.groups(running)]
        return {"groups": groups, "taking": [task for task in running if task in taker.taking]}

    def _measure(self) -> None:
        """Ask hosts to measure the memory of their tasks, and forget what these hosts have measured before.

        A host is asked if its last measurement is too old, or if the memory of one of its tasks is not known.
        `measured` is called with each answer.
        """
        machine, oldest = self._job.machine, time.monotonic() - self._recent_seconds
        tasks = machine.state.tasks
        unknown = {tasks[task].host for task in tasks.not_gone if task not in self._memory}
        self._measuring = {
            host
            for host in machine.busy_hosts()
            if host in unknown or self._measured_at.get(host, 0.0) <= oldest
        }
        self._memory = {
            task: size
            for task, size in self._memory.items()
            if task in tasks.not_gone and tasks[task].host not in self._measuring
        }
        for host in self._measuring:
            self._job.send(events.Measure(host))


class EventFollowers:
    """The followers of a job: programs that get its events as they happen.

    All read from the same buffer of the last events, each at its own pace. A follower that is so slow that
    events left the buffer before it got them is dropped, so the launcher never waits for one.

    Args:
        loop: Watches their connections.
        event_buffer: Contains the last events.
    """

    def __init__(self, loop: EventLoop, event_buffer: EventBuffer) -> None:
        self._loop, self._event_buffer = loop, event_buffer
        #: The number of the next event of each follower. -1 means that the follower was too slow: it is
        #: dropped as soon as it has received `TOO_SLOW_LINE`.
        self._next_numbers: dict[socket.socket, int] = {}
        #: The bytes that each follower has not received yet.
        self._unsent_bytes: dict[socket.socket, bytes] = {}
        #: The followers that want to know when tasks print.
        self._log_readers: set[socket.socket] = set()
        #: Fires when the log readers are to be told that tasks have printed. None if no task has since then.
        self._timer: TimerHandle | None = None

    def first(self, number: int | None) -> int:
        """Return the number of the first event for a new follower.

        Args:
            number: The number that the follower asks for. None asks for the next event.

        Raises:
            LaunchError: It cannot follow the job from this event on, or there are too many followers.
        """
        oldest, upcoming = self._event_buffer.first, self._event_buffer.next
        if len(self._next_numbers) >= _MAX_FOLLOWERS:
            raise LaunchError(f"{_MAX_FOLLOWERS} programs follow it already")
        if number is not None and not oldest <= number <= upcoming:
            limits = f"events can be followed from {oldest} to {upcoming}"
            raise LaunchError(f"{limits}; events.jsonl has earlier ones")
        return upcoming if number is None else number

    def add(self, client: socket.socket, number: int, output: bool = False) -> None:
        """Send events to a client from now on.

        Args:
            client: The connection, which is then closed by this object.
            number: The number of the first event.
            output: Whether the client wants to be told that tasks have printed.
        """
        self._next_numbers[client], self._unsent_bytes[client] = number, b""
        if output:
            self._log_readers.add(client)
        self._send(client)

    def tell(self) -> None:
        """Send new events to the followers that have received all earlier ones.

        Followers that want to know when tasks print are told so a little later, so not for each line.
        """
        for client in [client for client, rest in self._unsent_bytes.items() if not rest]:
            self._send(client)
        if self._log_readers and self._event_buffer.printed and self._timer is None:
            self._timer = self._loop.call_at(time.monotonic() + _PRINTED_PAUSE_SECONDS, self._tell_printed)

    def _tell_printed(self) -> None:
        """Tell followers that tasks have printed. One that still waits for earlier lines is told later."""
        self._timer, self._event_buffer.printed = None, False
        for client in [client for client in self._log_readers if not self._unsent_bytes[client]]:
            self._unsent_bytes[client] = PRINTED_LINE
            self._send(client)

    def close(self) -> None:
        """Send what the followers can receive at once, and close their connections."""
        self.tell()
        for client in [*self._next_numbers]:
            self._disconnect(client)

    def _send(self, client: socket.socket) -> None:
        """Send what a client can receive now, and continue when it can receive more.

        A client that is too slow is dropped after its last line.
        """
        # A follower sends nothing more, so its connection is readable only when it has closed its end.
        close = partial(self._disconnect, client)
        try:
            while data := self._unsent_bytes[client] or self._next_lines(client):
                self._unsent_bytes[client] = data  # It stays there if nothing can be sent now.
                self._unsent_bytes[client] = data[client.send(data[:PACKET_BYTES]) :]
        except BlockingIOError:
            self._loop.watch(client.fileno(), close, partial(self._send, client))
        except OSError:  # It has exited.
            close()
        else:
            was_too_slow = self._next_numbers[client] < 0
            close() if was_too_slow else self._loop.watch(client.fileno(), close)

    def _next_lines(self, client: socket.socket) -> bytes:
        """Return the next lines for a client. Empty if there are none now.

        For a client that was too slow this is a last line that says so.
        """
        number = self._next_numbers[client]
        if 0 <= number < self._event_buffer.first:  # New events have replaced the next one of this client.
            self._next_numbers[client] = -1
            return TOO_SLOW_LINE
        lines = self._event_buffer.after(number, PACKET_BYTES) if number >= 0 else []
        self._next_numbers[client] += len(lines)
        return b"".join(lines)

    def _disconnect(self, client: socket.socket) -> None:
        """Close the connection to a follower, and forget it."""
        self._loop.watch(client.fileno())  # Without a function it is no longer watched.
        client.close()
        self._next_numbers.pop(client, None)
        self._unsent_bytes.pop(client, None)
        self._log_readers.discard(client)
