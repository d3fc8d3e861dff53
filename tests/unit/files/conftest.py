"""Hosts to sync to, and a folder to copy."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.files.requests import parse_syncs
from launcher.files.transfer import FileTransfer, sync
from launcher.files.walk import read_trees
from tests.unit.files.hosts import LocalHosts

Sync = Callable[..., tuple[Path, FileTransfer]]


@pytest.fixture
def hosts(tmp_path: Path) -> LocalHosts:
    return LocalHosts(tmp_path / "homes")


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
    return root


@pytest.fixture
def bring(hosts: LocalHosts, tmp_path: Path) -> Sync:
    """``bring("DIR:REMOTE", ..., job="job1")``: the folder of the tasks, and the copying."""

    def bring(
        *texts: str | os.PathLike[str], job: str = "job1", cwd: str | None = None, without: str | None = None
    ) -> tuple[Path, FileTransfer]:
        trees, subfolder = read_trees(
            parse_syncs([os.fspath(text) for text in texts]), cwd or str(tmp_path), without
        )
        copying = FileTransfer(hosts, 8)
        return Path(sync(copying, ("a",), trees, job)["a"][0], subfolder), copying

    return bring
