"""What the launcher's machine prints, shown here."""

from __future__ import annotations

import os
import pty
import re
import sys

import pytest

from launcher.backends.batch_queue import run_shown

PRINTS = (
    r"printf '\033[31mred\033[0m\033]0;title\007 é\n\033[2J'; printf 'srun: own\nerr\033[2Jor\n' >&2; exit 3"
)


def run() -> int:
    """Run it."""
    return run_shown(["sh", "-c", PRINTS], re.compile(rb"^srun: own$"))


def test_a_terminal_gets_text_only(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
):
    """A file gets all bytes."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", 0) as seen, open(theirs, "w") as shown:
        assert run() == 3
        monkeypatch.setattr(sys, "stdout", shown)
        assert run() == 3
        assert os.read(seen.fileno(), 1000).decode() == "red é\r\n"
    out, err = capfdbinary.readouterr()
    assert out.decode() == "\x1b[31mred\x1b[0m\x1b]0;title\x07 é\n\x1b[2J"
    assert err == b"error\n" * 2
