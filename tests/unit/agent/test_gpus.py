"""``nvidia-smi``: asked, never waited for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent import gpus
from launcher.agent.gpus import ask_for_gpus, read_gpus
from launcher.agent.inquiry import Inquiry
from launcher.agent.limits import Limits
from launcher.agent.spawn import Spawner
from tests.local.seeing import soon


@pytest.fixture
def spawner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawner]:
    """Starts processes, also those of the test's folder; lets go of what it holds open."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    it = Spawner(Limits(1))
    yield it
    os.close(it._home)
    os.close(it._nothing)


def probe(spawner: Spawner, folder: Path, script: str) -> Inquiry:
    """A probe that finds this script as ``nvidia-smi``."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return ask_for_gpus(spawner)


def test_what_it_says(spawner: Spawner, tmp_path: Path):
    lines = "echo 'warning: odd'; echo '0, Tesla T4, 15360 MiB'; echo '1, Tesla T4, 15360 MiB'"
    it = probe(spawner, tmp_path, lines)
    soon(it.read)
    assert read_gpus(it.close()) == ("0, Tesla T4, 15360 MiB", "1, Tesla T4, 15360 MiB")
    assert it.next_end() is None
    assert it.pid is not None
    os.waitpid(it.pid, 0)


def test_one_that_hangs_is_killed_when_its_time_is_up(
    spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gpus, "PATIENCE", 0.1)
    it = probe(spawner, tmp_path, "exec sleep 600")
    assert it.next_end() is not None
    time.sleep(0.15)
    assert read_gpus(it.close()) == ()
    assert it.pid is not None
    assert os.WTERMSIG(os.waitpid(it.pid, 0)[1]) == 9


def test_none(spawner: Spawner, tmp_path: Path):
    spawner._environment["PATH"] = str(tmp_path)
    it = ask_for_gpus(spawner)
    assert (it.output, it.pid, it.next_end(), it.read()) == (None, None, None, False)
