"""Hosts, engines and families of the other suites."""

from __future__ import annotations

from tests.docker.conftest import docker, image, real_engine
from tests.local.conftest import family
from tests.slurm.conftest import clean, start
from tests.ssh.conftest import four_hosts, hosts, lab, ssh_launch

__all__ = [
    "clean", "docker", "family", "four_hosts", "hosts", "image", "lab", "real_engine", "ssh_launch", "start"
]  # fmt: skip
