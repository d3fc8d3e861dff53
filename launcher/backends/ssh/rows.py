"""Settings of connections over SSH, and the options that are made of them."""

from __future__ import annotations

from launcher.common.record import Record
from launcher.config.settings import Group, Setting, switch
from launcher.config.table import OTHER_MACHINES

ACCEPT_NEW_HOST_KEYS = Setting(
    "accept_new_host_keys", switch, "add keys of unknown hosts to known_hosts", default=False,
    needs=OTHER_MACHINES,
)  # fmt: skip
GROUP = Group("SSH", (ACCEPT_NEW_HOST_KEYS,))


class SshOptions(Record):
    """Options for connections over SSH; times in seconds."""

    #: The limit for each step of connecting: TCP, the handshake, each key of the login.
    connect_timeout: float = 10.0
    #: Attempts per host; a permanent failure is not tried again.
    attempts: int = 3
    #: Number of hosts that are connected to at the same time.
    fanout: int = 32
    #: Whether the key of an unknown host is added to known_hosts.
    accept_new: bool = False
