"""What connects a launch to its hosts: interfaces that each backend implements in its own way.

`Connections` reach hosts, and start agents and programs there. An `AgentLink` carries the messages of one
agent. A `Fleet` has the links to all hosts of a job. Two helpers for all backends are below.

Starting, connecting to and killing an agent are three methods. By default each runs a program on the host. A
container, a step of Slurm and a pod override those that differ: there the first program becomes the agent,
and the end of the container is the end of the agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from launcher.agent.processes import new_agent_id
from launcher.agent.watchdog import END_TIMEOUT_SECONDS, MISSED_DEADLINE_SECONDS
from launcher.common.errors import TransportError
from launcher.common.events import AgentCommand
from launcher.common.protocol import Message
from launcher.common.record import Record
from launcher.common.text import NO_THREAD_REASON, duration, join_names
from launcher.event_loop import EventLoop
from launcher.job import Host, Placement
from launcher.messages import say
from launcher.threads import new_pool, start

if TYPE_CHECKING:  # a launch on this machine starts no remote program
    from launcher.backends.programs import RemoteProgram

_T = TypeVar("_T")
#: Programs on a host: one that starts an agent, one that connects to it, and one that kills it.
START_ENTRY = "launcher.agent.main:start"
CONNECT_ENTRY = "launcher.agent.main:connect"
KILL_ENTRY = "launcher.agent.sweep:kill"
#: Seconds until a line names the slow hosts; each further line comes after twice as long.
_FIRST_NOTICE_SECONDS = 2.0
#: Seconds for threads to start the work that they then wait for.
_THREAD_START_SECONDS = 0.03


class AgentLink(Protocol):
    """Messages to and from the agent of one host. Only `wait` and `kill` block."""

    #: Whether its events are dated by this machine's clock.
    same_clock: bool
    #: Whether the agent stays for remote commands after the job, until `shut_down`.
    stays: bool
    #: The tasks of its host: its messages may name no other.
    tasks: set[str]
    #: After the end of the agent: whether it ended with all others, see `AllocationEndedError`; see
    #: `HostPreemptedError`.
    all_gone: bool
    preempted: bool

    @property
    def is_broken(self) -> bool:
        """Whether the connection is broken, or may be: nothing has come for seconds."""

    def watch(self, loop: EventLoop, ready: Callable[[], object]) -> None:
        """Let the loop drive the link: it calls ``ready`` when `receive` has something, until `unwatch`."""

    def unwatch(self) -> None:
        """Let the loop no longer call ``ready``."""

    def receive(self) -> Sequence[Message] | None:
        """The messages that have come; ``None`` at the end of the agent.

        Raises:
            ProtocolError: the host sent what it may not send.
        """

    def send(self, command: AgentCommand) -> None:
        """Queue a command; it is written as soon as the connection takes it."""

    def wait(self, seconds: float) -> str | None:
        """After the end of the agent, or a `shut_down`: wait until no process of it is left.

        Returns:
            How it ended, for the user, empty if all is well; ``None`` if it did not end in time.
        """

    def kill(self, seconds: float) -> str | None:
        """Kill the agent, which did not end in time, and every process it started; then as `wait`."""

    def shut_down(self) -> None:
        """Make the agent end all tasks, then itself. Messages that it sends until then may be lost."""

    def close(self) -> None:
        """Close the file descriptors."""


class ProgramRunner(Protocol):
    """Runs programs of ours on hosts."""

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Start a program on a host. Blocks for a bounded time; any thread may call it.

        Args:
            host: its name.
            entry: ``module:function`` of the code that is sent; called there with ``arguments``.
            arguments: anything JSON can express; never on a command line.

        Raises:
            TransportError: there is no connection to the host.
        """


class AgentArguments(Record):
    """What an agent is started with. A program that connects to the agent gets the same."""

    host: str
    #: Identifies the agent on its host, see `launcher.agent.processes.new_agent_id`.
    agent_id: int
    #: A secret by which the agent recognizes its launcher.
    token: str
    #: Seconds that the tasks outlive a lost connection.
    lease: float
    #: The run whose files are brought to the host. Empty: none are.
    run_name: str = ""

    @classmethod
    def new(cls, host: str, lease: float = 60.0, run_name: str = "") -> AgentArguments:
        """Return the arguments of an agent that is to be started on a host."""
        agent_id, token = new_agent_id(), os.urandom(16).hex()
        return cls(host, agent_id=agent_id, token=token, lease=lease, run_name=run_name)

    def as_json(self) -> dict[str, Any]:
        """Return the arguments of `launcher.agent.main.start` and ``connect``."""
        fields = {"host": self.host, "agent": self.agent_id, "token": self.token, "lease": self.lease}
        return {**fields, **({"job": self.run_name} if self.run_name else {})}


class Connections:
    """Live connections to hosts. A connection may break; `reconnect` makes a new one.

    A backend overrides `run` and, if the agent is no daemon that any program on the host can start, the
    three methods about agents.
    """

    #: Host -> why it could not be connected to.
    failed: Mapping[str, str] = {}
    #: Forwards ports through the connections. None: they forward no ports.
    forwarding: Forwarding | None = None
    #: Host -> the seconds that its present connection took to make. A host is left out if each program on it
    #: makes a connection of its own.
    login_seconds: Mapping[str, float] = {}

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """See `ProgramRunner.run`."""
        raise NotImplementedError

    def reconnect(self, host: str) -> None:
        """Connect to a host again: later programs use the new connection. Blocks for a bounded time.

        Raises:
            HostGoneError: The host can never be reached again.
            TransportError: The host cannot be reached now.
        """

    def start_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """Start the agent of a host. The bytes of the program are those of the agent."""
        return self.run(host, START_ENTRY, arguments.as_json())

    def connect_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """Connect to the agent of a host again, which has answered before."""
        return self.run(host, CONNECT_ENTRY, arguments.as_json())

    def kill_agent(self, host: str, agent_id: int) -> RemoteProgram:
        """Kill an agent and all that it has started. The program exits with 0 if nothing of it is left."""
        return self.run(host, KILL_ENTRY, {"agent": agent_id})


class Forwarding(Protocol):
    """Ports that lead through the connections to hosts."""

    def relay(self, path: str) -> Mapping[str, int]:
        """Forward a port on the loopback address of each host to a unix socket here.

        Args:
            path: of the socket.

        Returns:
            The ports, by host; without the hosts that have none, which a line for the user names.
        """

    def local_port(self, host: str, port: int, preferred: Sequence[int]) -> int:
        """A port of this machine's loopback address that leads to a port of the host's loopback address.

        A later call makes the same port lead to another host. Does not block.

        Args:
            host: its name.
            port: there.
            preferred: ports of this machine to try first.

        Raises:
            TransportError: this machine has no port.
        """


class Fleet(Protocol):
    """The hosts of a running job, as a context: when it is left, no agent or task is left on them.

    A launch uses it in this order: entering it connects to all hosts. `run` copies files. `running` makes
    the hosts ready for tasks. `link_to` returns the link to the agent of each. When a host is lost, `recover`
    makes it usable again.
    """

    #: The ids of the agents on this machine, see `launcher.agent.processes`.
    local_agents: Sequence[int]
    #: Whether other machines are among the hosts.
    has_remote_hosts: bool

    @property
    def forwarding(self) -> Forwarding | None:
        """Forwards ports of other machines. None: nothing does."""

    @property
    def seconds_until_tasks_ended(self) -> float | None:
        """How long after the loss of a host a task of it may still be alive, in seconds.

        The supervisor starts the task elsewhere only after this time, because two attempts must never run at
        once. 0 if `recover` itself stops the tasks. None if tasks of a lost host cannot start again.
        """

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """See `ProgramRunner.run`."""

    def running(self, placement: Placement) -> AbstractContextManager[Placement]:
        """Return a context during which tasks can run, with their placement as the hosts need it.

        Raises:
            TransportError: On entering: a host cannot be used.
        """

    def link_to(self, host: Host) -> AgentLink:
        """Return the link to the agent of a host: after `recover`, that to a new agent.

        Raises:
            TransportError: There is none.
        """

    def recover(self, host: str) -> None:
        """Make a host usable again whose agent is lost. Blocks; any thread may call it.

        Raises:
            TransportError: It cannot be used now.
        """

    def leftovers(self) -> Sequence[str]:
        """Return lines about containers or files that stay after the job, at the user's request."""


def with_tilde(path: str) -> str:
    """A path of this machine, with ``~`` for the user's home: ``~/results``."""
    home = os.path.expanduser("~").rstrip("/")
    return "~" + path[len(home) :] if home and f"{path}/".startswith(f"{home}/") else path


def lease_there(lease: float) -> float:
    """The host's own lease, seconds: shorter than ours, so that its tasks have ended when ours is over."""
    return max(lease - 2.0, lease * 0.7)


def seconds_until_tasks_ended(lease: float) -> float:
    """Seconds from the loss of a host until none of its tasks is alive, whatever state its agent is in.

    When we give a host up, its agent may just have heard from us: a network may fail in one direction only.
    Then the agent's own lease begins. At its end the agent has `END_TIMEOUT_SECONDS` seconds to end the
    tasks; the watchdog of an agent that is late by `MISSED_DEADLINE_SECONDS` has killed the agent and its
    tasks. These times are of the clock of the host: a host that was suspended meanwhile (a virtual machine)
    is late by that time.
    """
    return lease_there(lease) + END_TIMEOUT_SECONDS + MISSED_DEADLINE_SECONDS


def by_reason(reasons: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, with the hosts that have it: ``node1, node2: the disk is full``."""
    hosts: dict[str, list[str]] = {}
    for host, why in reasons.items():
        hosts.setdefault(why, []).append(host)
    return [f"{join_names(names)}: {why}" for why, names in hosts.items()]


@contextmanager
def slow(text: str) -> Iterator[None]:
    """A context that tells the user this if its body takes more than two seconds."""
    timer = threading.Timer(_FIRST_NOTICE_SECONDS, say, [text])
    timer.daemon = True
    try:
        start(timer)
    except TransportError as error:
        say(f"no line will say that the next step takes long: {error}")
    try:
        yield
    finally:
        timer.cancel()


def for_each(  # noqa: PLR0913 - callers give most of them by name
    hosts: Iterable[str],
    function: Callable[[str], _T],
    step: str | Callable[[], str],
    fanout: int = 0,
    loop: EventLoop | None = None,
    meanwhile: Callable[[], object] | None = None,
    *,
    quiet: bool = False,
) -> tuple[dict[str, _T], dict[str, str]]:
    """Call a function for all hosts at once, in threads.

    Args:
        hosts: their names.
        function: gets the name of a host; limits its time itself.
        step: what they do, or a function that returns this: the user is told it while some take long.
        fanout: how many hosts at once; 0: all.
        loop: The loop that runs meanwhile. None: no loop has to run, or another thread runs it.
        meanwhile: called once, in this thread, when the calls have begun.
        quiet: the user is told nothing.

    Returns:
        The result for each host; and for each host where it raised a `TransportError`, the reason.
    """
    names = list(hosts)
    pool = new_pool(fanout or len(names) or 1, "host")
    try:
        futures = {name: pool.begin(partial(function, name)) for name in names}
        if not pool.can_work():
            return {}, dict.fromkeys(names, NO_THREAD_REASON)
        if meanwhile is not None:
            # Otherwise the work of this thread would keep the others from beginning.
            pool.wait(futures.values(), _THREAD_START_SECONDS)
            meanwhile()
        seconds, waited = _FIRST_NOTICE_SECONDS, 0.0
        left = set(futures.values())
        if loop is not None:
            for future in futures.values():
                future.add_done_callback(lambda future: loop.call_soon(lambda: left.discard(future)))
        while not loop.run_until(lambda: not left, seconds) if loop else pool.wait(left, seconds):
            # The same line a second time would read like a mistake.
            waits = f"still waiting, after {duration(waited + seconds)}, for" if waited else "waiting for"
            waiting = [name for name in names if not futures[name].done()]
            if not quiet:
                say(f"{waits} {join_names(waiting)}: {step if isinstance(step, str) else step()}")
            waited += seconds
            seconds *= 2
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    results: dict[str, _T] = {}
    failed: dict[str, str] = {}
    for name, future in futures.items():
        try:
            results[name] = future.result()
        except TransportError as error:
            failed[name] = str(error).removeprefix(f"{name}: ")
    return results, failed
