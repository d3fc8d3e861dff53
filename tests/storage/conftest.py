"""Hosts of another suite."""

from __future__ import annotations

from tests.ssh.conftest import four_hosts, lab

__all__ = ["four_hosts", "lab"]
