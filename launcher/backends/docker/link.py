"""Connections to the agents in containers: their start, their bytes, and why they ended.

::

    here       orchestrator ══ link ══ docker run -i ══ engine ══ agent (main process) ──> task, task, ...
    elsewhere  orchestrator ══ link ══ remote command ══ docker run -i ══ agent (main process) ──> task, ...
                                       after a break: docker exec -i ═══╝

The first connection to the agent is the stdin and stdout of its ``docker run``. Here no network can break
it: end-of-file on the container's stdin ends the agent, and with it the container. Elsewhere the agent
listens: when that connection breaks, `launcher.agent.main.connect` in the container connects to it.

So the agents of containers here have no lease: they wait for a launcher or an engine that is suspended.
Elsewhere the lease stops the tasks of a killed launcher, even if the engine does not answer.
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

#: The agent in a container.
_SERVE_ENTRY = "launcher.agent.main:serve"
#: Seconds for the exit status of a command that has closed its output.
_STATUS_TIMEOUT_SECONDS = 5.0
#: Seconds for all containers to start.
_START_TIMEOUT_SECONDS = 300.0
#: Seconds until more of a program is sent: no event says that a container takes it now.
_POLL_SECONDS = 0.05
#: What ``docker exec`` prints about a container that has ended.
_GONE_MESSAGE = re.compile(r"no such container|is not running", re.I)
#: Exit statuses of ``docker run`` where no container started: refused; not runnable; not found.
_REFUSED_STATUS = 125
_NOT_STARTED_STATUSES = (125, 126, 127)
#: What the command says if the engine or the container dies with data unread, as Go words it.
_CUT_OFF_MESSAGE = re.compile(r"^(read|write) (unix|tcp) \S*->\S+: ")


class ContainerProgram(RemoteProgram):
    """The agent in a container, over the stdin and stdout of a ``docker run`` or ``docker exec``.

    The engine may take long until the container reads, so the agent's modules are sent bit by bit.

    Args:
        command: The ``docker`` command. What it prints is the output of the container.
        container: The container in which the agent runs.
        program: See `launcher.backends.bootstrap.program`.
        is_run: Whether the command is ``docker run``, which exits with the container.
        is_only: Whether no other connection to the agent can follow.
    """

    python_advice = "--python names another Python of the image"

    def __init__(
        self,
        command: Pipe,
        container: Container,
        program: bytes,
        *,
        is_run: bool = True,
        is_only: bool = False,
    ) -> None:
        python = f"{container.python} of the image {container.image}"
        super().__init__(container.host, command, python=python, starter=python)
        self._container, self._is_run, self._is_only = container, is_run, is_only
        self._unsent = program

    def receive_start(self) -> bool:
        """See `RemoteProgram.receive_start`; sends more of the program first."""
        with suppress(TransportError):  # it has ended: reading shows why
            if self._unsent:
                self._unsent = self._unsent[self._pipe.send(self._unsent) :]
        return super().receive_start()

    def await_agent(self) -> None:
        """Wait until the agent is up; `close` by another thread ends the wait.

        Raises:
            TransportError: there will be no agent.
        """
        until = time.monotonic() + _START_TIMEOUT_SECONDS
        while not self.receive_start():
            if self._ended_early and (error := self.start_error()):
                raise error
            if time.monotonic() > until:
                raise TransportError(f"not started by the engine within {_START_TIMEOUT_SECONDS:.0f}s")
            await_readable(self, _POLL_SECONDS)

    def _end(self) -> str:
        """How the container ended; empty: all is well, or the command was killed and does not know."""
        code = self._pipe.wait(_STATUS_TIMEOUT_SECONDS)
        if code is None:
            return "" if self.is_ready else "its `docker` command was killed"
        return end_fault(code, self._container, self.is_ready, self._pipe.stderr())

    def start_error(self) -> TransportError | None:
        """See `RemoteProgram.start_error`: why the container has ended."""
        if not self._is_run and _GONE_MESSAGE.search(self._pipe.stderr()):
            return HostGoneError("its container exited while the connection was down")
        if not self.is_ready:
            return TransportError(self._end() or "its container exited at once")
        why = self._end() if self._is_run else ""
        if self._is_only:
            why = why or "its agent exited"
        return HostGoneError(why) if why else None

    def exit_reason(self, said: str) -> str:
        """See `RemoteProgram.exit_reason`: how the container ended says more than how its agent did."""
        why = self._end() if self._is_only else ""
        return said if not why or why.startswith("the agent ") else why


class ContainerConnections(Connections):
    """The container of a host, which is started at once, and the connections to the agent in it.

    Args:
        container: The container.
        name: Its name at the engine.
        argv: The arguments of ``docker`` that start it.
        engine: The engine.
        programs: Run programs on the host. None: it is the engine of this machine.
        lease: Seconds that its tasks outlive a lost connection. They do not outlive the connection to an
            engine of this machine, however long it is silent before.

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
        self._container, self._name, self._engine, self._programs = container, name, engine, programs
        lease = math.inf if programs is None else lease
        #: Of the link to its agent.
        self.arguments = AgentArguments.new(container.host, lease)
        served = replace(self.arguments, lease=lease_there(lease))
        program = bootstrap.program(_SERVE_ENTRY, served.as_json())
        command = engine.start(programs, argv)
        #: The first connection to its agent, and whether the link has it.
        self.first = ContainerProgram(command, container, program, is_only=programs is None)
        self.taken = False

    def start_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """See `Connections.start_agent`: it runs, or has been started before and has not answered yet."""
        if self.taken:
            return self.connect_agent(host, arguments)
        self.taken = True
        return self.first

    def connect_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """See `Connections.connect_agent`."""
        argv = ["exec", "--interactive", self._name, *bootstrap.loader(self._container.python)]
        program = bootstrap.program(CONNECT_ENTRY, arguments.as_json())
        command = self._engine.start(self._programs, argv)
        return ContainerProgram(command, self._container, program, is_run=False)

    def kill_agent(self, host: str, agent_id: int) -> RemoteProgram:
        """See `Connections.kill_agent`: nothing in a container outlives it."""
        command = self._engine.start(self._programs, ["rm", "--force", "--volumes", self._name])
        return RemoteProgram(host, command, is_ready=True)

    def reconnect(self, host: str) -> None:
        """See `Connections.reconnect`."""
        if self._programs is not None:
            self._programs.reconnect(host)


# ---------------------------------------------------------------------- ends


def end_fault(code: int, container: Container, began: bool, stderr: str) -> str:
    """How a container ended, from its ``docker run``; empty if all is well.

    Args:
        code: exit status of the command; negative: killed by that signal.
        container: the container.
        began: whether its agent was up.
        stderr: of the command and the container.
    """
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING: ")]
    last = last_line("\n".join(lines))
    if code < 0:
        return f"its `docker run` was killed by {signal_name(-code)}"
    if code in _NOT_STARTED_STATUSES and began:
        return f"its Docker engine has gone: was it stopped? ({last})"
    if code == _REFUSED_STATUS or (code in _NOT_STARTED_STATUSES and "docker: " in stderr):
        return explain(Result(code, err=stderr).fault, container.image, container.python)
    if code == 0 and began and not lines:
        return ""
    if code - 128 in signal.valid_signals():
        limit = ""
        if container.memory is not None and code - 128 == signal.SIGKILL:
            size = byte_size(container.memory, binary=True)
            limit = f" (its memory limit is {size}; a larger `--memory` gives it more)"
        return f"its container was killed by {signal_name(code - 128)}{limit}"
    if began and _CUT_OFF_MESSAGE.match(last):
        return f"the agent was cut off: its Docker engine has gone, or its container ({last})"
    if began:
        return f"the agent exited: {last}" if last else "the agent was killed"
    if "exec format error" in last:
        return explain(last, container.image, container.python)
    text = f"{container.python} of the image {container.image} does not run the agent, and exited with {code}"
    return f"{text}: {last}" if last else text
