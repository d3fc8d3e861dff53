"""What the launcher promises when tasks are hurt, seen through its own plug-in."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from launcher import Reason, TaskState
from launcher.testing import Cluster
from tests.testing.stubs import COUNTS

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("victim", ["worker/0", "worker/2", "ps/0"])
def test_the_task_that_was_killed_is_to_blame_and_the_others_are_stopped(cluster: Cluster, victim: str):
    job = cluster.start(COUNTS, ps=1, workers=3)
    for task in job.tasks:
        task.until_prints("step 1")
    job.task(victim).kill()
    ended = job.wait()
    assert ended.exit_code == 128 + signal.SIGKILL
    assert ended.failure is not None
    assert (ended.failure.task, ended.failure.reason) == (victim, Reason.SIGNAL)
    states = {task.name: task.state for task in job.tasks}
    assert states.pop(job.task(victim).name) is TaskState.FAILED
    assert set(states.values()) == {TaskState.STOPPED}


def test_with_continue_the_others_do_their_work(cluster: Cluster):
    script = "n=0; until test $n = 30; do n=$((n+1)); echo step $n; sleep 0.1; done"
    job = cluster.start(["sh", "-c", script], workers=3, on_failure="continue", timeout=120)
    job.task("worker/1").until_prints("step 2")
    job.task("worker/1").kill()
    assert job.wait().exit_code == 137
    assert [task.state for task in job.tasks] == [
        TaskState.SUCCEEDED, TaskState.FAILED, TaskState.SUCCEEDED
    ]  # fmt: skip
    assert job.task("worker/2").lines[-1] == "step 30"


def test_a_ps_that_hangs_does_not_keep_a_finished_job(cluster: Cluster, tmp_path: Path):
    """Suspended, it can't act on SIGTERM: SIGKILL ends it after the grace."""
    waits = "test $JOB_NAME = ps && exec sleep 600; echo up; while ! test -e done; do sleep 0.05; done"
    job = cluster.start(["sh", "-c", waits], ps=1, workers=2, workdir=tmp_path, grace=0.5)
    job.task("ps/0").stop()
    (tmp_path / "done").touch()
    assert job.wait().exit_code == 0
    assert job.task("ps/0").state is TaskState.STOPPED


def test_a_worker_that_hangs_is_ended_by_the_timeout(cluster: Cluster):
    hangs = f"test $TASK_INDEX = 0 || kill -STOP $$; {COUNTS[2]}"
    job = cluster.start([*COUNTS[:2], hangs], workers=2, timeout=3, grace=0.5)
    ended = job.wait()
    assert ended.exit_code == 124
    assert {task.state for task in job.tasks} == {TaskState.STOPPED}
