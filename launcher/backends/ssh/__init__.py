"""The backend for hosts that are reached over SSH, and for this machine. It is the default.

::

    options      ssh_config, hostfile and command line -> HostOptions
    keys         checks host keys, and logs in with the user's keys
    sockets      TCP connections and ProxyCommands
    connection   an authenticated connection: its socket, its packets
    connector    a socket or a gateway -> a connection
    program      a program of ours on a host: a channel of the connection
    joined       sockets of this machine, each joined to a channel
    relay        ports on the hosts that are forwarded to a socket of this machine
    forward      a port of this machine that is forwarded to a port of a host
    connections  the connections to all hosts of a launch, made in parallel
    allocation   the named hosts, or this machine

This package uses the public interface of paramiko: `paramiko.Transport` with a socket-like object and a
`Packetizer` of ours, both documented parameters, and `AgentSSH._connect`, as paramiko's own subclasses do. It
does not use fabric, whose ``Connection`` accepts any host key and whose ``run`` polls. Only
`launcher.environments.prepare` sends files with fabric. The host key is checked after the key exchange and
before the login.

paramiko starts a thread for each connection, which receives, and we add none. Sending never blocks: what the
kernel does not accept at once, that thread sends. Only forwarded ports need threads, two for each connection
through them.
"""

from __future__ import annotations

from launcher.backends.backend import Allocation, Backend, LaunchRequest
from launcher.backends.ssh.allocation import SshAllocation
from launcher.backends.ssh.rows import GROUP
from launcher.config.settings import Settings
from launcher.job import JobSpec


class SshBackend(Backend[Settings]):
    """The backend for hosts reached over SSH, and for this machine, whose agent is a fork of the launcher."""

    name = "ssh"
    group = GROUP

    def parse(self, settings: Settings, spec: JobSpec, *, hosts_named: bool) -> Settings:
        """Return the settings themselves, which are the options of this backend."""
        return settings

    def allocate(self, options: Settings, request: LaunchRequest) -> Allocation:
        """Return the hosts that the user names, or else this machine. Nothing is acquired."""
        return SshAllocation(request)


BACKEND = SshBackend()
