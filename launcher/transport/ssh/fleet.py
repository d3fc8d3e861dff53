"""The old name of `launcher.transports.ssh.hosts`."""

from __future__ import annotations

from launcher.transports.ssh.hosts import SshHosts as Fleet

__all__ = ["Fleet"]
