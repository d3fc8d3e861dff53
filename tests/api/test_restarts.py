"""Nodes and instances that fail and start again (``restarts=``): rows and results as they are promised."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from launcher import FeedError, InputMode, TaskFailed, TFCluster, TFParallel, partitions
from launcher.runs.run import json_of

FED: dict[str, Any] = {"input_mode": InputMode.FEED, "quiet": True}
pytestmark = pytest.mark.timeout(180)


def consume(args: Any, ctx: Any) -> None:
    """Write down each batch; the attempts in ``args["die"]`` kill themselves with their third one.

    With ``args["wait"]`` the other nodes take one batch, and the next when that node has started again: they
    might take them all.
    """
    feed, batches, folder = ctx.get_data_feed(), 0, args["folder"]
    assert str(ctx.attempt) == os.environ["LAUNCH_ATTEMPT"]
    dying = [name.split("-") for name in args["die"] if args.get("wait")]
    others = [node for node, when in dying if when == str(ctx.attempt) and node != str(ctx.task_index)]
    again = [f"{folder}/worker-{node}-{ctx.attempt + 1}" for node in others]
    with open(f"{folder}/{ctx.job_name}-{ctx.task_index}-{ctx.attempt}", "w") as file:
        while not feed.should_stop():
            batch = feed.next_batch(args.get("batch", 100))
            file.write("".join(f"{str(row).split()[0]}\n" for row in batch))
            file.write("end\n" if batch else "")
            file.flush()
            batches += 1
            if batches == 3 and f"{ctx.task_index}-{ctx.attempt}" in args["die"]:
                os.kill(os.getpid(), signal.SIGKILL)
            while not all(map(os.path.exists, again)):
                time.sleep(0.01)


def batches_of(folder: Path) -> dict[str, list[list[int]]]:
    """The batches of each attempt of each node."""
    found = {}
    for path in folder.glob("worker-*-*"):
        batches = path.read_text().split("end\n")
        found[path.name] = [[int(row) for row in batch.split()] for batch in batches if batch]
    return found


def rows_of(folder: Path) -> Counter[int]:
    return Counter(row for batches in batches_of(folder).values() for batch in batches for row in batch)


PARTITIONS = [range(start, start + 500) for start in range(0, 20_000, 500)]


@pytest.mark.promise("`restarts=` of `TFCluster` and `TFParallel`: rows, results and instances")
@pytest.mark.parametrize(("workers", "policy"), [(1, "stop"), (2, "continue")])
def test_a_node_that_dies_is_fed_again(policy: str, workers: int, tmp_path: Path):
    args = {"folder": str(tmp_path), "die": ["0-1"], "wait": True}
    options = {"restarts": 1, "restart": "task", "on_failure": policy, **FED}
    with TFCluster.run(consume, args, workers, **options) as cluster:
        # The rows are more than one node is sent ahead: the first that connects must not get them all.
        cluster.train(partitions([f"{row} {'x' * 500}" for row in rows] for rows in PARTITIONS))
        cluster.train(range(20_000, 20_100))
    found = rows_of(tmp_path)
    assert set(found) == set(range(20_100))
    assert "worker-0-2" in batches_of(tmp_path)
    twice = {row for row, times in found.items() if times > 1}
    assert twice, "the last batch of the attempt that died was not consumed"
    first = batches_of(tmp_path)["worker-0-1"]
    assert twice <= {row for batch in first for row in batch}, "only rows that it had taken came twice"
    report = json_of(f"{cluster.run_dir}/report.json")
    assert report is not None and report["restarts"] == 1


def test_inference_gives_each_result_once():
    def square(args: Any, ctx: Any) -> None:
        feed, batches = ctx.get_data_feed(train_mode=False), 0
        while not feed.should_stop():
            rows = feed.next_batch(50)
            feed.batch_results([row * row for row in rows])
            batches += bool(rows)
            if batches == 5 and ctx.attempt <= 2 and ctx.task_index == 0:
                feed.next_batch(10)
                os.kill(os.getpid(), signal.SIGKILL)

    with TFCluster.run(square, None, 2, restarts=2, grace=1, **FED) as cluster:
        found = list(cluster.inference(range(start, start + 170) for start in range(0, 17_000, 170)))
    assert found == [row * row for row in range(17_000)]


def test_equal_batches_after_a_restart_of_all(tmp_path: Path):
    """A round that not all nodes have consumed is fed to all of them again."""
    args = {"folder": str(tmp_path), "die": ["1-1"], "batch": 4}
    with TFCluster.run(consume, args, 3, restarts=1, grace=1, **FED) as cluster:
        cluster.train(list(range(1200)), equal="drop", batch_size=4)
        cluster.train(list(range(1200, 2400)), equal="drop", batch_size=4)
    found = batches_of(tmp_path)
    again = [found[f"worker-{number}-2"] for number in range(3)]
    assert len({len(batches) for batches in again}) == 1
    assert all(len(batch) == 4 for batches in again for batch in batches)
    assert set(rows_of(tmp_path)) == set(range(2400))


def test_equal_batches_need_a_restart_of_all(tmp_path: Path):
    def slow(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        while not feed.should_stop():
            feed.next_batch(4)
            time.sleep(0.01)
            if ctx.task_index and ctx.attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    with (
        pytest.raises(FeedError, match="a restart of worker/1; equal batches are for all tasks or for none"),
        TFCluster.run(slow, None, 2, restarts=1, restart="task", grace=1, **FED) as cluster,
    ):
        cluster.train(list(range(100_000)), equal="drop", batch_size=4)


def test_the_failure_is_that_of_the_last_attempt():
    def fail(args: Any, ctx: Any) -> None:
        if ctx.attempt == 1:
            raise KeyError("the first time")
        os._exit(7)

    with pytest.raises(TaskFailed) as caught:
        TFCluster.run(fail, None, 1, restarts=1, quiet=True).shutdown()
    assert caught.value.code == 7 and not caught.value.traceback
    assert caught.value.__cause__ is None


# ---------------------------------------------------------------------------------------- instances


def fail_first(args: Any, ctx: Any) -> Any:
    """Fail in the way of the arguments in the first attempt."""
    how, folder = args
    Path(folder, f"{ctx.worker_num}-{ctx.attempt}").touch()
    assert os.environ["LAUNCH_ATTEMPT"] == str(ctx.attempt)
    if ctx.attempt == 1 and how == "raise":
        raise ValueError("of the first attempt")
    if ctx.attempt == 1 and how == "exit":
        os._exit(3)
    if ctx.attempt == 1 and how == "slot":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(300)
    if how == "import":
        import no_such_module_at_all  # type: ignore[import-not-found]  # noqa: F401
    return how, ctx.attempt


def test_instances_that_fail_are_run_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    ways = ["raise", "well", "exit", "slot", "well"]
    given = [(how, str(tmp_path)) for how in ways]
    found = TFParallel.run(fail_first, given, at_once=2, restarts=3)
    assert [how for how, _ in found] == ways
    failed = [attempt for how, attempt in found if how != "well"]
    assert failed == [2, 2, 2]
    error = capfd.readouterr().err
    again = r"instance 0 \(worker/\d, with .*\) raised ValueError: of the first attempt; it runs again"
    assert re.search(again, error)
    assert "(attempt 2, restart 2 of 3)" in error


def test_instances_that_fail_too_often(tmp_path: Path):
    def fail(args: Any, ctx: Any) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    with pytest.raises(TaskFailed, match=r"instance 0 \(worker/0, with 0\) raised ValueError: attempt 3"):
        TFParallel.run(fail, [0], restarts=2, quiet=True)
    given = [(how, str(tmp_path)) for how in ("import", "raise", "well")]
    found = TFParallel.run(fail_first, given, at_once=1, restarts=1, return_exceptions=True, quiet=True)
    assert isinstance(found[0].__cause__, ModuleNotFoundError), "it would fail again"
    assert found[1:] == [("raise", 2), ("well", 1)]
    assert sorted(path.name for path in tmp_path.glob("?-?")) == ["0-1", "1-1", "1-2", "2-1"]
