"""A simulator: one process that plays the agents of many hosts: ``agents.py SOCKET LATENCY``.

`bench.scale.simulation` starts it. It speaks the protocol of `launcher.common.protocol` and obeys every
command of the launcher, but its tasks are only numbers. It handles what it receives after LATENCY seconds.
Each line of its standard input is an order; at the end of its input it exits:

    print LINES TOTAL SINGLE
                        each task prints LINES lines a second, and TOTAL lines in all. With SINGLE 1 it writes
                        each line by itself, with 0 it writes twice a second
    fail TASK           the task exits with `CODE`
    fail                all tasks exit with `CODE`
    end                 all tasks exit with 0
    look                answer with a line of JSON, see `Simulator.look`
"""

from __future__ import annotations

import heapq
import json
import os
import resource
import selectors
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any, ClassVar

from launcher.agent.host import host_facts
from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.protocol import Decoder, Message, MessageChannel, Refused, encode
from launcher.common.record import replace

#: The exit code of a failing task.
CODE = 7
#: The number of lines that each task prints when it starts.
FIRST_LINES = 10
#: Seconds between two writes of a task that prints.
_BURST = 0.5
#: The number of parts of this time, in each of which other tasks write.
_PARTS = 50
#: An agent with more bytes for the launcher than these does not read from its tasks, which wait meanwhile.
_WINDOW = 1 << 20
#: Seconds between two checks for acknowledgements that are due.
_POLL_SECONDS = 0.05
#: Fields of more bytes than these are kept, so that they are read only once.
_LONG = 1024
_READ = 256 * 1024
_MEMORY, _SIGTERM = 100 << 20, 15
#: The first byte of a measurement.
_MEASURED = encode(events.Measured("", 0.0, {}))[0][:1]


def lines(task: str, first: int, count: int) -> bytes:
    """Return numbered lines of a task."""
    return b"".join(b"%s line %07d %s\n" % (task.encode(), n, b"x" * 48) for n in range(first, first + count))


class _Decoder(Decoder):
    """A decoder that reads equal long fields once for all agents, such as the ClusterSpec."""

    _known: ClassVar[dict[tuple[Any, bytes], Any]] = {}

    def _read_fields(self, record: Any, fields: bytes) -> Any:
        """Return the values of a record's fields, from an earlier message if they are the same."""
        values = self._known.get((record, fields))
        if values is None:
            values = super()._read_fields(record, fields)
            if len(fields) > _LONG:
                self._known[record, fields] = values
        return values


class Task:
    """A simulated task that runs.

    Args:
        agent: Its agent.
        task: Its name.
        attempt: The number of its start.
    """

    def __init__(self, agent: Agent, task: TaskId, attempt: int) -> None:
        self.agent, self.id, self.attempt = agent, task, attempt
        self.printed = self.left = 0
        self.began = time.monotonic()

    def print(self, count: int) -> None:
        """Print a number of lines, in one message or each in a message of its own."""
        data = lines(self.id, self.printed, count)
        self.printed += count
        for piece in data.splitlines(keepends=True) if self.agent.simulator.single else [data]:
            self.agent.channel.send(
                events.TaskOutput(host="", task=self.id, attempt=self.attempt, data=piece), bulk=True
            )

    def exit(self, code: int | None, signal: int | None = None) -> None:
        """Report that the task has exited, and that it has left no process.

        Args:
            code: Its exit code, or None if a signal ended it.
            signal: The number of this signal, or None.
        """
        at, agent = events.now(), self.agent
        del agent.tasks[self.id]
        if signal is not None:
            agent.channel.send(
                events.TaskSignalled(
                    host="", at=at, task=self.id, attempt=self.attempt, signal=signal, processes=1
                )
            )
        agent.channel.send(
            events.TaskExited(
                host="",
                at=at,
                task=self.id,
                attempt=self.attempt,
                code=code,
                signal=signal,
                peak_rss=_MEMORY,
                cpu_s=1.0,
            )
        )
        agent.channel.send(events.TaskGone(host="", at=at, task=self.id, attempt=self.attempt), bulk=True)


class Agent:
    """The simulated agent of a host.

    Args:
        simulator: The process that plays it.
        host: The name of the host.
        arguments: The arguments of the program that would start a real agent.
    """

    def __init__(self, simulator: Simulator, host: str, arguments: dict[str, Any]) -> None:
        self.simulator, self.number = simulator, arguments["agent"]
        self.channel = MessageChannel(lambda: _Decoder(from_agent=False), arguments["token"])
        self.tasks: dict[TaskId, Task] = {}
        self.closed = self.stopped = False
        facts = replace(simulator.facts, hostname=host)
        self.channel.send(events.AgentReady(host="", at=events.now(), pid=os.getpid(), facts=facts))

    def take(self, message: Message) -> None:
        """Obey a command of the launcher."""
        send, at = self.channel.send, events.now()
        if isinstance(message, events.StartTask):
            task = self.tasks[message.task] = Task(self, message.task, message.attempt)
            send(
                events.TaskStarted(
                    host="", at=at, task=message.task, attempt=message.attempt, pid=os.getpid()
                )
            )
            task.print(FIRST_LINES)
        elif isinstance(message, events.StopTasks):
            self.stopped, self.simulator.stopped_at = True, self.simulator.came_at
            for task in [self.tasks[name] for name in message.tasks if name in self.tasks]:
                task.exit(None, message.steps[0][0])
        elif isinstance(message, events.HoldPorts):
            send(events.PortsHeld("", at, {task: 20000 + n for n, task in enumerate(message.tasks)}))
        elif isinstance(message, events.TryPeers):
            send(events.PeersTried("", at, {}))
        elif isinstance(message, events.Measure) and message.every:
            first = time.monotonic() + message.every * os.urandom(1)[0] / 255
            heapq.heappush(self.simulator.measuring, (first, self.number, message.every, self))
        elif isinstance(message, events.Measure):
            self.measure(0.0)
        elif isinstance(message, events.SignalTask) and message.task in self.tasks:
            send(events.SignalSent(host="", at=at, task=message.task, signal=message.signal, states="S"))
        elif isinstance(message, events.HoldOutput):
            self.channel.held = message.on
        elif isinstance(message, events.CloseAgent):
            for task in list(self.tasks.values()):
                task.exit(None, _SIGTERM)
            self.closed = True
            send(events.AgentClosed("", at), bulk=True)

    @property
    def is_waiting(self) -> bool:
        """Whether the launcher has not acknowledged a message that is no measurement."""
        channel = self.channel
        queued = (*channel._unacked, *channel._urgent, *channel._bulk)
        return any(frame[0][:1] != _MEASURED for frame in queued)

    def measure(self, cores: float) -> None:
        """Tell what the tasks use: memory, and so many cores since they have started."""
        now = time.monotonic()
        cpu = {name: round(cores * (now - task.began), 2) for name, task in self.tasks.items()}
        self.channel.send(events.Measured("", events.now(), dict.fromkeys(self.tasks, _MEMORY), cpu))


class Connection:
    """A connection of the launcher, which belongs to no agent until its first line has arrived."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.agent: Agent | None = None
        self.early = b""
        #: Whether the socket accepts no more bytes for the moment, and whether its end was read.
        self.full = self.ended = False


class Simulator:
    """A player of many agents, in one loop.

    Args:
        path: The path of the socket to which the launcher connects.
        latency: How many seconds a message takes to a host.
    """

    def __init__(self, path: str, latency: float) -> None:
        self.facts = host_facts()
        #: Whether tasks write each line by itself.
        self.single = False
        self.stopped_at = 0.0
        self._failed_at = 0.0
        self._latency = latency
        self._agents: dict[str, Agent] = {}
        self._connections: dict[Agent, Connection] = {}
        #: The data that was read, with the time of its arrival at its host. A simulator reads everything
        #: before it answers anything, because real hosts do not wait for each other.
        self._under_way: deque[tuple[float, Connection, bytes]] = deque()
        #: When the data that is handled now has arrived.
        self.came_at = 0.0
        #: Agents that may owe an acknowledgement, and when they are checked next.
        self._owing: set[Agent] = set()
        #: When each agent measures next, its number, and how often it does.
        self.measuring: list[tuple[float, int, float, Agent]] = []
        self._poll_at = 0.0
        #: Lines a second of each task.
        self._rate = 0.0
        #: When the next part of the tasks prints, its number, and how many times all parts have printed.
        self._print_at, self._part, self._round = 0.0, 0, 0
        self._printing: list[Task] = []
        self._over = False
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        self._orders = b""

    def run(self) -> None:
        """Serve the launcher, and obey orders, until standard input ends."""
        os.set_blocking(0, False)
        while not self._over:
            for key, _ in self._selector.select(self._seconds()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd == 0:
                    self._obey()
                else:
                    self._on_connection(key.data)
            now = time.monotonic()
            while self._under_way and self._under_way[0][0] <= now:
                self.came_at, connection, data = self._under_way.popleft()
                self._arrived(connection, data)
            if self._printing and self._print_at <= now:
                self._print(now)
            while self.measuring and self.measuring[0][0] <= now:
                due, number, every, agent = heapq.heappop(self.measuring)
                if not agent.closed:
                    heapq.heappush(self.measuring, (due + every, number, every, agent))
                    # As a real agent, it sends this with the answer to the next ping.
                    if agent.tasks:
                        agent.measure(0.5)
            if self._owing and self._poll_at <= now:
                self._poll_at = now + _POLL_SECONDS
                for agent in list(self._owing):
                    self._flush(agent)

    def _seconds(self) -> float | None:
        """Return how long to wait for descriptors, or None if nothing else is due."""
        dues = [self._under_way[0][0]] if self._under_way else []
        dues += [self._print_at] if self._printing else []
        dues += [self.measuring[0][0]] if self.measuring else []
        dues += [self._poll_at] if self._owing else []
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    # ------------------------------------------------------------------ connections

    def _accept(self) -> None:
        """Accept all connections that wait."""
        with suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                self._selector.register(sock, selectors.EVENT_READ, Connection(sock))

    def _on_connection(self, connection: Connection) -> None:
        """Read from a connection, and write to it if it was full."""
        data: bytes | None = None
        try:
            data = connection.socket.recv(_READ)
        except BlockingIOError:
            pass
        except OSError:
            data = b""
        if data is not None:
            self._under_way.append((time.monotonic() + self._latency, connection, data))
            if not data:  # An ended connection would always be readable.
                connection.ended = True
                self._selector.unregister(connection.socket)
        if connection.full and connection.agent is not None:
            self._flush(connection.agent)

    def _arrived(self, connection: Connection, data: bytes) -> None:
        """Handle data that has arrived at its host. No data means the end of the connection."""
        if connection.socket.fileno() < 0:  # A newer connection has replaced it.
            return
        if not data:
            self._drop(connection)
        elif connection.agent is None:
            connection.early += data
            line, newline, rest = connection.early.partition(b"\n")
            if newline:
                agent = self._begin(connection, *json.loads(line))
                if rest and agent is not None:
                    self._receive(agent, rest)
        else:
            self._receive(connection.agent, data)

    def _begin(
        self, connection: Connection, host: str, entry: str, arguments: dict[str, Any]
    ) -> Agent | None:
        """Start the program that the first line of a connection names.

        Args:
            connection: The connection.
            host: The name of the host.
            entry: The name of the program.
            arguments: The arguments of the program.

        Returns:
            The agent to which the connection belongs, or None if it was closed.
        """
        function = entry.rpartition(":")[2]
        if function == "kill":
            for token in [token for token, one in self._agents.items() if one.number == arguments["agent"]]:
                self._forget(self._agents.pop(token))
        if function not in ("start", "connect"):
            self._drop(connection)
            return None
        token = arguments["token"]
        if function == "start" and token not in self._agents:
            self._agents[token] = Agent(self, host, arguments)
        agent = self._agents.get(token)
        if agent is None:
            connection.socket.send(b"".join(encode(Refused("its agent exited"))))
            self._drop(connection)
            return None
        self._forget(agent)
        connection.agent, self._connections[agent] = agent, connection
        agent.channel.connect(0, time.monotonic())
        return agent

    def _receive(self, agent: Agent, data: bytes) -> None:
        """Let an agent obey the commands in some data."""
        messages = agent.channel.receive(data)
        for message in messages:
            agent.take(message)
        agent.channel.note_handled(len(messages), time.monotonic())
        self._flush(agent)

    def _flush(self, agent: Agent) -> None:
        """Write what an agent has for the launcher, and close the connection after its last message."""
        connection = self._connections.get(agent)
        if connection is None:
            self._owing.discard(agent)
            return
        try:
            full = not agent.channel.write(connection.socket.fileno(), time.monotonic())
        except OSError:
            self._drop(connection)
            return
        if full != connection.full and not connection.ended:
            connection.full = full
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
            self._selector.modify(connection.socket, wanted, connection)
        if agent.closed and agent.channel.is_idle:
            self._drop(connection)
        elif agent.channel.next_due() is None:
            self._owing.discard(agent)
        else:
            self._owing.add(agent)

    def _forget(self, agent: Agent) -> None:
        """Close the connection of an agent, if it has one."""
        if agent in self._connections:
            self._drop(self._connections[agent])

    def _drop(self, connection: Connection) -> None:
        """Close a connection. Its agent waits for another one."""
        if connection.socket.fileno() >= 0 and not connection.ended:
            self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.agent is not None:
            self._connections.pop(connection.agent, None)
            self._owing.discard(connection.agent)
            connection.agent.channel.disconnect()

    # ------------------------------------------------------------------ orders

    def _tasks(self) -> list[Task]:
        """Return all tasks that run."""
        return [task for agent in self._agents.values() for task in agent.tasks.values()]

    def _obey(self) -> None:
        """Obey the orders on standard input, which are described at the head of this module."""
        data = os.read(0, _READ)
        self._over = not data
        *orders, self._orders = (self._orders + data).split(b"\n")
        for order in orders:
            name, *words = order.decode().split()
            if name == "print":
                self.single = words[2] == "1"
                self._begin_print(float(words[0]), int(words[1]))
            elif name == "fail":
                self._fail(*words)
            elif name == "end":
                self._exit(self._tasks(), 0)
            else:
                self.look()

    def _begin_print(self, rate: float, total: int) -> None:
        """Let each task print at a rate in lines a second, until it has printed a total number of lines."""
        self._rate, self._print_at, self._part, self._round = rate, time.monotonic(), 0, 0
        self._printing = self._tasks()
        for task in self._printing:
            task.left = total

    def _print(self, now: float) -> None:
        """Let one part of the tasks print what it has to print until its next turn."""
        count = int(self._rate * _BURST * (self._round + 1)) - int(self._rate * _BURST * self._round)
        agents = {}
        for task in self._printing[self._part :: _PARTS]:
            if count and task.left and task.id in task.agent.tasks and task.agent.channel.pending < _WINDOW:
                task.print(min(count, task.left))
                task.left -= min(count, task.left)
                agents[task.agent] = True
        for agent in agents:
            self._flush(agent)
        self._part = (self._part + 1) % _PARTS
        self._print_at = max(self._print_at + _BURST / _PARTS, now - _BURST)
        if not self._part:
            self._round += 1
            self._printing = [task for task in self._printing if task.left and task.id in task.agent.tasks]

    def _fail(self, name: str = "") -> None:
        """Let one task fail, or all tasks."""
        self._exit([task for task in self._tasks() if name in ("", task.id)], CODE)

    def _exit(self, tasks: list[Task], code: int) -> None:
        """Let tasks exit, and note when the first of them has failed."""
        if tasks and code:
            self._failed_at = time.monotonic()
        for task in tasks:
            task.exit(code)
        for agent in {task.agent for task in tasks}:
            self._flush(agent)

    def look(self) -> None:
        """Answer with what the agents have seen, as a JSON object.

        ``failed_at`` is when the last failure was ordered. ``stopped_at`` is when the last StopTasks arrived.
        Both are monotonic seconds, and 0 before that. ``stopped`` is the number of hosts that have received
        one. ``left`` is the number of lines that are still to be printed. ``waiting`` is the number of agents
        with messages that the launcher has not acknowledged, but for measurements, of which some are always
        under way. ``cpu`` is the CPU seconds of this process.
        """
        agents = self._agents.values()
        answer = {
            "failed_at": self._failed_at,
            "stopped_at": self.stopped_at,
            "stopped": sum(agent.stopped for agent in agents),
            "left": sum(task.left for task in self._printing if task.id in task.agent.tasks),
            "waiting": sum(agent.is_waiting for agent in agents),
            "cpu": time.process_time(),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _simulator = Simulator(sys.argv[1], float(sys.argv[2]))
    print("ready", flush=True)
    _simulator.run()
