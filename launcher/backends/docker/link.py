"""Connections to the agents in containers: how they start, what carries their bytes, and why they ended.

::

    here       orchestrator ══ link ══ docker run -i ══ engine ══ agent (main process) ──> task, task, ...
    elsewhere  orchestrator ══ link ══ remote command ══ docker run -i ══ agent (main process) ──> task, ...
                                       after a break: docker exec -i ═══╝

The first connection to an agent is the stdin and stdout of its ``docker run``. On this machine no network can
break it: the end of the container's stdin ends the agent, and with it the container. On other hosts the agent
listens. When its first connection breaks, `launcher.agent.main.connect` in the container connects to it.

So the agents of containers on this machine have no lease, and wait for a launcher or an engine that is
suspended. On other hosts the lease stops the tasks of a killed launcher, even if the engine does not answer.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from launcher.backends import bootstrap
from launcher.backends.connections import CONNECT_ENTRY, AgentArguments, Connections, lease_there
from launcher.backends.docker.container import Container
from launcher.backends.docker.engine import Engine, Result, explain
from launcher.backends.fleet import HostPrograms
from launcher.backends.programs import Pipe, RemoteProgram
from launcher.common.errors import HostGoneError, TransportError
from launcher.common.record import replace
from launcher.common.text import byte_size, last_line, signal_name
from launcher.event_loop import await_readable

#: The function that becomes the agent in a container.
_SERVE_ENTRY = "launcher.agent.main:serve"
#: The time for a command that has closed its output to exit.
_STATUS_TIMEOUT_SECONDS = 5.0
#: The time for all containers to start.
_START_TIMEOUT_SECONDS = 300.0
#: The pause before more of a program is sent, because no event says that a container accepts more.
_POLL_SECONDS = 0.05
#: What ``docker exec`` prints about a container that has ended.
_GONE_MESSAGE = re.compile(r"no such container|is not running", re.I)
#: The exit status of ``docker run`` if the engine refused to start a container.
_REFUSED_STATUS = 125
#: The exit statuses of ``docker run`` if no container started: refused, not runnable, not found.
_NOT_STARTED_STATUSES = (125, 126, 127)
#: What the command prints, in Go's words, if the engine or the container dies before all data was read.
_CUT_OFF_MESSAGE = re.compile(r"^(read|write) (unix|tcp) \S*->\S+: ")


class ContainerProgram(RemoteProgram):
    """The agent in a container, over the stdin and stdout of a ``docker run`` or ``docker exec``.

    It may take long until the container reads, so the agent's modules are sent bit by bit.

    Args:
        command: The ``docker`` command. What it prints is the output of the container.
        container: The container in which the agent runs.
        program: The result of `launcher.backends.bootstrap.program`.
        ends_with_container: Whether the command is the ``docker run``, which exits when the container does.
            Otherwise it is a ``docker exec``, which may break although the container runs.
        is_only_connection: Whether the agent cannot be connected to again, so it exits when this
            connection breaks.
    """

    python_advice = "--python names another Python of the image"

    def __init__(
        self,
        command: Pipe,
        container: Container,
        program: bytes,
        *,
        ends_with_container: bool = True,
        is_only_connection: bool = False,
    ) -> None:
        """Use a ``docker`` command that has been started, and to which `program` must be sent."""
        python = f"{container.python} of the image {container.image}"
        # No login shell starts the Python, so the Python itself is what messages name as the starter.
        super().__init__(container.host, command, python=python, starter=python)
        self._container = container
        self._ends_with_container, self._is_only_connection = ends_with_container, is_only_connection
        #: The bytes of the program that the container has not accepted yet.
        self._unsent = program

    def receive_start(self) -> bool:
        """Send more of the program, then look for the start mark, which says that the program runs."""
        with suppress(TransportError):  # The command has ended, and reading shows why.
            if self._unsent:
                self._unsent = self._unsent[self._pipe.send(self._unsent) :]
        return super().receive_start()

    def await_agent(self) -> None:
        """Wait until the agent runs. If another thread calls `close`, the wait ends.

        Raises:
            TransportError: The agent will never run.
        """
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while not self.receive_start():
            if self._ended_before_start and (error := self.start_error()):
                raise error
            if time.monotonic() > deadline:
                raise TransportError(f"not started by the engine within {_START_TIMEOUT_SECONDS:.0f}s")
            await_readable(self, _POLL_SECONDS)

    def _end_reason(self) -> str:
        """Return how the container ended, for messages.

        It is empty if the container ended as it should, or if the agent ran and nobody knows how its command
        ended, as when the command itself was killed on a host.
        """
        code = self._pipe.wait(_STATUS_TIMEOUT_SECONDS)
        if code is None:
            return "" if self.is_ready else "its `docker` command was killed"
        return end_fault(code, self._container, self.is_ready, self._pipe.stderr())

    def start_error(self) -> TransportError | None:
        """Return why the agent never ran, or why its container has ended.

        Returns:
            The error, which is a `HostGoneError` if the container is gone. None if only the connection broke.
        """
        if not self._ends_with_container and _GONE_MESSAGE.search(self._pipe.stderr()):
            return HostGoneError("its container exited while the connection was down")
        if not self.is_ready:
            return TransportError(self._end_reason() or "its container exited at once")
        # A docker exec may break although the container runs.
        reason = self._end_reason() if self._ends_with_container else ""
        if self._is_only_connection:  # The agent cannot live without it.
            reason = reason or "its agent exited"
        return HostGoneError(reason) if reason else None

    def exit_reason(self, said: str) -> str:
        """Return how the container ended, if that says more than the reason that the agent itself sent.

        Args:
            said: The reason that the agent itself sent.
        """
        # An agent that can be connected to again may outlive this command, whose end then says nothing about
        # the container.
        reason = self._end_reason() if self._is_only_connection else ""
        # The text begins with "the agent" (see `end_fault`) if it tells only that the agent exited, was
        # killed or was cut off. The agent itself knows better why. Other texts are about the container or
        # what runs it, of which the agent knows nothing.
        return said if not reason or reason.startswith("the agent ") else reason


class ContainerConnections(Connections):
    """The container of a host, which is started at once, and the connections to the agent in it.

    Args:
        container: The container.
        name: The name of the container at the engine.
        argv: The arguments of ``docker`` that start the container.
        engine: The engine.
        programs: What runs programs on the host. None for the engine of this machine.
        lease: The seconds for which tasks live on after a lost connection. With the engine of this machine,
            tasks stop when the connection breaks, and have no time limit while it is only silent.

    Raises:
        TransportError: The command cannot be started.
    """

    def __init__(
        self,
        container: Container,
        name: str,
        argv: Sequence[str],
        engine: Engine,
        programs: HostPrograms | None,
        lease: float,
    ) -> None:
        """Start the container by a ``docker run``, which is the first connection to its agent."""
        self._container, self._name, self._engine, self._programs = container, name, engine, programs
        lease = math.inf if programs is None else lease
        #: The arguments of the link to its agent.
        self.arguments = AgentArguments.new(container.host, lease)
        # The agent gives up before the launcher does.
        agent_arguments = replace(self.arguments, lease=lease_there(lease))
        program = bootstrap.program(_SERVE_ENTRY, agent_arguments.as_json())
        command = engine.start(programs, argv)
        #: The first connection to its agent.
        self.first = ContainerProgram(command, container, program, is_only_connection=programs is None)
        #: Whether the link uses the first connection already.
        self.first_is_used = False

    def start_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """Return the first connection to the agent, which started with the container.

        If that connection was returned before, connect to the agent instead.
        """
        if self.first_is_used:
            return self.connect_agent(host, arguments)
        self.first_is_used = True
        return self.first

    def connect_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """Connect to the agent by another process in its container, which ``docker exec`` starts."""
        argv = ["exec", "--interactive", self._name, *bootstrap.loader_command(self._container.python)]
        program = bootstrap.program(CONNECT_ENTRY, arguments.as_json())
        command = self._engine.start(self._programs, argv)
        return ContainerProgram(command, self._container, program, ends_with_container=False)

    def kill_agent(self, host: str, agent_id: int) -> RemoteProgram:
        """Kill the agent by removing its container, because nothing in it outlives it."""
        command = self._engine.start(self._programs, ["rm", "--force", "--volumes", self._name])
        return RemoteProgram(host, command, is_ready=True)

    def reconnect(self, host: str) -> None:
        """Connect to the machine of the engine again, if it is another machine."""
        if self._programs is not None:
            self._programs.reconnect(host)


# ---------------------------------------------------------------------- ends


def end_fault(code: int, container: Container, has_run: bool, stderr: str) -> str:
    """Return how a container ended, from its ``docker run``. Empty if it ended as it should.

    The command can end in these ways, which are told apart in this order:

    - The command itself was killed. The container may run on.
    - Its agent ran, and then the engine ended.
    - The engine did not start the container: the image, an option or the Python is wrong.
    - It ended as it should.
    - The container was killed by a signal, such as SIGKILL for its memory limit.
    - Its agent ran, and then exited or was cut off.
    - The container started, but its Python did not run the agent.

    Args:
        code: The exit status of the command, negative if a signal killed it. It is that of the container, or
            one that docker itself chooses.
        container: The container.
        has_run: Whether its agent ever ran.
        stderr: What the command and the container wrote to stderr.
    """
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING: ")]
    last = last_line("\n".join(lines))
    if code < 0:
        return f"its `docker run` was killed by {signal_name(-code)}"
    # The container did start, so this status only says that the command lost its engine.
    if code in _NOT_STARTED_STATUSES and has_run:
        return f"its Docker engine has gone: was it stopped? ({last})"
    # A shell in the container exits with 126 and 127, too, but without a message of docker.
    if code == _REFUSED_STATUS or (code in _NOT_STARTED_STATUSES and "docker: " in stderr):
        return explain(Result(code, err=stderr).fault, container.image, container.python)
    if code == 0 and has_run and not lines:  # An agent that fails says so on stderr.
        return ""
    if code - 128 in signal.valid_signals():  # docker reports a signal as shells do.
        limit = ""
        # The kernel kills a process by SIGKILL when its memory runs out.
        if container.memory is not None and code - 128 == signal.SIGKILL:
            size = byte_size(container.memory, binary=True)
            limit = f" (its memory limit is {size}; a larger `--memory` gives it more)"
        return f"its container was killed by {signal_name(code - 128)}{limit}"
    if has_run and _CUT_OFF_MESSAGE.match(last):
        return f"the agent was cut off: its Docker engine has gone, or its container ({last})"
    if has_run:
        return f"the agent exited: {last}" if last else "the agent was killed"
    if "exec format error" in last:  # The image is for another CPU, which `explain` says.
        return explain(last, container.image, container.python)
    how = f"exited with {code}"
    if _CUT_OFF_MESSAGE.match(last):  # The status is that of the command, which could not send the program.
        how, last = "exited early", ""
    text = f"{container.python} of the image {container.image} does not run the agent, and {how}"
    return f"{text}: {last}" if last else text
