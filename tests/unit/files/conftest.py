"""Hosts to sync to, a folder that travels, and a home for what is remembered of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from launcher.files.progress import Progress
from launcher.files.requests import parse_syncs
from launcher.files.sync import SyncResult, sync
from launcher.files.walk import look
from tests.local.seeing import soon
from tests.unit.files.hosts import LocalHosts

Bring = Callable[..., SyncResult]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[LocalHosts]:
    made = LocalHosts(tmp_path / "homes")
    yield made
    soon(lambda: all(errand.process.poll() is not None for errand in made.errands), 10)


@pytest.fixture
def open_hosts() -> Iterator[LocalHosts]:
    """Hosts whose errands are not run by root, so that permissions count: their homes are open to all."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        made = LocalHosts(Path(folder))
        made.nobody = 65534 if os.getuid() == 0 else 0
        yield made


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The launcher's cache, not that of whoever runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "launcher-cache"))
    return tmp_path / "launcher-cache"


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
def bring(hosts: LocalHosts, tmp_path: Path) -> Bring:
    """``bring("DIR:REMOTE", ..., to=("a", "b"), job="job1")``."""

    def bring(
        *texts: str | os.PathLike[str],
        to: Sequence[str] = ("a",),
        job: str = "job1",
        cwd: str | None = None,
        without: Sequence[str] = (),
    ) -> SyncResult:
        packed = look(parse_syncs([os.fspath(text) for text in texts]), cwd or str(tmp_path), without)
        return sync(hosts, to, packed, job, Progress(), 8)

    return bring
