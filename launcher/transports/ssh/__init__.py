"""Hosts reached over SSH.

::

    options      ssh_config, hostfile and command line -> HostOptions
    keys         checks host keys, and logs in with the user's keys
    sockets      TCP connections and ProxyCommands
    connection   a socket or a gateway -> an authenticated connection
    program      a program of ours on a host: a channel of the connection
    relay        ports on the hosts that are forwarded to a socket of this machine
    forward      a port of this machine that is forwarded to a port of a host
    hosts        the connections to all hosts of a launch, made in parallel

This package uses only the public interface of paramiko: `paramiko.Transport` with a socket-like object and a
`Packetizer` of ours, both documented parameters. It does not use fabric, whose ``Connection`` accepts any
host key and whose ``run`` polls. The host key is checked after the key exchange and before the login.

paramiko has a thread for each connection, which receives; we add none. To send never blocks: what the kernel
does not take at once, that thread sends. Only forwarded ports have threads, two for each connection through
them.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from launcher.config import values
from launcher.errors import HostsError
from launcher.job import Host
from launcher.record import Record
from launcher.scheduler.placement import place
from launcher.scheduler.plan import DEFAULT_PYTHON
from launcher.transports.machines import (
    Connecting,
    Launch,
    Machines,
    Planned,
    Programs,
    Request,
    Transport,
    is_here,
)

#: The shortest lease in seconds: the launcher pings every 2 s, and notices a lost connection after 5 s.
_LEAST_LEASE = 6
#: Largest value of ``--fanout``.
_MOST_AT_ONCE = 1024


class SshSettings(Record):
    """Options for connections over SSH; times in seconds."""

    #: The limit for each step of connecting: TCP, the handshake, each key of the login.
    connect_timeout: float = 10.0
    #: Attempts per host; a permanent failure is not tried again.
    attempts: int = 3
    #: Number of hosts that are connected to at the same time.
    fanout: int = 32
    #: Whether the key of an unknown host is added to known_hosts.
    accept_new: bool = False
    #: How long the tasks of a host run after its connection is lost.
    lease: float = 60.0


class SshTransport(Transport):
    """Hosts reached over SSH, and this machine, whose agent is a fork of the launcher. It is the default."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Transport.add_options`."""
        group = parser.add_argument_group("connections to other machines")
        group.add_argument(
            "--lease", type=values.argument(_lease), metavar="S",
            help="time tasks run without a connection (default: 60)",
        )  # fmt: skip
        add_connecting(group)

    def settings(self, args: argparse.Namespace, section: Any, folder: str) -> SshSettings:
        """See `Transport.settings`."""
        return ssh_settings(args)

    def plan(self, request: Request) -> Planned:
        """See `Transport.plan`. Other machines use their ``python3``, unless the user names a Python."""
        local = {host.name for host in request.hosts if is_here(host)}

        def named(host: Host) -> bool:
            return bool(host.name in local or host.python or host.venv or request.python_given)

        hosts = (host if named(host) else host._replace(python=DEFAULT_PYTHON) for host in request.hosts)
        return Planned(request.job, place(request.job, tuple(hosts)), frozenset(local))

    def hosts(self, launch: Launch) -> Machines:
        """See `Transport.hosts`."""
        return machines(launch)


TRANSPORT = SshTransport()


def machines(launch: Launch, agents: bool = True) -> Machines:
    """The machines of a launch: this one, and others over SSH; see `Machines`."""
    settings: SshSettings = launch.request.settings["ssh"]
    return Machines(
        launch, lambda remote: _connections(remote, settings, launch.notice), settings.lease, agents
    )


def _connections(hosts: Sequence[Host], settings: SshSettings, notice: Callable[[str], None]) -> Connecting:
    """The connections of these hosts, not connected yet."""
    from launcher.transports.ssh.hosts import SshHosts

    return SshHosts(hosts, settings, notice)


@contextmanager
def commands(
    hosts: Sequence[Host], settings: SshSettings, notice: Callable[[str], None]
) -> Iterator[tuple[Programs, Mapping[str, str]]]:
    """Connections for remote commands without a job: on this machine by processes, on others over SSH.

    Yields:
        An object that runs the commands; and by name, the reasons why hosts can't be reached.
    """
    remote = [host for host in hosts if not is_here(host)]
    if not remote:
        yield Programs(hosts, None), {}
        return
    unreached = {}
    with _connections(remote, settings, notice) as connections:
        try:
            connections.connect()
        except HostsError as error:
            unreached = {host: why for host, _, why in (fault.partition(": ") for fault in error.faults)}
        yield Programs(filter(is_here, hosts), connections), unreached


def add_connecting(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options for connecting to hosts, the same for every command; `ssh_settings` reads them."""
    parser.add_argument(
        "--accept-new-host-keys", action="store_true", help="add keys of unknown hosts to known_hosts"
    )
    parser.add_argument(
        "--connect-timeout", type=values.argument(values.positive_duration), metavar="S",
        help="limit for each step of connecting (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--fanout", type=values.argument(values.whole(1, _MOST_AT_ONCE)), metavar="N",
        help="hosts to connect to at the same time (default: 32)",
    )  # fmt: skip


def ssh_settings(args: argparse.Namespace) -> SshSettings:
    """The settings of these options."""
    given = {name: getattr(args, name, None) for name in ("connect_timeout", "fanout", "lease")}
    made = SshSettings(accept_new=args.accept_new_host_keys)
    return made._replace(**{name: value for name, value in given.items() if value is not None})


def _lease(text: str) -> float:
    """Seconds of a lease; a shorter one would end before the launcher notices a lost connection."""
    seconds = values.positive_duration(text)
    if seconds < _LEAST_LEASE:
        raise ValueError(f"expected {_LEAST_LEASE} seconds or more")
    return seconds
