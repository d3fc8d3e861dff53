"""A transport by two command lines: the smallest one that docs/extending.md shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from launcher.backends import bootstrap
from launcher.backends.backend import Transport
from launcher.backends.connections import Connected
from launcher.backends.launch_request import Reaching
from launcher.backends.link import START
from launcher.backends.programs import CommandPipe
from launcher.job import Host
from launcher.scheduler.plan import DEFAULT_PYTHON


class CommandTransport(Transport):
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
        self, hosts: Sequence[Host], settings: Any, reaching: Reaching, notice: Callable[[str], None]
    ) -> AbstractContextManager[Connected]:
        """See `Transport.connections`: each command line connects by itself."""
        return nullcontext(Connected(CommandConnections(self, hosts, settings)))


class CommandConnections:
    """A command line for each program on a host; see `launcher.backends.connections.Connections`.

    Args:
        transport: makes the command lines.
        hosts: the hosts.
        settings: of the transport.
    """

    def __init__(self, transport: CommandTransport, hosts: Iterable[Host], settings: Any) -> None:
        self._transport, self._settings = transport, settings
        self._hosts = {host.name: host for host in hosts}
        bootstrap.packed(bootstrap.AGENT_MODULES)  # once for all hosts

    def run(self, host: str, entry: str, arguments: object) -> CommandPipe:
        """See `Commands.run`."""
        transport, record = self._transport, self._hosts[host]
        python = transport.python(record, self._settings)
        command, entry = (transport.start, transport.agent) if entry == START else (transport.connect, entry)
        startup = bootstrap.startup(python, entry, arguments)
        return CommandPipe(host, command(record, self._settings), startup, python)

    def reconnect(self, host: str) -> None:
        """Do nothing: the next command line makes a new connection."""
