"""Rows from the test to the functions in the nodes, and results back, through real clusters."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from launcher import FeedTimeout, InputError, InputMode, JobFailed, TaskFailed, TFCluster
from tests.seeing import quick, soon

FED: dict[str, Any] = {"input_mode": InputMode.FEED, "quiet": True}
pytestmark = pytest.mark.timeout(180)


def consume(args: Any, ctx: Any) -> None:
    """Write down every row, a batch at a time; the node ``args["dies"]`` kills itself after the first."""
    if ctx.job_name == "ps":
        return
    feed = ctx.get_data_feed()
    with open(Path(args["folder"], f"{ctx.job_name}-{ctx.task_index}"), "w") as file:
        while not feed.should_stop():
            for row in feed.next_batch(args.get("batch", 100)):
                file.write(f"{row}\n")
            file.flush()
            if ctx.task_index == args.get("dies"):
                os.kill(os.getpid(), signal.SIGKILL)


def consumed(folder: Path) -> list[int]:
    files = [path for path in folder.glob("*-*") if path.is_file()]
    return sorted(int(line) for path in files for line in path.read_text().split())


@pytest.mark.promise("`TFCluster` feeds functions; each row arrives")
def test_a_node_that_dies_costs_no_row_if_the_others_go_on(tmp_path: Path):
    cluster = TFCluster.run(consume, {"folder": str(tmp_path), "dies": 1}, 2, on_failure="continue", **FED)
    partitions = [range(start, start + 500) for start in range(0, 20_000, 500)]
    cluster.train(partitions)
    assert set(consumed(tmp_path)) == set(range(20_000))
    with pytest.raises(TaskFailed, match="worker/1 failed .*: killed by SIGKILL"):
        cluster.shutdown()


def test_train_raises_the_failure_of_a_node_that_dies(tmp_path: Path):
    def known_after() -> float:
        cluster = TFCluster.run(consume, {"folder": str(tmp_path), "dies": 1}, 2, **FED)
        since = time.monotonic()
        with pytest.raises(TaskFailed, match="worker/1 failed .*: killed by SIGKILL"):
            cluster.train(range(start, start + 500) for start in range(0, 10**9, 500))
        elapsed = time.monotonic() - since
        with pytest.raises(TaskFailed):
            cluster.shutdown()
        return elapsed

    quick(known_after, 5)


def test_a_node_that_takes_no_rows(tmp_path: Path):
    def idle(args: Any, ctx: Any) -> None:
        print("I rest", flush=True)
        ctx.get_data_feed().next_batch(1)
        time.sleep(300)

    with (
        pytest.raises(FeedTimeout, match=r"(?s)worker/0.*I rest"),
        TFCluster.run(idle, None, 1, **FED) as cluster,
    ):
        soon(lambda: "I rest" in Path(cluster.run_dir, "logs", "worker-0.log").read_text())
        cluster.train(range(100), feed_timeout=1)


def test_arguments_that_are_refused():
    cluster = TFCluster.run(lambda args, ctx: None, None, 1, **FED)
    refused: list[tuple[str, dict[str, Any]]] = [
        ("num_epochs=0", {"num_epochs": 0}),
        ("equal='cut'", {"equal": "cut", "batch_size": 2}),
        ("batch_size=0", {"equal": "pad", "batch_size": 0}),
        ("equal='pad' without batch_size", {"equal": "pad"}),
    ]
    for problem, given in refused:
        with pytest.raises(InputError, match=problem):
            cluster.train([1], **given)
    cluster.shutdown()
    with pytest.raises(JobFailed, match="has been shut down"):
        cluster.train([1])


def test_a_cluster_that_is_not_fed_raises_at_once():
    def ask(args: Any, ctx: Any) -> None:
        ctx.get_data_feed()

    with pytest.raises(TaskFailed, match="nothing feeds this node; start the cluster with input_mode="):
        TFCluster.run(ask, None, 1, quiet=True).shutdown()
    with (
        pytest.raises(InputError, match="started with InputMode.TENSORFLOW; expected input_mode="),
        TFCluster.run(lambda args, ctx: None, None, 1, quiet=True) as cluster,
    ):
        cluster.train([1])


def test_two_feeds_of_one_name_share_its_rows(capfd: pytest.CaptureFixture[str]):
    def alternate(args: Any, ctx: Any) -> None:
        feeds = [ctx.get_data_feed(), ctx.get_data_feed()]
        rows: list[int] = []
        while not feeds[0].should_stop():
            rows += feeds[len(rows) // 10 % 2].next_batch(10)
        print(len(rows), sum(rows))

    with TFCluster.run(alternate, None, 1, input_mode=InputMode.FEED) as cluster:
        cluster.train(list(range(1000)))
    assert "worker/0 | 1000 499500\n" in capfd.readouterr().out


def test_rows_that_are_left_are_a_line_also_in_a_quiet_job(capfd: pytest.CaptureFixture[str]):
    def first_only(args: Any, ctx: Any) -> None:
        ctx.get_data_feed().next_batch(1)

    with TFCluster.run(first_only, None, 1, input_mode=InputMode.FEED, quiet=True) as cluster:
        cluster.train([1] * 1_000_000)
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("launch: feed 'input': worker/0 returned before reading all rows")
