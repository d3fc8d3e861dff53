"""The containers of a job on the hosts of a hostfile, and the links to their agents.

::

    orchestrator ══ link ══ ssh ══ docker run -i ══ agent (main process) ──> task, task, ...
              after a break: docker exec -i ══ pump ═════╝

The first connection to an agent is the stdin and stdout of its ``docker run``. The agent listens, too: when
that connection breaks, `launcher.agent.main.connect` in the container connects to the agent. The end of
``docker run`` says how the container ended.
"""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.agent.processes import new_agent_number
from launcher.errors import TransportError
from launcher.job import Host
from launcher.protocol import Refused, encode
from launcher.transports import bootstrap
from launcher.transports.base import Connections, RemoteCommand
from launcher.transports.docker.container import HOST_NETWORK, Container, container_name, run_words
from launcher.transports.docker.faults import end_fault
from launcher.transports.docker.here import Arrival
from launcher.transports.docker.hosts import Engines
from launcher.transports.link import CONNECT, HEAD_START, KILL, LEAST_SHARE, START, ReconnectingLink

#: The agent in a container, and what runs a command line on a host.
_SERVE, _BECOME = "launcher.agent.main:serve", "launcher.agent.command:become"
#: Seconds for a container to start, and for the exit status of a command that has closed its output.
_START, _STATUS = 300.0, 5.0
_READ = 1 << 16
#: Seconds until more of a program is sent: no event says that the host takes it now.
_LOOK = 0.05
#: What ``docker exec`` says of a container that has ended.
_GONE = re.compile(r"no such container|is not running", re.I)


class DockerCommand:
    """A ``docker run`` or ``docker exec`` on a host, whose stdin and stdout are a connection to the agent.

    See `launcher.transports.base.RemoteCommand`. Until the agent's mark has come `arrive` is to be called.

    Args:
        command: it.
        container: what it runs in.
        program: see `launcher.transports.bootstrap.program`.
        is_run: it is ``docker run``: its end is that of the container.
    """

    def __init__(self, command: RemoteCommand, container: Container, program: bytes, is_run: bool) -> None:
        self._command = command
        self._container = container
        self._arrival = Arrival(container, program)
        self._is_run = is_run
        self._early = b""
        self._refused = False

    def arrive(self, seconds: float) -> None:
        """Wait until the program is up.

        Raises:
            TransportError: it is not, in time; or why it will not be.
        """
        until = time.monotonic() + seconds
        while not self._advance():
            left = until - time.monotonic()
            if left < 0:
                raise TransportError(f"not started by the engine within {seconds:.0f} s")
            select.select([self._command], [], [], min(left, _LOOK))

    def _advance(self) -> bool:
        """Send and receive what can be until the program is up; whether it is."""
        while not self._arrival.ready:
            sent = self._command.send(self._arrival.unsent) if self._arrival.unsent else 0
            self._arrival.unsent = self._arrival.unsent[sent:]
            data = self._command.recv(_READ)
            if data is None:
                return False
            if not data:
                raise TransportError(self._how_ended() or "its container ended at once")
            self._early = self._arrival.feed(data)
            if self._arrival.fault:
                raise TransportError(self._arrival.fault)
        return True

    def _how_ended(self) -> str:
        """How the container ended; empty: all is well, or the command was killed and does not know."""
        code = self._command.wait(_STATUS)
        if code is None:
            return "" if self._arrival.ready else "its `docker` command was killed"
        return end_fault(code, self._container, self._arrival.ready, self._command.stderr())

    def fileno(self) -> int:
        """See `RemoteCommand.fileno`."""
        return self._command.fileno()

    def recv(self, size: int) -> bytes | None:
        """See `RemoteCommand.recv`; at the end of the container the last message is why."""
        try:
            if not self._advance():
                return None
        except TransportError:
            if self._is_run or not _GONE.search(self._command.stderr()):
                raise
            return self._refuse("its container ended while the connection was down")
        if self._early:
            data: bytes | None = self._early[:size]
            self._early = self._early[size:]
            return data
        data = self._command.recv(size)
        if data == b"" and self._is_run and (why := self._how_ended()):
            return self._refuse(why)
        return data

    def _refuse(self, why: str) -> bytes:
        """The message that the agent is gone, once."""
        self._refused, before = True, self._refused
        return b"" if before else b"".join(encode(Refused(why)))

    def send(self, data: bytes | memoryview) -> int:
        """See `RemoteCommand.send`."""
        return self._command.send(data) if self._arrival.ready else 0

    def wait(self, seconds: float) -> int | None:
        """See `RemoteCommand.wait`."""
        return self._command.wait(seconds)

    def stderr(self) -> str:
        """See `RemoteCommand.stderr`."""
        return self._command.stderr()

    def close(self) -> None:
        """See `RemoteCommand.close`."""
        self._command.close()


class RemoteContainers:
    """The containers of a job on its hosts: a `launcher.transports.base.Transport` once they are started.

    A context: what is not linked to when it is left ends.

    Args:
        engines: of the hosts.
        hosts: connections to them.
        job: the job's id.
        containers: one for each host.
        marks: labels of all.
        lease: seconds that the tasks of a host outlive a lost connection.
        tell: gets lines for the user; called by other threads too.
    """

    def __init__(
        self,
        engines: Engines,
        hosts: Connections,
        job: str,
        containers: Sequence[Container],
        marks: Mapping[str, str],
        lease: float,
        tell: Callable[[str], None],
    ) -> None:
        self._engines, self._hosts, self._job, self._marks = engines, hosts, job, marks
        self._containers = {container.host: container for container in containers}
        self._lease, self._tell = lease, tell
        self._started: dict[str, DockerCommand] = {}
        self._arguments: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> RemoteContainers:
        return self

    def __exit__(self, *_: object) -> None:
        for command in list(self._started.values()):  # a thread may still be starting one
            command.close()

    def start(self) -> None:
        """Start all containers, and wait until the agent of each is up.

        Raises:
            HostsError: some can't be started; it names all of them.
        """
        self._engines.each(self._start, "its engine to start the container")

    def _start(self, host: str) -> None:
        container = self._containers[host]
        lease = self._lease
        arguments = {"host": host, "agent": new_agent_number(), "token": os.urandom(16).hex(), "lease": lease}
        self._arguments[host] = arguments
        shorter = {**arguments, "lease": max(lease - HEAD_START, lease * LEAST_SHARE)}
        name = container_name(self._job, host)
        words = run_words(container, name, HOST_NETWORK, self._marks, bootstrap.loader(container.python))
        program = bootstrap.program(_SERVE, shorter)
        self._started[host] = DockerCommand(self._docker(host, words), container, program, is_run=True)
        self._started[host].arrive(_START)

    def _docker(self, host: str, words: Sequence[str]) -> RemoteCommand:
        env = self._engines.env(host)
        return self._hosts.run(host, _BECOME, {"argv": ["docker", *words], "env": env})

    def open(self, host: Host) -> ReconnectingLink:
        """See `launcher.transports.base.Transport.open`: the agent is up already."""
        try:
            return ReconnectingLink(host.name, self, self._arguments[host.name], self._tell)
        except (OSError, RuntimeError) as error:
            raise TransportError(f"{host.name}: there can't be a link to it: {error}") from error

    # ------------------------------------------------------------------ for links: programs in the containers

    def run(self, host: str, entry: str, arguments: object) -> RemoteCommand:
        """See `launcher.transports.base.Hosts.run`: start the agent, connect to it, or end it."""
        container, name = self._containers[host], container_name(self._job, host)
        if entry == KILL:
            return self._docker(host, ["rm", "--force", "--volumes", name])
        if entry == START and (started := self._started.pop(host, None)) is not None:
            return started
        words = ["exec", "--interactive", name, *bootstrap.loader(container.python)]
        program = bootstrap.program(CONNECT, arguments)
        return DockerCommand(self._docker(host, words), container, program, is_run=False)

    def reconnect(self, host: str) -> None:
        """See `launcher.transports.base.Connections.reconnect`."""
        self._hosts.reconnect(host)
