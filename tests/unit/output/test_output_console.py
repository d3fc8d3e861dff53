"""What the console shows, and when."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.common.cluster import TaskId
from launcher.common.events import Tell
from launcher.common.report import Failure, Reason
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


def test_notices_wait_while_tmux_covers_the_terminal(capfd: pytest.CaptureFixture[str]):
    covered = [True]
    screen = Screen(capfd, covered=lambda: covered[0])
    screen.begin(node1="worker/0")
    screen.on(Tell("first"), Tell("second"))
    assert screen.texts()[1] == ""
    covered[0] = False
    screen.console.tick(1.0)
    assert screen.texts()[1] == "launch: first\nlaunch: second\n"
