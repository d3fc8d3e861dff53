"""Commands run in this process, on a state folder of the test's own."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from launcher.job import RunPaths
from launcher.runs import create
from launcher.runs.owner import start_ticks, this_process

Call = Callable[..., int]


@pytest.fixture
def call() -> Call:
    """Run a command's module as its words on a command line would."""

    def run(command: ModuleType, *words: str) -> int:
        parser = argparse.ArgumentParser(prog=f"launch {command.__name__.rpartition('.')[2]}")
        command.add_arguments(parser)
        code: int = command.run(parser.parse_args(words))
        return code

    return run


class Runs:
    """Makes runs whose launchers are processes of the test."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def made(self, job: str, logs: Mapping[str, bytes], hosts: tuple[str, ...] = ("here",)) -> RunPaths:
        """A run that was killed: its plan, and the log of each task."""
        paths = create(None, job)
        self._own(paths, job, this_process()._replace(start_ticks=1)._asdict())
        tasks = [{"task": task, "host": hosts[n % len(hosts)]} for n, task in enumerate(logs)]
        plan = {"schema": 1, "job": job, "command": ["/x/bin/launch", "two words"], "tasks": tasks}
        Path(paths.plan).write_text(json.dumps(plan))
        for task, data in logs.items():
            Path(f"{paths.logs}/{task.replace('/', '-')}.log").write_bytes(data)
        return paths

    def running(self, paths: RunPaths, *command: str) -> subprocess.Popen[bytes]:
        """Let a process be the launcher of a run."""
        process = subprocess.Popen(command or ("sleep", "60"), stdout=subprocess.PIPE)
        self.processes.append(process)
        ticks = start_ticks(process.pid)
        owner = this_process()._replace(pid=process.pid, start_ticks=ticks or 0)
        self._own(paths, paths.root.rpartition("/")[2], owner._asdict())
        return process

    def ended(self, paths: RunPaths, code: int) -> None:
        """Let a run have ended."""
        Path(paths.report).write_text(json.dumps({"exit_code": code, "ended_at": 65.5}))

    @staticmethod
    def _own(paths: RunPaths, job: str, owner: Mapping[str, Any]) -> None:
        Path(paths.owner).write_text(json.dumps({"job": job, "started_at": 0.0, **owner}))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = Runs()
    yield found
    for process in found.processes:
        process.kill()
        process.communicate()
