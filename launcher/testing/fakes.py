"""Agents that pretend, and links to them: a whole run without a process or a host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from launcher import events, wire
from launcher.errors import TransportError
from launcher.events import Command, Event
from launcher.job import SERVICE_ROLES, Host, TaskId

SIGKILL, SIGTERM = 9, 15

#: What an agent says: facts, or raw bytes (``b""``: the link ends here, as when the agent is killed).
Answer = Event | bytes
#: An agent: what it says to an order, or first (``None``), when the link is opened.
Agent = Callable[[Command | None], Iterable[Answer]]


class End(NamedTuple):
    """How a fake task ends. Made by `exits`, `killed`, `runs` and `missing`."""

    code: int | None = None
    signal: int | None = None
    #: It runs until a signal ends it that is not among these.
    runs: bool = False
    ignores: tuple[int, ...] = ()
    #: Why it can't be started.
    why: str = ""
    output: bytes = b""


def exits(code: int = 0, output: bytes = b"") -> End:
    """It prints ``output`` and exits with ``code``, at once."""
    return End(code=code, output=output)


def killed(signal: int, output: bytes = b"") -> End:
    """It prints ``output``, and somebody kills it with ``signal``."""
    return End(signal=signal, output=output)


def runs(ignores: tuple[int, ...] = (), output: bytes = b"") -> End:
    """It runs until it is stopped by a signal that it does not ignore."""
    return End(runs=True, ignores=ignores, output=output)


def missing(code: int = 127, why: str = "no such program") -> End:
    """It can't be started."""
    return End(code=code, why=why)


class FakeAgent:
    """Says what the agent of a sound host would, at once.

    Args:
        host: its name.
        ends: how its tasks end, by name; else a ps or evaluator `runs`, anything else `exits` with 0.
        clock: dates its facts.
        first_port: of those it gives out.
    """

    def __init__(
        self,
        host: str,
        ends: Mapping[str, End] | None = None,
        clock: Callable[[], float] = time.time,
        first_port: int = 40000,
    ) -> None:
        self.host = host
        self._ends = ends or {}
        self._clock = clock
        self._next_port = first_port
        self._next_pid = 1000
        self._running: dict[TaskId, tuple[events.StartTask, End]] = {}

    def __call__(self, order: Command | None) -> list[Answer]:
        """What it says to ``order``; to ``None``, that it is ready."""
        if order is None:
            return [events.AgentReady(self.host, self._clock(), 1, {})]
        if isinstance(order, events.HoldPorts):
            return [self._hold(order)]
        if isinstance(order, events.StartTask):
            return self._start(order)
        if isinstance(order, events.StopTasks):
            return self._stop(order.tasks, order.ladder)
        if isinstance(order, events.TryPeers):
            return [events.PeersTried(self.host, self._clock(), {})]
        if isinstance(order, events.HoldOutput):
            return []
        closing = self._stop(tuple(self._running), ((SIGKILL, 5.0),))
        return [*closing, events.AgentClosed(self.host, self._clock()), b""]

    def _hold(self, order: events.HoldPorts) -> Answer:
        ports = {task: self._next_port + number for number, task in enumerate(order.tasks)}
        self._next_port += len(ports)
        return events.PortsHeld(self.host, self._clock(), ports)

    def _start(self, order: events.StartTask) -> list[Answer]:
        task, attempt = order.task, order.attempt
        end = self._ends.get(task) or (runs() if task.role in SERVICE_ROLES else exits())
        if end.why:
            code = end.code or 127
            return [events.TaskNotStarted(self.host, self._clock(), task, attempt, code, end.why)]
        self._next_pid += 1
        said: list[Answer] = [events.TaskStarted(self.host, self._clock(), task, attempt, self._next_pid)]
        if end.output:
            said.append(wire.output_head(task, attempt, len(end.output)) + end.output)
        if not end.runs:
            return said + self._over(order, end.code, end.signal)
        self._running[task] = (order, end)
        return said

    def _stop(self, tasks: tuple[TaskId, ...], ladder: events.Ladder) -> list[Answer]:
        said: list[Answer] = []
        for task in tasks:
            if task in self._running:
                said += self._climb(*self._running.pop(task), ladder)
        return said

    def _climb(self, order: events.StartTask, end: End, ladder: events.Ladder) -> list[Answer]:
        said: list[Answer] = []
        for number, _ in ladder:
            now = self._clock()
            said.append(events.TaskSignalled(self.host, now, order.task, order.attempt, number, 1))
            if number == SIGKILL or number not in end.ignores:
                break
        return said + self._over(order, None, number)

    def _over(self, order: events.StartTask, code: int | None, number: int | None) -> list[Answer]:
        who = (order.task, order.attempt)
        exited = events.TaskExited(self.host, self._clock(), *who, code, number, 1 << 20, 0.01)
        return [exited, events.TaskGone(self.host, self._clock(), *who)]


class FakeTransport:
    """Opens links to agents that pretend; see `launcher.transport.base.Transport`.

    Args:
        ends: how tasks end, as `FakeAgent` takes it.
        agent: makes the agent of a host; default: a `FakeAgent`.
        refuses: hosts that can't be reached, and why.
        last_words: what `Link.wait` says of a host, default nothing; ``None``: it does not end.
        piece: most bytes that one read or write takes.
    """

    def __init__(
        self,
        ends: Mapping[str, End] | None = None,
        agent: Callable[[str], Agent] | None = None,
        refuses: Mapping[str, str] | None = None,
        last_words: Mapping[str, str | None] | None = None,
        piece: int = 1 << 20,
    ) -> None:
        self._agent = agent or (lambda host: FakeAgent(host, ends))
        self._refuses = refuses or {}
        self._last_words = last_words or {}
        self._piece = piece
        #: The links that were opened, by host.
        self.links: dict[str, FakeLink] = {}

    def open(self, host: Host) -> FakeLink:
        """See `Transport.open`."""
        if host.name in self._refuses:
            raise TransportError(self._refuses[host.name])
        link = FakeLink(host.name, self._agent(host.name), self._last_words.get(host.name, ""), self._piece)
        self.links[host.name] = link
        return link


class FakeLink:
    """A link whose other end is a function; see `launcher.transport.base.Link`.

    ``reading`` is readable while there is something to read, so that select works.
    """

    #: Whether its facts are dated by the clock of whoever reads them.
    same_clock = True

    def __init__(self, host: str, agent: Agent, last_words: str | None = "", piece: int = 1 << 20) -> None:
        self._agent = agent
        self._last_words = last_words
        self._piece = piece
        self._decoder = wire.Decoder(host)
        self._waiting = bytearray(wire.MAGIC)
        self._ended = False
        #: What it was told, in order, and whether it was hung up.
        self.orders: list[Command] = []
        self.hung_up = False
        self.reading, self._wake = os.pipe()
        self._unread, self.writing = os.pipe()
        os.write(self._wake, b".")
        self.say(*agent(None))

    def say(self, *answers: Answer) -> None:
        """Let the agent say something of itself."""
        for answer in answers:
            if self._ended:
                return
            quiet = not self._waiting
            self._waiting += answer if isinstance(answer, bytes) else wire.encode(answer)
            self._ended = answer == b""
            if quiet:
                os.write(self._wake, b".")

    def read(self, size: int) -> bytes | None:
        """See `Link.read`."""
        if not self._waiting:
            return b"" if self._ended else None
        taken = bytes(self._waiting[: min(size, self._piece)])
        del self._waiting[: len(taken)]
        if not self._waiting and not self._ended:
            os.read(self.reading, 1)
        return taken

    def write(self, data: bytes | memoryview) -> int:
        """See `Link.write`; the agent answers at once."""
        taken = bytes(data[: self._piece])
        for order in self._decoder.feed(taken):
            self.orders.append(order)  # type: ignore[arg-type]  # launchers send orders
            self.say(*self._agent(order))  # type: ignore[arg-type]
        return len(taken)

    def wait(self, seconds: float) -> str | None:
        """See `Link.wait`; never waits."""
        return self._last_words

    def kill(self, seconds: float) -> str | None:
        """See `Link.kill`."""
        return self._last_words

    def hang_up(self) -> None:
        """See `Link.hang_up`."""
        self.hung_up = True
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def close(self) -> None:
        """See `Link.close`."""
        self.hang_up()
        for fd in (self.reading, self._wake, self._unread):
            if fd >= 0:
                os.close(fd)
        self.reading = self._wake = self._unread = -1
