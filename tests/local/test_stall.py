"""Silent tasks by the installed command: they are ended, show where they hang, and start again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.seeing import last_run, stub

#: worker/1 hangs in its first attempt; worker/0 prints until the second one has begun; a ps prints nothing.
HUNG = """
import os, time
from pathlib import Path
def hang_here():
    time.sleep(600)
if os.environ["JOB_NAME"] == "ps":
    time.sleep(600)
print("up", os.environ["LAUNCH_ATTEMPT"])
if os.environ["TASK_INDEX"] == "1":
    if os.environ["LAUNCH_ATTEMPT"] == "1":
        hang_here()
    Path("again").touch()
while not Path("again").exists():
    time.sleep(0.2)
    print("step")
"""


@pytest.mark.promise("silent tasks: which they are; they show their stacks and come back")
def test_a_hung_task_shows_its_stacks_and_comes_back(launch: Launch, tmp_path: Path):
    (tmp_path / "train.py").write_text(HUNG)
    words = ("--stall", "4s", "--restarts", "1", "--ps", "1", "--workers", "2", "train.py")
    ended = launch(*words, cwd=tmp_path, timeout=60, code=0)
    assert "worker/1 printed nothing for 4s; starting worker/1 again " in ended.err
    assert "ignored SIGTERM" not in ended.err
    run = last_run(launch)
    assert b"in hang_here" in run.log("worker/1")
    (earlier,) = run.task("worker/1")["earlier"]
    assert (earlier["state"], earlier["reason"]) == ("failed", "stalled")
    assert earlier["detail"] == "stalled, killed by SIGABRT"
    assert run.task("ps/0")["attempt"] == run.task("worker/0")["attempt"] == 1


def test_without_a_restart_the_job_fails_and_shows_the_stacks(launch: Launch, tmp_path: Path):
    (tmp_path / "train.py").write_text("import time\ndef hang_here():\n    time.sleep(600)\nhang_here()\n")
    ended = launch("--stall", "2", "train.py", cwd=tmp_path, code=124)
    assert "launch: worker/0 printed nothing for 2s\n" in ended.err
    assert "in hang_here" in ended.err[ended.err.index("its last lines:") :]
    assert "needs a longer --stall" in ended.err
    assert ended.out.splitlines()[-1].endswith("stalled, exit code 124 (worker/0)")
    assert last_run(launch).report["failure"]["reason"] == "stalled"


def test_tasks_whose_output_is_held_up_are_not_silent(launch: Launch):
    """The reader stops for 6 s, and so do the tasks, which print all the time."""
    command = ("bash", "-c", '"$@" | (sleep 6; cat); exit ${PIPESTATUS[0]}', "bash", sys.executable)
    words = [
        "--stall",
        "3s",
        "--workers",
        "2",
        "-x",
        "TOOK=/dev/null",
        "--",
        *stub("printer", "mebibytes", 40),
    ]
    launch(*words, command=(*command, "-m", "launcher"), timeout=90, code=0)
    assert set(last_run(launch).states().values()) == {"succeeded"}
