"""Launch beside a Kubernetes, and a check that no test leaves a Job, a pod or a process there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Launch, Started
from tests.kubernetes.cluster import Cluster
from tests.seeing import soon


@pytest.fixture
def clean(kubernetes: Cluster) -> Iterator[None]:
    """Nothing of the test is left."""
    yield
    if not kubernetes.gone(40):  # a pod that is just starting takes its whole grace
        left = kubernetes.left()
        kubernetes.kubectl("delete", "jobs,pods", "--all", "--force", "--grace-period=0", "--wait=false")
        pytest.fail(f"left behind: {left}", pytrace=False)


@pytest.fixture
def start(kubernetes: Cluster, launch: Launch, clean: None) -> Callable[..., Started]:
    """Starts launch where it reaches the cluster, as a user who has the rights of docs/kubernetes.md."""
    return functools.partial(kubernetes.start, launch)


@pytest.fixture
def quota(kubernetes: Cluster, clean: None) -> Iterator[Callable[[str], None]]:
    """Sets a quota of the namespace, which the API server then knows."""

    def limit(hard: str) -> None:
        kubernetes.kubectl("create", "quota", "few", f"--hard={hard}")
        soon(lambda: "used" in kubernetes.objects("quota")[0]["status"])

    yield limit
    kubernetes.kubectl("delete", "quota", "few")
