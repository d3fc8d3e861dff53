"""Fetching what tasks have made: what arrives, where, and what is never touched."""

from __future__ import annotations

import os
import re
import resource
import signal
from pathlib import Path

import pytest

from launcher.common.cluster import TaskId
from launcher.files import transfer
from launcher.files.requests import Item, parse_collects
from launcher.files.transfer import Collected, FileTransfer, collect
from tests.seeing import ROOT
from tests.unit.files.hosts import LocalHosts, snapshot


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where things go; not there yet."""
    return tmp_path / "out"


def fetch(hosts: LocalHosts, *items: Item) -> Collected:
    """What came from the host of the first item."""
    return collect(FileTransfer(hosts, 8), items)[items[0].host]


def item(path: str, into: Path, host: str = "a", base: str = "", task: str = "worker/0") -> Item:
    return Item(task, host=host, base=base, path=path, into=str(into))


def test_a_pattern_keeps_the_folders_it_left_open(hosts: LocalHosts, out: Path):
    home = hosts.home("a")
    for path in ("runs/a/model/w", "runs/b/model/w", "runs/b/other", "runs/c/x", "runs/[b]/model"):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(path)
    fetch(
        hosts,
        item("runs/*/model", out / "1"),
        item(f"{home}/runs/?/*er", out / "2"),
        item("runs/**", out / "3"),
        item("runs/[b]/model", out / "4"),
    )
    files = [key for key, value in sorted(snapshot(out / "1").items()) if value[0] == "file"]
    assert files == [b"[b]/model", b"a/model/w", b"b/model/w"]
    assert sorted(snapshot(out / "2")) == [b"b", b"b/other"]
    assert snapshot(out / "3") == snapshot(home / "runs")
    assert (out / "4/model").read_text() == "runs/[b]/model", "a name that looks like a pattern is a name"


def test_files_that_cannot_be_sent_give_a_notice(open_hosts: LocalHosts, out: Path):
    hosts, home = open_hosts, open_hosts.home("a")
    (home / "mix").mkdir()
    os.mkfifo(home / "mix/pipe")
    (home / "mix/closed").write_text("x")
    (home / "mix/closed").chmod(0)
    (home / "mix/open").write_text("x")
    (home / "mix/setuid").write_text("x")
    (home / "mix/setuid").chmod(0o4755)
    (home / "mix/.tf-launcher-sync").write_text("x")
    (home / "ckpt-9").mkdir()
    (home / "ckpt-9/w").write_text("w")
    (home / "latest").symlink_to("ckpt-9")
    (home / "broken").symlink_to("nowhere")
    result = fetch(
        hosts, *(item(path, out) for path in ("mix", "nowhere", "no*", "/no/where", "latest", "broken"))
    )
    assert result.notices == [
        f"a: worker/0: {home}/mix/pipe: neither file, folder nor link: left out",
        f"a: worker/0: {home}/mix/closed: Permission denied",
        f"a: worker/0: 'nowhere' is not there (looked in {home})",
        f"a: worker/0: 'no*' is not there (looked in {home})",
        "a: worker/0: '/no/where' is not there",
    ]
    assert sorted(os.listdir(out / "mix")) == ["open", "setuid"]
    assert (out / "mix/setuid").stat().st_mode & 0o7777 == 0o755
    assert (out / "latest/w").read_text() == "w", "the user's own link leads to what is meant"
    assert os.readlink(out / "broken") == "nowhere"


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("model", []),
        ("model/one", ["worker/1"]),
        ("nowhere", ["ps/0", "worker/0", "worker/1"]),
        ("ps=model", ["ps/0"]),
    ],
)
def test_what_only_workers_make_is_not_missed_at_a_ps(
    hosts: LocalHosts, out: Path, path: str, missing: list[str]
):
    made: dict[str, list[str]] = {"ps/0": [], "worker/0": ["one", "two"], "worker/1": ["two"]}
    items = []
    for task, names in made.items():
        folder = hosts.home("a") / task
        for name in names:
            (folder / "model").mkdir(parents=True, exist_ok=True)
            (folder / "model" / name).write_text(name)
        (request,) = parse_collects([path], {"ps": 1, "worker": 2})
        if request.concerns(TaskId(task)):
            items.append(request.item(TaskId(task), "a", str(folder), str(out)))
    result = fetch(hosts, *items)
    assert [notice.split(": ")[1] for notice in result.notices] == missing


def test_what_is_there_is_replaced_and_no_link_followed(hosts: LocalHosts, out: Path, tmp_path: Path):
    home = hosts.home("a")
    (home / "d/sub").mkdir(parents=True)
    (home / "d/sub/x").write_text("x")
    (home / "d/y").write_text("y")
    (home / "log").write_text("new")
    (tmp_path / "elsewhere").mkdir()
    (out / "d").mkdir(parents=True)
    (out / "d/sub").symlink_to(tmp_path / "elsewhere")
    (out / "precious").write_text("precious")
    (out / "log").symlink_to("precious")
    result = fetch(hosts, item("log", out), item("d", out))
    assert result.failures == [
        f"a: 'd/sub' cannot be put into {out}: Not a directory",
        f"a: 'd/sub/x' cannot be put into {out}: Not a directory",
    ]
    assert os.listdir(tmp_path / "elsewhere") == []
    assert (out / "log").read_text() == "new" and not (out / "log").is_symlink()
    assert (out / "precious").read_text() == "precious" and (out / "d/y").read_text() == "y"


@pytest.mark.promise("full disks")
def test_a_full_disk_names_the_file(hosts: LocalHosts, out: Path):
    (hosts.home("a") / "d").mkdir()
    for name, size in (("x", 6_000_000), ("y", 20), ("z", 0)):
        (hosts.home("a") / "d" / name).write_bytes(bytes(size))
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, limits[1]))
        result = fetch(hosts, item("d", out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert result.failures == [f"a: 'd/x' cannot be put into {out}: File too large"]
    assert sorted(os.listdir(out / "d")) == ["y", "z"]


# ---------------------------------------------------------------------- hostile hosts


LIE = """
sys.path.insert(0, {root!r})
from launcher.common.protocol import *
def send(*messages):
    for message in messages:
        data = b"".join(encode(message))
        while data:
            data = data[os.write(1, data):]
FOLLOW, END = FilesFollow(1), FilesDone()
{code}
sys.stdin.read()
"""


@pytest.mark.promise("a hostile agent that speaks the protocol")
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("send(FOLLOW, FileEntry('../evil', 'f', 0o644, 1), FileData(b'x'))", "within a tree"),
        ("send(FOLLOW, FileEntry('up', 'l', target='..'), FileEntry('up/x', 'f'), END)", "up/x"),
        ("send(FOLLOW, FileEntry('x', 'f', 0o644, 5), FileData(b'longer'))", "6 bytes of 'x', which has 5"),
        ("send(FOLLOW, FileEntry('x', 'f', 0o644, 5), FileData(b''))", "0 bytes of 'x', which has 5 more"),
        ("send(FOLLOW, FileEntry('x', 'f', 0, 5), FileData(b'x'), END)", "FilesDone at the wrong moment"),
        ("send(FOLLOW, *[FileEntry(f'x{n}', 'f', 0o644, 5) for n in range(9)])", "FileEntry at the wrong"),
        ("send(FOLLOW, FileData(b''))", "FileData at the wrong moment"),
        ("send(FileEntry('x', 'f', 0o644, 5))", "more bytes than announced"),
        ("send(FilesFollow(-1))", "size is not from 0 to"),
        ("send(FOLLOW, FOLLOW)", "FilesFollow at the wrong moment"),
        ("send(FOLLOW)\nwhile True: send(FileNotice('x' * 100_000))", "too many messages"),
        ("send(FOLLOW)\nfor n in range(10**7): send(FileEntry(f'f{n}', 'd', 0o755))", "too many messages"),
        ("send(FilesFollow(10**15))", "out: disk full: 1000 TB are needed, and .*B are free"),
        ("os.write(1, b'\\xff' * 1000)", "a message of type 255"),
        ("send(FilesNeeded(b''))", "FilesNeeded at the wrong moment"),
    ],
)  # fmt: skip
def test_a_host_that_lies_harms_nothing_here(
    out: Path, tmp_path: Path, code: str, text: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transfer, "_MAX_MESSAGES", 200)
    before = len(os.listdir("/proc/self/fd"))
    result = fetch(LocalHosts(tmp_path / "h", a=LIE.format(root=str(ROOT), code=code)), item("x", out))
    assert re.search(text, result.failures[0]), result
    assert len(result.failures[0]) < 1000
    assert len(os.listdir("/proc/self/fd")) == before
    assert not (tmp_path / "evil").exists()
    assert not [path for path in out.glob("*") if path.is_file()]
