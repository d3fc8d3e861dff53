"""A state folder of the test's own, and processes to own runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.agent.identity import ProcessIdentity, start_ticks, this_process
from launcher.common.record import as_dict, replace
from launcher.job import RunPaths
from launcher.runs.folder import create

Sleeper = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the runs; it is not there yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "tf-launcher" / "runs"


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Starts processes that stand for launchers."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "60"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def owner_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    """The process, named for ever."""
    ticks = start_ticks(process.pid)
    assert ticks is not None
    return replace(this_process(), pid=process.pid, start_ticks=ticks)


def made(
    job: str,
    owner: ProcessIdentity | None = None,
    exit_code: int | None = None,
    at: float = 0.0,
    name: object = "",
) -> RunPaths:
    """A run of another process (by default of one that is gone), ended or not, perhaps with a name."""
    paths = create(None, job).paths
    dead = replace(this_process(), start_ticks=1)
    record = {"schema": 1, "job": job, "started_at": at, **as_dict(owner or dead)}
    record["origin"] = {"name": name}
    Path(paths.record).write_text(json.dumps(record))
    if exit_code is not None:
        Path(paths.report).write_text(json.dumps({"exit_code": exit_code, "ended_at": at + 5}))
    return paths
