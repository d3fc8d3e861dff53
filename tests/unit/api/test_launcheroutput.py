"""What is shown of a launcher's output, and when."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import Any

import pytest

from launcher.api import launcheroutput
from launcher.api.launcheroutput import LauncherOutput
from tests.local.seeing import soon

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, its thread comes to its end."""
    monkeypatch.setattr(launcheroutput, "_LATE", 20.0)


def relayed(quiet: bool = False) -> tuple[LauncherOutput, int, int]:
    """One that runs, and descriptors that stand for the launcher's."""
    output = LauncherOutput(quiet)
    ends = os.dup(output.out), os.dup(output.err)
    output.start()
    return output, *ends


def ended(output: LauncherOutput, *ends: int) -> None:
    """The launcher is over."""
    for number in ends:
        os.close(number)
    output.finish()
    assert "launch-output" not in [thread.name for thread in threading.enumerate()]


def test_words_are_held_until_there_is_a_job(capsys: Captured):
    output, out, err = relayed()
    os.write(out, b"worker/0 | hello\n")
    os.write(err, b"launch: job x\n")
    assert soon(lambda: output.said and output.shown, 20)
    assert capsys.readouterr() == ("worker/0 | hello\n", "")
    output.show()
    terminal: Any = sys.stderr  # who takes what is there while something is written may lose that
    assert soon(lambda: terminal.getvalue() == "launch: job x\n", 20)
    assert capsys.readouterr().err == "launch: job x\n"
    os.write(err, b"launch: worker/0 failed\n")
    assert soon(lambda: "failed" in output.said, 20)
    output.show()
    ended(output, out, err)
    output.settle(told=False, raised=True)
    assert capsys.readouterr().err == "launch: worker/0 failed\n"
    assert output.said == "launch: job x\nlaunch: worker/0 failed\n"


@pytest.mark.parametrize(
    ("quiet", "told", "raised", "shown"),
    [
        (False, False, False, True),
        (False, True, True, False),
        (False, False, True, True),
        (True, False, False, True),
        (True, False, True, False),
        (True, True, True, False),
    ],
)
def test_what_is_held_at_the_end(quiet: bool, told: bool, raised: bool, shown: bool, capsys: Captured):
    output, out, err = relayed(quiet)
    os.write(err, b"launch: the output of worker/0 could not be fetched\n")
    if quiet:
        output.show()
    ended(output, out, err)
    output.settle(told, raised)
    assert bool(capsys.readouterr().err) is shown


def test_a_terminal_that_takes_nothing_keeps_nobody_who_sees_to_the_job(monkeypatch: pytest.MonkeyPatch):
    stuck, late = threading.Event(), []

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            late.append(not stuck.wait(40))
            return 0

    monkeypatch.setattr(launcheroutput, "_LATE", 0.1)
    monkeypatch.setattr(sys, "stderr", Stuck())
    output, out, err = relayed()
    os.write(err, b"launch: job x\n")
    output.show()
    os.write(err, b"launch: more\n")
    output.show()
    for number in (out, err):
        os.close(number)
    output.finish()
    output.settle(told=False, raised=False)
    assert not late
    stuck.set()
    output._thread.join(20)
    assert not output._thread.is_alive()
