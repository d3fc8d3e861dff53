"""What the user is told."""

from __future__ import annotations

import signal

import pytest

from launcher import text
from launcher.report import ExitStatus, Reason
from launcher.supervision import wording


def test_signal_names_are_those_of_this_system():
    ours = {number.value: number.name for number in signal.Signals if number.value <= 31}
    # The same number, another name of it: SIGABRT is SIGIOT, SIGIO is SIGPOLL.
    assert {number for number, name in text.SIGNALS.items() if ours.get(number, name) != name} <= {6, 29}
    assert text.signal_name(9) == "SIGKILL"
    assert text.signal_name(40) == "signal 40"


@pytest.mark.parametrize(
    ("status", "oom", "reason", "detail", "hint"),
    [
        (ExitStatus(code=7), "", Reason.EXIT, "exit code 7", ""),
        (ExitStatus(signal=9), "", Reason.SIGNAL, "killed by SIGKILL", "nobody here sent it"),
        (
            ExitStatus(signal=9),
            "oom_kill 1",
            Reason.OUT_OF_MEMORY,
            "killed by SIGKILL, out of memory (oom_kill 1)",
            "give it a machine with more memory",
        ),
        (ExitStatus(signal=11), "", Reason.SIGNAL, "killed by SIGSEGV", "it crashed in native code"),
        (ExitStatus(signal=40), "", Reason.SIGNAL, "killed by signal 40", ""),
        (ExitStatus(code=127), "", Reason.EXIT, "exit code 127", "126 and 127 are what a shell says"),
        (ExitStatus(code=137), "", Reason.EXIT, "exit code 137", "137 is what a shell says when its program"),
        (ExitStatus(code=255), "", Reason.EXIT, "exit code 255", ""),
        (ExitStatus(code=128), "", Reason.EXIT, "exit code 128", ""),
    ],
)
def test_ends(status: ExitStatus, oom: str, reason: Reason, detail: str, hint: str):
    assert wording.exit_reason(status, oom) is reason
    assert wording.exit_detail(status, oom) == detail
    found = wording.exit_hint(status, oom)
    assert found.startswith(hint) and bool(found) == bool(hint)


def test_every_exit_code_and_signal_has_words():
    for code in range(1, 256):
        assert wording.exit_detail(ExitStatus(code=code), "")
    for number in range(1, 65):
        assert wording.exit_detail(ExitStatus(signal=number), "")
        assert ExitStatus(signal=number).shell == 128 + number


@pytest.mark.parametrize(
    ("code", "reason"), [(127, Reason.NOT_FOUND), (126, Reason.NOT_RUNNABLE), (125, Reason.LAUNCHER)]
)
def test_start_reasons(code: int, reason: Reason):
    assert wording.start_reason(code) is reason


def test_small_words():
    assert [wording.tasks(1), wording.tasks(2), wording.tasks(1, many_only=True)] == [
        "1 task",
        "2 tasks",
        "task",
    ]
    assert wording.unkillable("w/0", (1, 2)) == "w/0: SIGKILL did not end pid 1, 2"


@pytest.mark.parametrize(
    ("value", "said", "shown"),
    [
        (25.0, "25s", "25s"),
        (7200.0, "2h", "2h"),
        (90.0, "90", "90 s"),
        (0.5, "", "0.5 s"),
        (1e6, "", "1000000 s"),
    ],
)
def test_a_limit_is_said_as_it_was_asked_for(value: float, said: str, shown: str):
    assert wording.limit(value, said) == shown
