"""Sends files to a host by fabric, over the connection of a launch.

By itself fabric accepts any host key and logs in with any key.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import fabric
from paramiko import SSHConfig, SSHException, Transport

from launcher.errors import TransportError
from launcher.transports.ssh.options import reason_of

#: Seconds for the server of a host to take a piece of a file.
_ANSWER = 120.0


def send_files(host: str, transport: Transport, paths: list[str], folder: str) -> None:
    """Copy files to a folder of a host.

    Args:
        host: its name.
        transport: the connection to it.
        paths: of the files.
        folder: exists there.

    Raises:
        TransportError: that fails.
    """
    connection = fabric.Connection(host, config=fabric.Config(ssh_config=SSHConfig(), lazy=True))
    connection.transport = transport
    connection.client = SimpleNamespace(open_sftp=transport.open_sftp_client)
    try:
        connection.sftp().get_channel().settimeout(_ANSWER)
        for path in paths:
            connection.put(path, os.path.join(folder, os.path.basename(path)))
    except (SSHException, EOFError, OSError) as error:
        raise TransportError(f"wheels can't be sent: {reason_of(error)}") from error
