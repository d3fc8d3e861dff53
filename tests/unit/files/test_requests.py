"""What ``--sync`` and ``--collect`` may say, and what is said when it is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.errors import JobError
from launcher.files.requests import (
    CollectRequest,
    Item,
    SyncRequest,
    items_of,
    parse_collects,
    parse_syncs,
)
from launcher.job import TaskId
from tests.unit.files.hosts import away_from


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("src", "data", "with:colon", "other/src"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("src")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name", "remote"),
    [
        ("src", "src", None),
        ("src/", "src", None),
        ("./src/.", "src", None),
        ("src:there", "src", "there"),
        ("src:~/there/", "src", "there"),
        ("src:./a//b", "src", "a/b"),
        ("src:/scratch/me/", "src", "/scratch/me"),
        ("with:colon", "with:colon", None),
        ("with:colon:there", "with:colon", "there"),
        ("link", "link", None),
    ],
)
def test_sync(here: Path, text: str, name: str, remote: str | None):
    with away_from(here):
        request = SyncRequest.parse(text)
    assert (request.name, request.remote) == (name, remote)
    assert request.folder == os.path.realpath(here / ("src" if name == "link" else name))


def test_sync_of_the_current_folder(here: Path):
    with away_from(here / "src"):
        assert SyncRequest.parse(".").name == "src"
        assert SyncRequest.parse("..").name == here.name


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("nowhere", "--sync: 'nowhere' is not there; expected a folder"),
        ("", "--sync: '' is not there"),
        ("file", "--sync: 'file' is not a folder; expected a folder"),
        ("file:there", "--sync: 'file' is not a folder"),
        ("/", "--sync: '/' can't travel"),
        ("src:", "--sync: '' can't be a place on the hosts"),
        ("src:~", "--sync: '~' can't be a place on the hosts"),
        ("src:/", "--sync: '/' can't be a place on the hosts"),
        ("src:.", "--sync: '.' can't be a place on the hosts"),
        ("src:../up", "--sync: '../up' can't be a place on the hosts"),
        ("src:~other/x", "--sync: '~other/x' can't be a place on the hosts"),
    ],
)
def test_wrong_sync(here: Path, text: str, fault: str):
    with away_from(here), pytest.raises(JobError) as caught:
        SyncRequest.parse(text)
    assert str(caught.value).startswith(fault)


def test_two_that_go_to_the_same_place(here: Path):
    with away_from(here):
        assert len(parse_syncs(["src", "data", "src:there", "data:/there"])) == 4
        with pytest.raises(JobError) as caught:
            parse_syncs(["src", "other/src", "data:a/b", "with:colon:~/a", "data:a/b", "gone"])
    assert [fault.what for fault in caught.value.faults] == [
        "'src' and 'other/src' both go to a folder 'src'",
        "'data:a/b' and 'with:colon:~/a' both go to 'a/', one into the other",
        "'data:a/b' and 'data:a/b' both go to 'a/b'",
        "'with:colon:~/a' and 'data:a/b' both go to 'a/', one into the other",
        "'gone' is not there",
    ]


def test_inside(here: Path):
    with away_from(here):
        request = SyncRequest.parse("src")
    assert request.inside(str(here / "src")) == ""
    assert request.inside(str(here / "link/a/b")) == "a/b"
    assert request.inside(str(here)) is None
    assert request.inside(str(here / "srcs")) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ckpt", ("", None, "ckpt", None)),
        ("ckpt:out", ("", None, "ckpt", "out")),
        ("worker=ckpt", ("worker", None, "ckpt", None)),
        ("worker/0=ckpt:out/x", ("worker", 0, "ckpt", "out/x")),
        ("./a=b", ("", None, "./a=b", None)),
        ("/a=b", ("", None, "/a=b", None)),
        ("runs/{task_index}/*.h5", ("", None, "runs/{task_index}/*.h5", None)),
    ],
)
def test_collect(text: str, expected: tuple[object, ...]):
    assert CollectRequest.parse(text)[1:] == expected


def test_wrong_collects(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with away_from(tmp_path), pytest.raises(JobError) as caught:
        parse_collects(
            ["", ":out", "worker=", "ckpt:", "master=ckpt", "ckpt:file", "ps=fine", "ps/1=x", "worker/5=x"],
            {"ps": 1, "worker": 2},
        )
    assert [str(fault).partition(";")[0] for fault in caught.value.faults] == [
        "--collect: '' is no path",
        "--collect: ':out' is no path",
        "--collect: 'worker=' is no path",
        "--collect: 'ckpt:' is no path",
        "--collect: 'master=ckpt': no task of this job is a 'master'",
        "--collect: 'file' is a file",
        "--collect: 'ps/1=x': this job has no ps/1",
        "--collect: 'worker/5=x': this job has no worker/5",
    ]
    assert [fault.expected for fault in caught.value.faults[-2:]] == [
        "expected ps/0", "expected worker/0 to worker/1",
    ]  # fmt: skip


def test_where_it_was_written(tmp_path: Path):
    with away_from(tmp_path), pytest.raises(JobError, match=r"\Ajob.yaml:3: 'gone' is not there; "):
        parse_syncs(["gone"], "job.yaml:3")
    with pytest.raises(JobError, match=r"\Ajob.yaml:4: 'ps/1=x': this job has no ps/1; expected ps/0\Z"):
        parse_collects(["ps/1=x"], {"ps": 1}, "job.yaml:4")


def test_what_is_items_of_whom(tmp_path: Path):
    tasks = [
        (TaskId("ps/0"), "a", "/work"),
        (TaskId("worker/0"), "a", "/work"),
        (TaskId("worker/1"), "b", ""),
    ]
    requests = parse_collects(["log.{i}", "worker=ckpt:out", "worker/1=model:best"], {"ps": 1, "worker": 2})
    with away_from(tmp_path):
        wanted = items_of(requests, tasks, "/run", lambda path, task: path.replace("{i}", str(task.index)))
        here = os.getcwd()
    assert wanted == [
        Item("ps/0", "a", "/work", "log.0", "/run/collected/ps-0"),
        Item("worker/0", "a", "/work", "log.0", "/run/collected/worker-0"),
        Item("worker/1", "b", "", "log.1", "/run/collected/worker-1"),
        Item("worker/0", "a", "/work", "ckpt", f"{here}/out/worker-0"),
        Item("worker/1", "b", "", "ckpt", f"{here}/out/worker-1"),
        Item("worker/1", "b", "", "model", f"{here}/best"),
    ]
