"""A transport by two command lines: the smallest one that docs/extending.md shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from launcher.backends import bootstrap
from launcher.backends.backend import Backend
from launcher.backends.connections import AgentArguments, Connections
from launcher.backends.launch_request import ConnectSettings
from launcher.backends.programs import RemoteProgram, start_program
from launcher.job import Host
from launcher.scheduler.plan import DEFAULT_PYTHON


class CommandBackend(Backend):
    """A transport by two command lines: one starts our program on a host, one connects to it again."""

    #: The program that starts an agent: a daemon that connections come to and go from. An agent that must be
    #: the main process of what `start` makes, a container or a step, is ``launcher.agent.main:serve``.
    agent = "launcher.agent.main:start"

    def start(self, host: Host, settings: Any) -> Sequence[str]:
        """The command line that starts the agent of a host: it runs `bootstrap.COMMAND` there in a shell."""
        raise NotImplementedError

    def connect(self, host: Host, settings: Any) -> Sequence[str]:
        """The command line that connects to a running agent."""
        return self.start(host, settings)

    def python(self, host: Host, settings: Any) -> str:
        """The Python that runs our programs on a host: a path, or a name to look up there."""
        return host.python or DEFAULT_PYTHON

    def connections(
        self,
        hosts: Sequence[Host],
        settings: Any,
        connect_settings: ConnectSettings,
    ) -> AbstractContextManager[Connections]:
        """See `Backend.connections`: each command line connects by itself."""
        return nullcontext(CommandConnections(self, hosts, settings))


class CommandConnections(Connections):
    """A command line for each program on a host, which makes a connection of its own.

    Args:
        backend: makes the command lines.
        hosts: the hosts.
        settings: of the transport.
    """

    def __init__(self, backend: CommandBackend, hosts: Iterable[Host], settings: Any) -> None:
        self._transport, self._settings = backend, settings
        self._hosts = {host.name: host for host in hosts}
        bootstrap.packed(bootstrap.AGENT_MODULES)  # once for all hosts

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """See `ProgramRunner.run`."""
        return self._run(host, self._transport.connect, entry, arguments)

    def start_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """See `Connections.start_agent`."""
        return self._run(host, self._transport.start, self._transport.agent, arguments.as_json())

    def _run(
        self, host: str, command: Callable[[Host, Any], Sequence[str]], entry: str, arguments: object
    ) -> RemoteProgram:
        python = self._transport.python(self._hosts[host], self._settings)
        startup = bootstrap.startup(python, entry, arguments)
        return start_program(host, command(self._hosts[host], self._settings), startup, python)
