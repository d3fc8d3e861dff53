"""A node is cut off, in a cluster of its own: tests that run beside these use the nodes of the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import Started
from tests.kubernetes.cluster import Cluster, Kubelet, a_cluster
from tests.kubernetes.test_losses import SCRIPT
from tests.seeing import soon

#: The cluster alone takes half a minute.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """See above."""
    with a_cluster(tmp_path_factory.mktemp("kubernetes"), f"cut {os.getpid()}") as cluster:
        yield cluster


def test_a_node_is_cut_off(start: Callable[..., Started], kubernetes: Cluster):
    """All pods of the node are one loss; new ones are made when the tasks there have certainly ended."""
    words = (*kubernetes.workers(4), "--restarts", "1", "--lease", "15", "--grace", "1", *SCRIPT)
    started = start(*words).until(lambda it: it.out.count("attempt 1") == 4, 60)
    lost = kubernetes.pods("n2")
    assert lost and kubernetes.pods("n1")
    kubernetes.link("n2", "down")
    try:
        result = started.wait(150, code=0)
    finally:
        kubernetes.link("n2", "up")
    assert result.out.count("attempt 2") == 4
    soon(lambda: not {*lost} & {*kubernetes.pods()}, 90)


#: The first attempt fails; the next one ends some time after its kubelet is back.
FAILS = ("--", "sh", "-c", "test $LAUNCH_ATTEMPT = 2 || exit 3; echo up; sleep 10; echo done")


@pytest.mark.promise("a pod whose first connection breaks; a kubelet that is started again")
def test_a_kubelet_is_started_again(start: Callable[..., Started], kubernetes: Cluster):
    """During a restart, which breaks the connection to its pod: the agent waits for another one."""
    started = start(*kubernetes.workers(1), "--restarts", "1", *FAILS)
    started.until(lambda it: "restart 1 of 1" in it.err, 60)
    (pod,) = kubernetes.objects("pods")
    kubelet = Kubelet(kubernetes, pod["spec"]["nodeName"])
    kubelet.kill()
    time.sleep(5)  # longer than an agent elsewhere waits
    kubelet.start()
    result = started.wait(90, code=0)
    assert "| done" in result.out and "connected again" in result.err and "is lost" not in result.err, (
        result.err
    )
