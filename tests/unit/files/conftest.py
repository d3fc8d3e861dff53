"""Hosts to sync to, and a folder that travels."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from launcher.files.requests import parse_syncs
from launcher.files.session import Progress
from launcher.files.sync import sync
from launcher.files.walk import look
from tests.local.seeing import soon
from tests.unit.files.hosts import LocalHosts

Sync = Callable[..., tuple[dict[str, str], Progress]]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[LocalHosts]:
    made = LocalHosts(tmp_path / "homes")
    yield made
    soon(lambda: all(command.process.poll() is not None for command in made.commands), 10)


@pytest.fixture
def open_hosts() -> Iterator[LocalHosts]:
    """Hosts whose commands are not run by root, so that permissions count: their homes are open to all."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        made = LocalHosts(Path(folder))
        made.uid = 65534 if os.getuid() == 0 else 0
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with something of every kind in it."""
    root = tmp_path / "project"
    (root / "src/deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "train.py").write_text("print('hello')\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret").write_text("x")
    (root / "secret").chmod(0o600)
    (root / "src/deep/nothing").write_bytes(b"")
    (root / "src/big").write_bytes(os.urandom(3_000_000) + bytes(2_000_000))
    (root / "src/copy of train.py").write_text("print('hello')\n")
    odd = os.fsencode(root)
    for name in (b"new\nline", b" spaces ", b"\xff\xfe", "é ü".encode(), b"-rf", b"'\"$(x);&*\\"):
        with open(odd + b"/" + name, "wb") as file:
            file.write(name)
    os.symlink("train.py", root / "link")
    os.symlink("/nowhere/at all", root / "dangling")
    os.symlink("src", root / "link to folder")
    os.symlink(b"\xff", odd + b"/link\n")
    (root / "closed").mkdir()
    (root / "closed/file").write_text("in a folder that can't be written to")
    (root / "closed").chmod(0o555)
    return root


@pytest.fixture
def bring(hosts: LocalHosts, tmp_path: Path) -> Sync:
    """``bring("DIR:REMOTE", ..., to=("a", "b"), job="job1")``: the folders of the tasks, and the progress."""

    def bring(
        *texts: str | os.PathLike[str],
        to: Sequence[str] = ("a",),
        job: str = "job1",
        cwd: str | None = None,
        without: Sequence[str] = (),
    ) -> tuple[dict[str, str], Progress]:
        packed = look(parse_syncs([os.fspath(text) for text in texts]), cwd or str(tmp_path), without)
        progress = Progress("syncing")
        return sync(hosts, to, packed, job, progress, 8), progress

    return bring
