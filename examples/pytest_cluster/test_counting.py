"""Tests the cluster program beside it on a real cluster, with the fixture ``cluster`` of tf-launcher."""

from pathlib import Path

PROGRAM = str(Path(__file__).with_name("counting.py"))


def test_counts_to_the_end(cluster):
    job = cluster.start([PROGRAM, "--steps", "20"], ps=1, workers=2, flags=True, timeout=60)
    assert job.wait().exit_code == 0
    assert "the sum is 40" in job.task("worker/0").log + job.task("worker/1").log


def test_waits_for_a_slow_ps(cluster):
    job = cluster.start([PROGRAM, "--steps", "200"], ps=1, workers=1, flags=True, timeout=60)
    job.task("worker/0").until_prints("step 10,")
    job.task("ps/0").stop()  # as a machine that hangs
    job.task("ps/0").resume()
    assert job.wait().exit_code == 0


def test_tells_that_the_ps_is_lost(cluster):
    job = cluster.start(
        [PROGRAM, "--steps", "100000"], ps=1, workers=2, flags=True, timeout=60, on_failure="continue"
    )
    job.task("worker/0").until_prints("step 100,")
    job.task("worker/1").until_prints("step 100,")
    job.task("ps/0").kill()
    ended = job.wait()
    assert ended.failure.task == "ps/0"
    assert "the ps is lost" in job.task("worker/1").log
    assert job.task("worker/1").exit_status.code == 1
