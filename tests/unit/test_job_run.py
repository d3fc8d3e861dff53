"""Signals and messages of a launch."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator

import pytest

from launcher.events import Tell
from launcher.job_run import interrupts
from launcher.job_run.interrupts import Interrupts
from launcher.job_run.notices import Notices


@pytest.fixture
def handling() -> Iterator[Interrupts]:
    before = {number: signal.getsignal(number) for number in interrupts.STOP_SIGNALS}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    with Interrupts() as handler:
        yield handler
    assert all(signal.getsignal(number) is signal.SIG_DFL for number in before)
    for number, old in before.items():
        signal.signal(number, old)


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_the_first_signal_raises(handling: Interrupts):
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)
    with pytest.raises(SystemExit) as end:
        send(signal.SIGTERM)
    assert end.value.code == 143


def test_each_press_is_queued_while_the_job_runs(handling: Interrupts):
    with handling.queued():
        send(signal.SIGINT, signal.SIGINT, signal.SIGTERM)
        assert select.select([handling.fd], [], [], 0)[0]
        assert handling.read() == [signal.SIGINT, signal.SIGINT, signal.SIGTERM]
        assert handling.read() == []


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_signal_limits_the_time_of_work_after_the_job(
    handling: Interrupts, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], before: int
):
    monkeypatch.setattr(interrupts, "TIME_LEFT", 0.05)
    with handling.queued():
        send(*[signal.SIGTERM] * before)
    with handling.limited("collecting"), pytest.raises(SystemExit, match="143"):
        send(*[signal.SIGTERM] * (1 - before))
        assert ("SIGTERM: 0.05s for collecting" in capfd.readouterr().err) is (before < 2)
        signal.pause()


def test_the_second_signal_ends_work_after_the_job(handling: Interrupts):
    with handling.limited("collecting"), pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT, signal.SIGTERM)


def test_nothing_interrupts_a_removal(handling: Interrupts):
    handling.ignore()
    send(signal.SIGINT, signal.SIGTERM)


def test_what_the_caller_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as handler, handler.queued():
            send(signal.SIGHUP)
            assert handler.read() == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_messages_wait_for_the_console_of_a_job(capsys: pytest.CaptureFixture[str]):
    with Notices() as notices:
        notices("before")
        notices.add("first")
        with notices.queued():
            thread = threading.Thread(target=notices, args=("node2: connection lost",))
            thread.start()
            assert select.select([notices.fd], [], [], 10)[0]
            thread.join()
            assert notices.take() == [Tell("first"), Tell("node2: connection lost", urgent=True)]
            notices("late\x1b[2J")
        assert not select.select([notices.fd], [], [], 0)[0]
    assert capsys.readouterr().err == "launch: before\nlaunch: late\\x1b[2J\n"
