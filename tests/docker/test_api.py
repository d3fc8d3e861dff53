"""Clusters of the Python API in containers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from launcher import InputMode, TaskFailed, TFCluster, TFParallel
from tests.conftest import Launch
from tests.docker.engine import Engine


@pytest.fixture
def place(
    docker: Engine, image: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What to say so that nodes run in containers, and their runs go where the fixtures look for them."""
    for name, value in launch.environment().items():
        monkeypatch.setenv(name, value)
    return {"docker": image, "workdir": str(tmp_path), "quiet": True}


def test_rows_go_into_containers_and_back(place: dict[str, Any]):
    def square(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            rows = feed.next_batch(10)
            Path(f"has-some-{ctx.task_index}").touch()
            while rows and len(list(Path().glob("has-some-*"))) < 2:  # the first leaves some for the other
                time.sleep(0.01)
            feed.batch_results([(os.uname().nodename, row * row) for row in rows])

        Path(ctx.output_dir, "name").write_text(os.uname().nodename)

    with TFCluster.run(square, None, 2, input_mode=InputMode.FEED, **place) as cluster:
        found = list(cluster.inference([range(start, start + 10) for start in range(0, 500, 10)]))
    assert [value for _, value in found] == [row * row for row in range(500)]
    assert {host for host, _ in found} == {"worker-0", "worker-1"}
    assert Path(cluster.run_dir, "output", "worker-1", "name").read_text() == "worker-1"


def test_a_failure_and_instances(place: dict[str, Any]):
    def fun(args: int, ctx: Any) -> Any:
        return 10 // args, os.uname().nodename

    assert TFParallel.run(fun, [5, 10], at_once=1, **place) == [(2, "worker-0"), (1, "worker-0")]
    with pytest.raises(TaskFailed, match="raised ZeroDivisionError"):
        TFParallel.run(fun, [0], **place)


def test_a_job_file_says_that_nodes_run_in_containers(place: dict[str, Any], image: str, tmp_path: Path):
    """They reach the program by the socket in its folder, as with ``docker=``."""
    (tmp_path / "job.yaml").write_text(f"docker: {image}\nroles: {{worker: 1}}\n")

    def names(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(train_mode=False)
        while not feed.should_stop():
            feed.batch_results([os.uname().nodename] * len(feed.next_batch(1)))

    del place["docker"]
    with TFCluster.run(
        names, None, 1, input_mode=InputMode.FEED, job=tmp_path / "job.yaml", **place
    ) as cluster:  # fmt: skip
        assert list(cluster.inference([1])) == ["worker-0"]
