"""What Python shows of a failure that nobody catches."""

from __future__ import annotations

import sys

import pytest

from launcher.api import uncaught
from launcher.errors import JobFailed, TaskFailed

TRACEBACK = "Traceback (most recent call last):\n  File x, line 1, in fun\n\nValueError: no"
SHOWN = "".join(f"node1 worker/1  | {line}\n" for line in TRACEBACK.split("\n"))


def failed(traceback: str = TRACEBACK) -> TaskFailed:
    return TaskFailed("worker/1 raised ValueError: no", "worker/1", traceback=traceback, run_dir="/run")


@pytest.fixture(autouse=True)
def as_in_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output goes where Python's own words go, and nobody else has changed what those are."""
    monkeypatch.setattr(uncaught, "_one_place", lambda: True)
    monkeypatch.setattr(uncaught, "_shown", uncaught._shown)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)


def reported(error: BaseException, capsys: pytest.CaptureFixture[str]) -> str:
    sys.excepthook(type(error), error, None)
    return capsys.readouterr().err


@pytest.mark.parametrize("output", [SHOWN, SHOWN.replace("node1 ", "") + "worker/0 | ends, too\n"])
def test_what_was_shown_is_referred_to(output: str, capsys: pytest.CaptureFixture[str]):
    error = failed()
    uncaught.expect(error, output)
    assert str(error).endswith(TRACEBACK), "whoever catches it has all of it"
    said = reported(error, capsys)
    assert "no\n  its traceback is above, among the output, and in /run/logs/worker-1.log\n" in said
    assert "File x" not in said
    assert error.traceback == TRACEBACK


@pytest.mark.parametrize(
    "output", ["", SHOWN[:-20], SHOWN.replace("worker/1", "worker/2"), SHOWN.replace("File x", "File xx")]
)
def test_what_was_not_shown_is_shown(output: str, capsys: pytest.CaptureFixture[str]):
    error = failed()
    uncaught.expect(error, output)
    assert sys.excepthook is sys.__excepthook__
    assert "File x" in reported(error, capsys)


def test_other_errors_are_shown_as_ever(capsys: pytest.CaptureFixture[str]):
    uncaught.expect(failed(), SHOWN)
    assert "File x" in reported(failed(), capsys), "another failure"
    assert "ZeroDivisionError: by nothing" in reported(ZeroDivisionError("by nothing"), capsys)
    for error in (None, JobFailed("too late"), failed("")):
        uncaught.expect(error, SHOWN)


def test_whoever_shows_errors_himself_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    theirs = lambda *_: None  # noqa: E731
    monkeypatch.setattr(sys, "excepthook", theirs)
    uncaught.expect(failed(), SHOWN)
    assert sys.excepthook is theirs
