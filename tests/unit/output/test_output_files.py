from __future__ import annotations

import json
import os

import pytest

from launcher import events
from launcher.events import Tell
from launcher.job import RunPaths, TaskId
from launcher.output import files as files_module
from launcher.output.base import Opening, Renderer
from launcher.output.files import Files, write_json, write_json_for_user
from launcher.output.jsonl import Jsonl, skipped_notice
from launcher.output.writer import Writer
from tests.unit.output.output_samples import placement, report, task_report

W0, W1 = TaskId("worker/0"), TaskId("worker/1")


def printed(task: TaskId, data: bytes) -> events.TaskOutput:
    return events.TaskOutput("node1", task, 1, data)


@pytest.fixture
def warnings() -> list[Tell]:
    return []


@pytest.fixture
def paths(tmp_path) -> RunPaths:
    return RunPaths(str(tmp_path / "run"))


def begun(paths: RunPaths, warnings: list[Tell], **hosts: str) -> Files:
    made = Files(warnings.append, lambda: 5.0)
    made.begin(Opening("mnist", placement(**hosts), paths, 100.0))
    return made


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def test_a_report_is_there_whole_or_not_at_all(tmp_path):
    path = str(tmp_path / "report.json")
    write_json(path, {"b": 1, "a": [2]})
    assert content(path) == b'{\n  "a": [\n    2\n  ],\n  "b": 1\n}\n'
    os.chmod(tmp_path, 0o777)
    with pytest.raises(OSError):
        write_json(str(tmp_path / "no" / "report.json"), {})
    assert os.listdir(tmp_path) == ["report.json"]


def jsonl(tmp_path, *events: object) -> list[dict[str, object]]:
    fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    writer = Writer()
    made: Renderer = Jsonl(writer, fd, lambda: 5.0)
    made.begin(Opening("mnist", placement(node1="worker/0"), RunPaths(""), 1.0))
    for event in events:
        made.on(event)  # type: ignore[arg-type]
    assert made.tick(0.0) is None
    made.close(report(task_report("worker/0")))
    assert writer.close()
    os.close(fd)
    return [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]


def test_json_lines(tmp_path):
    gone = events.TaskGone("node1", 1.0, W0, 1)
    objects = jsonl(tmp_path, printed(W0, b"a \xff\r\nb\xc3"), Tell("hm"), printed(W0, b"\xa9\n\nlast"), gone)
    output = {"event": "TaskOutput", "task": "worker/0"}
    assert objects[:-1] == [
        {**output, "line": "a �"},
        {"event": "Tell", "at": 5.0, "text": "hm", "urgent": False},
        {**output, "line": "bé"},
        {**output, "line": ""},
        {**output, "line": "last"},
        {"event": "TaskGone", "at": 1.0, "host": "node1", "task": "worker/0", "attempt": 1}
        | {"leftovers": 0, "unkillable": []},
    ]
    assert objects[-1]["event"] == "Report" and objects[-1]["exit_code"] == 0
    assert json.loads(skipped_notice(3, 40)) == {"event": "Skipped", "lines": 3, "bytes": 40}


def test_json_of_an_endless_line(tmp_path):
    text = "é" * 1_500_000
    data = text.encode()
    chunks = [printed(W0, data[at : at + 65_537]) for at in range(0, len(data), 65_537)]
    objects = jsonl(tmp_path, *chunks)
    assert "".join(str(each.get("line", "")) for each in objects) == text
    assert [each.get("more") for each in objects] == [True, True, None, None]


def test_a_report_goes_through_what_is_no_file_and_along_links(tmp_path):
    pipe, target, link = tmp_path / "pipe", tmp_path / "target", tmp_path / "link"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    link.symlink_to(target)
    for path in (pipe, link):
        write_json_for_user(str(path), {"a": 1})
    assert json.loads(os.read(reading, 1000)) == json.loads(target.read_text()) == {"a": 1}
    os.close(reading)
    assert link.is_symlink() and not pipe.is_file()


# ---------------------------------------------------------------------- the folder may be another user's


@pytest.mark.timeout(40)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_pipe_in_the_place_of_the_report_is_replaced(paths, warnings, tmp_path, kind):
    (tmp_path / "precious").write_text("precious")
    files = begun(paths, warnings, node1="worker/0")
    for path in (paths.report, f"{paths.report}.{os.getpid()}.new"):
        os.symlink(tmp_path / "precious", path) if kind == "link" else os.mkfifo(path)
    files.close(report(task_report("worker/0")))
    assert json.loads(content(paths.report))["job"] == "mnist"
    assert (tmp_path / "precious").read_text() == "precious"
    assert not os.path.islink(paths.report) and warnings == []


@pytest.mark.timeout(40)
@pytest.mark.parametrize("kind", ["link", "pipe", "hard link"])
def test_what_lies_in_the_place_of_a_log_is_not_written(paths, warnings, tmp_path, kind):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    os.makedirs(paths.logs)
    if kind == "pipe":
        os.mkfifo(paths.log(W0))
    else:
        (os.link if kind == "hard link" else os.symlink)(precious, paths.log(W0))
    files = begun(paths, warnings, node1="worker/0 worker/1")
    files.on(printed(W0, b"x"))
    files.on(printed(W1, b"y"))
    assert precious.read_text() == "precious"
    assert content(paths.log(W1)) == b"y"
    assert [notice.text.partition(";")[0] for notice in warnings] == [
        f"{paths.log(W0)} can't be written: File exists"
    ]
    files.close(report())


@pytest.mark.timeout(40)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_log_that_was_swapped_is_not_written(paths, warnings, tmp_path, monkeypatch, kind):
    """Opened again because there are many: it is not what it was."""
    monkeypatch.setattr(files_module, "_MOST_OPEN", 1)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    files = begun(paths, warnings, node1="worker/0 worker/1")
    os.unlink(paths.log(W0))
    os.symlink(precious, paths.log(W0)) if kind == "link" else os.mkfifo(paths.log(W0))
    files.on(printed(W0, b"x"))
    assert precious.read_text() == "precious"
    assert len(warnings) == 1 and "worker-0.log can't be written" in warnings[0].text
    files.close(report())


def test_what_a_killed_launch_left_does_not_keep_a_report_from_being_written(tmp_path):
    path = tmp_path / "report.json"
    (tmp_path / f"report.json.{os.getpid()}.new").write_text("half a rep")
    write_json_for_user(str(path), {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_link_that_the_system_does_not_follow(tmp_path, monkeypatch):
    """As in /tmp, where others may have put it (``fs.protected_symlinks``)."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    stat = os.stat

    def protected(path, **settings):
        if path == str(tmp_path / "link"):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, **settings)

    monkeypatch.setattr(os, "stat", protected)
    with pytest.raises(PermissionError):
        write_json_for_user(str(tmp_path / "link"), {})
    monkeypatch.undo()
    assert (tmp_path / "precious").read_text() == "precious"
