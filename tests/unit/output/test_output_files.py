from __future__ import annotations

import json
import os
import resource
import shutil

import pytest

from launcher import events
from launcher.events import Tell
from launcher.job import RunPaths, TaskId
from launcher.output import files as files_module
from launcher.output.base import Opening, Renderer, Shown
from launcher.output.files import Files, write_json, write_json_for_user
from launcher.output.jsonl import Jsonl, skipped_notice
from launcher.output.writer import Writer
from launcher.report import Failure, Reason
from tests.unit.output.output_samples import failed, placement, report, task_report

W0, W1 = TaskId("worker/0"), TaskId("worker/1")


def printed(task: TaskId, data: bytes) -> events.TaskOutput:
    return events.TaskOutput("node1", task, 1, data)


@pytest.fixture
def warnings() -> list[Tell]:
    return []


@pytest.fixture
def paths(tmp_path) -> RunPaths:
    return RunPaths(str(tmp_path / "run"))


def begun(paths: RunPaths | None, warnings: list[Tell], **hosts: str) -> Files:
    made = Files(warnings.append, lambda: 5.0)
    made.begin(Opening("mnist", placement(**hosts), paths, 100.0))
    return made


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def test_what_a_run_leaves(paths, warnings):
    files: Renderer = begun(paths, warnings, node1="worker/0 worker/1")
    assert content(paths.log(W1)) == b""
    files.on(printed(W0, b"raw \xff\x00\r"))
    files.on(printed(W0, b"\x1b[2J\n"))
    assert content(paths.log(W0)) == b"raw \xff\x00\r\x1b[2J\n"  # there at once
    files.on(events.PortsHeld("node1", 1.5, {W0: 4000}))
    files.on(events.TaskExited("node1", 2.5, W0, 1, 7, None, 10, 0.5))
    files.on(Tell("ä \udcff"))
    assert files.tick(0.0) is None
    failure = Failure(Reason.EXIT, W0, "node1", 2.5, "exit code 7")
    files.close(report(failed("worker/0"), failure=failure, exit_code=7))
    written = [json.loads(line) for line in content(paths.events).splitlines()]
    assert written == [
        {"event": "PortsHeld", "at": 1.5, "host": "node1", "ports": {"worker/0": 4000}},
        {
            "event": "TaskExited",
            "at": 2.5,
            "host": "node1",
            "task": "worker/0",
            "attempt": 1,
            "code": 7,
            "signal": None,
            "peak_rss": 10,
            "cpu_s": 0.5,
            "oom": "",
        },
        {"event": "Tell", "at": 5.0, "text": "ä \udcff", "urgent": False},
    ]
    told = json.loads(content(paths.report))
    assert (told["schema"], told["job"], told["exit_code"]) == (1, "mnist", 7)
    assert told["tasks"][0]["state"] == "failed"
    assert told["tasks"][0]["status"] == {"code": 7, "signal": None}
    assert told["failure"] == {
        "reason": "exit",
        "task": "worker/0",
        "host": "node1",
        "at": 2.5,
        "text": "exit code 7",
        "hint": "",
        "limit": "",
    }
    assert warnings == []
    assert sorted(os.listdir(paths.root)) == ["events.jsonl", "logs", "report.json"]


def test_every_fact_can_be_written(paths, warnings):
    files = begun(paths, warnings, node1="worker/0")
    every: list[Shown] = [
        events.AgentReady("node1", 1.0, 5, {"cpus": 4, "gpus": ["0"]}),
        events.PortsRefused("node1", 1.0, "none"),
        events.TaskStarted("node1", 1.0, W0, 1, 9),
        events.TaskNotStarted("node1", 1.0, W0, 1, 127, "not found"),
        events.TaskSignalled("node1", 1.0, W0, 1, 15, 2),
        events.TaskGone("node1", 1.0, W0, 1, 0, (3, 4)),
        events.AgentLost("node1", 1.0, "why"),
        events.AgentClosed("node1", 1.0),
        events.StopAsked(1.0, 2, "you"),
        events.TimeUp(1.0, "grace"),
    ]
    for event in every:
        files.on(event)
    files.close(report(task_report("worker/0")))
    lines = content(paths.events).splitlines()
    assert [json.loads(line)["event"] for line in lines] == [type(event).__name__ for event in every]


def test_without_a_folder_nothing_is_written(warnings, tmp_path):
    files = begun(None, warnings, node1="worker/0")
    files.on(printed(W0, b"x"))
    files.close(report())
    assert warnings == [] and list(tmp_path.iterdir()) == []


def test_many_tasks_need_few_descriptors(paths, warnings, monkeypatch):
    monkeypatch.setattr(files_module, "_MOST_OPEN", 10)
    before = len(os.listdir("/proc/self/fd"))
    names = [f"worker/{n}" for n in range(60)]
    files = begun(paths, warnings, node1=" ".join(names))
    for part in (b"one\n", b"two\n"):
        for name in names:
            files.on(printed(TaskId(name), part))
    assert len(os.listdir("/proc/self/fd")) <= before + 10
    files.close(report())
    assert {content(paths.log(TaskId(name))) for name in names} == {b"one\ntwo\n"}
    assert warnings == []


def test_a_full_disk_is_said_once_and_ends_the_log(paths, warnings):
    files = begun(paths, warnings, node1="worker/0 worker/1")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    files.on(printed(W0, b"begin\n"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))  # EFBIG, like a quota: Python ignores SIGXFSZ
    try:
        files.on(printed(W0, b"x" * 2000))
        files.on(printed(W1, b"y" * 2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    files.on(printed(W0, b"a false continuation\n"))
    files.on(Tell("the job goes on"))
    assert len(warnings) == 1
    assert warnings[0].text.endswith(
        "worker-0.log can't be written: File too large; it ends here, the job goes on"
    )
    assert content(paths.log(W0)) == (b"begin\n" + b"x" * 2000)[:1000]
    files.close(report(task_report("worker/0")))
    assert warnings[1:] == [Tell(f"not complete in {paths.root}: worker-0.log, worker-1.log")]
    assert os.path.exists(paths.report)


def test_a_folder_that_vanished(paths, warnings, monkeypatch):
    monkeypatch.setattr(files_module, "_MOST_OPEN", 1)
    files = begun(paths, warnings, node1="worker/0 worker/1")
    shutil.rmtree(paths.root)
    files.on(printed(W0, b"x\n"))
    files.on(printed(W0, b"x\n"))
    assert [tell.urgent for tell in warnings] == [False]
    files.close(report())
    assert warnings[-1].urgent and "report.json can't be written: No such file" in warnings[-1].text


def test_a_warning_that_comes_back_as_an_event(paths):
    made: list[Files] = []
    told: list[str] = []

    def warn(tell: Tell) -> None:
        told.append(tell.text.replace(paths.root, "run"))
        made[0].on(tell)

    files = Files(warn)
    made.append(files)
    with open(os.path.dirname(paths.root) + "/run", "w"):
        pass  # a file where the folder should be
    files.begin(Opening("mnist", placement(node1="worker/0"), paths, 1.0))
    files.on(printed(W0, b"x"))
    files.close(report())
    assert told == [
        "run/events.jsonl can't be written: Not a directory; it ends here, the job goes on",
        "not complete in run: events.jsonl, worker-0.log",
        "run/report.json can't be written: Not a directory",
    ]


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
    made.begin(Opening("mnist", placement(node1="worker/0"), None, 1.0))
    for event in events:
        made.on(event)  # type: ignore[arg-type]
    assert made.tick(0.0) is None
    made.close(report(task_report("worker/0")))
    assert writer.close()
    os.close(fd)
    return [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]


def test_json_lines(tmp_path):
    gone = events.TaskGone("node1", 1.0, W0, 1)
    said = jsonl(tmp_path, printed(W0, b"a \xff\r\nb\xc3"), Tell("hm"), printed(W0, b"\xa9\n\nlast"), gone)
    output = {"event": "TaskOutput", "task": "worker/0"}
    assert said[:-1] == [
        {**output, "line": "a �"},
        {"event": "Tell", "at": 5.0, "text": "hm", "urgent": False},
        {**output, "line": "bé"},
        {**output, "line": ""},
        {**output, "line": "last"},
        {"event": "TaskGone", "at": 1.0, "host": "node1", "task": "worker/0", "attempt": 1}
        | {"leftovers": 0, "unkillable": []},
    ]
    assert said[-1]["event"] == "Report" and said[-1]["exit_code"] == 0
    assert json.loads(skipped_notice(3, 40)) == {"event": "Skipped", "lines": 3, "bytes": 40}


def test_json_of_an_endless_line(tmp_path):
    text = "é" * 1_500_000
    data = text.encode()
    chunks = [printed(W0, data[at : at + 65_537]) for at in range(0, len(data), 65_537)]
    for said in (jsonl(tmp_path, *chunks), jsonl(tmp_path, printed(W0, data + b"\n"))):
        assert "".join(str(each.get("line", "")) for each in said) == text
        assert [each.get("more") for each in said] == [True, True, None, None]


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


def test_a_link_in_the_place_of_the_report_is_replaced(paths, warnings, tmp_path):
    (tmp_path / "precious").write_text("precious")
    files = begun(paths, warnings, node1="worker/0")
    for name in ("report.json", f"report.json.{os.getpid()}.new"):
        os.symlink(tmp_path / "precious", f"{paths.root}/{name}")
    files.close(report(task_report("worker/0")))
    assert json.loads(content(paths.report))["job"] == "mnist"
    assert (tmp_path / "precious").read_text() == "precious"
    assert not os.path.islink(paths.report) and warnings == []


@pytest.mark.timeout(40)
def test_a_pipe_in_the_place_of_the_report_is_replaced(paths, warnings):
    files = begun(paths, warnings, node1="worker/0")
    os.mkfifo(paths.report)
    files.close(report(task_report("worker/0")))
    assert os.path.isfile(paths.report) and warnings == []


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
    assert [tell.text.partition(";")[0] for tell in warnings] == [
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
