"""``launcher.run``: a program on a cluster, from Python."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

import launcher
from launcher import InputError, JobFailed, Report, TaskFailed, TaskState

pytestmark = pytest.mark.timeout(180)


@pytest.mark.promise("`launcher.run` returns the report")
def test_a_report(capfd: pytest.CaptureFixture[str]):
    script = "echo $JOB_NAME $WORD; test $JOB_NAME = worker || sleep 60"
    report = launcher.run(["sh", "-c", script], ps=1, workers=2, env={"WORD": "hello"})
    assert isinstance(report, Report) and report.exit_code == 0 and report.failure is None
    assert [task.task for task in report.tasks] == ["worker/0", "worker/1", "ps/0"]
    assert [task.state for task in report.tasks] == [*[TaskState.SUCCEEDED] * 2, TaskState.STOPPED]
    assert Path(report.run_dir, "report.json").exists()
    page = report._repr_html_()  # A notebook shows the page of launch report --html.
    assert "<script" not in page and ">ok in" in page and "worker hello" in page
    out, err = capfd.readouterr()
    assert "worker/1 | worker hello" in out and f"job {report.job}: ok" in out
    assert err.startswith(f"launch: job {report.job}: 2 workers, 1 ps")


def test_a_quiet_job_prints_nothing(capfd: pytest.CaptureFixture[str]):
    launcher.run("true", quiet=True)
    with pytest.raises(TaskFailed):
        launcher.run("false", quiet=True)
    assert capfd.readouterr() == ("", "")


def test_a_task_that_fails():
    words = ["sh", "-c", "echo the last line; exit $((TASK_INDEX * 3))"]
    with pytest.raises(TaskFailed, match=r"worker/1 failed .*: exit code 3") as caught:
        launcher.run(words, workers=2, on_failure="continue", quiet=True)
    error = caught.value
    assert (error.task, error.code, error.signal) == ("worker/1", 3, None)
    assert error.last_lines == ("the last line",)
    assert error.report.exit_code == 3 and error.report.run_dir == error.run_dir
    report = launcher.run(words, workers=2, on_failure="continue", quiet=True, check=False)
    assert report.exit_code == 3 and report.failure is not None and report.failure.task == "worker/1"
    shown = "exit code 3 after .*s, tasks: 1 succeeded, 1 failed; worker/1 failed .*"
    assert re.fullmatch(rf"<Report of {report.job}: {shown}>", repr(report))


def test_a_failure_is_told_once(capfd: pytest.CaptureFixture[str]):
    """By the exception, or else by launch, and with the same hint."""
    words = ["sh", "-c", "echo the last line; exit 127"]
    with pytest.raises(TaskFailed) as caught:
        launcher.run(words, workers=1)
    shown, text = "".join(capfd.readouterr()), str(caught.value)
    assert (shown.count("the last line"), shown.count("hint: ")) == (1, 0), "what the task has printed"
    assert text.count("exit code 127") == 1 and text.count("the last line") == 1
    hint = caught.value.report.failure.hint
    assert hint and text.endswith(f"hint: {hint}")
    launcher.run(words, workers=1, check=False)
    shown = "".join(capfd.readouterr())
    assert shown.count("the last line") == 2 and shown.count(f"hint: {hint}") == 1


@pytest.mark.promise("wrong arguments of the Python API are named before anything is opened")
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("program", "more", "message"),
    [
        ([], {}, "program is empty"),
        ("true", {"workers": -1, "env": 7}, "(?s)env=7.*workers=-1"),
        ("true", {"timeout": "soon", "on_failure": "go"}, "(?s)on_failure='go'.*timeout='soon'"),
        ("true", {"timeout": "5m", "done_when": "boss"}, r"options=\['--done-when', "),
        ("true", {"worker": 2}, "'worker'; did you mean \"workers\"[?]"),
        ("true", {"hosts": ["a", "b"], "sync": False, "ps": {}}, "(?s)hosts=.*sync=False.*ps={}"),
        ("true", {"env": {"A=B": "c"}, "restarts": True}, "(?s)env=.*'A=B': expected a var.*restarts=True"),
        ("true", {"roles": {"reader": {"workdir": object()}}}, "roles=.*'reader': .*'workdir': <object"),
        ("true", {"roles": {"reader": {"env": {"A": 10**5000}}}}, "roles=.*'A': "),
        ("true", {"venv": "--version"}, "--version"),
        ("true", {"options": ["echo"]}, "'echo' ends the options"),
        ("true", {"options": ["--"]}, "'--' ends the options"),
        ("true", {"options": ["-m"]}, "'-m' ends the options"),
        ("true", {"options": ["--detach"]}, "--detach"),
        ("true", {"hosts": "no/such"}, "no such hostfile"),
        ("no/such.yaml", {}, "no/such.yaml"),
        ("true", {"options": ["--no-such-option"]}, "unrecognized option --no-such-option"),
        ("true", {"sync": 3}, "sync=3"),
        ("true", {"sync": ["a", "b"]}, "--sync: the option is about other machines"),
    ],
)
def test_bad_input(
    program: Any, more: dict[str, Any], message: str, check: bool, capfd: pytest.CaptureFixture[str]
):
    with pytest.raises(InputError, match=message):
        launcher.run(program, **more, check=check)
    assert capfd.readouterr() == ("", ""), "the exception has the text"


def test_numbers_of_numpy_and_paths(tmp_path: Path):
    """In options, in roles, and in the keys of a role."""
    (tmp_path / "sub").mkdir()
    none, two, minute = numpy.int64(0), numpy.int64(2), numpy.float32(60)
    numbers: dict[str, Any] = {"ps": none, "timeout": minute, "chief": numpy.bool_(False)}
    reader = {"count": two, "workdir": tmp_path / "sub", "env": {"A": tmp_path}}
    roles: dict[str, Any] = {"reader": reader, "worker": two}
    words = ["sh", "-c", "pwd > $JOB_NAME-$TASK_INDEX"]
    report = launcher.run(words, roles=roles, workdir=tmp_path, quiet=True, **numbers)
    assert len(report.tasks) == 4
    assert {path.name for path in tmp_path.rglob("*-?")} == {"reader-0", "reader-1", "worker-0", "worker-1"}
    assert (tmp_path / "sub" / "reader-1").exists()


def test_a_program_that_is_not_there():
    with pytest.raises(JobFailed, match="no/such.py") as caught:
        launcher.run("no/such.py", quiet=True)
    assert caught.value.launch_code == 127 and caught.value.report is None


def test_a_dry_run_has_no_report(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(JobFailed, match="launch ran no job"):
        launcher.run("true", options=["--dry-run"], check=False)
    assert "worker/0" in capfd.readouterr().out


def test_a_job_file_and_what_replaces_its_settings(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    command = 'command: sh -c "pwd > $JOB_NAME-$TASK_INDEX"'
    (tmp_path / "job.Yml").write_text(f"{command}\nworkdir: sub\nroles: {{worker: 1, reader: 1}}\n")
    launcher.run(tmp_path / "job.Yml", workers=2, quiet=True)
    assert {path.name for path in (tmp_path / "sub").iterdir()} == {"worker-0", "worker-1", "reader-0"}
    launcher.run(tmp_path / "job.Yml", roles={"reader": 3}, workdir=tmp_path, quiet=True)
    assert len(list(tmp_path.glob("reader-*"))) == 3 and len(list(tmp_path.glob("worker-*"))) == 1


PROGRAM = """
import launcher
launcher.run(["sh", "-c", "echo up; exec sleep 300"], workers=2, env={"KEY": "the-secret"}, grace=5)
"""


def test_ctrl_c_stops_the_job_in_order(tmp_path: Path, launch: Any):
    (tmp_path / "program.py").write_text(PROGRAM)
    started = launch.start(str(tmp_path / "program.py"), command=[sys.executable]).up(2)
    ended = started.stop(signal.SIGINT)
    assert ended.err.rstrip().endswith("KeyboardInterrupt") and ended.out.count("stopped") >= 2


def test_defaults_are_those_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`launcher.run` reads them, as the same command does."""
    (tmp_path / "launch.toml").write_text("workers = 3\nps = 1\nenv = {WORD = 'hello'}\n")
    monkeypatch.chdir(tmp_path)
    script = "test $WORD = hello && (test $JOB_NAME = worker || sleep 60)"
    words = ["sh", "-c", script]
    assert len(launcher.run(words, quiet=True).tasks) == 4
    assert len(launcher.run(words, ps=0, workers=1, quiet=True).tasks) == 1
    roles = launcher.run(words, workers=1, roles={"worker": 2}, quiet=True)
    assert len(roles.tasks) == 2, "roles= has all numbers of tasks"
