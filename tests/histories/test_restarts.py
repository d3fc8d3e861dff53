"""Failed tasks start again: which, when, how often; and what ends a job meanwhile."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.report import ExitStatus, TaskState
from launcher.supervisor.restart_policy import RestartPolicy
from tests.histories.script import Case, Replay, cases, check, play, script

GROUPS = """
worker 2, ps 2 -> worker/1: worker/1 | ps/0: ps/0
worker 2, evaluator 1 -> worker/0: all | evaluator/0: evaluator/0
chief 1, worker 2 -> worker/1: all | chief/0: all
chief 1, worker 2, ps 2 -> worker/1: worker/1 | ps/1: chief/0 ps/0 ps/1 | chief/0: chief/0 ps/0 ps/1
master 1, worker 1, ps 1 -> ps/0: master/0 ps/0
dispatcher 1, reader 1, worker 2 -> dispatcher/0: dispatcher/0 | reader/0: reader/0
worker 2, ps 1 restart job -> ps/0: all | worker/0: worker/0
worker 2 restart task -> worker/0: worker/0
worker 2 restart never -> worker/0: -
worker 1, board 1 sidecar -> board/0: - | worker/0: worker/0
"""


def policy(setup: str) -> RestartPolicy:
    """The policy of a setup, without chance."""
    it = script(setup)
    return RestartPolicy(it.job, it.placement, lambda: 0.0)


@pytest.mark.promise("which tasks come back, when and how often")
@pytest.mark.parametrize("line", GROUPS.strip().splitlines())
def test_the_tasks_that_start_again_together(line: str):
    roles, _, expected = line.partition(" -> ")
    workers = {task for task in script(roles).host_of if not task.startswith("evaluator")}
    for case in expected.split(" | "):
        failed, _, names = case.partition(": ")
        decision = policy(f"{roles}, restarts 9").restart_after(TaskId(failed), ExitStatus(code=1), 20.0)
        chosen = workers if names == "all" else set(names.replace("-", "").split())
        assert (set() if decision is None else set(decision.tasks)) == chosen


def test_preemption_starts_the_whole_job_again_and_does_not_count():
    of_job = policy("worker 2, evaluator 1, restarts 1")
    for _ in range(3):
        decision = of_job.restart_after(TaskId("worker/0"), ExitStatus(code=42), 60.0)
        assert decision is not None
        assert (len(decision.tasks), decision.includes_succeeded, decision.number) == (3, True, 0)
    # An exit with this code at once is a failure.
    assert of_job.restart_after(TaskId("worker/0"), ExitStatus(code=42), 1.0) is not None
    assert of_job.restart_after(TaskId("worker/0"), ExitStatus(code=42), 1.0) is None


def test_starts_are_1_to_30_seconds_apart_and_ten_minutes_give_the_restarts_back():
    of_job = policy("worker 1, restarts 7")

    def after(seconds: float) -> float | None:
        decision = of_job.restart_after(TaskId("worker/0"), ExitStatus(signal=9), seconds)
        return None if decision is None else decision.pause_seconds

    assert [after(0.0) for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, None]
    assert after(600.0) == 0.0
    assert (after(60.0), after(0.0), after(3.0)) == (0.0, 4.0, 5.0)


@pytest.mark.parametrize("code", [126, 127])
def test_a_program_that_can_not_be_run_does_not_start_again(code: int):
    ended = ExitStatus(code=code)
    assert policy("worker 1, restarts 7").restart_after(TaskId("worker/0"), ended, 1.0) is None


def test_why_nothing_starts_again():
    of_job = policy("worker 1, ps 1 restart never, restarts 1")
    worker, failed = TaskId("worker/0"), ExitStatus(code=1)
    assert "program" in of_job.refusal(worker, ExitStatus(code=127))
    assert of_job.restart_after(worker, failed, 1.0) is not None
    assert of_job.refusal(worker, failed) == "no restart is left of 1"
    assert of_job.refusal(TaskId("ps/0"), failed) == ""


TRACEBACK = "Traceback (most recent call last):\n  File x, line 7\n    f()\n"


@pytest.mark.promise("programs that print their target first make progress")
@pytest.mark.parametrize(
    ("failures", "ended"),
    [
        # eleven minutes each: numbers in the exception, and what is printed meanwhile, do not matter
        ("ValueError: row 3 -> exits 1 | ValueError: row 4 -> exits 1 | ValueError: row 5 -> exits 1", 3),
        ("tasks 1 -> exits 1 | tasks 2 -> exits 1 | tasks 3 -> exits 1", 3),
        ("-> dies 11 | -> dies 11 | -> dies 11", 3),
        ("-> out of memory | -> out of memory | -> out of memory", 3),
        # another cause between: another code, another exception; something that kills the task, a preemption
        ("-> exits 1 | -> exits 1 | -> exits 2 | -> exits 1", 0),
        ("ValueError: x -> exits 1 | ValueError: x -> exits 1 | KeyError: x -> exits 1 | -> exits 1", 0),
        ("-> dies 9 | -> dies 9 | -> dies 9 | -> dies 9", 0),
        ("-> exits 42 | -> exits 42 | -> exits 42 | -> exits 42", 0),
        # progress: a larger number than the last one of the attempt before, whatever stood there first
        ("step 10 -> exits 1 | step 20 -> exits 1 | step 30 -> exits 1 | step 31 -> exits 1", 0),
        ("Epoch 1/9 -> exits 1 | -> exits 1 | Epoch 2/9 -> exits 1 | -> exits 1", 0),
        ("loss 3 step 10 -> exits 1 | loss 4 step 9 -> exits 1 | loss 5 step 9 -> exits 1", 3),
        (" | ".join(f"epochs=100\nEpoch {at}/100 -> exits 1" for at in (6, 12, 18, 24)), 0),
        (" | ".join(f"epochs=100, now Epoch {at}/100 -> exits 1" for at in (6, 12, 18, 24)), 0),
        (" | ".join(["epochs=100, now Epoch 6/100 -> exits 1"] * 3), 3),
        # killed before it had printed more than its target
        (
            "epochs=100\nEpoch 6/100 -> exits 1 | epochs=100 -> exits 1 | epochs=100\nEpoch 7/100 -> exits 1"
            " | epochs=100\nEpoch 9/100 -> exits 1",
            0,
        ),
    ],
)  # fmt: skip
def test_three_failures_with_one_cause_without_progress_are_the_last(failures: str, ended: int):
    history = "up"
    for number, failure in enumerate(failures.split(" | "), 1):
        said, end = failure.split("-> ")
        at = number * 660.0
        history += f"; says worker/0 {TRACEBACK if 'Error' in said else ''}{said.strip()}\n"
        history += f"; worker/0 {end} @ {at}; worker/0 gone"
        if number != ended:
            history += f"; time up restart {number}; worker/0 starts @ {at}"
    found = play("worker 1, restarts 3", history).report.failure
    assert (found is not None) == bool(ended)
    stuck = "not started again: it failed 3 times in the same way without progress (docs/restarts.md)"
    assert found is None or found.text.endswith(stuck)




@pytest.mark.promise("which tasks come back, when and how often")
@pytest.mark.promise("failures that follow from a lost ps or worker do not count")
@pytest.mark.promise("programs that print their target first make progress")
@pytest.mark.parametrize("case", cases("restarts.txt"))
def test_ends(case: Case, snapshot: SnapshotAssertion):
    check(case, snapshot)


def starts(replay: Replay) -> list[tuple[str, int]]:
    return [(str(start.task), start.attempt) for start in replay.all(events.StartTask)]


def test_a_worker_that_waits_does_not_stop_the_others():
    replay = play("worker 2, ps 1, restarts 3", "up; worker/1 dies 9; worker/1 gone")
    assert not replay.all(events.StopTasks)
    assert replay.timers["restart 1"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("epochs", "ended"), [((1, 2, 3, 4), False), ((1, 1, 1), True)])
def test_the_progress_of_any_task_counts(epochs: tuple[int, ...], ended: bool):
    """One fails again and again at its start, while the other trains on."""
    history = "up"
    for number, epoch in enumerate(epochs, 1):
        history += f"; says worker/0 epochs=100\nEpoch {epoch}/100; worker/1 finishes 1 @ {number * 60.0}"
        if not ended or number < len(epochs):
            history += f"; time up restart {number}; worker/1 starts @ {number * 60.0}"
    assert (play("worker 2, ps 1, restarts 9", history).report.failure is not None) == ended


@pytest.mark.promise("every ps starts first")
def test_every_ps_starts_first():
    """On whatever host; programs of TensorFlow 1 may hang otherwise."""
    replay = play("chief 1, worker 2, ps 2, restarts 1, hosts 3", "up")
    assert [task for task, _ in starts(replay)] == ["ps/0", "ps/1", "chief/0", "worker/0", "worker/1"]
    again = "up; ps/1 dies 9; ps/1 gone; chief/0,ps/0 ends; time up restart 1"
    replay = play("chief 1, worker 1, ps 2, restarts 3", again)
    assert starts(replay)[4:] == [("ps/0", 2), ("ps/1", 2), ("chief/0", 2)]
    assert [each.task for each in replay.report.tasks] == ["chief/0", "worker/0", "ps/0", "ps/1"]


def test_tasks_of_a_preempted_job_have_time_to_end_by_themselves():
    replay = play("worker 2, restarts 3", "up; worker/0 exits 42 @ 60.0")
    assert not replay.all(events.StopTasks)
    assert replay.timers["restart 1"] == 30.0
    ends = "worker/0 exits 42 @ 60.0; worker/1 exits 42 @ 61.0; worker/0,worker/1 gone"
    replay = play("worker 2, restarts 3", f"up; {ends}; time up restart 1; worker/0,worker/1 starts")
    assert not replay.all(events.StopTasks)
    assert starts(replay)[2:] == [("worker/0", 2), ("worker/1", 2)]
    assert replay.report.restarts == 1


def test_no_start_is_announced_after_an_import_failed():
    """The output decides, and all of it is here when the task is gone."""
    missing = "up; says worker/0 ModuleNotFoundError: No module named 'x'; worker/0 exits 1"
    other = "up; says worker/0 ValueError: x; worker/0 exits 1"
    histories = (f"{missing}; worker/0 gone", other, f"{other}; worker/0 gone")
    first, second, (line,) = (play("worker 1, restarts 3", history).notices for history in histories)
    assert not any("starting" in each for each in (*first, *second))
    assert "exit code 1; starting worker/0 again in 1." in line


def test_an_agent_that_does_not_end_the_tasks_is_lost():
    replay = play("worker 2, restarts 3", "up; worker/1 dies 9; time up restart 1; time up restart 1")
    assert replay.report.exit_code == 125
    assert replay.report.failure and "its agent did not stop the tasks" in replay.report.failure.text


def test_the_report_has_every_attempt():
    first = "worker/0 finishes 7; time up restart 1; worker/0 starts"
    second = "worker/0 dies 9; worker/0 gone; time up restart 2; worker/0 starts"
    history = f"up; {first}; {second}; worker/0 finishes 0; ps/0 ends; closed"
    replay = play("worker 1, ps 1, restarts 3", history)
    worker, _ = replay.report.tasks
    assert (worker.attempt, worker.state) == (3, TaskState.SUCCEEDED)
    assert [(each.attempt, each.host) for each in worker.earlier] == [(1, "node1"), (2, "node1")]
    assert [each.detail for each in worker.earlier] == ["exit code 7", "killed by SIGKILL"]
    assert all(each.started_at and each.ended_at for each in worker.earlier)
    assert starts(replay) == [("ps/0", 1), ("worker/0", 1), ("worker/0", 2), ("worker/0", 3)]


def test_the_others_have_the_wait_to_end():
    replay = play("worker 2, restarts 3", "up; worker/1 finishes 1")
    assert [stop.steps for stop in replay.all(events.StopTasks)] == [((15, 1.0), (9, 5.0))]


@pytest.mark.parametrize(("limit", "more"), [(" memory 8", "--memory"), ("", "a machine with more memory")])
def test_out_of_memory_a_hint_says_what_gives_the_task_more(limit: str, more: str):
    failure = play(f"worker 2{limit}", "up; worker/1 out of memory; worker/1 gone").report.failure
    assert failure is not None and more in failure.hint
