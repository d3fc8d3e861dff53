"""Nodes and slots that the user stops (``launch stop RUN TASK``): the program goes on without them."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from launcher import InputMode, TFCluster, TFParallel
from launcher.runs.run import json_of
from tests.conftest import COMMAND
from tests.seeing import soon

pytestmark = pytest.mark.timeout(180)


def stop(*words: str) -> None:
    subprocess.run([*COMMAND, "stop", *words], check=True, stdout=subprocess.DEVNULL)


def consume(folder: str, ctx: Any) -> None:
    """Write down each row; worker/1 takes one batch, the first of all, and hangs."""
    feed, first = ctx.get_data_feed(), f"{folder}/worker-1"
    while ctx.task_index == 0 and not (os.path.exists(first) and os.path.getsize(first)):
        time.sleep(0.01)
    with open(f"{folder}/worker-{ctx.task_index}", "w") as file:
        while not feed.should_stop():
            file.write("".join(f"{row}\n" for row in feed.next_batch(50)))
            file.flush()
            if ctx.task_index == 1:
                time.sleep(300)


@pytest.mark.promise("`launch stop RUN TASK`: the others go on, and it is no failure")
def test_the_rows_of_a_node_that_is_stopped_go_to_the_others(tmp_path: Path):
    with TFCluster.run(consume, str(tmp_path), 2, input_mode=InputMode.FEED, quiet=True) as cluster:
        feeding = threading.Thread(target=cluster.train, args=(range(20_000),))
        feeding.start()
        soon(lambda: (tmp_path / "worker-1").exists() and (tmp_path / "worker-1").read_text())
        stop("latest", "worker/1")
        feeding.join(60)
        assert not feeding.is_alive()
    rows = {int(row) for path in tmp_path.glob("worker-*") for row in path.read_text().split()}
    assert rows == set(range(20_000))
    report = json_of(f"{cluster.run_dir}/report.json") or {}
    assert report["exit_code"] == 0 and [task["state"] for task in report["tasks"]] == [
        "succeeded",
        "stopped",
    ]


def test_another_slot_runs_the_instance_of_a_slot_that_is_stopped(tmp_path: Path):
    def fun(number: int, ctx: Any) -> int:
        (tmp_path / str(number)).write_text(os.environ["TASK_INDEX"])
        if number == 1 and ctx.attempt == 1:
            time.sleep(300)
        while number == 0 and not (tmp_path / "stopped").exists():
            time.sleep(0.01)
        return number

    def stop_slot() -> None:
        slot = soon(lambda: (tmp_path / "1").exists() and (tmp_path / "1").read_text())
        stop("latest", f"worker/{slot}")
        (tmp_path / "stopped").touch()

    stopping = threading.Thread(target=stop_slot)
    stopping.start()
    assert TFParallel.run(fun, range(4), at_once=2, quiet=True) == [0, 1, 2, 3]
    stopping.join()
