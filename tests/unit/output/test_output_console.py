"""What the console shows, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.common.cluster import TaskId
from launcher.common.events import Tell
from launcher.common.report import Failure, Reason, TaskState
from launcher.job import RunPaths
from launcher.output.console import Console, ConsoleOptions
from launcher.output.renderers import DisplayEvent
from launcher.output.writer import Writer
from tests.unit.output.output_samples import printed, report, run_info, task_report

W0, W1, PS0 = TaskId("worker/0"), TaskId("worker/1"), TaskId("ps/0")


class Screen:
    """A console, and what has come to its stdout and stderr."""

    def __init__(self, capfd: pytest.CaptureFixture[str], **options: Any) -> None:
        self.now = 0.0
        self.writer = Writer()
        self.console = Console(self.writer, ConsoleOptions(1, 2, **options), lambda: self.now)
        self._capfd, self._texts = capfd, ("", "")

    def begin(self, **hosts: str) -> None:
        self.console.begin(run_info(RunPaths("/runs/1"), **hosts))

    def on(self, *events: DisplayEvent) -> None:
        for event in events:
            self.console.on(event)

    def texts(self) -> tuple[str, str]:
        assert self.writer.finish()
        out, err = self._capfd.readouterr()
        self._texts = (self._texts[0] + out, self._texts[1] + err)
        return self._texts


@pytest.fixture
def screen(capfd: pytest.CaptureFixture[str]) -> Screen:
    return Screen(capfd)


@pytest.mark.parametrize("quiet", [False, True])
def test_the_end_is_the_table_then_the_first_failure_then_the_verdict(tmp_path: Path, quiet: bool):
    """Each once, in one file for both streams."""
    writer = Writer()
    with open(tmp_path / "shown", "wb") as file:
        console = Console(writer, ConsoleOptions(file.fileno(), file.fileno(), quiet=quiet))
        console.begin(run_info(RunPaths("/runs/1"), node1="worker/0 ps/0"))
        failure = Failure(Reason.EXIT, task=W0, host="node1", at=1.0, text="worker/0 failed: exit code 1")
        tasks = [task_report("worker/0", state=TaskState.FAILED), task_report("ps/0")]
        console.close(report(*tasks, failure=failure, run_dir="/runs/1", exit_code=1))
        assert writer.finish()
    text = (tmp_path / "shown").read_text()
    parts = ["worker/0 failed: exit code 1", "log: "]
    parts = parts if quiet else ["TASK ", *parts, "exit code 1 (worker/0)"]
    assert [text.count(part) for part in parts] == [1] * len(parts)
    assert sorted(parts, key=text.index) == parts and text.count("\n") == (3 if quiet else 7)


def test_the_start_of_a_line_is_shown_when_its_task_is_quiet(screen):
    screen.begin(node1="worker/0 ps/0")
    screen.on(printed(W0, b"Loading data ... "), printed(PS0, b"a\n"))
    assert 0 < screen.console.tick(0.0) <= 0.5
    screen.console.tick(1.9)
    assert screen.texts()[0] == "ps/0     | a\n"
    assert screen.console.tick(2.5) is None  # nothing left to look at
    screen.now = 6.0
    screen.on(printed(W0, b"done\nnext\n"))
    assert screen.texts()[0].splitlines()[1:] == [
        "worker/0 | Loading data ... ",
        "worker/0 + done",
        "worker/0 | next",
    ]
    assert screen.console.tick(6.0) is None


def test_notices_wait_while_tmux_covers_the_terminal(capfd: pytest.CaptureFixture[str]):
    covered = [True]
    screen = Screen(capfd, covered=lambda: covered[0])
    screen.begin(node1="worker/0")
    screen.on(Tell("first"), Tell("second"))
    assert screen.texts()[1] == ""
    covered[0] = False
    screen.console.tick(1.0)
    assert screen.texts()[1] == "launch: first\nlaunch: second\n"
