"""Programs and files on the hosts: over the connections of a launch, or here.

fabric by itself accepts any host key and logs in with any key. So `SshConnections` connects, as for a launch,
and fabric sends files through these connections.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import fabric
from paramiko import SFTPClient, SSHConfig, SSHException

from launcher.errors import TransportError
from launcher.job import Host
from launcher.transports.base import RemoteCommand
from launcher.transports.command import run_here
from launcher.transports.machines import is_here
from launcher.transports.ssh import SshSettings
from launcher.transports.ssh.hosts import SshConnections
from launcher.transports.ssh.options import reason_of

_ENTRY = "launcher.environments.remote:main"
#: Seconds for the server of a host to take a piece of a file.
_ANSWER = 120.0


class Hosts:
    """The hosts. A context: its end ends all connections.

    Args:
        hosts: this machine, and others.
        settings: of the connections.
        notice: gets lines for the user.
    """

    def __init__(self, hosts: Sequence[Host], settings: SshSettings, notice: Callable[[str], None]) -> None:
        self._made = SshConnections([host for host in hosts if not is_here(host)], settings, notice)
        self._failed: dict[str, str] = {}

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self._made.close()

    def connect(self) -> None:
        """Connect to all hosts; `start` reports those that can't be reached."""
        self._failed = self._made.connect()

    def start(self, host: Host, arguments: object) -> RemoteCommand:
        """Start `launcher.environments.remote` on a host.

        Raises:
            TransportError: the host can't be reached.
        """
        if host.name in self._failed:
            raise TransportError(self._failed[host.name])
        return (run_here if is_here(host) else self._made.run)(host.name, _ENTRY, arguments)

    def put(self, host: Host, paths: Sequence[str], folder: str) -> None:
        """Copy files to a folder of a host.

        Raises:
            TransportError: that fails.
        """
        try:
            if is_here(host):
                for path in paths:
                    shutil.copy(path, folder)
                return
            transport = self._made.connection(host.name).transport
            channel = transport.open_session(timeout=_ANSWER)
            channel.settimeout(_ANSWER)
            channel.invoke_subsystem("sftp")
            connection = fabric.Connection(host.name, config=fabric.Config(ssh_config=SSHConfig(), lazy=True))
            with SFTPClient(channel) as sftp:
                connection.transport, connection.client = transport, SimpleNamespace(open_sftp=lambda: sftp)
                for path in paths:
                    connection.put(path, os.path.join(folder, os.path.basename(path)))
        except (SSHException, EOFError, OSError) as error:
            raise TransportError(f"wheels can't be sent: {reason_of(error)}") from error
