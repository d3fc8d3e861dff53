"""A backend by command lines, which is the base of the smallest one that docs/extending.md shows."""

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
    """A backend for the hosts that the user names, with a command line for each program of ours on a host."""

    def start_command(self, host: Host, options: OptionsT) -> Sequence[str]:
        """Return the command line that runs `bootstrap.COMMAND` on a host, in a shell.

        That is the same command for all our programs. It reads the program itself from its stdin.
        """
        raise NotImplementedError

    def allocate(self, options: OptionsT, request: LaunchRequest) -> Allocation:
        """Return the hosts that the user names, or else this machine. Nothing is acquired."""
        return _NamedHosts(lambda host: self.start_command(host, options), request)


class CommandAllocation(Allocation):
    """Hosts that are reached by command lines, for a backend that gets its hosts by itself."""

    #: The function that starts an agent. This one starts a daemon, to which many connections can be made. If
    #: the agent must be the main process of what the command makes, a container or a step, it is
    #: ``launcher.agent.main:serve``.
    agent_entry: ClassVar[str] = "launcher.agent.main:start"

    def start_command(self, host: Host) -> Sequence[str]:
        """Return the command line that runs `bootstrap.COMMAND` on a host, in a shell.

        That is the same command for all our programs. It reads the program itself from its stdin.
        """
        raise NotImplementedError

    def python(self, host: Host) -> str:
        """Return the Python that runs our programs on a host: a path, or a name to look up on the host."""
        return host.python or DEFAULT_PYTHON

    def connect(self, hosts: Sequence[Host]) -> AbstractContextManager[Connections]:
        """Return connections that connect only when a command line runs."""
        return nullcontext(CommandConnections(self, hosts))


class _NamedHosts(CommandAllocation):
    """The hosts that the user names, or else this machine.

    Args:
        start_command: Returns the command line that runs our programs on a host.
        request: The request of the launch, which contains the named hosts.
    """

    def __init__(self, start_command: Callable[[Host], Sequence[str]], request: LaunchRequest) -> None:
        """Store the hosts, and the function that returns the command line for one."""
        hosts = request.named_hosts or (this_machine(os.environ),)
        super().__init__(request, with_default_python(request, hosts))
        self._start_command = start_command

    def start_command(self, host: Host) -> Sequence[str]:
        """Return the command line that the backend makes for a host."""
        return self._start_command(host)


class CommandConnections(Connections):
    """The connections of hosts that are reached by command lines. Each program of ours has one of its own.

    Args:
        allocation: The allocation, which makes the command lines.
        hosts: The hosts.
    """

    def __init__(self, allocation: CommandAllocation, hosts: Iterable[Host]) -> None:
        """Prepare to reach these hosts. No command line runs before `run` is called."""
        self._allocation = allocation
        self._hosts = {host.name: host for host in hosts}
        # The modules are packed once now, and cached, not in the threads that start agents.
        bootstrap.packed(bootstrap.AGENT_MODULES)

    def run(self, host: str, entry: str, arguments: object) -> RemoteProgram:
        """Run the command line of a host, which starts a Python there, and send a program of ours to that.

        See `Connections.run`.
        """
        host_record = self._hosts[host]
        python = self._allocation.python(host_record)
        startup = bootstrap.startup(python, entry, arguments)
        return start_program(host, self._allocation.start_command(host_record), startup, python)

    def start_agent(self, host: str, arguments: AgentArguments) -> RemoteProgram:
        """Start the agent of a host by the function that its allocation names."""
        return self.run(host, self._allocation.agent_entry, arguments.as_json())
