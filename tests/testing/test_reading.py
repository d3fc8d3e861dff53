"""What the plug-in makes of a run's files, and of what it is asked for; no process."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import launcher.testing
from launcher import ExitStatus, Failure, Reason, Report, TaskId, TaskReport, TaskState
from launcher.output.jsonl import report_as_dict
from launcher.runs.growing import shown_lines
from launcher.testing import inside
from launcher.testing.command import Backend, Wanted, command_line
from launcher.testing.progress import described, exit_status_of, state_of
from launcher.testing.record import RunRecord

W0 = TaskId("worker/0")


def test_every_public_name_is_there():
    names = launcher.testing.__all__
    assert len({*names}) == len(names) and {*dir(launcher.testing)} == {*names}
    assert all(getattr(launcher.testing, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no attribute 'nobody'"):
        _ = launcher.testing.nobody


@pytest.mark.parametrize("failure", [None, Failure(Reason.SIGNAL, W0, "node1", 2.0, "killed", "more memory")])
def test_a_report_comes_back_as_it_was(tmp_path: Path, failure: Failure | None):
    status = ExitStatus(None, 9)
    first = (W0, "node1", "node1:4000", 4000, TaskState.FAILED, Reason.SIGNAL, status, "killed", 1, 4711)
    task = TaskReport(*first, 1.0, 2.0, 1 << 20, 0.5, 1, (7, 8))
    report = Report("a-job", 137, 1.0, 3.0, (task,), failure, "/run")
    (tmp_path / "report.json").write_text(json.dumps({**report_as_dict(report), "a field of tomorrow": 1}))
    assert RunRecord(str(tmp_path)).report() == report


def test_events_are_read_as_they_grow(tmp_path: Path):
    record = RunRecord(str(tmp_path))
    assert record.events() == [] and record.plan() is None and record.report() is None
    with open(tmp_path / "events.jsonl", "ab", buffering=0) as file:
        file.write(b'{"event": "A"}\n{"eve')
        assert record.events() == [{"event": "A"}]
        file.write(b'nt": "B"}\n')
        assert record.events() == [{"event": "A"}, {"event": "B"}]


EXITED, SIGNALLED = {"event": "TaskExited", "code": 0, "signal": None}, {"event": "TaskSignalled"}
STARTED, GONE = {"event": "TaskStarted"}, {"event": "TaskGone"}
KILLED = {"event": "TaskExited", "code": None, "signal": 9}


@pytest.mark.parametrize(
    ("events", "state", "words"),
    [
        ([], TaskState.PENDING, "pending"),
        ([STARTED], TaskState.RUNNING, "running"),
        ([STARTED, SIGNALLED], TaskState.STOPPING, "stopping"),
        ([STARTED, EXITED, SIGNALLED], TaskState.ENDED, "ended, exit code 0"),
        ([STARTED, EXITED, SIGNALLED, GONE], TaskState.SUCCEEDED, "succeeded, exit code 0"),
        ([STARTED, KILLED, GONE], TaskState.FAILED, "failed, killed by SIGKILL"),
        ([STARTED, SIGNALLED, KILLED, GONE], TaskState.STOPPED, "stopped, killed by SIGKILL"),
        ([{"event": "TaskNotStarted", "code": 127}], TaskState.FAILED, "failed, exit code 127"),
    ],
)
def test_how_a_task_is(events: list[Mapping[str, Any]], state: TaskState, words: str):
    assert state_of(events) is state
    assert described(state, exit_status_of(events)) == words


def test_containers(tmp_path: Path):
    words = command_line(
        Wanted(["train.py"], ps=1, env={"KEY": "secret"}), Backend.of("docker:x/y:1"), tmp_path
    )
    assert words == ["-x", "KEY", "--run-dir", str(tmp_path / "run"), "--docker", "x/y:1", "--ps", "1", "--", "train.py"]  # fmt: skip  # noqa: E501


def test_a_module(tmp_path: Path):
    words = command_line(Wanted(["-m", "package.train", "-v"], workers=0, chief=True), Backend(), tmp_path)
    assert words[2:] == ["--workers", "0", "--chief", "-m", "package.train", "-v"]


def test_lines_are_fit_to_be_shown():
    text = "first\nstep 1\rstep 2\r\n\x1b[31mred\x1b[0m\t\xe9\n" + "x" * 600 + "\n\n"
    assert shown_lines(text, 10) == [
        "first", "step 2", "\\x1b[31mred\\x1b[0m\t\xe9", "x" * 500 + "... (600 characters)"
    ]  # fmt: skip
    assert shown_lines(text, 1) == ["x" * 500 + "... (600 characters)"]
    assert shown_lines("\n", 5) == []


def test_what_goes_into_containers_runs_by_itself(tmp_path: Path):
    """There is nothing of ours, and perhaps an old Python."""
    source = Path(inside.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert modules == {"json", "os", "signal", "sys"}
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as task:
        alone = [sys.executable, "-I", "-S", "-c", source, "9", str(task.pid)]
        assert json.loads(subprocess.check_output([*alone, "main"])) in ("", "S", "R", "Z")
        assert task.wait(20) == -9
    assert subprocess.check_output([*alone, "all"]) == b"null\n"
