"""The files of a run, also where another user may have put something else in their place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.common.cluster import TaskId
from launcher.common.report import TaskState
from launcher.job import RunPaths
from launcher.output import run_files as files_module
from launcher.output.run_files import Files, json_text, write_for_user
from tests.told import Told
from tests.unit.output.output_samples import moved, printed, report, run_info, task_report

W0, W1 = TaskId("worker/0"), TaskId("worker/1")


@pytest.fixture
def told() -> Iterator[Told]:
    with Told() as told:
        yield told


@pytest.fixture
def paths(tmp_path) -> RunPaths:
    return RunPaths(str(tmp_path / "run"))


def begun(paths: RunPaths, resumed: bool = False, **hosts: str) -> Files:
    made = Files(lambda: 5.0, is_resumed=resumed)
    made.begin(run_info(paths, **hosts))
    return made


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def test_a_report_into_a_pipe_and_along_links(tmp_path):
    pipe, target, link = tmp_path / "pipe", tmp_path / "target", tmp_path / "link"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    link.symlink_to(target)
    for path in (pipe, link):
        write_for_user(str(path), json_text({"a": 1}))
    assert json.loads(os.read(reading, 1000)) == json.loads(target.read_text()) == {"a": 1}
    os.close(reading)
    assert link.is_symlink() and not pipe.is_file()


# ---------------------------------------------------------------------- the folder may be another user's


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """A file that must not change, whatever is in the place of ours."""
    path = tmp_path / "precious"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def put(kind: str, path: str, precious: Path) -> None:
    """Put something else in the place of a file."""
    if kind == "pipe":
        os.mkfifo(path)
    else:
        (os.link if kind == "hard link" else os.symlink)(precious, path)


@pytest.mark.timeout(40)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_pipe_in_the_place_of_the_report_is_replaced(paths, told, precious, kind):
    files = begun(paths, node1="worker/0")
    for path in (paths.report, f"{paths.report}.{os.getpid()}.new"):
        put(kind, path, precious)
    files.close(report(task_report("worker/0")))
    assert json.loads(content(paths.report))["job"] == "mnist"
    assert not os.path.islink(paths.report) and told.lines == []


@pytest.mark.timeout(40)
@pytest.mark.parametrize("kind", ["link", "pipe", "hard link"])
def test_other_files_in_the_place_of_a_log_are_not_written(paths, told, precious, kind):
    os.makedirs(paths.logs)
    put(kind, paths.log(W0), precious)
    files = begun(paths, node1="worker/0 worker/1")
    files.on(printed(W0, b"x"))
    files.on(printed(W1, b"y"))
    assert content(paths.log(W1)) == b"y"
    (line,) = told.lines
    assert line.startswith(f"{paths.log(W0)} cannot be written: File exists")
    files.close(report())


def test_another_launcher_begins_an_attempt_in_a_line_of_its_own(paths):
    files = begun(paths, node1="worker/0 worker/1 ps/0")
    for task, data in ((W0, b"half a line"), (W1, b"whole\n")):
        files.on(printed(task, data))
    files.close(report())
    os.mkfifo(paths.log(TaskId("ps/1")))  # A task may have put it there. Nobody waits for its other end.
    files = begun(paths, resumed=True, node1="worker/0 worker/1 ps/0 ps/1")
    for task in (W0, W1, TaskId("ps/0")):
        files.on(moved(task, 2, TaskState.STARTING))
    files.close(report())
    mark = b"launch: attempt 2 starts here\n"
    assert content(paths.log(W0)) == b"half a line\n" + mark
    assert content(paths.log(W1)) == b"whole\n" + mark
    assert content(paths.log(TaskId("ps/0"))) == mark


def test_logs_are_complete_where_fewer_files_may_be_open(paths, monkeypatch):
    monkeypatch.setattr(files_module, "_MAX_OPEN_FILES", 2)
    files = begun(paths, node1="worker/0 worker/1 ps/0")
    for data in (b"0\n", b"1\n", b"2\n"):
        for task in (W0, W1, TaskId("ps/0")):
            files.on(printed(task, data))
    files.on(moved(W1, 1, TaskState.FAILED))
    files.on(moved(W1, 2, TaskState.STARTING))
    files.on(moved(W1, 2, TaskState.RUNNING))
    files.close(report())
    assert content(paths.log(W0)) == content(paths.log(TaskId("ps/0"))) == b"0\n1\n2\n"
    assert content(paths.log(W1)) == b"0\n1\n2\nlaunch: attempt 2 starts here\n"


@pytest.mark.timeout(40)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_log_that_was_swapped_is_not_written(paths, told, precious, monkeypatch, kind):
    """Opened again because there are many: it is not what it was."""
    monkeypatch.setattr(files_module, "_MAX_OPEN_FILES", 1)
    files = begun(paths, node1="worker/0 worker/1")
    os.unlink(paths.log(W0))
    put(kind, paths.log(W0), precious)
    files.on(printed(W0, b"x"))
    (line,) = told.lines
    assert "worker-0.log cannot be written" in line
    files.close(report())
