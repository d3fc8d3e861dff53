"""The old name of `launcher.transports.ssh.options`."""

from __future__ import annotations

from launcher.transports.ssh.options import SshSettings

__all__ = ["SshSettings"]
