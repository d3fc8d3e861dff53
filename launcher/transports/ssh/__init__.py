"""Hosts reached over SSH.

::

    options      what ssh_config and the command line say about a host -> HostOptions
    keys         is this the key of the host, which of our keys does it accept?
    connection   TCP, gateway or ProxyCommand -> an authenticated connection
    program      a program of ours on a host: its bytes, its stderr, its exit status
    relay        ports on the hosts that lead to a socket of this machine
    hosts        all hosts of a launch, connected in parallel

paramiko is used through its public interface only: `paramiko.Transport` with a socket-like object and a
`Packetizer` of ours, both documented parameters. fabric is not imported: its ``Connection`` accepts any host
key, its ``run`` polls, and it reads the same ssh_config through paramiko. The host key is checked after the
key exchange and before any login.

Each program has one thread, which moves bytes between its channel and a socketpair; the caller sees only the
socket. Nothing of ours sends in paramiko's own thread: while keys are renewed, that thread must receive.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from launcher.config import values
from launcher.errors import HostsError
from launcher.job import Host
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

#: Seconds: hosts are pinged every two, and a lost connection is noticed after five.
_LEAST_LEASE = 6
#: Hosts that may be connected to at a time.
_MOST_AT_ONCE = 1024


class SshSettings(NamedTuple):
    """Options of a launch about connecting; times in seconds."""

    #: The limit of each step of a connection: TCP, the handshake, each key of the login.
    connect_timeout: float = 10.0
    #: Attempts per host; only failures that may pass are tried again.
    attempts: int = 3
    #: How many hosts are connected to at the same time.
    fanout: int = 32
    #: Whether the key of a host that is not in known_hosts is added to it.
    accept_new: bool = False
    #: How long the tasks of a host run on after its connection is lost.
    lease: float = 60.0


class SshTransport(Transport):
    """Hosts reached over SSH, and this machine, whose agent is a fork of the launcher. It is the default."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Transport.add_options`."""
        group = parser.add_argument_group("connections to other machines")
        group.add_argument(
            "--lease", type=values.argument(_lease), metavar="S",
            help=f"how long tasks outlive a lost connection, at least {_LEAST_LEASE} s (default: 60)",
        )  # fmt: skip
        add_connecting(group)

    def settings(self, args: argparse.Namespace, section: Any, folder: str) -> SshSettings:
        """See `Transport.settings`."""
        return ssh_settings(args)

    def plan(self, request: Request) -> Planned:
        """See `Transport.plan`. Other machines use their ``python3``, unless a Python is named for them."""
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
    """The machines of a launch, others than this one by SSH; see `Machines`."""
    settings: SshSettings = launch.request.settings["ssh"]
    return Machines(
        launch, lambda remote: _connections(remote, settings, launch.notice), settings.lease, agents
    )


def _connections(hosts: Sequence[Host], settings: SshSettings, notice: Callable[[str], None]) -> Connecting:
    """Connections to make by `SshHosts`.

    paramiko imports invoke, with asyncio and unittest, for the commands of ``Match exec``: a third of the
    time that its import takes. ``ssh -G`` runs these commands.
    """
    modules: dict[str, Any] = sys.modules
    hidden = not modules.keys() & {"invoke", "paramiko"}
    if hidden:
        modules["invoke"] = None
    try:
        from launcher.transports.ssh.hosts import SshHosts
    finally:
        if hidden:
            del modules["invoke"]
    return SshHosts(hosts, settings, notice)


@contextmanager
def commands(
    hosts: Sequence[Host], settings: SshSettings, notice: Callable[[str], None]
) -> Iterator[tuple[Programs, Mapping[str, str]]]:
    """Remote commands without a job: on this machine directly, on others over SSH.

    Yields:
        What runs them; and why hosts can't be reached, by name.
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
    """Add the options of connecting to hosts, the same for every command; `ssh_settings` reads them."""
    parser.add_argument(
        "--accept-new-host-keys", action="store_true", help="trust hosts that were never connected to before"
    )
    parser.add_argument(
        "--connect-timeout", type=values.argument(values.positive_duration), metavar="S",
        help="for each step of connecting to a host (default: 10)",
    )  # fmt: skip
    parser.add_argument(
        "--fanout", type=values.argument(values.whole(1, _MOST_AT_ONCE)), metavar="N",
        help="hosts to connect to at the same time (default: 32)",
    )  # fmt: skip


def ssh_settings(args: argparse.Namespace) -> SshSettings:
    """The settings that these options ask for."""
    given = {name: getattr(args, name, None) for name in ("connect_timeout", "fanout", "lease")}
    made = SshSettings(accept_new=args.accept_new_host_keys)
    return made._replace(**{name: value for name, value in given.items() if value is not None})


def _lease(text: str) -> float:
    """Seconds; a shorter lease would be over before a lost connection is noticed."""
    seconds = values.positive_duration(text)
    if seconds < _LEAST_LEASE:
        raise ValueError(f"expected {_LEAST_LEASE} seconds or more")
    return seconds
