"""``launch`` started by another program: its events on a pipe, and its end when that program is gone."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch

pytestmark = pytest.mark.timeout(120)


class Driven:
    """A `launch` with both pipes."""

    def __init__(self, launch: Launch, *words: str, roles: dict[str, Any] | None = None) -> None:
        self.events, writing = os.pipe()
        reading, self.lifeline = os.pipe()
        options = ["--events-fd", str(writing), "--until-eof-fd", str(reading)]
        given = os.memfd_create("roles")
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        if roles is not None:
            os.write(given, json.dumps(roles).encode())
            os.lseek(given, 0, os.SEEK_SET)
            options += ["--roles-fd", str(given)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launcher", *options, *words],
            env={**os.environ, **launch.environment()},
            pass_fds=[writing, reading, given],
            stdout=subprocess.DEVNULL,
            stderr=self.stderr,
        )
        os.close(given)
        os.close(writing)
        os.close(reading)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The events as they come, to the end of the pipe."""
        with open(self.events, encoding="utf-8", closefd=False) as file:
            yield from map(json.loads, file)

    def close(self) -> None:
        """Leave nothing."""
        for fd in {self.events, self.lifeline} - {-1}:
            os.close(fd)
        self.process.kill()
        self.process.wait()
        self.stderr.close()


@pytest.fixture
def driven(launch: Launch) -> Iterator[Any]:
    started: list[Driven] = []

    def start(*words: str, **more: Any) -> Driven:
        started.append(Driven(launch, *words, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_events_and_report_are_lines_on_the_pipe(driven: Any):
    job = driven("--workers", "2", "--", "sh", "-c", "echo printed; exit $((TASK_INDEX * 7))")
    first, *events, last = job.lines()
    assert first["event"] == "Opened" and Path(first["run_dir"]).name == first["job"]
    written = [json.loads(line) for line in Path(first["run_dir"], "events.jsonl").read_text().splitlines()]
    for event in [*events, *written]:
        if event["event"] == "Tell":
            del event["at"]
    assert events == written
    assert "TaskOutput" not in {event["event"] for event in events}
    assert last["event"] == "Report" and last["exit_code"] == 7 == job.process.wait(30)
    assert last["failure"]["task"] == "worker/1"


def test_end_of_file_stops_the_job_in_order(driven: Any, tmp_path: Path):
    script = 'trap "echo bye > $OUT; exit 0" TERM; echo > $HERE; while :; do sleep 0.05; done'
    words = ["-x", f"OUT={tmp_path}/out", "-x", f"HERE={tmp_path}/here"]
    job = driven(*words, "--", "sh", "-c", script)
    for event in job.lines():
        if event.get("state") == "running":
            while not (tmp_path / "here").exists():
                pass
            os.close(job.lifeline)
            job.lifeline = -1
        if event["event"] == "Report":
            assert event["failure"]["reason"] == "interrupted"
    assert job.process.wait(30) == 128 + signal.SIGTERM
    assert (tmp_path / "out").read_text() == "bye\n"


def test_a_reader_that_stops_reading_holds_nothing_up(driven: Any):
    """The pipe holds 64 KiB; 300 tasks have more events."""
    job = driven("--workers", "300", "--", "true")
    assert job.process.wait(60) == 0


def test_a_reader_that_is_gone_holds_nothing_up(driven: Any):
    job = driven("--workers", "2", "--", "sleep", "0.3")
    os.close(job.events)
    job.events = -1
    assert job.process.wait(30) == 0


@pytest.mark.parametrize("text", ["x", "-1", "999999", "99999999999999999999"])
def test_a_descriptor_that_is_not_open_is_bad_input(launch: Launch, text: str):
    ended = launch("--events-fd", text, "--", "true")
    assert ended.code == 2 and "expected the number of an open descriptor" in ended.err


def commands(job: Driven) -> dict[str, list[str]]:
    """Of each task of the plan of a job that has ended, its command."""
    (root,) = [event["run_dir"] for event in job.lines() if event["event"] == "Opened"]
    assert job.process.wait(30) == 0
    plan = json.loads(Path(root, "plan.json").read_text())
    return {task["task"]: task["argv"] for task in plan["tasks"]}


def test_roles_need_no_file(driven: Any):
    side = {"count": 1, "sidecar": True, "command": "sleep 60"}
    roles = {"worker": {"count": 2, "command": ["sh", "-c", "sleep 0.3"]}, "board": side}
    found = commands(driven(roles=roles))
    assert found == {
        "worker/0": ["sh", "-c", "sleep 0.3"],
        "worker/1": ["sh", "-c", "sleep 0.3"],
        "board/0": ["sleep", "60"],
    }


def test_roles_are_laid_over_those_of_a_job_file(driven: Any, tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "job.yaml").write_text(
        """
command: sleep 60
roles:
  worker: {count: 7, workdir: sub, command: [never, this]}
  ps: 3
  own: {sidecar: true, command: sleep 50}
"""
    )
    roles = {"worker": {"count": 1, "command": ["sh", "-c", "pwd > seen"]}}
    found = commands(driven(str(tmp_path / "job.yaml"), roles=roles))
    assert found == {"worker/0": roles["worker"]["command"], "own/0": ["sleep", "50"]}
    assert (tmp_path / "sub" / "seen").read_text() == f"{tmp_path}/sub\n"


def test_faults_of_a_job_file_below_roles_have_its_lines(driven: Any, tmp_path: Path):
    (tmp_path / "job.yaml").write_text("grace: soon\nroles:\n  worker:\n    count: 1\n    wrong: 1\n")
    job = driven(str(tmp_path / "job.yaml"), roles={"worker": {"count": -1, "command": "true"}})
    assert job.process.wait(30) == 2
    (event,) = job.lines()
    err = str(pickle.loads(bytes.fromhex(event["error"])))
    assert "job.yaml:1: grace" in err and 'job.yaml:5: unknown key "wrong"' in err
    assert 'job.yaml: count of worker is "-1"' in err
