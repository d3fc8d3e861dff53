"""What ``--sync`` and ``--collect`` may be, and the faults of the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from launcher.common.cluster import TaskId
from launcher.common.errors import Fault, JobError
from launcher.files.requests import CollectRequest, parse_collects, parse_syncs
from tests.unit.config.answers import check_faults


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("src", "data", "with:colon", "other/src"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("src")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name", "remote"),
    [
        ("src", "src", None),
        ("./src/.", "src", None),
        ("data/../src/", "src", None),
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
    (request,) = parse_syncs([text])
    assert (request.text, request.name, request.remote) == (text, name, remote)
    assert request.folder == os.path.realpath(here / ("src" if name == "link" else name))


def test_inside(here: Path):
    (request,) = parse_syncs(["src"])
    paths = ("src", "link/a/b", "", "srcs")
    assert [request.relative_path(str(here / path)) for path in paths] == ["", "a/b", None, None]


@pytest.mark.parametrize(
    ("text", "role", "number", "path", "into"),
    [
        ("ckpt", "", None, "ckpt", None),
        ("ckpt:out", "", None, "ckpt", "out"),
        ("worker=ckpt", "worker", None, "ckpt", None),
        ("worker/0=ckpt:out/x", "worker", 0, "ckpt", "out/x"),
        ("./a=b", "", None, "./a=b", None),
        ("/a=b", "", None, "/a=b", None),
        ("{task_index}/*.h5", "", None, "{task_index}/*.h5", None),
    ],
)
def test_collect(text: str, role: str, number: int | None, path: str, into: str | None):
    assert parse_collects([text], {"worker": 1}) == (
        CollectRequest(role, number=number, path=path, into=into),
    )


@pytest.mark.parametrize(
    ("text", "path", "into", "url"),
    [
        ("ckpt:hdfs://n:8020/x", "ckpt", None, "hdfs://n:8020/x"),
        ("worker/0=a:b:s3a://b/x:y", "a:b", None, "s3a://b/x:y"),
        ("a:file:///tmp/x%20y", "a", "/tmp/x y", ""),
    ],
)
def test_collect_to_a_url(text: str, path: str, into: str | None, url: str):
    (request,) = parse_collects([text], {"worker": 1})
    assert (request.path, request.into, request.url) == (path, into, url)


#: Options that are given together, and how many faults they have.
WRONG_SYNCS = {
    "": 1,
    "nowhere": 1,
    "file file:there": 2,
    "/": 1,
    "src: src:~ src:/ src:. src:../up src:~other/x": 6,
    "src data src:there data:/there": 0,
    "src other/src data:a/b with:colon:~/a data:a/b gone": 3,
}
WRONG_COLLECTS = {"": 1, ":out worker= ckpt: master=ckpt ckpt:file ps=fine ps/1=x worker/5=x": 7}
collects = partial(parse_collects, roles={"ps": 1, "worker": 2})


@pytest.mark.parametrize(
    ("parse", "wrong"), [(parse_syncs, WRONG_SYNCS), (collects, WRONG_COLLECTS)], ids=["sync", "collect"]
)
def test_faults(parse: Callable[..., object], wrong: dict[str, int], snapshot: SnapshotAssertion):
    def faults(texts: str) -> Sequence[Fault]:
        try:
            parse(texts.split(" "), where="job.yaml:3")
        except JobError as error:
            return error.faults
        return ()

    places = {texts: " ".join("3" * many) for texts, many in wrong.items()}
    check_faults(places, faults, "job.yaml", snapshot)


def test_items(here: Path):
    tasks = [
        (TaskId("ps/0"), "a", "/work"),
        (TaskId("worker/0"), "a", "/work"),
        (TaskId("worker/1"), "b", ""),
    ]
    requests = parse_collects(
        ["log.{task_index}", "worker=ckpt:out", "worker/1=model:best"], {"ps": 1, "worker": 2}
    )
    items = [r.item(*task, "/run") for r in requests for task in tasks if r.concerns(task[0])]
    assert {each.host for each in items if each.task == "worker/1"} == {"b"}
    assert [(each.task, each.base, each.path, each.into, each.role) for each in items] == [
        ("ps/0", "/work", "log.0", "/run/collected/ps-0", "ps"),
        ("worker/0", "/work", "log.0", "/run/collected/worker-0", "worker"),
        ("worker/1", "", "log.1", "/run/collected/worker-1", "worker"),
        ("worker/0", "/work", "ckpt", f"{here}/out/worker-0", ""),
        ("worker/1", "", "ckpt", f"{here}/out/worker-1", ""),
        ("worker/1", "", "model", f"{here}/best", ""),
    ]
