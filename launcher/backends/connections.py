"""Defines what connects a launch to its hosts. Each backend implements these interfaces in its own way.

`Connections` reach hosts, and start agents and programs on them. An `AgentLink` carries the messages of one
agent. A `Fleet` contains the links to all hosts of a job. At the end are helpers for all backends.

Starting an agent, connecting to it and killing it are three methods. By default each runs a program on the
host. A container, a step of Slurm and a pod override what differs: there the first program becomes the agent,
and the container ends with its agent.
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

if TYPE_CHECKING:  # A launch on this machine starts no remote program, and no pool.
    from concurrent.futures import Future

    from launcher.backends.programs import RemoteProgram
    from launcher.thread_pool import Pool

_T = TypeVar("_T")
#: The function that starts an agent on its host.
START_ENTRY = "launcher.agent.main:start"
#: The function that connects to a running agent on its host.
CONNECT_ENTRY = "launcher.agent.main:connect"
#: The function that kills an agent on its host.
KILL_ENTRY = "launcher.agent.sweep:kill"
#: After this time a line names the slow hosts. The pause before each further line is twice as long.
_FIRST_NOTICE_SECONDS = 2.0
#: The time that threads get to start their work before this thread is busy, too.
_THREAD_START_SECONDS = 0.03


class AgentLink(Protocol):
    """Messages to and from the agent of one host. Only `wait` and `kill` block."""

    #: Whether the times in the agent's events come from the clock of this machine.
    same_clock: bool
    #: Whether the agent stays after the job, to run our programs, until `shut_down`.
    stays: bool
    #: The tasks of its host. A message of the agent that names another task is a protocol error.
    tasks: set[str]
    #: Whether the agent was lost because the whole allocation has ended, see `AllocationEndedError`.
    all_gone: bool
    #: Whether the agent was lost because its host was preempted, see `HostPreemptedError`.
    preempted: bool

    @property
    def is_broken(self) -> bool:
        """Whether the connection is broken, or may be, because nothing has come for seconds."""

    def watch(self, loop: EventLoop, ready: Callable[[], object]) -> None:
        """Let the loop drive the link until `unwatch`.

        Args:
            loop: The loop of the launch.
            ready: The loop calls it when `receive` would return something.
        """

    def unwatch(self) -> None:
        """Tell the loop to stop calling the ``ready`` that `watch` was called with."""

    def receive(self) -> Sequence[Message] | None:
        """Return the messages that have arrived.

        Returns:
            The messages, perhaps none. None if the agent has ended.

        Raises:
            ProtocolError: The agent sent something that it may not send.
        """

    def send(self, command: AgentCommand) -> None:
        """Queue a command for the agent. It is written as soon as the connection accepts it."""

    def run(self, entry: str, arguments: object) -> RemoteProgram:
        """Run a program of ours as a child of the agent, see `ProgramRunner.run`."""

    def wait(self, seconds: float) -> str | None:
        """Wait, after the end of the agent or after `shut_down`, until no process of the agent is left.

        Returns:
            How the agent ended, for messages. Empty if it ended as it should. None if it did not end in time.
        """

    def kill(self, seconds: float) -> str | None:
        """Kill an agent that did not end in time, with every process that it started.

        Returns:
            The same as `wait`.
        """

    def shut_down(self) -> None:
        """Ask the agent to end all tasks, and then itself. Messages that it sends meanwhile may be lost."""

    def close(self) -> None:
        """Close the file descriptors of the link."""


class ProgramRunner(Protocol):
    """Runs our own programs on hosts."""

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Start a program on a host. This blocks for a limited time, and any thread may call it.

        Args:
            host: The name of the host.
            entry: ``module:function``. The module is sent to the host, and the function is called there.
            arguments: The argument of the function: anything that JSON can express. It is never on a command
                line, where other users could read it.

        Raises:
            TransportError: There is no connection to the host.
        """


class AgentArguments(Record):
    """The arguments with which an agent is started. A program that connects to it later gets the same."""

    host: str
    #: The number that identifies the agent on its host, see `launcher.agent.processes.new_agent_id`.
    agent_id: int
    #: The secret by which the agent recognizes its launcher.
    token: str
    #: The seconds for which the tasks live on after the connection is lost.
    lease: float
    #: The name of the run whose files are copied to the host. Empty if none are.
    run_name: str = ""

    @classmethod
    def new(cls, host: str, lease: float = 60.0, run_name: str = "") -> AgentArguments:
        """Return the arguments of an agent that is about to be started on a host."""
        agent_id, token = new_agent_id(), os.urandom(16).hex()
        return cls(host, agent_id=agent_id, token=token, lease=lease, run_name=run_name)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that `launcher.agent.main.start` and ``connect`` accept."""
        fields = {"host": self.host, "agent": self.agent_id, "token": self.token, "lease": self.lease}
        return {**fields, **({"job": self.run_name} if self.run_name else {})}


class Connections:
    """Live connections to hosts. A connection may break, and then `reconnect` makes a new one.

    A backend overrides `run`. It also overrides the three methods about agents, unless its agents are daemons
    that any program on the host can start.
    """

    #: The reason why a host could not be connected to, by the name of the host.
    failed: Mapping[str, str] = {}
    #: What forwards ports through the connections. None if they forward no ports.
    forwarding: Forwarding | None = None
    #: The seconds that it took to make the present connection, by host. It lacks hosts for which each program
    #: makes a connection of its own.
    login_seconds: Mapping[str, float] = {}

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Start a program of ours on a host, see `ProgramRunner.run`."""
        raise NotImplementedError

    def reconnect(self, host: str) -> None:
        """Connect to a host again, so that later programs use the new connection.

        This blocks for a limited time.

        Raises:
            HostGoneError: The host can never be reached again.
            TransportError: The host cannot be reached now.
        """

    def start_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """Start the agent of a host.

        The returned program becomes the agent, and its bytes are the agent's messages.
        """
        return self.run(host, START_ENTRY, arguments.as_json())

    def connect_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """Connect to the agent of a host once more, after an earlier connection to it was lost."""
        return self.run(host, CONNECT_ENTRY, arguments.as_json())

    def kill_agent(self, host: str, agent_id: int) -> RemoteProgram:
        """Kill an agent and all that it has started.

        The returned program exits with 0 if nothing of it is left.
        """
        return self.run(host, KILL_ENTRY, {"agent": agent_id})


class Forwarding(Protocol):
    """Forwards ports through the connections to hosts."""

    def relay(self, path: str) -> Mapping[str, int]:
        """Forward a port on the loopback address of each host to a Unix socket of this machine.

        Args:
            path: The path of the socket.

        Returns:
            The port on each host, by the name of the host. It lacks hosts that offer no port: the user is
            told about them.
        """

    def local_port(self, host: str, port: int, preferred: Sequence[int]) -> int:
        """Return a port on the loopback address of this machine that leads to such a port of a host.

        A later call makes the same port lead to another host. This does not block.

        Args:
            host: The name of the host.
            port: The port on the host.
            preferred: The ports of this machine to try first.

        Raises:
            TransportError: This machine has no free port.
        """


class Fleet(Protocol):
    """The hosts of a running job, as a context: when it is left, no agent and no task is left on them.

    A launch uses it in this order: entering it connects to all hosts. `run` copies files. `running` makes the
    hosts ready for tasks. `link_to` returns the link to the agent of each host. When a host is lost,
    `recover` makes it usable again.
    """

    #: The ids of the agents that run on this machine, see `launcher.agent.processes`.
    local_agents: Sequence[int]
    #: Whether at least one of the hosts is another machine.
    has_remote_hosts: bool

    @property
    def forwarding(self) -> Forwarding | None:
        """What forwards ports of the hosts. None if nothing does."""

    @property
    def seconds_until_tasks_ended(self) -> float | None:
        """How long after the loss of a host a task of it may still be alive.

        The supervisor starts the task elsewhere only after this time, because two attempts must never run at
        once. It is 0 if `recover` itself stops the tasks, and None if tasks of a lost host cannot start
        again.
        """

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Start one of our own programs on a host, as `ProgramRunner.run` does."""

    def running(self, placement: Placement) -> AbstractContextManager[Placement]:
        """Return a context in which tasks can run, whose value is the placement as the hosts need it.

        Raises:
            TransportError: On entering, if a host cannot be used.
        """

    def link_to(self, host: Host) -> AgentLink:
        """Return the link to the agent of a host. After `recover` this is the link to a new agent.

        Raises:
            TransportError: The host has no agent.
        """

    def recover(self, host: str) -> None:
        """Make a host usable again whose agent is lost. This blocks, and any thread may call it.

        Raises:
            TransportError: The host cannot be used now.
        """

    def leftovers(self) -> Sequence[str]:
        """Return a line for each container or file that stays after the job at the user's request."""


def with_tilde(path: str) -> str:
    """Return a path of this machine with ``~`` in place of the user's home, as in ``~/results``.

    A path that is not below the home is returned as it is.
    """
    home = os.path.expanduser("~").rstrip("/")  # Empty if the home is the root folder.
    return "~" + path[len(home) :] if home and f"{path}/".startswith(f"{home}/") else path


def lease_there(lease: float) -> float:
    """Return how long an agent lets its tasks run on without a connection to the launcher, in seconds.

    It is shorter than the time after which the launcher gives a silent host up, so that the tasks have ended
    by then: by two seconds, or by 30 % of a lease so short that this is less.

    Args:
        lease: That time of the launcher, in seconds (``--lease``).
    """
    return max(lease - 2.0, lease * 0.7)


def seconds_until_tasks_ended(lease: float) -> float:
    """Return how long after the loss of a host a task of it may still be alive, whatever its agent does.

    A network may fail in one direction only, so the agent may have heard from the launcher just before the
    launcher gave the host up. Then the agent's lease (`lease_there`) begins at that moment. After it the
    agent has `END_TIMEOUT_SECONDS` to end the tasks. If it is late by `MISSED_DEADLINE_SECONDS`, its watchdog
    kills the agent and the tasks. All this is measured by the clock of the host, so a host that was suspended
    (a virtual machine) is late by the time of its suspension.
    """
    return lease_there(lease) + END_TIMEOUT_SECONDS + MISSED_DEADLINE_SECONDS


def by_reason(reasons: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, with the hosts that have it: ``node1, node2: the disk is full``.

    Args:
        reasons: The reason of each host, by the name of the host.
    """
    hosts_by_reason: dict[str, list[str]] = {}
    for host, reason in reasons.items():
        hosts_by_reason.setdefault(reason, []).append(host)
    return [f"{join_names(hosts)}: {reason}" for reason, hosts in hosts_by_reason.items()]


@contextmanager
def slow(text: str) -> Iterator[None]:
    """Return a context that tells the user ``text`` if its body runs for more than two seconds.

    Another thread does that, even while this thread is blocked.
    """
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


def _waiter(pool: Pool, unfinished: set[Future[_T]], loop: EventLoop | None) -> Callable[[float], bool]:
    """Return a function that waits for calls, at most for some seconds, and returns whether all have ended.

    Args:
        pool: The threads of the calls.
        unfinished: The calls. With a loop, those that end are removed from the set.
        loop: The loop that runs during the wait. None if no loop must run, or another thread runs it.
    """
    if loop is None:
        return lambda seconds: not pool.wait(unfinished, seconds)  # It returns the calls that have not ended.
    # The threads call this. It lets the loop change the set, so that the loop sees when it is empty.
    for future in [*unfinished]:
        future.add_done_callback(lambda done: loop.call_soon(lambda: unfinished.discard(done)))
    return lambda seconds: loop.run_until(lambda: not unfinished, seconds)


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
    """Call a function for each host at once, in threads, and tell the user which hosts are slow.

    This blocks until all calls have ended. If an exception such as KeyboardInterrupt ends the wait, calls
    that have not begun are dropped, and the others are left to their own time limits.

    Args:
        hosts: The names of the hosts.
        function: It is called with the name of a host, and must limit its own time.
        step: What the hosts do, for the lines about slow hosts, or a function that returns this.
        fanout: How many hosts are served at once. 0 means all.
        loop: The loop that runs meanwhile. None if no loop must run, or another thread runs it.
        meanwhile: It is called once, in this thread, as soon as the calls have begun.
        quiet: Whether the user is told nothing.

    Returns:
        The result for each host, and the reason for each host for which the function raised a
        `TransportError`.
    """
    names = list(hosts)
    pool = new_pool(fanout or len(names) or 1, "host")  # A pool needs one thread, even for no hosts.
    try:
        futures = {name: pool.begin(partial(function, name)) for name in names}
        if not pool.ensure_thread():  # The system allows no more threads, so nothing was called.
            return {}, dict.fromkeys(names, NO_THREAD_REASON)
        if meanwhile is not None:
            # Otherwise this thread would hold the interpreter while the others wait to begin.
            pool.wait(futures.values(), _THREAD_START_SECONDS)
            meanwhile()
        waited, pause, await_all = 0.0, _FIRST_NOTICE_SECONDS, _waiter(pool, {*futures.values()}, loop)
        while not await_all(pause):
            waited += pause
            # The same line a second time would read like a mistake.
            waiting = f"still waiting, after {duration(waited)}, for" if waited > pause else "waiting for"
            slow_hosts = [name for name in names if not futures[name].done()]
            if not quiet:
                say(f"{waiting} {join_names(slow_hosts)}: {step if isinstance(step, str) else step()}")
            pause *= 2  # The user is told less and less often.
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    results: dict[str, _T] = {}
    failed: dict[str, str] = {}
    for name, future in futures.items():
        try:
            results[name] = future.result()
        except TransportError as error:
            # Callers show reasons after the names of hosts, and group hosts of one reason.
            failed[name] = str(error).removeprefix(f"{name}: ")
    return results, failed
