"""Hosts, engines and families of the other suites."""

from __future__ import annotations

from tests.docker.conftest import docker, here, real_engine
from tests.kubernetes.conftest import clean as kubernetes_clean
from tests.local.conftest import family
from tests.slurm.conftest import clean, start
from tests.ssh.conftest import four_hosts, hosts, lab, ssh_launch

__all__ = [
    "clean", "docker", "family", "four_hosts", "here", "hosts", "kubernetes_clean", "lab", "real_engine",
    "ssh_launch", "start",
]  # fmt: skip
