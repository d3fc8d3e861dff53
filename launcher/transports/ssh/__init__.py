"""Hosts reached over SSH.

::

    options      what ssh_config and the command line say about a host -> HostOptions
    known_hosts  is this the key of the host?
    login        public keys from files and from the agent
    connection   TCP, gateway or ProxyCommand -> an authenticated connection that runs programs
    program      a program of ours on a host: its bytes, its stderr, its exit status
    relay        ports on the hosts that lead to a socket of this machine
    hosts        all hosts of a launch, connected in parallel
    failures     one line for each way to fail: what, where, what to try

paramiko is used through its public interface only: `paramiko.Transport` with a socket-like object and a
`Packetizer` of ours, both documented parameters. fabric is not imported: its ``Connection`` accepts any host
key, its ``run`` polls, and it reads the same ssh_config through paramiko. The host key is checked after the
key exchange and before any login.

Each program has one thread, which moves bytes between its channel and a socketpair; the caller sees only the
socket. Nothing of ours sends in paramiko's own thread: while keys are renewed, that thread must receive.
"""

from __future__ import annotations

from typing import NamedTuple


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
