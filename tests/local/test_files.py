"""What a run leaves, and what happens where it can't."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Launch, in_shell
from tests.seeing import RunFolder, last_run, stub


@pytest.mark.promise("report, events, plan, logs, `--run-dir`")
@pytest.mark.promise("`TF_CONFIG` and flags by role; placeholders; variables as TonY has them")
def test_the_folder_of_a_run(launch: Launch):
    """Files that nobody else may read; the value of a variable is only where a task has printed it."""
    script = "test $JOB_NAME = ps && exec sleep 60; echo $SECRET"
    options = ["--ps", "1", "--workers", "2", "--flags", "-x", "SECRET=pass phrase"]
    ended = launch(*options, "--", "sh", "-c", script, code=0)
    run = last_run(launch)
    found = sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file())
    # A task that printed nothing has no index.
    logs = ["ps-0.log", "worker-0.log", "worker-0.times", "worker-1.log", "worker-1.times"]
    in_logs = [f"logs/{name}" for name in logs]
    assert found == ["events.jsonl", "launcher.json", *in_logs, "plan.json", "report.json"]
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert f"\nlogs: ~/{run.path.relative_to(launch.home)}\n" in ended.out
    secret = {path.name for path in run.path.rglob("*.*") if b"pass phrase" in path.read_bytes()}
    assert secret == {"worker-0.log", "worker-1.log"}

    plan = run.plan
    assert (plan["schema"], plan["job"]) == (1, run.path.name)
    assert [task["task"] for task in plan["tasks"]] == ["worker/0", "worker/1", "ps/0"]
    for task in plan["tasks"]:
        role, _, index = task["task"].partition("/")
        assert task["address"] == plan["cluster"][role][int(index)] == f"127.0.0.1:{task['port']}"
        assert (task["env"]["JOB_NAME"], task["env"]["TASK_INDEX"]) == (role, index)
        assert task["argv"][:3] == ["sh", "-c", script]
        assert f"--job_name={role}" in task["argv"] and f"--task_index={index}" in task["argv"]
        assert "SECRET" not in task["env"]

    events = [event for event in run.events if event["event"] != "Tell"]
    assert [event["event"] for event in events[:2]] == ["AgentReady", "PortsHeld"]
    assert events[-1]["event"] == "AgentClosed"
    assert "TaskOutput" not in {event["event"] for event in events}
    for name in ("worker/0", "worker/1"):
        mine = [(event["event"], event["state"]) for event in events if event.get("task") == name]
        assert mine == [("TaskMoved", state) for state in ("starting", "running", "ended", "succeeded")]
    assert all(event["at"] > 1e9 for event in events)


@pytest.mark.parametrize("words", [["-qx", "SECRET=pass phrase"], ["-vqxSECRET=pass phrase"]])
def test_the_plan_has_no_value_of_an_x_option_in_one_word_with_q(launch: Launch, words: list[str]):
    launch(*words, "--", "sh", "-c", "exit 0")
    command = str(last_run(launch).plan["command"])
    assert "SECRET=..." in command
    assert "pass phrase" not in command


@pytest.mark.promise("report, events, plan, logs, `--run-dir`")
def test_the_report_and_a_folder_for_the_run(launch: Launch, weird_path: Path):
    """A folder that all may read gets files that none of them may read."""
    folder, path = weird_path / "run", weird_path / "re port.json"
    folder.mkdir(mode=0o755)
    script = "echo hi; test $TASK_INDEX = 0 || exit 7; sleep 60"
    launch("--run-dir", folder, "--report", path, "--workers", "2", "--", "sh", "-c", script)
    run = RunFolder(folder)
    report = run.report
    assert json.loads(path.read_text()) == report
    assert (report["schema"], report["exit_code"], report["run_dir"]) == (1, 7, str(folder))
    assert report["started_at"] < report["ended_at"]
    stopped, failed = report["tasks"]
    assert (stopped["state"], stopped["reason"]) == ("stopped", "stopped")
    assert (failed["state"], failed["reason"], failed["detail"]) == ("failed", "exit", "exit code 7")
    for task in report["tasks"]:
        assert task["attempt"] == 1
        assert task["pid"] > 1 and task["port"] > 1023
        assert report["started_at"] <= task["started_at"] <= task["ended_at"] <= report["ended_at"]
        assert task["peak_rss"] > 0 and task["cpu_s"] >= 0
    assert run.log("worker/1") == b"hi\n"
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask, "asked for: as any other file"


def test_a_run_dir_that_can_not_be_one(launch: Launch, tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    ended = launch("--run-dir", tmp_path / "thesis.tex" / "run", "touch", tmp_path / "started", code=125)
    assert "thesis.tex" in ended.err and "Traceback" not in ended.err
    assert not (tmp_path / "started").exists()


def test_no_home_at_all(launch: Launch, tmp_path: Path):
    """A container's user may have none: the error says so, and --run-dir helps."""
    env = {"HOME": "", "XDG_STATE_HOME": ""}
    nowhere = launch("true", env=env)
    assert (nowhere.code, nowhere.out) == (125, "")
    assert "neither XDG_STATE_HOME nor HOME is set; use --run-dir" in nowhere.err
    assert launch("--run-dir", tmp_path / "run", "true", env=env).code == 0


# ---------------------------------------------------------------------- file systems of their own


def _mounted(options: str, folder: Path) -> tuple[str, ...]:
    """The command with a tmpfs of its own at ``folder``; what it leaves there is copied beside it."""
    folder.mkdir()
    mount = f"mount -t tmpfs -o {options} none {folder} && "
    script = mount + f'"$@"; code=$?; cp -r {folder} {folder}.after; exit $code'
    user = () if os.geteuid() == 0 else ("--map-root-user",)
    unshare = ("unshare", "--mount", *user)
    mounting = [*unshare, "mount", "-t", "tmpfs", "none", str(folder)]
    tried = subprocess.run(mounting, capture_output=True, check=False)
    if tried.returncode:
        pytest.fail(f"this test needs root, or user namespaces, to mount a tmpfs: {tried.stderr.decode()}")
    return (*unshare, "sh", "-c", script, "sh", *COMMAND)


@pytest.mark.promise("full disks")
@pytest.mark.parametrize("code", [0, 3])
def test_a_full_disk_does_not_stop_the_job(launch: Launch, tmp_path: Path, code: int):
    disk = tmp_path / "disk"
    printing = " ".join(stub("printer", "mebibytes", 3))
    words = ["--workers", "2", "--on-failure", "continue", "--run-dir", f"{disk}/run", "-x", "TOOK=/dev/null"]
    script = f"{printing}; exit {code}"
    ended = launch.start(*words, "--", "sh", "-c", script, command=_mounted("size=1m", disk)).wait()
    assert ended.code == (code or 125), "a job without its report is no success"
    assert ended.out.count("z" * 99 + "\n") == 2 * 3 * 10486, "the console is complete"
    assert ended.err.count("report.json cannot be written: No space left on device") == 1
    lines = ended.err.splitlines()
    warnings = [line for line in lines if "No space left" in line and "job continues" in line]
    assert len(warnings) == 1
    assert "Traceback" not in ended.err
    log = (tmp_path / "disk.after" / "run" / "logs" / "worker-0.log").read_bytes()
    assert re.fullmatch(rb"(z{99}\n)*z{0,99}", log), "what there is of it is what was printed first"


@pytest.mark.parametrize(("words", "code"), [([], 0), (["--json"], 3)])
def test_output_that_can_not_be_written_is_no_success(launch: Launch, words: list[str], code: int):
    """One rule for all that is written; whose reader has gone is another matter."""
    command = in_shell('"$@" >/dev/full')
    ended = launch(*words, "--", "sh", "-c", f"echo hi; exit {code}", command=command, code=code or 125)
    assert "the output cannot be written: No space left on device" in ended.err
    assert ("launch: exit code 125: the job is ok, but" in ended.err) == (code == 0)


@pytest.mark.parametrize(
    ("options", "reason"), [("size=4k,nr_inodes=2", "No space left"), ("ro", "Read-only file system")]
)
def test_a_place_where_no_folder_can_be_made(launch: Launch, tmp_path: Path, options: str, reason: str):
    """Known before anything starts."""
    disk = tmp_path / "disk"
    words = ["--run-dir", f"{disk}/a/run", "touch", str(tmp_path / "started")]
    ended = launch.start(*words, command=_mounted(options, disk)).wait(code=125)
    assert reason in ended.err and "--run-dir" in ended.err and "Traceback" not in ended.err
    assert not (tmp_path / "started").exists()


def test_a_run_folder_that_vanishes(launch: Launch, tmp_path: Path):
    folder = tmp_path / "run"
    # The last file that is made before the task's end: what is made during `rm` would keep the folder.
    made = "test -e plan.json && grep -q running events.jsonl"
    script = f"cd {folder}; until {made}; do sleep 0.05; done; cd /; rm -rf {folder}; echo still here"
    ended = launch("--run-dir", str(folder), "--", "sh", "-c", script, code=125)
    assert "report.json cannot be written" in ended.err
    assert "worker/0 | still here" in ended.out
    assert "Traceback" not in ended.err
