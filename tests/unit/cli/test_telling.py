"""What is said before a job has a console, and of what ends it: hosts and tasks have written some of that."""

from __future__ import annotations

import pytest

from launcher.cli.main import print_error
from launcher.cli.telling import tell
from launcher.errors import HostsError, TransportError

NASTY = "a: \x1b]0;MINE\x07 \x9b31m\r\u202e"
SHOWN = r"a: \x1b]0;MINE\x07 \x9b31m\r\u202e"


def test_a_terminal_acts_on_nothing_that_is_told(capfd: pytest.CaptureFixture[str]):
    tell(f"{NASTY}x\nb: fine")
    assert capfd.readouterr().err == f"launch: {SHOWN}x\nlaunch: b: fine\n"


@pytest.mark.parametrize("error", [TransportError(f"{NASTY}x"), HostsError([f"{NASTY}x"])])
def test_nor_of_an_error(error: TransportError, capfd: pytest.CaptureFixture[str]):
    print_error(error)
    assert capfd.readouterr().err == f"launch: {SHOWN}x\n"
