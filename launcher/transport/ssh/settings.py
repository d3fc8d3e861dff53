"""What a user may turn about connecting."""

from __future__ import annotations

from typing import NamedTuple


class SshSettings(NamedTuple):
    """How hosts are connected to; times in seconds."""

    #: Bounds each step of a connection on its own: TCP, the server's banner, the keys, who we are.
    connect_timeout: float = 10.0
    #: How often a host is tried before it counts as failed; only what may pass is tried again.
    attempts: int = 3
    #: How many hosts are connected to at the same time.
    fanout: int = 32
    #: Whether a host's key that nobody knows yet is taken as its key from now on.
    accept_new: bool = False
    #: How long the tasks of a host outlive a lost connection.
    lease: float = 60.0
