"""Clusters of the Python API in containers, here and on other machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from launcher import InputMode, TaskFailed, TFCluster, TFParallel
from tests.conftest import Launch
from tests.docker.engine import BASE, Engine
from tests.docker.host_engines import Site


@pytest.fixture(scope="module", autouse=True)
def both_engines(real_engine: Engine, two_hosts: Site) -> None:
    """They are there before a test looks at what is open."""


@pytest.fixture(params=["here", "on hosts"])
def place(
    request: pytest.FixtureRequest, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Options by which nodes run in containers, and their runs go where the fixtures look for them."""
    here = request.param == "here"
    hostfile = request.getfixturevalue("docker" if here else "hostfile")
    for name, value in launch.environment().items():
        monkeypatch.setenv(name, value)
    options = (
        {"workdir": str(tmp_path)} if here else {"hosts": hostfile, "workdir": "/", "options": ["--no-mount"]}
    )
    return {"docker": BASE, "quiet": True, **options}


def test_rows_go_into_containers_and_back(place: dict[str, Any]):
    def square(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            rows = feed.next_batch(10)
            feed.batch_results([(os.path.exists("/.dockerenv"), row * row) for row in rows])
        Path(ctx.output_dir, "name").write_text(os.uname().nodename)

    with TFCluster.run(square, None, 4, input_mode=InputMode.FEED, **place) as cluster:
        hosts = {node["host"] for node in cluster.cluster_info}
        found = list(cluster.inference([range(start, start + 10) for start in range(0, 500, 10)]))
    assert found == [(True, row * row) for row in range(500)]
    assert hosts == ({"node1", "node2"} if "hosts" in place else {f"worker-{index}" for index in range(4)})
    assert all(Path(cluster.run_dir, "output", f"worker-{index}", "name").exists() for index in range(4))


@pytest.mark.parametrize("place", ["here", "on hosts"], indirect=True)
def test_a_failure_and_instances(place: dict[str, Any]):
    def fun(args: int, ctx: Any) -> Any:
        return 10 // args

    assert TFParallel.run(fun, [5, 10, 2], **place) == [2, 1, 5]
    with pytest.raises(TaskFailed, match="raised ZeroDivisionError"):
        TFParallel.run(fun, [0], **place)


@pytest.mark.parametrize("place", ["here"], indirect=True)
def test_a_job_file_with_docker(place: dict[str, Any], tmp_path: Path):
    """They reach the program by the socket in its folder, as with ``docker=``."""
    (tmp_path / "job.yaml").write_text(f"docker: {BASE}\nroles: {{worker: 1}}\n")

    def names(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            feed.batch_results([os.uname().nodename] * len(feed.next_batch(1)))

    del place["docker"]
    with TFCluster.run(
        names, None, 1, input_mode=InputMode.FEED, job=tmp_path / "job.yaml", **place
    ) as cluster:  # fmt: skip
        assert list(cluster.inference([1])) == ["worker-0"]
