"""``launch`` started by another program: its events on a pipe, and its end when that program is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch

pytestmark = pytest.mark.timeout(120)


class Driven:
    """A `launch` with both pipes."""

    def __init__(self, launch: Launch, *words: str) -> None:
        self.events, writing = os.pipe()
        reading, self.lifeline = os.pipe()
        options = ["--events-fd", str(writing), "--until-eof-fd", str(reading)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launcher", *options, *words],
            env={**os.environ, **launch.environment()},
            pass_fds=[writing, reading],
            stdout=subprocess.DEVNULL,
        )
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


@pytest.fixture
def driven(launch: Launch) -> Iterator[Any]:
    started: list[Driven] = []

    def start(*words: str) -> Driven:
        started.append(Driven(launch, *words))
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
        if event["event"] == "TaskStarted":
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
