"""A pod as a site of the contract suite: entered from its node, by the kernel's own means."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from launcher.backends.backend import LaunchRequest
from launcher.backends.connections import AgentArguments, AgentLink, Connections
from launcher.backends.kubernetes import BACKEND, pods
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.link import ReconnectingLink
from launcher.config.settings import Settings
from launcher.event_loop import EventLoop
from launcher.job import Host, JobSpec, Policy, Program, ProgramKind, Role
from tests.contract.sites import connected
from tests.docker.site import DockerSite
from tests.kubernetes.cluster import Cluster


class KubernetesSite(DockerSite):
    """A pod, which is there before its agent."""

    watchdog_killed = both_killed = "its container was killed by SIGKILL"
    folder = "/tmp/test"
    entered = (*DockerSite.entered, "--setuid", "1000", "--setgid", "1000")

    def __init__(self, cluster: Cluster, host: Host, hosts: Connections) -> None:
        self.host, self._hosts = host, hosts
        (pod,) = cluster.objects("pods")
        self._inits = [cluster.main_process(pod["metadata"]["name"])]
        self._is_open = False
        self.run(["mkdir", self.folder])

    def open(self, loop: EventLoop) -> AgentLink:
        """See `tests.contract.sites.Site.open`."""
        if self._is_open:
            pytest.skip("a pod is a machine of its own, and has one agent")
        self._is_open = True
        return ReconnectingLink(loop, self._hosts, AgentArguments.new(self.host.name))


@contextmanager
def in_a_pod(cluster: Cluster) -> Iterator[KubernetesSite]:
    """A site whose pod goes with it."""
    worker = Role("worker", 1, Program(ProgramKind.EXECUTABLE, "true"))
    job = JobSpec((worker,), policy=Policy(grace=1.0))
    name = f"contract-{os.getpid()}-{os.urandom(2).hex()}"
    request = LaunchRequest(name, job, Settings())
    with (
        patch.object(pods, "MIN_OUTAGE_SECONDS", 1.5),  # as of other sites
        connected(BACKEND.allocate(KubernetesOptions(cluster.image), request)) as made,
    ):
        yield KubernetesSite(cluster, *made)
    assert cluster.gone(30), cluster.left()
