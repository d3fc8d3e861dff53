"""Clusters of the Python API in containers on other machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from launcher import InputMode, TaskFailed, TFCluster, TFParallel
from launcher.feed import listener
from tests.conftest import Launch
from tests.docker.engine import BASE
from tests.docker.host_engines import DockerHost


@pytest.fixture
def place(
    hosts: list[DockerHost], hostfile: str, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What to say so that nodes run in containers there, and their runs go where the fixtures look."""
    for name, value in launch.environment().items():
        monkeypatch.setenv(name, value)
    options = ["--no-mount"]
    return {"hosts": hostfile, "docker": BASE, "workdir": "/", "quiet": True, "options": options}


def square(args: Any, ctx: Any) -> None:
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([(os.path.exists("/.dockerenv"), row * row) for row in feed.next_batch(10)])
    Path(ctx.output_dir, "name").write_text(os.uname().nodename)


@pytest.mark.parametrize("way", ["over the network", "by way of the launcher's connection"])
def test_rows_go_there_and_back(place: dict[str, Any], way: str, monkeypatch: pytest.MonkeyPatch):
    if way.startswith("by"):
        monkeypatch.setattr(listener, "own_addresses", lambda: ["203.0.113.1"])
    with TFCluster.run(square, None, 4, input_mode=InputMode.FEED, **place) as cluster:
        assert {node["host"] for node in cluster.cluster_info} == {"node1", "node2"}
        found = list(cluster.inference([range(start, start + 10) for start in range(0, 500, 10)]))
    assert found == [(True, row * row) for row in range(500)]
    assert all(Path(cluster.run_dir, "output", f"worker-{index}", "name").exists() for index in range(4))


def test_a_failure_there_and_instances(place: dict[str, Any]):
    def fun(args: int, ctx: Any) -> Any:
        return 10 // args

    assert TFParallel.run(fun, [5, 10, 2], **place) == [2, 1, 5]
    with pytest.raises(TaskFailed, match="raised ZeroDivisionError"):
        TFParallel.run(fun, [0], **place)
