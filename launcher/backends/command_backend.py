"""A backend by command lines: the smallest one that docs/extending.md shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from launcher.backends import bootstrap
from launcher.backends.backend import Allocation, Backend, LaunchRequest, OptionsT, with_default_python
from launcher.backends.connections import AgentArguments, Connections
from launcher.backends.fleet import this_machine
from launcher.backends.programs import RemoteProgram, start_program
from launcher.job import Host
from launcher.scheduler.plan import DEFAULT_PYTHON


class CommandBackend(Backend[OptionsT]):
    """The hosts that the user names, reached by a command line for each program of ours on a host."""

    def start_command(self, host: Host, options: OptionsT) -> Sequence[str]:
        """Return the command line that runs `bootstrap.COMMAND` on a host, in a shell."""
        raise NotImplementedError

    def allocate(self, options: OptionsT, request: LaunchRequest) -> AbstractContextManager[Allocation]:
        """See `Backend.allocate`."""
        return _NamedHosts(lambda host: self.start_command(host, options), request)


class CommandAllocation(Allocation):
    """Hosts that are reached by command lines; for a backend that gets its hosts by itself."""

    #: The program that starts an agent: a daemon that connections come to and go from. An agent that must be
    #: the main process of what the command makes, a container or a step, is ``launcher.agent.main:serve``.
    agent_entry: ClassVar[str] = "launcher.agent.main:start"

    def start_command(self, host: Host) -> Sequence[str]:
        """See `CommandBackend.start_command`."""
        raise NotImplementedError

    def python(self, host: Host) -> str:
        """Return the Python that runs our programs on a host: a path, or a name to look up there."""
        return host.python or DEFAULT_PYTHON

    def connect(self, hosts: Sequence[Host]) -> AbstractContextManager[Connections]:
        """See `Allocation.connect`: each command line connects by itself."""
        return nullcontext(CommandConnections(self, hosts))


class _NamedHosts(CommandAllocation):
    """The hosts that the user names, else this machine."""

    def __init__(self, start_command: Callable[[Host], Sequence[str]], request: LaunchRequest) -> None:
        hosts = request.named_hosts or (this_machine(os.environ),)
        super().__init__(request, with_default_python(request, hosts))
        self._start_command = start_command

    def start_command(self, host: Host) -> Sequence[str]:
        """See `CommandBackend.start_command`."""
        return self._start_command(host)


class CommandConnections(Connections):
    """A command line for each program on a host, which makes a connection of its own.

    Args:
        allocation: Makes the command lines.
        hosts: The hosts.
    """

    def __init__(self, allocation: CommandAllocation, hosts: Iterable[Host]) -> None:
        self._allocation = allocation
        self._hosts = {host.name: host for host in hosts}
        bootstrap.packed(bootstrap.AGENT_MODULES)  # The result is cached for all hosts.

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """See `ProgramRunner.run`."""
        record = self._hosts[host]
        python = self._allocation.python(record)
        startup = bootstrap.startup(python, entry, arguments)
        return start_program(host, self._allocation.start_command(record), startup, python)

    def start_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """See `Connections.start_agent`."""
        return self.run(host, self._allocation.agent_entry, arguments.as_json())
