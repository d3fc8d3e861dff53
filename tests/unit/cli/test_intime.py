"""Signals while a job's last things are done."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from launcher.cli import intime
from launcher.cli.intime import in_time

pytestmark = pytest.mark.timeout(40)


def me(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_first_signal_leaves_time_and_nothing_is_changed_by_it(capfd: pytest.CaptureFixture[str]):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    done = False
    with in_time("fetching"):
        me(signal.SIGTERM)
        done = True
    assert done and "SIGTERM: 10 s are left for fetching" in capfd.readouterr().err
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_second_one_does_not():
    with pytest.raises(KeyboardInterrupt), in_time("fetching"):
        me(signal.SIGTERM)
        me(signal.SIGHUP)
        pytest.fail("it went on")


def test_the_time_is_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intime, "LEFT", 0.05)
    with pytest.raises(KeyboardInterrupt), in_time("fetching"):
        me(signal.SIGTERM)
        threading.Event().wait(30)
