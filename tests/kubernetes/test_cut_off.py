"""A node is cut off, in a cluster of its own: tests that run beside this one use the nodes of the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Started
from tests.kubernetes.cluster import Cluster, a_cluster, soon
from tests.kubernetes.test_losses import SCRIPT


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """See above."""
    with a_cluster(tmp_path_factory.mktemp("kubernetes"), f"cut {os.getpid()}") as cluster:
        yield cluster


def test_a_node_is_cut_off(start: Callable[..., Started], kubernetes: Cluster):
    """All pods of the node are one loss; new ones are made when the tasks there have certainly ended."""
    words = ("--kubernetes", kubernetes.image, "--workers", "4", "--restarts", "1", "--lease", "15")
    started = start(*words, "--grace", "1", *SCRIPT)
    started.until(lambda it: it.out.count("attempt 1") == 4, 60)
    nodes = [pod["spec"]["nodeName"] for pod in kubernetes.objects("pods")]
    assert sorted(set(nodes)) == ["n1", "n2"]
    lost = {pod["metadata"]["name"] for pod in kubernetes.objects("pods") if pod["spec"]["nodeName"] == "n2"}
    kubernetes.link("n2", "down")
    try:
        result = started.wait(150)
    finally:
        kubernetes.link("n2", "up")
    assert result.code == 0, result.err
    assert result.out.count("attempt 2") == 4
    assert soon(lambda: lost.isdisjoint(pod["metadata"]["name"] for pod in kubernetes.objects("pods")), 90)
