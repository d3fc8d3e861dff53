from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.common import events
from launcher.common.cluster import TaskId
from launcher.common.events import Tell
from launcher.common.report import Failure, Reason
from launcher.job import RunPaths
from launcher.output.console import Console, ConsoleOptions
from launcher.output.renderers import DisplayEvent, RunInfo
from launcher.output.writer import Writer
from tests.unit.output.output_samples import placement, report, task_report

W0, W1, PS0 = TaskId("worker/0"), TaskId("worker/1"), TaskId("ps/0")


class Screen:
    """A console whose stdout and stderr are files."""

    def __init__(self, folder: Path, **options: object):
        self.now = 0.0
        self.paths = [folder / "out", folder / "err"]
        self.fds = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in self.paths]
        self.writer = Writer()
        chosen = ConsoleOptions(self.fds[0], self.fds[1], **options)  # type: ignore[arg-type]
        self.console = Console(self.writer, chosen, lambda: self.now)

    def begin(self, **hosts: str) -> None:
        self.console.begin(
            RunInfo(
                run_name="mnist", placement=placement(**hosts), paths=RunPaths("/runs/1"), started_at=100.0
            )
        )

    def on(self, *events: DisplayEvent) -> None:
        for event in events:
            self.console.on(event)

    def texts(self) -> tuple[str, str]:
        assert self.writer.finish()
        return self.paths[0].read_bytes().decode(), self.paths[1].read_bytes().decode()

    def close(self) -> None:
        assert self.writer.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def screen(tmp_path):
    made = Screen(tmp_path)
    yield made
    made.close()


def printed(task: TaskId, data: bytes) -> events.TaskOutput:
    return events.TaskOutput(host="node1", task=task, attempt=1, data=data)


@pytest.mark.parametrize(("between", "times"), [(b"", 1), (b"a line\n", 2)])
def test_the_last_notice_is_not_repeated_in_the_failure_report(screen, between: bytes, times: int):
    screen.begin(node1="worker/0 ps/0")
    why = "host node1 is lost: the network to it is down"
    screen.on(Tell(why, urgent=True), printed(W0, between))
    failure = Failure(Reason.HOST_LOST, task=None, host="node1", at=1.0, text=why)
    screen.console.close(report(task_report("worker/0"), failure=failure))
    assert screen.texts()[1].count(why) == times


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


def test_notices_wait_while_tmux_covers_the_terminal(tmp_path):
    covered = [True]
    screen = Screen(tmp_path, covered=lambda: covered[0])
    screen.begin(node1="worker/0")
    screen.on(Tell("first"), Tell("second"))
    assert screen.texts()[1] == ""
    covered.clear()
    covered.append(False)
    screen.console.tick(1.0)
    assert screen.texts()[1] == "launch: first\nlaunch: second\n"
    screen.close()
