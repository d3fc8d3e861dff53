"""Restarts by the installed command: what a task finds when it comes back, and what the user is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.seeing import last_run

#: Kills itself in its first attempt, in the middle of a line.
FRAIL = """
import os, sys
print("attempt", os.environ["LAUNCH_ATTEMPT"], sys.argv[1], os.environ["TASK_ADDRESS"])
if os.environ["LAUNCH_ATTEMPT"] == "1" and os.environ["TASK_INDEX"] == sys.argv[2]:
    print("no end", end="", flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.promise("a task comes back with its port; all of it is reported")
def test_a_worker_comes_back_with_its_address_and_everything_is_told(launch: Launch):
    ended = launch("--restarts", "2", "--workers", "2", "--ps", "1", "-c", FRAIL, "{attempt}", "1", code=0)
    run = last_run(launch)
    (worker,) = (task for task in run.report["tasks"] if task["task"] == "worker/1")
    assert (worker["attempt"], worker["state"], run.report["restarts"]) == (2, "succeeded", 1)
    (earlier,) = worker["earlier"]
    assert (earlier["attempt"], earlier["host"], earlier["state"]) == (1, "localhost", "failed")
    assert earlier["detail"] == "killed by SIGKILL"
    address = worker["address"]
    log = (run.path / "logs/worker-1.log").read_text()
    assert log == f"attempt 1 1 {address}\nno end\nlaunch: attempt 2 starts here\nattempt 2 2 {address}\n"
    assert re.search(
        r"worker/1 failed after \S+: killed by SIGKILL; starting worker/1 again in [01]\.\ds", ended.err
    )
    assert "(attempt 2, restart 1 of 2)" in ended.err
    *_, head, first, second, ps, _, verdict = ended.out.splitlines()
    assert [line.split()[-1] for line in (head, first, second, ps)] == ["ATTEMPT", "1", "2", "1"]
    assert verdict.endswith("tasks started again 1 time")
    states = [
        (e["attempt"], e["state"])
        for e in run.events
        if e["event"] == "TaskMoved" and e["task"] == "worker/1"
    ]
    expected = ["starting", "running", "ended", "failed", "starting", "running", "ended", "succeeded"]
    assert states == [*zip([1] * 4 + [2] * 4, expected, strict=True)]


def test_the_same_exception_in_three_attempts_is_the_last(launch: Launch):
    code = "import os; print('row'); raise ValueError(f'bad row {os.getpid()}')"
    ended = launch("--restarts", "9", "-c", code, code=1)
    stuck = "exit code 1; not started again: it failed 3 times in the same way without progress"
    assert re.search(rf"worker/0 failed after \S+ \(attempt 3\): {stuck}", ended.err), ended.err
    assert "ValueError: bad row" in ended.err
    assert "(attempt 4" not in ended.err
    assert last_run(launch).report["restarts"] == 2


def test_a_program_that_can_not_be_imported_does_not_start_again(launch: Launch, tmp_path: Path):
    (tmp_path / "train.py").write_text("import there_is_no_such_module\n")
    ended = launch("--restarts", "3", "--workers", "2", "train.py", cwd=tmp_path, code=1)
    assert "not started again: an import failed" in ended.err
    assert {task["attempt"] for task in last_run(launch).report["tasks"]} == {1}


JOB = """\
restarts: 1
roles:
  worker: {count: 2, RULE}
command: [sh, -c, 'test {attempt}-{task_index} != 1-0 || exit 3']
"""


@pytest.mark.parametrize(
    ("rule", "attempts", "code"),
    [
        ("restart: never", [1, 1], 3),
        ("restart: task", [2, 1], 0),
        ("restart: job", [2, 2], 0),
        ("retryable: 128-255", [1, 1], 3),
        ("retryable: [3], restart: task", [2, 1], 0),
    ],
)
def test_the_rule_of_a_role(launch: Launch, tmp_path: Path, rule: str, attempts: list[int], code: int):
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("RULE", rule))
    ended = launch(path, cwd=tmp_path, code=code)
    assert ("not started again: exit code 3 is not retryable" in ended.err) == ("128" in rule)
    assert [task["attempt"] for task in last_run(launch).report["tasks"]] == attempts


def test_options_without_effect_are_noted(launch: Launch, tmp_path: Path):
    path = tmp_path / "lab.yaml"
    path.write_text("hosts: [localhost]\nspares: [node9]\n")
    ended = launch("--restart", "job", "--preload", "tensorflow", "--hosts", path, "true", code=0)
    noted = re.findall("launch: (.+) ha(?:s|ve) no effect", ended.err)
    assert noted == ["--restart", "--preload", "spare hosts"]
    ended = launch.here("--restarts", "1", "--preload", "json", "--hosts", path, "--dry-run", "-c", "pass")
    assert "no effect" not in ended.err + ended.out
    assert launch("--restarts", "-1", "true").code == 2
